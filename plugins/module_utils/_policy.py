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

SYSTEM_FILES = (
    ("/etc/alternatives", "commands that the distribution links through alternatives"),
    ("/etc/bash.bashrc", "the distribution's set-up of interactive shells"),
    ("/etc/ca-certificates", "certificate authorities, for TLS"),
    ("/etc/debian_version", "programs that ask for the distribution's version"),
    ("/etc/gai.conf", "order of addresses"),
    ("/etc/inputrc", "line editing"),
    ("/etc/ld.so.cache", "finding shared libraries"),
    ("/etc/ld.so.conf", "finding shared libraries"),
    ("/etc/ld.so.conf.d", "finding shared libraries"),
    ("/etc/localtime", "the host's time zone"),
    ("/etc/os-release", "programs that ask for the distribution"),
    ("/etc/profile", "the distribution's set-up of login shells"),
    ("/etc/profile.d", "the distribution's set-up of login shells"),
    ("/etc/protocols", "names of protocols"),
    ("/etc/services", "names of ports"),
    ("/etc/ssl/certs", "certificate authorities, for TLS"),
    ("/etc/ssl/openssl.cnf", "the distribution's TLS defaults"),
    ("/etc/terminfo", "terminals"),
    ("/etc/timezone", "the host's time zone"),
)
RESOLVER = ("/etc/resolv.conf", "looking up names")

FORBIDDEN = (
    "/boot",
    "/dev",
    "/etc/confined-slots",
    "/home",
    "/opt/confined-slots",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/tmp",
    "/var/lib/confined-slots",
    "/var/log/confined-slots",
    "/var/run",
    "/var/tmp",
)


@dataclasses.dataclass(frozen=True)
class Mount:
    """One line of the sandbox's mount table; without a reason it does not compile.

    kind: bind (source seen at target, mode ro or rw), workspace and run (the session's own, rw), data (content), tmpfs
    (size in bytes), symlink (source is its content), proc, dev, seal (remounted read-only once all stands).
    """

    kind: t.Literal["bind", "workspace", "run", "data", "tmpfs", "symlink", "proc", "dev", "seal"]
    target: str
    reason: str
    source: str = ""
    mode: str = ""
    size: int = 0
    content: str = ""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise Invalid(
                f"the {self.kind} at {self.target} has no reason; a line without one does not compile "
                "[say why the slot needs it]"
            )


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


def _system(slot: Slot, host: Host) -> t.Iterator[Mount]:
    yield Mount("bind", "/usr", "programs and libraries of the distribution", "/usr", "ro")
    for path, link in host.roots:
        if link:
            yield Mount("symlink", path, "where this host links it: part of /usr", link)
        else:
            yield Mount("bind", path, "programs and libraries of the distribution", path, "ro")
    files = SYSTEM_FILES if slot.network == "none" else (*SYSTEM_FILES, RESOLVER)
    for path, reason in files:
        if path in host.present:
            yield Mount("bind", path, reason, path, "ro")
        elif path == RESOLVER[0]:
            raise Invalid(
                f"slot '{slot.name}': network is {slot.network}, but {host.resolver} does not exist on this host "
                "[mend its resolver, or choose network: none]"
            )
    yield Mount("symlink", "/var/run", "programs that look there", "/run")
    yield Mount("proc", "/proc", "its own processes")
    yield Mount("dev", "/dev", "null, zero, random, its terminal")
    for path, reason in (
        ("/dev/shm", "shared memory of its own"),
        ("/tmp", "scratch of its own"),
        ("/var/tmp", "scratch of its own"),
    ):
        yield Mount("tmpfs", path, reason, mode="1777", size=size_in_bytes(slot.resources.tmp_size))


