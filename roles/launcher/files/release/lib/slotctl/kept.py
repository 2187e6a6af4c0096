# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dated copies of a CLI's small state files, made before a session: one that a full disk cut short can be brought back.

A CLI that truncates and rewrites its state on a full disk loses its login. All of it is the slot's own, and is done as
the slot; a session does not see the copies.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time

from confined_slots import _layout
from confined_slots._as_slot import as_slot
from confined_slots._refusals import Refusal

from .as_slot import open_directory, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

    from .slots import Slot

LARGEST = 1 << 18
COPIES = 5
MOST_ANSWER = 1 << 16


def keep(slot: Slot) -> None:
    """Copy the state files as they are now, unless the last copy is the same; keep the newest few copies."""
    files = state_files(slot)
    directory = _directory(slot)

    def work() -> bytes:
        now = {name: data for name, path in files.items() if (data := read(path)) is not None}
        old = _copies(directory)
        if not any(now.values()) or (old and _content(f"{directory}/{old[-1]}", files) == now):
            return b""
        new = time.strftime("%Y%m%dt%H%M%S", time.gmtime())
        os.makedirs(f"{directory}/.new", exist_ok=True)
        for name in os.listdir(f"{directory}/.new"):
            os.unlink(f"{directory}/.new/{name}")
        for name, data in now.items():
            _write(f"{directory}/.new/{name}", data)
        os.rename(f"{directory}/.new", f"{directory}/{new}")
        for name in _copies(directory)[:-COPIES]:
            for each in os.listdir(f"{directory}/{name}"):
                os.unlink(f"{directory}/{name}/{each}")
            os.rmdir(f"{directory}/{name}")
        return b""

    if files:
        as_slot(slot.uid, slot.gid, work, MOST_ANSWER)


def listed(slot: Slot) -> list[str]:
    """Return the dates of the newest copies, the oldest first; Refusal if nobody could look."""
    directory = _directory(slot)
    found = as_slot(slot.uid, slot.gid, lambda: json.dumps(_copies(directory)[-COPIES:]).encode(), MOST_ANSWER)
    dates = _names(found)
    if dates is None:
        cure = f"see what {_layout.account(slot.name)} has there, and take it away"
        raise Refusal("policy-invalid", f"the copies in {directory} cannot be listed", cure)
    return dates


def restore(slot: Slot, date: str) -> list[str]:
    """Put the files of one copy back, each in one rename, and return their names; Refusal if there is none."""
    files, directory = state_files(slot), f"{_directory(slot)}/{date}"
    if date not in listed(slot):
        raise Refusal("policy-invalid", f"there is no copy {date!r:.80}", f"see 'slotctl restore {slot.name}'")

    def work() -> bytes:
        copied = _content(directory, files)
        for name, data in copied.items():
            _write(files[name], data, make=True)
        return json.dumps(list(copied)).encode()

    done = _names(as_slot(slot.uid, slot.gid, work, MOST_ANSWER))
    if done is None:
        cure = "make room, take away links and directories that stand in a file's way, and restore it again"
        raise Refusal("space-low", f"copy {date} could not be put back whole", cure)
    return done


def state_files(slot: Slot) -> dict[str, str]:
    """Return where each state file is kept, by a name that is safe for a file."""
    paths = {path: place(slot.policy, path) for path in slot.policy["provider"].get("renames") or []}
    return {path.replace("/", "%"): where for path, where in paths.items() if where}


def _directory(slot: Slot) -> str:
    return _layout.kept(slot.name, slot.policy["provider"]["name"])


def _copies(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if _is_date(name))
    except FileNotFoundError:
        return []


def _is_date(name: str) -> bool:
    """Return whether name is that of a copy: the directory is the slot's, and names are shown to people."""
    return len(name) == 15 and name[8] == "t" and f"{name[:8]}{name[9:]}".isdigit() and name.isascii()


def _content(directory: str, names: t.Iterable[str]) -> dict[str, bytes]:
    """Return what the named files of a copy hold; whatever else lies there may be more than there is memory."""
    found = {name: read(f"{directory}/{name}") for name in names}
    return {name: data for name, data in found.items() if data is not None}


def _names(answer: bytes) -> list[str] | None:
    """Return the names in a child's answer; None if it has failed, or took too long."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(name, str) for name in found) else None


def read(path: str) -> bytes | None:
    """Return what a small file holds, reached over no link; None if it is none. For a child that is the slot."""
    try:
        parent = open_directory(os.path.dirname(path))
    except OSError:
        return None
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(os.path.basename(path), flags, dir_fd=parent)
    except OSError:
        return None
    finally:
        os.close(parent)
    with open(descriptor, "rb") as file:
        data = file.read(LARGEST + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    return data if data is not None and len(data) <= LARGEST else None


def _write(path: str, data: bytes, *, make: bool = False) -> None:
    """Put data in the place of a file in one rename; no link is followed, not even on the way."""
    parent = open_directory(os.path.dirname(path), make=make)
    name = os.path.basename(path)
    temporary = f"{name}.restoring"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600, dir_fd=parent), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        os.close(parent)
