# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""LG-01: the records of sessions are kept and rotated. A rotation that is refused says so nowhere but in its output."""

from __future__ import annotations

import os
import re
import time

from confined_slots import _files, _layout, _sessions
from confined_slots._health import CouldNot, Outcome, critical, ok, warn

from .context import CONVERGE, Check, Context

RULES = "/etc/logrotate.d/confined-slots"
STATUS = ("/var/lib/logrotate/status", "/var/lib/logrotate.status")
TIMER = "logrotate.timer"
DAY = 86400
_SIZE = re.compile(rb"^\s*maxsize\s+([0-9]+)([kMG]?)\s*$", re.MULTILINE)
_UNITS = {b"": 1, b"k": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}


def rotation(context: Context) -> Outcome:
    """Return whether the records are rotated: by which rules, by which timer, and when it was done last."""
    days = context.options.rotation_days
    expected = f"{RULES} is root's, {TIMER} runs, and logrotate has run within {days} days"
    rules = _files.look(RULES)
    if rules is None:
        return critical(f"{RULES} is not there", expected, CONVERGE)
    if rules.kind != "file" or rules.owned.uid != 0 or rules.owned.mode & 0o022:
        return critical(f"{RULES} is a {rules.kind} of {rules.owned}; logrotate passes over it", expected, CONVERGE)
    shown = context.host.unit(TIMER)
    if (shown.get("UnitFileState"), shown.get("ActiveState")) != ("enabled", "active"):
        what = f"{TIMER} is {shown.get('UnitFileState') or 'not there'} and {shown.get('ActiveState')}"
        return critical(what, expected, f"systemctl enable --now {TIMER}")
    newest = max((os.lstat(path).st_mtime for path in STATUS if os.path.lexists(path)), default=0.0)
    began = max(newest, os.lstat(RULES).st_mtime)  # what is to be rotated from now on has not been yet
    age = int((time.time() - began) // DAY)
    if age > days:
        return warn(f"logrotate ran last {age} days ago", expected, "see 'systemctl status logrotate.service'")
    return ok("it runs" if newest else "it has had nothing to do yet", expected)


def records(context: Context) -> Outcome:
    """Return whether the slot's records can be added to, and have not outgrown their rotation."""
    path = f"{_layout.log(context.name)}/{_sessions.RECORDS}"
    most = 2 * largest(_files.read(RULES, 1 << 16))
    expected = f"{path} can be added to, and is smaller than {most >> 20} MiB"
    with _files.trusted_directory(_layout.log(context.name)) as parent:
        try:
            status = os.stat(_sessions.RECORDS, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:  # rotated away, and nothing was recorded since
            return ok("nothing is on record yet", expected)
    found = _files.Found.of(status)
    if found.kind != "file" or found.names != 1:
        return critical(f"{path} is a {found.kind} with {found.names} names", expected, "find out who made it")
    if status.st_size > most:
        return warn(f"{path} has {status.st_size >> 20} MiB", expected, f"logrotate --debug {RULES}")
    return ok(f"{status.st_size >> 10} KiB", expected)


def largest(rules: bytes | None) -> int:
    """Return the size in bytes beyond which records are rotated, as the rules say; CouldNot if they do not."""
    found = _SIZE.search(rules or b"")
    if not found:
        raise CouldNot(f"{RULES} says no maxsize")
    return int(found[1]) * _UNITS[found[2]]


HOST = (Check("rotation", "the records of sessions are rotated", rotation),)
SLOT = (Check("records", "the slot's sessions can be recorded", records),)
