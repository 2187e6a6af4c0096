# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what is declared and what the host looks like to a slot's effective policy and its launch plan.

Pure: `_host.survey` looks at the host, `compile_policy` decides, the module writes. Nothing is left to decide at
launch.
"""

from __future__ import annotations

import dataclasses
import json
import typing as t

from . import _layout
from ._declarations import Invalid, Slot, size_in_bytes
from ._host import Account, Host, Provider, Source
from ._manifest import sha256
from ._plan import Record, dump

PASSED = ("TERM", "COLORTERM")
SHELL = "/bin/bash"
PATH = "/usr/local/bin:/usr/bin:/bin"

FLAGS = (
    ("--unshare-user", "a user namespace of its own, in which it holds no capability"),
    ("--disable-userns", "no further user namespace: nothing inside gains capabilities over new mounts"),
    ("--unshare-pid", "sees and signals its own processes only"),
    ("--unshare-ipc", "no shared memory or queues of others"),
    ("--unshare-uts", "a host name of its own"),
    ("--unshare-cgroup", "no view of the host's control groups"),
)
NO_NETWORK = ("--unshare-net", "network is none: no route, no host loopback, no abstract sockets")

@dataclasses.dataclass(frozen=True)
class Policy:
    """What one slot may see and use: immutable, fingerprinted."""

    slot: Slot
    account: Account
    provider: Provider
    flags: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    environment: tuple[tuple[str, str], ...]
    passed: tuple[str, ...]

    def as_dict(self) -> dict[str, t.Any]:
        """Return the policy as people and slotctl read it: no secret, no stamp of a file."""
        slot = self.slot
        return {
            "slot": slot.name,
            "enabled": slot.enabled,
            "mode": slot.mode,
            "account": {"name": _layout.account(slot.name), "uid": self.account.uid, "gid": self.account.gid},
            "provider": {
                "name": self.provider.name,
                "version": self.provider.version,
                "profile_version": self.provider.profile_version,
                "command": list(self.provider.command),
                "identity": [{"path": each.path, "digest": each.digest} for each in self.provider.identities],
            },
            "network": slot.network,
            "workspaces": {name: _layout.workspace(slot.name, name) for name in slot.workspaces},
            "isolation": [{"flag": flag, "reason": reason} for flag, reason in self.flags],
            "mounts": [{key: item for key, item in dataclasses.asdict(mount).items() if item} for mount in self.mounts],
            "environment": {
                "set": dict(self.environment),
                "pass": list(self.passed),
                "credential": slot.credential.name if slot.credential else None,
            },
            "resources": dataclasses.asdict(slot.resources),
        }

    def fingerprint(self) -> str:
        """Return what changes whenever anything the session may see or use does."""
        return "sha256:" + sha256(json.dumps(self.as_dict(), sort_keys=True).encode())

    def as_text(self) -> str:
        """Return policy.json: the policy with its fingerprint."""
        return json.dumps({**self.as_dict(), "fingerprint": self.fingerprint()}, indent=2, ensure_ascii=True) + "\n"

    def plan(self) -> bytes:
        """Return the launch plan: all that the launcher needs of the policy, and the policy itself for slotctl."""
        slot = self.slot
        records: list[Record] = [
            ("slot", slot.name),
            ("enabled", "yes" if slot.enabled else "no"),
            ("fingerprint", self.fingerprint()),
            ("ids", str(self.account.uid), str(self.account.gid)),
            ("home", _layout.private_home(slot.name, slot.provider)),
            *(("workspace", name, _layout.workspace(slot.name, name)) for name in slot.workspaces),
            *(("command", word) for word in self.provider.command),
            *(("identity", each.path, each.digest, each.stamp) for each in self.provider.identities),
            *(("flag", flag) for flag, _unused in self.flags),
            ("hostname", slot.name),
            *(_record(mount) for mount in self.mounts),
            *(("set", name, text) for name, text in self.environment),
            *(("pass", name) for name in self.passed),
        ]
        if slot.credential:
            records.append(("credential", slot.credential.name))
        records.append(("policy", self.as_text()))
        return dump(records)

    def slice_text(self) -> str:
        """Return the unit file of the slot's slice, in which its limits are in force."""
        resources = self.slot.resources
        limits = {"MemoryMax": resources.memory_max, "CPUQuota": resources.cpu_quota, "TasksMax": resources.tasks_max}
        lines = [f"{name}={limit}" for name, limit in limits.items() if limit is not None]
        return "\n".join(
            [
                "# Made by confined.slots",
                "[Unit]",
                f"Description=All processes of slot {self.slot.name}",
                "",
                "[Slice]",
                *lines,
                "",
            ]
        )


def compile_policy(slot: Slot, account: Account, provider: Provider, host: Host) -> Policy:
    """Return the effective policy of a slot on this host; Invalid names what cannot be."""
    mounts = (*_system(slot, host), *_own(slot, account, provider), *_extra(slot, host), *_seals())
    _check_targets(slot.name, mounts)
    home = _layout.private_home(slot.name, slot.provider)
    account_name = _layout.account(slot.name)
    environment = {
        "CONFINED_SLOT": slot.name,
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": account_name,
        "PATH": ":".join((*provider.path, PATH)),
        "SHELL": SHELL,
        "TMPDIR": "/tmp",
        "USER": account_name,
        **{name: value.replace("{home}", home) for name, value in provider.environment},
    }
    flags = FLAGS if slot.network == "host" else (*FLAGS, NO_NETWORK)
    return Policy(
        slot, account, provider, flags, mounts, tuple(sorted(environment.items())), (*PASSED, *provider.passed)
    )


