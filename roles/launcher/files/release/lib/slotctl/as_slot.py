# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in what only a slot may be trusted with: done by a child that is the slot's account, whatever stands there."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t


def open_directory(path: str, *, make: bool = False) -> int:
    """Return a descriptor of a directory, reached over no link: a session may lay one to what it must not reach.

    With make what is missing of it is made. OSError as open(2) gives it.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open("/", flags)
    for name in path.strip("/").split("/"):
        above = current
        try:
            try:
                current = os.open(name, flags, dir_fd=above)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(name, dir_fd=above)
                current = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
    return current


def place(policy: dict[str, t.Any], path: str) -> str:
    """Return where on the host a path below HOME is kept, "" if it does not outlive a session."""
    home = policy["environment"]["set"]["HOME"]
    first, _unused, rest = path.partition("/")
    for mount in policy["mounts"]:
        if mount["kind"] == "bind" and mount["target"] == home:
            return f"{mount['source']}/{path}"
        if mount["kind"] == "bind" and mount["target"] == f"{home}/{first}":
            return f"{mount['source']}/{rest}".rstrip("/")
    return ""
