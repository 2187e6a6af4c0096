# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the policy compiler needs to know of a host, looked at once for all slots."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import pwd
import stat
import time
import typing as t

from . import _apparmor, _apparmor_profiles, _layout
from ._declarations import ExtraBind, Slot
from ._landlock import ABSTRACT_SOCKETS_AND_SIGNALS, SCOPE_ABI

if t.TYPE_CHECKING:
    from ._profiles import Profile

ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
MOST_ENTRIES = 200_000


@dataclasses.dataclass(frozen=True)
class Account:
    """Numbers of a slot's account."""

    uid: int
    gid: int


# What check mode predicts of an account, and of a provider, that are still to be made.
UNKNOWN = Account(-1, -1)
UNKNOWN_DIGEST = "unknown"


@dataclasses.dataclass(frozen=True)
class Identity:
    """An executable as it was when it was approved: digest is a sha256, or `distribution` for one that apt keeps."""

    path: str
    digest: str
    stamp: str = ""


@dataclasses.dataclass(frozen=True)
class Provider:
    """A provider as it stands on this host: its profile, and where its programs are."""

    profile: Profile
    version: str
    command: tuple[str, ...]
    identities: tuple[Identity, ...]
    trees: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the profile's name."""
        return self.profile.name


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of an operator's bind: where it really is, what it is, and what speaks against it."""

    path: str
    kind: t.Literal["missing", "directory", "file", "other"]
    real: str = ""
    writable_parent: str = ""
    socket: str = ""


@dataclasses.dataclass
class Budget:
    """What may still be looked at by all who share it: so many entries, until a time of time.monotonic()."""

    entries: int
    until: float = math.inf
    spent: bool = False

    def take(self) -> bool:
        """Return whether one entry more may be looked at; once it may not, none may."""
        self.entries -= 1
        self.spent = self.spent or self.entries < 0 or time.monotonic() > self.until
        return not self.spent


@dataclasses.dataclass(frozen=True)
class Held:
    """Something in a slot's own home that is masked, or that leads to it; inode is `device:inode`."""

    path: str
    inode: str
    directory: bool
    masked: bool


@dataclasses.dataclass(frozen=True)
class Host:
    """The host.

    Its merged-/usr links (path, link or "" for a directory), which optional files are there, the binds' sources; for
    compatibility mode what may be masked, homes of accounts that log in, and by slot what is held in its own home.
    confined: the launcher's AppArmor profile is loaded. scope: what Landlock can hold sessions in, "" for nothing.
    """

    roots: tuple[tuple[str, str], ...]
    present: frozenset[str]
    resolver: str
    sources: t.Mapping[str, Source]
    masks: t.Mapping[str, Source] = dataclasses.field(default_factory=dict)
    homes: tuple[str, ...] = ()
    held: t.Mapping[str, tuple[Held, ...]] = dataclasses.field(default_factory=dict)
    confined: bool = False
    scope: str = ""


def survey(
    slots: t.Iterable[Slot],
    files: t.Iterable[str],
    root: str = "",
    *,
    binds: t.Iterable[ExtraBind] = (),
    masks: t.Iterable[str] = (),
    at_home: t.Iterable[str] = (),
) -> Host:
    """Look at the host (below root, for tests): links of the merged /usr, which of files exist, every bind's source.

    binds are those of capabilities; masks and at_home are what compatibility mode may have to hide.
    """
    slots = list(slots)
    roots = tuple((path, _link(root + path)) for path in ROOTS if os.path.isdir(root + path))
    present = frozenset(path for path in files if os.path.exists(root + path))
    # what a slot may write it can fill with sockets of its own at any time, and with more than can be looked through
    wanted = {bind.source: bind.mode == "ro" for bind in (*binds, *(bind for slot in slots for bind in slot.binds))}
    sources = {path: look_at(path, inside=inside) for path, inside in wanted.items()}
    homes = {_layout.account_home(slot.name): slot.name for slot in slots if slot.mode == "compatibility"}
    others = tuple(sorted(set(_homes()))) if homes else ()
    hidden = (*masks, *others) if homes else ()
    return Host(
        roots,
        present,
        describe_links(root + "/etc/resolv.conf"),
        sources,
        {path: look_at(path, inside=False) for path in hidden},
        others,
        {name: tuple(held(home, at_home)) for home, name in homes.items()},
        _apparmor.is_loaded(_apparmor_profiles.LAUNCHER, root + _apparmor.LOADED),
        ABSTRACT_SOCKETS_AND_SIGNALS if landlock_abi() >= SCOPE_ABI else "",
    )


