# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program of ours in the slot's sandbox, in the place of its CLI: to look, not to work. It is not on record."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
import typing as t

from confined_slots import _layout
from confined_slots._files import Owned, remove, write
from confined_slots._health import CouldNot
from confined_slots._plan import Record, dump, values
from confined_slots._refusals import printable

SECONDS = 30
STOP_SECONDS = 5  # bwrap ignores SIGTERM, which is for the CLI
PATIENCE = 2.0 * SECONDS
MOST_SAID = 4 << 20
LATE = f"it has not ended in {PATIENCE:.0f} s"
# The program is not the CLI: what belongs to that is left out, so that no secret comes near a probe.
OF_THE_CLI = ("command", "identity", "enabled", "credential", "approved")


def plan(records: list[Record], words: list[str]) -> list[Record]:
    """Return a plan with another command."""
    command: list[Record] = [("command", word) for word in words]
    return [*command, *(record for record in records if record[0] not in OF_THE_CLI), ("enabled", "yes")]


@contextlib.contextmanager
def files(slot: str, session: str, records: list[Record], arguments: list[str]) -> t.Iterator[str]:
    """Yield the path of a plan with all that the launcher needs beside it; gone afterwards."""
    base = _layout.run_directory(slot, session)
    ((_unused, gid),) = values(records, "ids")
    words = b"".join(os.fsencode(word) + b"\0" for word in arguments)
    written = ((f"{base}.plan", dump(records), 0o640), (f"{base}.args", words, 0o640), (f"{base}.status", b"", 0o620))
    try:
        for path, content, mode in written:
            write(path, content, Owned(0, int(gid), mode))
        yield written[0][0]
    finally:
        for path, _content, _mode in written:
            remove(path)


def ran(
    slot: str,
    session: str,
    words: list[str],
    *,
    given: str = "",
    groups: str = "",
    environment: t.Mapping[str, str] | None = None,
    profile: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run words as the slot's account in a unit like a session's; return how that ended and what it said.

    CouldNot if it does not end in time, or says more than MOST_SAID bytes: the slot may have a hand in what is said.
    profile is the AppArmor profile that they start in, "" for the one that attaches to them.
    """
    account = _layout.account(slot)
    properties = {
        "User": account,
        "Group": account,
        "SupplementaryGroups": groups,
        "RuntimeDirectory": f"confined-slots/{slot}/{session}",
        "RuntimeDirectoryMode": "0700",
        "AppArmorProfile": profile,
        "RuntimeMaxSec": str(SECONDS),
        "TimeoutStopSec": str(STOP_SECONDS),
        "Environment": " ".join(f"{name}={text}" for name, text in (environment or {}).items()),
    }
    command = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--slice={_layout.slice_unit(slot)}"]
    command += [f"--property={name}={text}" for name, text in properties.items() if text]
    return _heard([*command, "--", *words], given.encode())


def _heard(command: list[str], given: bytes) -> subprocess.CompletedProcess[str]:
    """Do as subprocess.run() does, but keep no more than MOST_SAID bytes.

    A unit whose client was ended has nobody to write to, and is ended after SECONDS.
    """
    deadline = time.monotonic() + PATIENCE
    pipe = subprocess.PIPE
    with subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        try:
            out, err = _exchange((child.stdin, child.stdout, child.stderr), given, deadline)
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise CouldNot(LATE) from None
        finally:
            child.kill()
    words = [each.decode("utf-8", "replace") for each in (out, err)]
    return subprocess.CompletedProcess(command, child.returncode, *words)


def _exchange(streams: tuple[t.Any, t.Any, t.Any], given: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Write what is given and return what is said until both have ended; CouldNot if it is too much, or too late."""
    into, *outs = streams
    heard = {stream: bytearray() for stream in outs}
    os.set_blocking(into.fileno(), False)
    with selectors.DefaultSelector() as waiting:
        waiting.register(into, selectors.EVENT_WRITE)
        for stream in outs:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            if time.monotonic() > deadline:
                raise CouldNot(LATE)
            for key, _unused in waiting.select(max(0.0, deadline - time.monotonic())):
                one: t.Any = key.fileobj
                if one is into:
                    given = _rest(key.fd, given)
                    ended = not given
                else:
                    more = os.read(key.fd, 1 << 16)
                    heard[one] += more
                    ended = not more
                if ended:
                    waiting.unregister(one)
                    one.close()
            if sum(map(len, heard.values())) > MOST_SAID:
                raise CouldNot(f"it said more than {MOST_SAID >> 20} MiB")
    out, err = (bytes(each) for each in heard.values())
    return out, err


def _rest(descriptor: int, given: bytes) -> bytes:
    """Write what there is room for, and return the rest; none if nobody reads it."""
    try:
        return given[os.write(descriptor, given) :] if given else b""
    except BrokenPipeError:
        return b""


def said(finished: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a trial said on standard error, safe to show."""
    return printable(finished.stderr[-500:].strip()) or f"exit status {finished.returncode}"
