# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dated copies of a CLI's small state files, made before a session: one that a full disk cut short can be brought back.

A CLI that truncates and rewrites its state on a full disk loses its login. All of it is the slot's own, and is done as
the slot; a session does not see the copies.
"""

from __future__ import annotations

import json
import os
import time

from confined_slots import _layout
from confined_slots._refusals import Refusal

from .as_slot import as_slot, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .slots import Slot

LARGEST = 1 << 18
COPIES = 5
MOST_ANSWER = 1 << 16


def keep(slot: Slot) -> None:
    """Copy the state files as they are now, unless the last copy is the same; keep the newest few copies."""
    files = _files(slot)
    directory = _directory(slot)

    def work() -> bytes:
        now = {name: data for name, path in files.items() if (data := _read(path)) is not None}
        old = _copies(directory)
        if not any(now.values()) or (old and _content(f"{directory}/{old[-1]}") == now):
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
    """Return the dates of the copies, the oldest first."""
    found = as_slot(slot.uid, slot.gid, lambda: json.dumps(_copies(_directory(slot))).encode(), MOST_ANSWER)
    return [str(name) for name in json.loads(found or b"[]")]


def restore(slot: Slot, date: str) -> list[str]:
    """Put the files of one copy back, each in one rename, and return their names; Refusal if there is none."""
    files, directory = _files(slot), f"{_directory(slot)}/{date}"
    if date not in listed(slot):
        raise Refusal("policy-invalid", f"there is no copy {date!r:.80}", f"see 'slotctl restore {slot.name}'")

    def work() -> bytes:
        done = []
        for name, data in _content(directory).items():
            if name in files:
                os.makedirs(os.path.dirname(files[name]), exist_ok=True)
                _write(files[name], data)
                done.append(name)
        return json.dumps(done).encode()

    answer = as_slot(slot.uid, slot.gid, work, MOST_ANSWER)
    if not answer:
        raise Refusal("space-low", f"copy {date} could not be put back whole", "make room and restore it again")
    return [str(name) for name in json.loads(answer)]


def _files(slot: Slot) -> dict[str, str]:
    """Return where each state file is kept, by a name that is safe for a file."""
    paths = {path: place(slot.policy, path) for path in slot.policy["provider"].get("renames") or []}
    return {path.replace("/", "%"): where for path, where in paths.items() if where}


def _directory(slot: Slot) -> str:
    return _layout.kept(slot.name, slot.policy["provider"]["name"])


def _copies(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []


def _content(directory: str) -> dict[str, bytes]:
    found = {name: _read(f"{directory}/{name}") for name in os.listdir(directory)}
    return {name: data for name, data in found.items() if data is not None}


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        data = file.read(LARGEST + 1)
    return data if len(data) <= LARGEST else None


def _write(path: str, data: bytes) -> None:
    temporary = f"{path}.restoring"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
