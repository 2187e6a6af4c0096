# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the policy compiler needs to know of a host, looked at once for all slots."""

from __future__ import annotations

import dataclasses
import os
import stat
import typing as t

from ._declarations import Slot

ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
MOST_ENTRIES = 200_000


@dataclasses.dataclass(frozen=True)
class Account:
    """Numbers of a slot's account."""

    uid: int
    gid: int


UNKNOWN = Account(-1, -1)  # check mode predicts an account that is still to be made


@dataclasses.dataclass(frozen=True)
class Identity:
    """An executable as it was when it was approved: digest is a sha256, or `distribution` for one that apt keeps."""

    path: str
    digest: str
    stamp: str = ""


@dataclasses.dataclass(frozen=True)
class Provider:
    """A provider as it stands on this host."""

    name: str
    version: str
    profile_version: int
    command: tuple[str, ...]
    identities: tuple[Identity, ...]
    trees: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    passed: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of an operator's bind: where it really is, what it is, and what speaks against it."""

    path: str
    kind: t.Literal["missing", "directory", "file", "other"]
    real: str = ""
    writable_parent: str = ""
    socket: str = ""


@dataclasses.dataclass(frozen=True)
class Host:
    """The host.

    Its merged-/usr links (path, link or "" for a directory), which optional files are there, the binds' sources.
    """

    roots: tuple[tuple[str, str], ...]
    present: frozenset[str]
    resolver: str
    sources: t.Mapping[str, Source]


def survey(slots: t.Iterable[Slot], files: t.Iterable[str], root: str = "") -> Host:
    """Look at the host (below root, for tests): links of the merged /usr, which of files exist, every bind's source."""
    roots = tuple((path, _link(root + path)) for path in ROOTS if os.path.isdir(root + path))
    present = frozenset(path for path in files if os.path.exists(root + path))
    # what a slot may write it can fill with sockets of its own at any time, and with more than can be looked through
    wanted = {bind.source: bind.mode == "ro" for slot in slots for bind in slot.binds}
    sources = {path: look_at(path, inside=inside) for path, inside in wanted.items()}
    return Host(roots, present, describe_links(root + "/etc/resolv.conf"), sources)


def look_at(path: str, *, inside: bool = True) -> Source:
    """Return what there is to know about the source of a bind; inside looks for sockets below it."""
    try:
        found = os.lstat(path)
    except OSError:
        return Source(path, "missing")
    real = os.path.realpath(path)
    writable = next((parent for parent in _parents(path) if _others_write(os.lstat(parent))), "")
    if stat.S_ISDIR(found.st_mode):
        return Source(path, "directory", real, writable, _socket_below(path) if inside else "")
    return Source(path, "file" if stat.S_ISREG(found.st_mode) else "other", real, writable)


def describe_links(path: str) -> str:
    """Return path with the chain of links behind it, for messages."""
    chain = [path]
    while os.path.islink(chain[-1]) and len(chain) < 8:
        chain.append(os.path.normpath(os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))))
    return " -> ".join(chain)


def _link(path: str) -> str:
    return os.readlink(path) if os.path.islink(path) else ""


def _parents(path: str) -> t.Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _others_write(found: os.stat_result) -> bool:
    return found.st_uid != 0 or bool(found.st_mode & 0o022)


def _socket_below(directory: str) -> str:
    """Return the first socket in the tree (or why it cannot be told), "" if there is none."""
    seen = 0
    pending = [directory]
    while pending:
        current = pending.pop()
        try:
            entries = list(os.scandir(current))
        except OSError as error:
            return f"{current} ({error.strerror}, so nobody knows what)"
        for entry in entries:
            seen += 1
            if seen > MOST_ENTRIES:
                return f"{entry.path} (and more than {MOST_ENTRIES} entries, too many to look through)"
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISSOCK(mode):
                return entry.path
            if stat.S_ISDIR(mode):
                pending.append(entry.path)
    return ""