def landlock_abi() -> int:
    """Return the version of Landlock that this kernel has in force, 0 for none."""
    ask_version = ctypes.c_uint32(1)
    return max(0, int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ask_version)))


def look_at(path: str, *, inside: bool = True) -> Source:
    """Return what there is to know about the source of a bind; inside looks for sockets below it."""
    try:
        found = os.lstat(path)
    except OSError:
        return Source(path, "missing")
    return described(path, os.path.realpath(path), found, Budget(MOST_ENTRIES) if inside else None)


def described(path: str, real: str, found: os.stat_result, budget: Budget | None) -> Source:
    """Return what there is to know about a path that was found; with a budget, sockets below it are looked for."""
    kind = kind_of(found)
    writable = next((parent for parent in _parents(path) if _others_write(os.lstat(parent))), "")
    below = _socket_below(path, budget) if kind == "directory" and budget is not None else ""
    return Source(path, kind, real, writable, below)


def kind_of(found: os.stat_result) -> t.Literal["directory", "file", "other"]:
    """Return the kind of what stat(2) has found."""
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    return "file" if stat.S_ISREG(found.st_mode) else "other"


def held(home: str, masked: t.Iterable[str]) -> t.Iterator[Held]:
    """Yield what is there of the masked paths below a slot's home, after the directories that lead to it.

    The slot may have anything there: nothing is followed, and what is no plain directory or file is left alone.
    """
    seen: set[str] = set()
    for below in sorted(masked):
        path = home
        *way, last = below.split("/")
        for name in (*way, last):
            path = f"{path}/{name}"
            try:
                found = os.lstat(path)
            except OSError:
                break
            if not stat.S_ISDIR(found.st_mode) and not (name == last and stat.S_ISREG(found.st_mode)):
                break
            if path not in seen:
                seen.add(path)
                inode = f"{found.st_dev}:{found.st_ino}"
                yield Held(path, inode, stat.S_ISDIR(found.st_mode), masked=path == f"{home}/{below}")


def describe_links(path: str) -> str:
    """Return path with the chain of links behind it, for messages."""
    chain = [path]
    while os.path.islink(chain[-1]) and len(chain) < 8:
        chain.append(os.path.normpath(os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))))
    return " -> ".join(chain)


def _homes() -> t.Iterator[str]:
    """Yield the homes of accounts that can log in and are neither root's nor a slot's."""
    for entry in pwd.getpwall():
        logs_in = entry.pw_shell and not entry.pw_shell.endswith(("/nologin", "/false", "/sync"))
        if logs_in and entry.pw_uid != 0 and not entry.pw_dir.startswith(f"{_layout.SLOTS}/"):
            home = os.path.normpath(entry.pw_dir)
            if home not in ("/", "/bin", "/dev", "/usr", "/var", "/etc"):
                yield home


def _link(path: str) -> str:
    return os.readlink(path) if os.path.islink(path) else ""


def _parents(path: str) -> t.Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _others_write(found: os.stat_result) -> bool:
    return found.st_uid != 0 or bool(found.st_mode & 0o022)


def _socket_below(directory: str, budget: Budget) -> str:
    """Return the first socket in the tree (or why it cannot be told), "" if there is none."""
    seen = 0
    pending = [directory]
    while pending:
        current = pending.pop()
        try:
            with os.scandir(current) as entries:  # one by one: there may be millions
                for entry in entries:
                    seen += 1
                    if seen > MOST_ENTRIES:
                        return f"{entry.path} (and more than {MOST_ENTRIES} entries, too many to look through)"
                    if not budget.take():
                        return f"{entry.path} (where the look ended, so nobody knows what)"
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISSOCK(mode):
                        return entry.path
                    if stat.S_ISDIR(mode):
                        pending.append(entry.path)
        except OSError as error:
            return f"{current} ({error.strerror}, so nobody knows what)"
    return ""
