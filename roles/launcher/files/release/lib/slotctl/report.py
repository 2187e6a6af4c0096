# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl health`: the report for people and for monitoring, kept and told of where it is asked for."""

from __future__ import annotations

import json
import socket
import sys
import time
import typing as t

from confined_slots import _files, _health
from confined_slots._declarations import parse
from confined_slots._files import Owned, UnsafePath
from confined_slots._health import Json
from confined_slots._refusals import Refusal, printable

from . import health
from .tables import table

if t.TYPE_CHECKING:
    import argparse

JOURNAL = "/run/systemd/journal/socket"
MESSAGE_ID = "8f6a2d0f0f1c4d49a4f6d6c8b36d5c0e"
READABLE, PRIVATE = Owned(0, 0, 0o644), Owned(0, 0, 0o600)
PRIORITY = {"ok": 6, "warn": 4, "unknown": 3, "critical": 2}
MOST_OPTIONS = 1 << 22
NUMBERS = ("credential_days", "state_bytes", "free_bytes", "free_percent", "rotation_days")


class Impossible(Exception):
    """What was asked for cannot be done: one sentence, the cure in brackets."""


def made(options: argparse.Namespace) -> Json:
    """Look, write where it is asked for, and return the report; a run that fails writes that it has failed."""
    for path in filter(None, (options.state, options.textfile)):
        if not path.startswith("/"):
            raise Impossible(f"{path!r:.80} is no absolute path [write where it is]")
    before = _last(options.state) if options.state else None
    found = _looked(options) if options.failed is None else _failed(options.failed)
    try:
        if options.textfile:
            _files.publish(options.textfile, _health.prometheus(found).encode(), READABLE)
        if options.state:
            _files.write(options.state, (json.dumps(found) + "\n").encode(), PRIVATE)
            for slot, check, state in _health.changes(before, found):
                _tell(slot, check, state)
    except UnsafePath as error:
        raise Impossible(f"{error} [give it to root]") from None
    except OSError as error:
        what = f"{error.filename or 'the result'}: {error.strerror}"
        raise Impossible(f"the result cannot be written: {what} [make the directory, or make room]") from None
    return found


def _looked(options: argparse.Namespace) -> Json:
    given = _options(options.options)
    try:
        found = health.health(given, only=options.slot, checks=options.check, budget=options.budget)
        return _health.check_report(found)
    except health.NoSuchCheck as error:
        raise Impossible(str(error)) from None
    except Refusal:
        raise
    except Exception as error:  # a run that breaks is unknown wherever it is told of, and no exit status of Python's
        return _failed(f"the run broke: {type(error).__name__}: {error}")


def _failed(why: str) -> Json:
    return _health.failed(socket.gethostname(), time.time(), why)


def _options(path: str | None) -> health.Options:
    """Return what is compared with, out of a file of root's or (`-`) standard input; strict about its form."""
    if path is None:
        return health.Options()
    try:
        data = sys.stdin.buffer.read(MOST_OPTIONS) if path == "-" else _files.read(path, MOST_OPTIONS)
        found = json.loads(data or b"")
        words: dict[str, t.Any] = {key: int(found[key]) for key in NUMBERS if key in found}
        if unused := set(found) - {*NUMBERS, "source", "declared"}:
            raise ValueError(f"it has {', '.join(sorted(unused))}")
        if found.get("declared") is not None:
            words["declared"] = {slot.name: slot for slot in parse(found["declared"])}
        return health.Options(source=str(found.get("source") or ""), **words)
    except (UnsafePath, OSError, ValueError, TypeError, AttributeError) as error:
        raise Impossible(f"{path} holds no options: {printable(str(error))} [converge the role monitoring]") from None


def _last(path: str) -> Json | None:
    try:
        return _health.check_report(json.loads(_files.read(path) or b""))
    except (UnsafePath, OSError, ValueError, RecursionError):
        return None


def _tell(slot: str, check: Json, before: str) -> None:
    """Send a change of state to the journal, with fields that nobody but root can write there."""
    about = f"{slot or 'host'}: {check['check']} is {check['state']}, was {before or 'not looked at'}"
    fields = {
        "MESSAGE": printable(f"{about}: {check['found']}{_cure(check)}"),
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": str(PRIORITY[check["state"]]),
        "SYSLOG_IDENTIFIER": "slotctl",
        "CONFINED_SLOTS_EVENT": "health",
        "CONFINED_SLOTS_SLOT": printable(slot),
        "CONFINED_SLOTS_CHECK": check["check"],
        "CONFINED_SLOTS_STATE": check["state"],
        "CONFINED_SLOTS_STATE_BEFORE": before,
    }
    message = "".join(f"{name}={text}\n" for name, text in fields.items()).encode("utf-8", "backslashreplace")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        try:
            client.connect(JOURNAL)
            client.send(message)
        except OSError:  # the result itself is kept, and says the same
            return


def _cure(check: Json) -> str:
    return f" [{check['cure']}]" if check["cure"] and check["state"] != "ok" else ""


def show(found: Json, *, everything: bool) -> str:
    """Return the report for people: what is wrong first, the cure beside it."""
    bad = _health.complaints(found)
    rest = [one for one in _health.every(found) if one[1]["state"] == "ok"] if everything else []
    rows = [(each["state"], slot or "-", each["check"], each["found"] + _cure(each)) for slot, each in (*bad, *rest)]
    counts = ", ".join(f"{number} {state}" for state, number in found["counts"].items() if number)
    text = table(("STATE", "SLOT", "CHECK", "FOUND"), rows) + "\n" if rows else ""
    size = f"{len(found['slots'])} slots, {found['seconds']:.1f} s"
    return f"{text}{found['host']}: {found['state']} ({counts}; {size})\n"
