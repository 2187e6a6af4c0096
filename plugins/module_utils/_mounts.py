# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of a sandbox's mount table: what one says, and which cannot stand together."""

from __future__ import annotations

import dataclasses
import typing as t

from ._declarations import Invalid
from ._host import Source
from ._plan import Record

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
# Made in the sandbox itself a moment before: nobody has written there yet, so what stands below cannot be a trap.
FRESH = ("home", "mask")


@dataclasses.dataclass(frozen=True)
class Mount:
    """One line of the sandbox's mount table; without a reason it does not compile.

    kind: bind (source seen at target, mode ro or rw), workspace (the session's own, mode ro or rw), run (the session's
    own, of size bytes), data (content), tmpfs and home (of size bytes), symlink (source is its content), proc, dev,
    mask (nothing is seen there, content is "directory" or "file"), hold (kept in its place: a mount point cannot be
    renamed), seal (remounted read-only once all stands). stamp: which inode a hold or a mask of a slot's own must be.
    """

    kind: t.Literal[
        "bind", "workspace", "run", "data", "tmpfs", "home", "symlink", "proc", "dev", "mask", "hold", "seal"
    ]
    target: str
    reason: str
    source: str = ""
    mode: str = ""
    size: int = 0
    content: str = ""
    stamp: str = ""

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise Invalid(
                f"the {self.kind} at {self.target} has no reason; a line without one does not compile "
                "[say why the slot needs it]"
            )


def check_source(source: Source, where: str) -> None:
    """Refuse the source of a bind that would open the host; Invalid says why and what to do."""
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


def check_targets(slot: str, mounts: tuple[Mount, ...]) -> None:
    """Refuse a mount point that hides another, or that stands below a path the slot can write (CVE-2026-87766)."""
    targets: list[tuple[str, Mount]] = []
    for mount in mounts:
        # what a slot may write and that is held or masked the launcher looks at once more
        if mount.kind in ("seal", "hold") or mount.stamp:
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
            of_host = upper is mounts[0] and upper.target == "/"
            if upper.kind not in FRESH and (upper.kind, lower.kind) != ("dev", "tmpfs") and not of_host:
                raise Invalid(
                    f"slot '{slot}': the mount at {lower.target} lies below the one at {upper.target} "
                    "[choose a target of its own]"
                )
        targets.append((target, mount))


def as_record(mount: Mount) -> Record:
    """Return the record of the launch plan that makes the mount."""
    if mount.kind == "bind":
        return ("bind", mount.mode, mount.source, mount.target)
    if mount.kind == "data":
        return ("data", mount.content, mount.target)
    if mount.kind == "tmpfs":
        return ("tmpfs", mount.mode, str(mount.size), mount.target)
    if mount.kind == "symlink":
        return ("symlink", mount.source, mount.target)
    if mount.kind == "home":
        return ("tmpfs", "0700", str(mount.size), mount.target)
    if mount.kind == "mask":
        return ("mask", mount.content, mount.stamp, mount.target)
    if mount.kind == "hold":
        return ("hold", mount.stamp, mount.target)
    if mount.kind == "workspace":
        return ("bind-workspace", mount.mode)
    if mount.kind == "run":
        return ("run", str(mount.size))
    return (mount.kind, mount.target)
