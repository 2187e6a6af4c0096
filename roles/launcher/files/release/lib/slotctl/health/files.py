# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slot's directories: whose they are, and whether there is room. What a slot owns is looked at as the slot."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import typing as t

from confined_slots import _layout, _permissions
from confined_slots._as_slot import as_slot
from confined_slots._health import CouldNot, DoesNotApply, Outcome, critical, ok, warn
from confined_slots._host import Account

from ..as_slot import open_directory
from ..preflight import FREE_BYTES, FREE_FILES
from .context import CONVERGE, Check, Context
from .host import judged

QUOTACTL_FD = 443
_Q_GETQUOTA_USER = 0x800007 << 8
_NO_QUOTA = (errno.ESRCH, errno.ENOSYS, errno.ENOTSUP, errno.ENOENT, errno.EINVAL)
MOST_ENTRIES = 200_000
WALK_SECONDS = 4.0
MIB = 1 << 20


def tree(context: Context) -> Outcome:
    """Return whether the slot's directories and root's files in them have their owners and modes."""
    ids = context.ids
    every = _permissions.wanted([context.kept], {context.name: Account(ids.uid, ids.uid)})
    shared = set(_permissions.wanted([], {}))
    return judged(node for node in every if node not in shared)


def workspaces(context: Context) -> Outcome:
    """Return whether each workspace is there, and can be listed by the slot itself."""
    slot = context.slot
    paths = {name: _layout.workspace(context.name, name) for name in slot.base["workspaces"]}

    def work() -> bytes:
        bad = ["", *(f"{name}: {why}" for name, path in paths.items() if (why := _cannot_list(path)))]
        return json.dumps(bad).encode()

    answer = as_slot(slot.uid, slot.gid, work, 1 << 16)
    expected = "each workspace is there, and the slot can list it"
    if not answer:
        raise CouldNot("the slot's account cannot look, or did not end in time")
    bad = [str(each) for each in json.loads(answer)[1:]]
    if bad:
        return critical("; ".join(bad), expected, CONVERGE)
    return ok(", ".join(sorted(paths)), expected)


def _cannot_list(path: str) -> str:
    try:
        walked = open_directory(path)
        try:
            with os.scandir(f"/proc/self/fd/{walked}") as entries:  # not all of them: there may be millions
                next(entries, None)
        finally:
            os.close(walked)
    except OSError as error:
        return str(error.strerror)
    return ""


def host_space(context: Context) -> Outcome:
    """Return whether the file systems that root needs have room: what cannot be recorded is refused."""
    places = (_layout.OPT, _layout.ETC, _layout.STATE, _layout.RUN, _layout.LOG, "/tmp", "/var/tmp")
    return _judged_space([path for path in places if os.path.isdir(path)], context)


def space(context: Context) -> Outcome:
    """Return whether the file systems of the slot's workspaces and homes have room, in bytes and in files."""
    state = _layout.state(context.name)
    workspaces = [_layout.workspace(context.name, name) for name in context.slot.base["workspaces"]]
    return _judged_space([state, f"{state}/home", *workspaces], context)


