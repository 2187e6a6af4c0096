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

from . import _apparmor_profiles, _compatibility, _layout, _strict
from ._capabilities import Capability, chosen, merge, refuse_variables
from ._declarations import Invalid, Slot
from ._host import UNKNOWN_DIGEST, Account, Host, Provider
from ._manifest import sha256
from ._mounts import Mount, as_record, check_targets
from ._narrowing import narrowed
from ._plan import Record, dump

PASSED = ("TERM", "COLORTERM")
PATH = "/usr/local/bin:/usr/bin:/bin"

FLAGS = (
    ("--unshare-user", "a user namespace of its own, in which it holds no capability"),
    ("--unshare-pid", "sees and signals its own processes only"),
    ("--unshare-ipc", "no shared memory or queues of others"),
    ("--unshare-uts", "a host name of its own"),
    ("--unshare-cgroup", "no view of the host's control groups"),
)
NO_NESTING = ("--disable-userns", "no further user namespace: nothing inside gains capabilities over new mounts")
OWN_NETWORK = ("--unshare-net", "network is private: a way to the internet, none to this host's loopback and sockets")
NO_NETWORK = ("--unshare-net", "network is none: no route, no host loopback, no abstract sockets")


@dataclasses.dataclass(frozen=True)
class Policy:
    """What one slot (or one workspace of it) may see and use: immutable, fingerprinted.

    approved is the fingerprint that an approval must name, that of the slot's own policy; "" where none is needed.
    walls are records of what this host's kernel can do beside it; they grant nothing, so no fingerprint has them.
    """

    slot: Slot
    account: Account
    provider: Provider
    capabilities: tuple[Capability, ...]
    flags: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]
    environment: tuple[tuple[str, str], ...]
    passed: tuple[str, ...]
    workspace: str = ""
    approved: str = ""
    walls: tuple[Record, ...] = ()

    def as_dict(self) -> dict[str, t.Any]:
        """Return the policy as people and slotctl read it: no secret, no stamp of a file."""
        slot, login = self.slot, self.provider.profile.login_expiry
        return {
            "slot": slot.name,
            "enabled": slot.enabled,
            "mode": slot.mode,
            **({"note": _compatibility.NOTE} if slot.mode == "compatibility" else {}),
            "account": {"name": _layout.account(slot.name), "uid": self.account.uid, "gid": self.account.gid},
            "provider": {
                "name": self.provider.name,
                "version": self.provider.version,
                "profile_version": self.provider.profile.profile_version,
                "certification": self.provider.profile.certification.status,
                "command": list(self.provider.command),
                "identity": [{"path": each.path, "digest": each.digest} for each in self.provider.identities],
                **{key: list(words) for key, words in self._command_lines().items() if words},
                **({"login_expiry": dataclasses.asdict(login)} if login else {}),
            },
            "capabilities": [{"key": each.key, "words": each.words, "why": each.why} for each in self.capabilities],
            "network": slot.network,
            "forwards": list(slot.forwards),
            **({"nested_sandbox": True} if slot.nested_sandbox else {}),
            **({"docker": True} if slot.docker else {}),
            "workspaces": {name: _layout.workspace(slot.name, name) for name in slot.workspaces},
            "restrictions": {name: dataclasses.asdict(rule) for name, rule in sorted(slot.restrictions.items())},
            "isolation": [{"flag": flag, "reason": reason} for flag, reason in self.flags],
            "mounts": [
                {key: item for key, item in dataclasses.asdict(mount).items() if item and key != "stamp"}
                for mount in self.mounts
            ],
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
            *(("own", mount.source) for mount in self.mounts if mount.kind == "bind" and _is_own(slot, mount.source)),
            *(("workspace", name, _layout.workspace(slot.name, name)) for name in self._unrestricted()),
            *(("command", word) for word in self.provider.command),
            *(("identity", each.path, each.digest, each.stamp) for each in self.provider.identities),
            *self.walls,
            *(("flag", flag) for flag, _unused in self.flags),
            *([("network", "private")] if slot.network == "private" else []),
            *(("forward", str(port)) for port in slot.forwards),
            ("hostname", slot.name),
            *(as_record(mount) for mount in self.mounts),
            *(("set", name, text) for name, text in self.environment),
            *(("pass", name) for name in self.passed),
        ]
        if slot.credential:
            by = {known.name: known.variable or "" for known in self.provider.profile.credentials}
            records.append(("credential", slot.credential.name, by.get(slot.credential.name, "")))
        if self.approved:
            records.append(("approved", self.approved))
        records.append(("policy", self.as_text()))
        return dump(records)

    def _unrestricted(self) -> tuple[str, ...]:
        """Return the workspaces of this plan; those that are narrower have their own."""
        if self.workspace:
            return (self.workspace,)
        return tuple(name for name in self.slot.workspaces if name not in self.slot.restrictions)

    def _command_lines(self) -> dict[str, tuple[str, ...]]:
        profile = self.provider.profile
        return {
            "headless": profile.headless,
            "resume": profile.resume,
            "resume_headless": profile.resume_headless,
            "login": profile.login,
            "transcript": (profile.transcript,) if profile.transcript else (),
            "renames": profile.renames,
        }

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


def compile_all(
    slot: Slot, account: Account, provider: Provider, host: Host, site: t.Mapping[str, Capability]
) -> list[Policy]:
    """Return the policy of a slot, then one for each workspace that is narrower; Invalid names what cannot be."""
    own = merge(site, provider.profile)
    if slot.capabilities is None:
        slot = dataclasses.replace(slot, capabilities=tuple(each.key for each in provider.profile.capabilities))
    base = compile_policy(slot, account, provider, host, own)
    needed = base.fingerprint() if slot.mode == "verified" else ""
    policies = [dataclasses.replace(base, approved=needed)]
    for workspace in slot.restrictions:
        narrow = compile_policy(narrowed(slot, workspace), account, provider, host, own)
        policies.append(dataclasses.replace(narrow, workspace=workspace, approved=needed))
    return policies