def _own(slot: Slot, account: Account, provider: Provider) -> t.Iterator[Mount]:
    name, home = _layout.account(slot.name), _layout.private_home(slot.name, slot.provider)
    people = (
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
        f"{name}:x:{account.uid}:{account.gid}::{home}:{SHELL}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    groups = f"root:x:0:\n{name}:x:{account.gid}:\nnogroup:x:65534:\n"
    hosts = f"127.0.0.1 localhost {slot.name}\n::1 localhost ip6-localhost ip6-loopback\n"
    names = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"
    yield Mount("data", "/etc/passwd", "the accounts it may know: root, itself, nobody", content=people)
    yield Mount("data", "/etc/group", "the groups it may know", content=groups)
    yield Mount("data", "/etc/hosts", "its own name and localhost", content=hosts)
    yield Mount(
        "data", "/etc/nsswitch.conf", "accounts from files, never from the host's directory service", content=names
    )
    for path, reason in provider.trees:
        yield Mount("bind", path, reason, path, "ro")
    yield Mount("bind", home, "its private HOME: settings, login and transcripts of its CLI", home, "rw")
    yield Mount(
        "workspace",
        f"{_layout.state(slot.name)}/workspaces/*",
        "the workspace chosen for the session, no other",
        mode="rw",
    )
    run = f"{_layout.RUN}/{slot.name}/*"
    size = size_in_bytes(slot.resources.tmp_size)
    yield Mount("run", run, "the session's own run directory, in memory of its own: /run is the host's", size=size)


def _extra(slot: Slot, host: Host) -> t.Iterator[Mount]:
    for index, bind in enumerate(slot.binds):
        where = f"slot '{slot.name}': binds[{index}].source"
        source = host.sources[bind.source]
        _check_source(source, where)
        if bind.mode == "rw" and source.kind != "directory":
            raise Invalid(
                f"{where} is the file {bind.source}, writable; a file that is bound cannot be replaced by rename "
                "[bind its directory]"
            )
        yield Mount("bind", bind.target, bind.reason, bind.source, bind.mode)


def _seals() -> t.Iterator[Mount]:
    yield Mount("seal", "/dev", "nothing can be added to it")
    yield Mount("seal", "/", "nothing can be added to the empty root")


def _check_source(source: Source, where: str) -> None:
    path = source.path
    if source.kind == "missing":
        raise Invalid(f"{where} is {path}, which does not exist on this host [create it, or take the bind away]")
    if source.real != path:
        raise Invalid(f"{where} is {path}, which goes through a link [write {source.real}]")
    for forbidden in FORBIDDEN:
        if path == forbidden or path.startswith(forbidden + "/") or forbidden.startswith(path.rstrip("/") + "/"):
            raise Invalid(
                f"{where} is {path}; nothing at, in or around {forbidden} can be bound [copy what is needed elsewhere]"
            )
    if source.kind == "other":
        raise Invalid(f"{where} is {path}, a socket, device or pipe; only files and directories can be bound")
    if source.socket:
        raise Invalid(
            f"{where} is {path}, in which {source.socket} is a socket; "
            "even a read-only bind lets the session connect to it [bind a narrower directory]"
        )
    if source.writable_parent:
        raise Invalid(
            f"{where} is {path}; {source.writable_parent} can be written by others than root, "
            "who could put a link in its place [chown it to root and chmod go-w]"
        )


def _check_targets(slot: str, mounts: tuple[Mount, ...]) -> None:
    """Refuse a mount point that hides another, or that stands below a path the slot can write (CVE-2026-87766)."""
    targets: list[tuple[str, Mount]] = []
    for mount in mounts:
        if mount.kind == "seal":
            continue
        target = mount.target.removesuffix("*").rstrip("/") + "/"
        for other, first in targets:
            if target == other:
                raise Invalid(
                    f"slot '{slot}': two mounts at {mount.target}: '{first.reason}' and '{mount.reason}' "
                    "[take one away]"
                )
            upper, lower = (first, mount) if target.startswith(other) else (mount, first)
            if not (target.startswith(other) or other.startswith(target)):
                continue
            if (upper.kind, lower.kind) != ("dev", "tmpfs"):
                raise Invalid(
                    f"slot '{slot}': the mount at {lower.target} lies below the one at {upper.target} "
                    "[choose a target of its own]"
                )
        targets.append((target, mount))


def _record(mount: Mount) -> Record:
    if mount.kind == "bind":
        return ("bind", mount.mode, mount.source, mount.target)
    if mount.kind == "data":
        return ("data", mount.content, mount.target)
    if mount.kind == "tmpfs":
        return ("tmpfs", mount.mode, str(mount.size), mount.target)
    if mount.kind == "symlink":
        return ("symlink", mount.source, mount.target)
    if mount.kind == "workspace":
        return ("bind-workspace",)
    if mount.kind == "run":
        return ("run", str(mount.size))
    return (mount.kind, mount.target)
