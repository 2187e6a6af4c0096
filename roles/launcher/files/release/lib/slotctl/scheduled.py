# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl scheduled`: the session of a schedule, as its unit starts it; what to do stands in a file of root's."""

from __future__ import annotations

import json
import os
import time
import typing as t

from confined_slots import _layout
from confined_slots._manifest import Untrusted, open_trusted, read_checked
from confined_slots._refusals import Refusal, printable
from confined_slots._schedules import next_start, seconds

from . import ended, preflight, run, words
from .slots import CONVERGE, check_known, check_shape

SHAPE = {"workspace": str, "calendar?": str, "timeout?": str, "prompt?": str, "arguments?": [str]}
SUFFIX = ".json"


def scheduled(slot: str, name: str) -> int:
    """Run the session of a schedule without a person; return its exit status. Refusal if it does not start."""
    unattended = {"unattended": True, "schedule": printable(name)[: run.MOST_NAMED]}
    try:
        found = load(slot, name)
    except Refusal as refusal:
        ended.record_refusal(run.asked(slot, None) | unattended, refusal)
        raise
    end = time.time() + found.timeout
    return run.run(slot, found.workspace, found.words, json=False, unattended=unattended, until=end)


def looked_at(slot: str, name: str) -> dict[str, t.Any]:
    """Return the preflight of a schedule's next session, for when that will have ended."""
    found = load(slot, name)
    begin = (next_start(found.calendar) if found.calendar else None) or time.time()
    return preflight.preflight(slot, found.workspace, found.words, begin + found.timeout)


class Scheduled:
    """What a schedule is to do: where, by which arguments, how long it may take (seconds), and when ("": not said)."""

    def __init__(self, workspace: str, words: run.Words, calendar: str, timeout: int) -> None:
        self.workspace, self.words, self.calendar, self.timeout = workspace, words, calendar, timeout


def load(slot: str, name: str) -> Scheduled:
    """Return a schedule; Refusal if there is none, or if it is not root's word."""
    check_known(slot)
    known = names(slot)
    if name not in known:
        what = f"slot {slot} has no schedule {name!r:.80}; it has {', '.join(known) or 'none'}"
        raise Refusal("policy-missing", what, CONVERGE)
    path = _layout.schedule(slot, name)
    try:
        found = json.loads(_read(slot, name))
        check_shape(found, SHAPE, "it")
        if ("prompt" in found) == ("arguments" in found):
            raise ValueError("it must have a prompt or arguments")
        timeout = seconds(found["timeout"]) if "timeout" in found else 0
    except Untrusted as error:
        raise Refusal("policy-tampered", str(error), CONVERGE) from None
    except OSError as error:
        raise Refusal("policy-missing", f"{path}: {error.strerror}", CONVERGE) from None
    except (ValueError, RecursionError) as error:
        raise Refusal("policy-invalid", f"{path} holds no schedule: {error}", CONVERGE) from None
    given = words.started(found.get("prompt"), found.get("arguments", []))
    return Scheduled(found["workspace"], given, found.get("calendar", ""), timeout)


def _read(slot: str, name: str) -> bytes:
    directory = open_trusted(_layout.schedules(slot))
    try:
        return read_checked(f"{name}{SUFFIX}", directory)
    finally:
        os.close(directory)


def names(slot: str) -> list[str]:
    """Return the names of the slot's schedules; each is safe in a path, as a name in a directory."""
    try:
        found = os.listdir(_layout.schedules(slot))
    except OSError:
        return []
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX) and not name.startswith("."))
