# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The standard streams of a session without a terminal.

Pipes, /dev/null and files opened for reading as standard input go to the session as they are. Everything else (the
caller's terminal, a socket, a log opened for writing) is not put into the session's hands: slotctl copies, byte for
byte. Standard error is always copied, so that what bwrap said can be told, unless it is one pipe with standard output.
"""

from __future__ import annotations

import errno
import os
import select
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

PIECE = 1 << 16
# a terminal or socket that poll(2) calls ready takes this much without blocking
SMALL_PIECE = 1 << 12
MOST_KEPT = 2048
NOBODY_READS = (errno.EPIPE, errno.ECONNRESET, errno.EIO)
NAMES = {1: "standard output", 2: "standard error"}


class Relay:
    """Copies from one descriptor to another; keeps the end of what passed, and the errno if the target took no more."""

    def __init__(self, source: int, target: int, *, owns_target: bool) -> None:
        self.source, self.target, self.owns_target = source, target, owns_target
        self.pending = b""
        self.kept = b""
        self.open = True
        self.errno = 0
        self.piece = PIECE if stat.S_ISREG(os.fstat(target).st_mode) else SMALL_PIECE

    def waits_for(self) -> tuple[int, bool]:
        """Return the descriptor it waits for, and whether to write."""
        return (self.target, True) if self.pending else (self.source, False)

    def step(self) -> None:
        """Move one piece on, once poll(2) says that it can; closes at the end of the source or of the target."""
        try:
            if self.pending:
                self.pending = self.pending[os.write(self.target, self.pending[: self.piece]) :]
                return
            piece = os.read(self.source, PIECE)
        except BlockingIOError:
            return
        except OSError as error:  # mostly: nobody reads any more, or the terminal has gone
            if self.pending and error.errno not in NOBODY_READS:
                self.errno = error.errno or errno.EIO
            piece = b""
            self.pending = b""
        self.kept = (self.kept + piece)[-MOST_KEPT:]
        self.pending = piece
        if not piece:
            self.close()

    def close(self) -> None:
        """Stop copying; a session's standard input ends."""
        if self.open:
            self.open = False
            if self.owns_target:
                os.close(self.target)
            else:
                os.close(self.source)


class Streams:
    """What a session gets as its standard streams, and the relays behind them; with a terminal, the caller's own."""

    def __init__(self, *, terminal: bool) -> None:
        self.given: list[int] = [0, 1, 2]
        self.inward: list[Relay] = []
        self.outward: list[Relay] = []
        self.error: Relay | None = None
        self._ours: list[int] = []
        if not terminal:
            self._separate()

    def close_given(self) -> None:
        """Close our copies of what the session got, once it has it."""
        for descriptor in self._ours:
            os.close(descriptor)
        self._ours = []

    def copying(self, *, outward_only: bool = False) -> list[Relay]:
        """Return the relays that still copy."""
        return [relay for relay in (*([] if outward_only else self.inward), *self.outward) if relay.open]

    def losses(self) -> list[str]:
        """Return the name of each stream of ours of which something was lost, and why."""
        return [f"{NAMES[relay.target]}: {os.strerror(relay.errno)}" for relay in self.outward if relay.errno]

    def _separate(self) -> None:
        one_file = os.path.samestat(os.fstat(1), os.fstat(2))
        if not _passes_as_input():
            self.given[0] = self._inward()
        if not _is_pipe_or_null(1):
            self.given[1] = self._outward(1)
        self.given[2] = self.given[1] if one_file else self._outward(2)
        self.error = self.outward[-1] if self.outward else None

    def _inward(self) -> int:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_end, False)
        self.inward.append(Relay(0, write_end, owns_target=True))
        self._ours.append(read_end)
        return read_end

    def _outward(self, number: int) -> int:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        self.outward.append(Relay(read_end, number, owns_target=False))
        self._ours.append(write_end)
        return write_end


def open_missing() -> None:
    """Open /dev/null for each standard stream that the caller closed, before another file takes its number."""
    while (descriptor := os.open("/dev/null", os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def copy(relays: list[Relay], others: t.Iterable[int], milliseconds: int | None) -> set[int]:
    """Wait until a relay can move on (and move it) or one of others can be read; return those of others that can."""
    poll = select.poll()
    events: dict[int, int] = {}
    for relay in relays:
        descriptor, writes = relay.waits_for()
        events[descriptor] = events.get(descriptor, 0) | (select.POLLOUT if writes else select.POLLIN)
    for descriptor in others:
        events[descriptor] = select.POLLIN
    for descriptor, wanted in events.items():
        poll.register(descriptor, wanted)
    ready = {descriptor for descriptor, _unused in poll.poll(milliseconds)}
    for relay in relays:
        if relay.waits_for()[0] in ready:
            relay.step()
    return ready.intersection(others)


def _passes_as_input() -> bool:
    if _is_pipe_or_null(0):
        return True
    import fcntl

    for_reading = fcntl.fcntl(0, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    return for_reading and stat.S_ISREG(os.fstat(0).st_mode)


def _is_pipe_or_null(descriptor: int) -> bool:
    found = os.fstat(descriptor)
    if stat.S_ISCHR(found.st_mode):
        return found.st_rdev == os.makedev(1, 3)
    return stat.S_ISFIFO(found.st_mode)
