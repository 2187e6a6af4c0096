# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waiting for what is awaited, and not for a time: a loaded machine is slow, and no test may mind that."""

from __future__ import annotations

import collections.abc
import contextlib
import shlex
import typing as t

if t.TYPE_CHECKING:
    from testinfra.host import Host

PATIENCE = 500


def until(command: str, every: float = 0.2) -> str:
    """Return shell that waits until a command succeeds, asking every so many seconds, or leaves if it never does."""
    return f"timeout {PATIENCE} sh -c {shlex.quote(f'until {command}; do sleep {every}; done')} || exit"


def soon(host: Host, command: str) -> str:
    """Return what a command prints as soon as it succeeds; AssertionError if it does not."""
    return str(host.check_output(until(command)))


@contextlib.contextmanager
def held(host: Host, slot: str, script: str = "true") -> collections.abc.Iterator[None]:
    """Have a session of a slot that has run a script, and goes on; at the end all sessions of the slot are stopped."""
    said = f"/tmp/held-{slot}"
    command = f"slotctl run {slot} -- -c {shlex.quote(f'{script}; echo ready; exec sleep 1000')} > {said} 2>&1"
    host.check_output(f"rm -f {said}; setsid -f sh -c {shlex.quote(command)} < /dev/null > /dev/null 2>&1")
    try:
        soon(host, f"grep -qx ready {said}")
        yield
    finally:
        host.check_output(f"slotctl stop {slot}")
