# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session of compatibility mode sees: the host, read-only, without the places known to hold secrets.

Best effort by nature: what is not listed here is seen. Masks inside the slot's own home are held in place as mount
points, and the launcher looks whether each is still the inode that was compiled; yet the slot owns what is around them.
"""

from __future__ import annotations

import typing as t

from . import _layout, _strict
from ._capabilities import Capability
from ._declarations import Invalid, Slot
from ._host import Host, Provider
from ._mounts import Mount

NOTE = "best effort: what is not masked is seen"
ROOT = "the host's files, read-only"

MASKED = (
    ("/boot", "kernels and boot secrets"),
    ("/etc/confined-slots", "policies, approvals and credentials"),
    ("/etc/docker", "keys of the Docker daemon"),
    ("/etc/ssl/private", "private keys"),
    ("/etc/wireguard", "private keys"),
    ("/home", "homes of people"),
    ("/media", "removable disks"),
    ("/mnt", "mounted disks"),
    ("/opt/confined-slots/releases", "launcher and releases"),
    ("/root", "home of root"),
    ("/run", "sockets: Docker, D-Bus, systemd, tmux"),
    ("/var/backups", "copies of system files"),
    ("/var/lib/confined-slots", "slots"),
    ("/var/lib/containerd", "containers"),
    ("/var/lib/docker", "containers"),
    ("/var/lib/private", "state of services"),
    ("/var/lib/systemd", "state of services"),
    ("/var/log", "logs"),
    ("/var/mail", "mail"),
    ("/var/spool", "mail and jobs"),
)
# Below the HOME of the slot's account: what programs keep secrets in.
MASKED_AT_HOME = (
    *(".aws", ".azure", ".config/gcloud", ".config/gh", ".docker", ".git-credentials", ".gnupg", ".kube", ".netrc"),
    *(".password-store", ".pypirc", ".ssh", ".vault-token"),
)


def mounts(slot: Slot, provider: Provider, host: Host, granted: t.Sequence[Capability]) -> t.Iterator[Mount]:
    """Yield the mounts of compatibility mode, in the order in which they are made."""
    yield Mount("bind", "/", ROOT, "/", "ro")
    masks = [*_of_host(slot, host)]
    yield from masks
    yield from _strict.devices(slot)
    yield from _resolver(slot, host, masks)
    home = _layout.account_home(slot.name)
    yield Mount("bind", home, "the home of its account: settings, login and transcripts of its CLI", home, "rw")
    for held in host.held.get(slot.name, ()):
        if held.masked:
            kind = "directory" if held.directory else "file"
            yield Mount("mask", held.path, "programs keep secrets there", content=kind, stamp=held.inode)
        else:
            yield Mount("hold", held.path, "what is masked below it stays below it", stamp=held.inode)
    yield from _strict.session(slot)
    for mount in _strict.extra(slot, host, granted):
        if mount.target != mount.source:
            raise Invalid(
                f"slot '{slot.name}': the bind of {mount.source} has the target {mount.target}; in compatibility mode"
                " the host's files stay where they are [leave target out]"
            )
        yield mount
    yield Mount("seal", "/dev", "nothing can be added to it")
    for mask in masks:
        if mask.content == "directory":
            yield Mount("seal", mask.target, "nothing can be added to what is masked")


def candidates(slots: t.Iterable[Slot]) -> list[str]:
    """Return every path of the host whose mask has to be considered."""
    return sorted({path for path, _unused in MASKED} | {path for slot in slots for path in slot.masks})


def _of_host(slot: Slot, host: Host) -> t.Iterator[Mount]:
    reasons = {**dict.fromkeys(host.homes, "home of another account"), **dict(MASKED)}
    reasons |= dict.fromkeys(slot.masks, "declared for the slot")
    for index, path in enumerate(slot.masks):
        source, where = host.masks[path], f"slot '{slot.name}': masks[{index}] is {path}"
        if source.kind == "missing" or source.real != path:
            raise Invalid(f"{where}, which does not exist on this host, or goes through a link [write where it is]")
        if f"{path}/".startswith((f"{_layout.state(slot.name)}/", f"{_layout.RUN}/{slot.name}/")):
            raise Invalid(f"{where}; that is the slot's own, which its sessions are given [take it out of masks]")
        if source.writable_parent:
            raise Invalid(f"{where}; {source.writable_parent} can be written by others, who could rename it [chown it]")
    hidden: list[str] = []
    for path in sorted(reasons):
        source = host.masks[path]
        if source.real == path and not any(path.startswith(f"{other}/") for other in hidden):
            hidden.append(path)
            yield Mount("mask", path, reasons[path], content="directory" if source.kind == "directory" else "file")


def _resolver(slot: Slot, host: Host, masks: t.Iterable[Mount]) -> t.Iterator[Mount]:
    path, reason = _strict.RESOLVER
    real = host.resolver.rpartition(" -> ")[2]
    if slot.network == "private":
        yield Mount("data", real, reason, content=_strict.PRIVATE_RESOLVER)
    elif slot.network == "host":
        if path not in host.present:
            raise _strict.resolver_missing(slot, host)
        if any(real.startswith(f"{mask.target}/") for mask in masks):
            yield Mount("bind", real, reason, real, "ro")
