# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work in what only a slot may be trusted with: done by a child that is the slot's account, whatever stands there."""

from __future__ import annotations

import os
import resource
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

SECONDS = 10.0
END_SECONDS = 2.0
MOST_MEMORY = 1 << 30  # what the slot has there is no reason for more


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
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            os.write(write_end, work()[:most])
        finally:
            os._exit(0)
    os.close(write_end)
    try:
        if select.select([read_end], [], [], seconds)[0]:
            return os.read(read_end, most)
        return b""
    finally:
        os.close(read_end)
        # it has answered, or is not to any more; the account may have stopped it, and nobody would wait for its end
        os.kill(child, signal.SIGKILL)
        ended = os.pidfd_open(child)
        # what a dead file system holds cannot be killed: it is left behind, as root is not to be held with it
        if select.select([ended], [], [], END_SECONDS)[0]:
            os.waitpid(child, 0)
        os.close(ended)
