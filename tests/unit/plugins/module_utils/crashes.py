# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs that end anywhere: killed (nothing more is done), or failing once with a full disk (what follows works)."""

from __future__ import annotations

import contextlib
import errno
import os
import typing as t

import pytest

CHANGING = ("chmod", "fchmod", "fchown", "fsync", "mkdir", "open", "rename", "rmdir", "symlink", "unlink")


class Killed(BaseException):
    """The process was killed: nothing may catch it and go on."""


class Breaker:
    """Lets the functions of os that change the disk work a number of times, then breaks them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls = 0

    @contextlib.contextmanager
    def after(self, limit: int, how: t.Literal["killed", "full"]) -> t.Iterator[None]:
        """Break what runs inside after `limit` changes; the exception ends the block."""
        self.calls = 0
        with self._monkeypatch.context() as patch:
            for name in CHANGING:
                patch.setattr(os, name, self._breaking(getattr(os, name), limit, how))
            with contextlib.suppress(Killed, OSError):
                yield

    def _breaking(self, real: t.Callable[..., t.Any], limit: int, how: str) -> t.Callable[..., t.Any]:
        def function(*arguments: t.Any, **options: t.Any) -> t.Any:
            changes = real is not os_open or arguments[1] & os.O_CREAT
            self.calls += bool(changes)
            if changes and how == "killed" and self.calls > limit:
                raise Killed
            if changes and how == "full" and self.calls == limit + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        return function


os_open = os.open
