# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program of ours in the slot's sandbox, in the place of its CLI: to look, not to work. It is not on record."""

from __future__ import annotations

import contextlib
import os
import subprocess
import typing as t

from confined_slots import _layout
from confined_slots._files import Owned, remove, write
from confined_slots._plan import Record, dump, values
from confined_slots._refusals import printable

SECONDS = 30
STOP_SECONDS = 5  # bwrap ignores SIGTERM, which is for the CLI
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
    return subprocess.run(
        [*command, "--", *words],
        input=given,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=2 * SECONDS,
        check=False,
    )


def said(finished: subprocess.CompletedProcess[str]) -> str:
    """Return the end of what a trial said on standard error, safe to show."""
    return printable(finished.stderr[-500:].strip()) or f"exit status {finished.returncode}"
