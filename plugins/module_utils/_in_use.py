# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which directories running processes still need."""

from __future__ import annotations

import os
import typing as t


def in_use(directories: t.Iterable[str], proc: str = "/proc") -> set[str]:
    """Return those of the directories in or below which a process runs, stands, was started, or has something mounted.

    Processes that end meanwhile, or that may not be looked into, are passed over.
    """
    wanted = {os.fsencode(directory): directory for directory in directories}
    found: set[str] = set()
    if not wanted:
        return found
    namespaces: set[str] = set()
    for pid in os.listdir(proc):
        if pid.isdigit() and int(pid) != os.getpid():
            for path in _paths(f"{proc}/{pid}", namespaces):
                found.update(name for start, name in wanted.items() if path == start or path.startswith(start + b"/"))
    return found


def _paths(process: str, namespaces: set[str]) -> t.Iterator[bytes]:
    for link in ("exe", "cwd"):
        target = _quiet(os.readlink, f"{process}/{link}")
        if target is not None:
            yield os.fsencode(target)
    words = _quiet(_read, f"{process}/cmdline")
    if words:
        yield from words.split(b"\0")
    namespace = _quiet(os.readlink, f"{process}/ns/mnt")
    if namespace is not None and namespace not in namespaces:
        namespaces.add(namespace)
        for line in (_quiet(_read, f"{process}/mountinfo") or b"").split(b"\n"):
            fields = line.split(b" ", 5)
            if len(fields) == 6:
                yield from fields[3:5]


T = t.TypeVar("T")


def _quiet(function: t.Callable[[str], T], path: str) -> T | None:
    try:
        return function(path)
    except OSError:
        return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