def _judged_space(paths: t.Sequence[str], context: Context) -> Outcome:
    options = context.options
    expected = f"{options.free_bytes // MIB} MiB or {options.free_percent} % free, and as many files"
    seen, bad, state, least = set(), [], "warn", -1
    for path in paths:
        found = os.statvfs(path)
        if found.f_fsid in seen and found.f_fsid:
            continue
        seen.add(found.f_fsid)
        free = found.f_bavail * found.f_frsize
        wanted = min(options.free_bytes, found.f_blocks * found.f_frsize * options.free_percent // 100)
        files = min(FREE_FILES, found.f_files * options.free_percent // 100)
        least = free if least < 0 else min(least, free)
        if free < wanted or (found.f_files and found.f_favail < files):
            bad.append(f"{path} has {free // MIB} MiB and {found.f_favail} files left")
            if free < min(FREE_BYTES, wanted // 2) or (found.f_files and found.f_favail < files // 2):
                state = "critical"
    if bad:
        return Outcome(state, "; ".join(bad), expected, "make room on that file system")
    return ok(f"{least // MIB} MiB are free on the fullest", expected)


class _Quota(ctypes.Structure):
    """The kernel's struct if_dqblk; limits are in blocks of 1024 bytes."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("block_hard", "block_soft", "bytes_used")),
        *((name, ctypes.c_uint64) for name in ("files_hard", "files_soft", "files_used", "block_time", "file_time")),
        ("valid", ctypes.c_uint32),
    )


def quota(context: Context) -> Outcome:
    """Return whether the account is below its quota, on each file system of the slot's that keeps one."""
    expected = "less than 90 % of the account's quota is used"
    state = _layout.state(context.name)
    places = [state, *(_layout.workspace(context.name, name) for name in context.slot.base["workspaces"])]
    seen: set[int] = set()
    bad, kept = [], False
    for path in places:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            device = os.fstat(descriptor).st_dev
            found = None if device in seen else _quota_of(descriptor, context.ids.uid)
            seen.add(device)
        finally:
            os.close(descriptor)
        if found is None or not (found.block_hard or found.block_soft or found.files_hard or found.files_soft):
            continue
        kept = True
        blocks = min(filter(None, (found.block_soft, found.block_hard)), default=0) * 1024
        files = min(filter(None, (found.files_soft, found.files_hard)), default=0)
        if blocks and found.bytes_used * 10 > blocks * 9:
            bad.append(f"{path}: {found.bytes_used // MIB} of {blocks // MIB} MiB")
        if files and found.files_used * 10 > files * 9:
            bad.append(f"{path}: {found.files_used} of {files} files")
    if not kept:
        raise DoesNotApply("no file system of the slot's has a quota for its account")
    if bad:
        return warn("; ".join(bad), expected, "make room in the slot, or raise its quota")
    return ok("it is", expected)


def _quota_of(descriptor: int, uid: int) -> _Quota | None:
    """Return the quota of an account on the file system of an open directory, None if none is kept there."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = _Quota()
    if libc.syscall(QUOTACTL_FD, descriptor, _Q_GETQUOTA_USER, ctypes.c_int(uid), ctypes.byref(found)) == 0:
        return found
    code = ctypes.get_errno()
    if code in _NO_QUOTA:
        return None
    raise CouldNot(f"the account's quota cannot be read: {os.strerror(code)}")


def state_size(context: Context) -> Outcome:
    """LG-04: transcripts and debug files of a CLI grow without end, until everything fails at once."""
    slot, most = context.slot, context.options.state_bytes
    state = _layout.state(context.name)
    places = [f"{state}/{name}" for name in ("home", "homes", "states")]
    expected = f"homes hold less than {most // MIB} MiB"
    answer = as_slot(slot.uid, slot.gid, lambda: json.dumps(size_of(places)).encode(), 4096, WALK_SECONDS)
    if not answer:
        raise CouldNot("its homes could not be looked through in time")
    taken, whole = (int(number) for number in json.loads(answer))
    if taken >= most:
        what = f"{'' if whole else 'at least '}{taken // MIB} MiB"
        return warn(what, expected, "have the CLI keep less; see its transcripts and debug files")
    if not whole:
        why = f"more than {MOST_ENTRIES} files, or a directory that the slot itself cannot read"
        raise CouldNot(f"{why}: {taken // MIB} MiB were counted")
    return ok(f"{taken // MIB} MiB", expected)


def size_of(places: t.Sequence[str]) -> tuple[int, bool]:
    """Return how many bytes files below places take on disk, and whether all were counted; no link is followed."""
    total, entries, whole = 0, 0, True
    pending = [path for path in places if not os.path.islink(path) and os.path.isdir(path)]
    while pending:
        try:
            with os.scandir(pending.pop()) as scan:
                for entry in scan:
                    entries += 1
                    if entries > MOST_ENTRIES:
                        return total, False
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except FileNotFoundError:  # gone meanwhile
            continue
        except OSError:  # closed by the slot to itself: nobody knows what is in it
            whole = False
    return total, whole


HOST = (Check("host-space", "file systems of the host have room", host_space),)
SLOT = (
    Check("slot-tree", "the slot's directories have their owners and modes", tree),
    Check("workspaces", "the workspaces are there", workspaces),
    Check("space", "the slot's file systems have room", space),
    Check("quota", "the account is below its quota", quota),
    Check("state-size", "what the CLI keeps has not grown too large", state_size),
)