def compile_policy(
    slot: Slot, account: Account, provider: Provider, host: Host, known: t.Mapping[str, Capability]
) -> Policy:
    """Return the effective policy of a slot on this host, which has a mode by now; Invalid names what cannot be."""
    profile, where = provider.profile, f"slot '{slot.name}'"
    granted = chosen(slot.capabilities or (), known, where)
    _check_profile(slot, provider, granted)
    if slot.mode == "compatibility":
        mounts = tuple(_compatibility.mounts(slot, provider, host, granted))
        home = _layout.account_home(slot.name)
    else:
        if slot.masks:
            why = f"{slot.mode} mode shows nothing that is not listed"
            raise Invalid(f"{where}: masks are for compatibility mode; {why} [take them away]")
        mounts = tuple(_strict.mounts(slot, account, provider, host, granted))
        home = _layout.private_home(slot.name, slot.provider)
    check_targets(slot.name, mounts)
    variables = {name: value for capability in granted for name, value in capability.variables}
    refuse_variables(variables, profile.denied, where)
    account_name = _layout.account(slot.name)
    environment = {
        "CONFINED_SLOT": slot.name,
        **({"DOCKER_HOST": f"unix://{_layout.docker_socket(slot.name)}"} if slot.docker else {}),
        "HOME": home,
        "LANG": "C.UTF-8",
        "LOGNAME": account_name,
        "PATH": ":".join((*provider.path, PATH)),
        "SHELL": _strict.SHELL,
        "TMPDIR": "/tmp",
        "USER": account_name,
        **{name: value.replace("{home}", home) for name, value in profile.environment},
        **variables,
    }
    nesting = () if slot.nested_sandbox else (NO_NESTING,)
    flags = (*FLAGS, *nesting, *{"none": (NO_NETWORK,), "private": (OWN_NETWORK,)}.get(slot.network, ()))
    set_ = tuple(sorted(environment.items()))
    passed = (*PASSED, *profile.passed)
    return Policy(slot, account, provider, granted, flags, mounts, set_, passed, walls=tuple(_walls(slot, host)))


def _walls(slot: Slot, host: Host) -> t.Iterator[Record]:
    """Yield what the kernel of this host holds the slot's sessions by, beside its namespaces."""
    if host.confined:
        yield ("label", _apparmor_profiles.LAUNCHER)
        if slot.nested_sandbox:
            yield ("onexec", _apparmor_profiles.NESTING_BWRAP)
    if host.scope:
        yield ("landlock", host.scope)


def _check_profile(slot: Slot, provider: Provider, granted: t.Sequence[Capability]) -> None:
    profile, where = provider.profile, f"slot '{slot.name}'"
    if slot.profile_version not in (None, profile.profile_version):
        raise Invalid(
            f"{where}: profile_version is {slot.profile_version}, but the profile of {profile.name} has version"
            f" {profile.profile_version} [read that profile, then declare its version]"
        )
    if slot.credential and profile.credentials:
        names = [known.name for known in profile.credentials]
        if slot.credential.name not in names:
            raise Invalid(
                f"{where}: credential.name is {slot.credential.name}, which {profile.name} does not read; it can be"
                f" {', '.join(names)} [name one of these]"
            )
    given = {slot.credential.name} if slot.credential else set()
    given |= {name for name, _unused in profile.environment}
    given |= {name for capability in granted for name, _unused in capability.variables}
    both = sorted(given.intersection(profile.conflicts))
    if len(both) > 1:
        raise Invalid(f"{where}: {' and '.join(both)} are both set, of which {profile.name} takes one [leave one out]")
    if slot.credential and slot.credential.name in profile.denied:
        raise Invalid(f"{where}: credential.name is {slot.credential.name}, which its profile denies [take it away]")
    if slot.mode != "verified":
        return
    certified = profile.certification
    if certified.status not in ("certified", "builtin"):
        raise Invalid(
            f"{where}: mode is verified, but the profile of {profile.name} is {certified.status}, not certified"
            " [choose isolated, or a provider that is]"
        )
    if certified.cli_version not in (None, provider.version):
        raise Invalid(
            f"{where}: mode is verified, but {profile.name} {certified.cli_version} was certified, and"
            f" {provider.version} is installed [pin {certified.cli_version}, certify the other with make certify,"
            " or choose isolated]"
        )
    digests = {identity.digest for identity in provider.identities}
    if certified.sha256 and not digests.intersection((certified.sha256, UNKNOWN_DIGEST)):
        raise Invalid(
            f"{where}: mode is verified, but the bytes of {profile.name} {provider.version} are not those that were"
            " certified, or were certified on another machine [install it from where the profile says, or choose"
            " isolated]"
        )
    keys = {capability.key for capability in granted}
    for capability in profile.capabilities:
        if capability.required and capability.key not in keys:
            raise Invalid(
                f"{where}: capability-missing: {profile.name} cannot run without {capability.key}, '{capability.words}'"
                " [add it to the slot's capabilities]"
            )
    allowed = {name for capability in granted for name in capability.credentials}
    if slot.credential and profile.credentials and slot.credential.name not in allowed:
        raise Invalid(
            f"{where}: capability-missing: none of its capabilities has the credential {slot.credential.name}"
            " [add one that has, or leave the credential out]"
        )


def _is_own(slot: Slot, source: str) -> bool:
    """Return whether a bind's source is a directory that must be the slot's own."""
    return source.startswith(f"{_layout.state(slot.name)}/") or source == _layout.docker_socket_directory(slot.name)
