# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which conversations of its CLI a session wrote, found in what only the slot may be trusted with: as the slot."""

from __future__ import annotations

import os

from confined_slots._as_slot import as_slot

from .as_slot import place

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

    Json = dict[str, t.Any]

SECONDS = 5.0
MOST_ENTRIES = 100_000
MOST_IDS = 20
ID_LENGTH = 36
_HEX = frozenset("0123456789abcdef")


def where(policy: Json) -> Json:
    """Return, as a record, below which directory of the host and by which pattern the conversations are found."""
    first, _unused, rest = (policy["provider"].get("transcript") or [""])[0].partition("/")
    root = place(policy, first) if rest else ""
    return {"event": "transcripts", "root": root, "pattern": rest if root else ""}


def is_conversation(name: str) -> bool:
    """Return whether name is a whole id (a lower-case UUID): CLIs take parts, titles and paths for ids too."""
    parts = name.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and _HEX.issuperset("".join(parts))


def written_since(record: Json, since: float, uid: int, gid: int) -> list[str]:
    """Return the ids of conversations written since a time (seconds), newest first; looks as the slot's account."""
    root, parts = str(record.get("root", "")), str(record.get("pattern", "")).split("/")
    if not root:
        return []

    def work() -> bytes:
        found = sorted(_find(root, parts, since), reverse=True)
        return "\n".join(name for _unused, name in found[:MOST_IDS]).encode()

    data = as_slot(uid, gid, work, MOST_IDS * (ID_LENGTH + 1), SECONDS)
    return [name for name in data.decode("ascii", "replace").split("\n") if is_conversation(name)]


def _find(root: str, pattern: list[str], since: float) -> t.Iterator[tuple[float, str]]:
    import fnmatch

    level, seen = [root], 0
    for part in pattern:
        before, marked, after = part.partition("{session}")
        below = []
        for directory in level:
            for entry in _entries(directory):
                seen += 1
                if seen > MOST_ENTRIES:
                    return
                if marked:
                    end = len(entry.name) - len(after)
                    name = entry.name[end - ID_LENGTH : end] if end >= ID_LENGTH else ""
                    fits = fnmatch.fnmatchcase(entry.name[: end - ID_LENGTH], before) and entry.name.endswith(after)
                    changed = entry.stat(follow_symlinks=False).st_mtime
                    if fits and is_conversation(name) and changed >= since:
                        yield changed, name
                elif fnmatch.fnmatchcase(entry.name, part) and entry.is_dir(follow_symlinks=False):
                    below.append(entry.path)
        level = below


def _entries(directory: str) -> t.Iterator[os.DirEntry[str]]:
    """Yield one entry after the other: who made the directory may have put millions there."""
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return
