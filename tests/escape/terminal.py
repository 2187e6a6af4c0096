# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a test host: gives a command a terminal, types into it, and tells in JSON what came of it.

One argument, JSON: `command`, and `steps`, each one of ["wait", TEXT] (after the last text waited for), ["type", TEXT],
["resize", ROWS, COLUMNS], ["signal", NAME], ["run", SHELL], ["hang up"].
Printed: `output`, `status` (as the shell says it), `modes_kept`.
"""

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
import typing as t

SECONDS = 60


class Terminal:
    """A pseudo-terminal and the command on it."""

    def __init__(self, command: list[str]) -> None:
        self.master, self.slave = pty.openpty()
        self.modes = termios.tcgetattr(self.slave)
        self.output = b""
        self.waited = 0
        self.child = os.fork()
        if self.child == 0:
            os.close(self.master)
            os.login_tty(self.slave) if hasattr(os, "login_tty") else self._login()
            os.environ["TERM"] = "xterm"
            os.execvp(command[0], command)

    def _login(self) -> None:
        os.setsid()
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(self.slave, number)

    def read(self, seconds: float) -> bool:
        """Read what comes within a time; False at the end."""
        if not select.select([self.master], [], [], seconds)[0]:
            return True
        with contextlib.suppress(OSError):
            piece = os.read(self.master, 1 << 16)
            self.output += piece
            return bool(piece)
        return False

    def step(self, kind: str, *words: t.Any) -> None:
        """Do one step."""
        if kind == "wait":
            deadline = time.monotonic() + SECONDS
            while (found := self.output.find(words[0].encode(), self.waited)) < 0:
                if time.monotonic() > deadline:
                    raise SystemExit(f"{words[0]!r} did not come, but {self.output!r}")
                self.read(0.2)
            self.waited = found + len(words[0].encode())
        elif kind == "run":
            os.system(words[0])
        elif kind == "type":
            os.write(self.master, words[0].encode())
        elif kind == "resize":
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", words[0], words[1], 0, 0))
        elif kind == "signal":
            os.kill(self.child, getattr(signal, f"SIG{words[0]}"))
        elif kind == "hang up":
            os.close(self.slave)
            os.close(self.master)

    def finish(self) -> dict[str, t.Any]:
        """Return what came of it, once the command has ended."""
        deadline = time.monotonic() + SECONDS
        while (ended := os.waitpid(self.child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                raise SystemExit(f"it does not end; {self.output!r}")
            try:
                self.read(0.1)
            except (OSError, ValueError):
                time.sleep(0.1)
        kept = None
        with contextlib.suppress(OSError, termios.error, ValueError):
            kept = termios.tcgetattr(self.slave) == self.modes
            os.close(self.slave)
            while time.monotonic() < deadline and self.read(1):
                pass
        code = os.waitstatus_to_exitcode(ended[1])
        return {
            "output": self.output.decode("utf-8", "backslashreplace"),
            "status": code if code >= 0 else 128 - code,
            "modes_kept": kept,
        }


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    terminal = Terminal(given["command"])
    for step in given["steps"]:
        terminal.step(*step)
    print(json.dumps(terminal.finish()))
