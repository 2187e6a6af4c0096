# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in what only a slot may be trusted with: done by a child that is the slot's account, whatever stands there."""

from __future__ import annotations

import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

SECONDS = 10.0


def as_slot(uid: int, gid: int, work: t.Callable[[], bytes], most: int, seconds: float = SECONDS) -> bytes:
    """Return what work returns, at most that many bytes, run as the account; b"" if it fails or takes too long."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            os.umask(0o077)
            os.write(write_end, work()[:most])
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        if select.select([read_end], [], [], seconds)[0]:
            return os.read(read_end, most)
        os.kill(child, signal.SIGKILL)
        return b""
    finally:
        os.close(read_end)
        os.waitpid(child, 0)


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
