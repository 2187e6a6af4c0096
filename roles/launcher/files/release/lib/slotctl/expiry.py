# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a slot's credential or login is known to end too early for a session, which nobody will be there to mend."""

from __future__ import annotations

import calendar
import json
import time
import typing as t

from confined_slots._as_slot import as_slot
from confined_slots._refusals import Refusal

from . import checks, kept
from .as_slot import place

if t.TYPE_CHECKING:
    from .slots import Slot

MOST_ANSWER = 100
LATEST = 253_402_300_800  # the year 10000, which time does not write


def check(slot: Slot, until: float) -> str:
    """Refuse if what the slot logs in with is known to end before a time (seconds since 1970); return what is known.

    What a slot's own files say is its word: it can keep a session from starting, and lets none start that would not.
    """
    day = checks.credential_end(slot)
    if day:
        cure = f"declare a new credential for slot {slot.name}, with its day, and converge"
        return _before(_midnight(day), until, "the credential", cure)
    if checks.credential_file(slot) is not None:
        return "of the credential no day is declared"
    end = login_end(slot)
    return "no end is known" if end is None else _before(end, until, "the login", f"slotctl login {slot.name}")


def login_end(slot: Slot) -> float | None:
    """Return when the login in the slot's HOME ends, by its file; None if it renews itself, or says nothing of it."""
    known = slot.policy["provider"].get("login_expiry")
    path = place(slot.policy, known["file"]) if known else ""
    if not path:
        return None
    scale = 1000 if known["unit"] == "milliseconds" else 1

    def work() -> bytes:
        found = json.loads(kept.read(path) or b"")
        end = _at(found, known["at"])
        if isinstance(end, bool) or not isinstance(end, (int, float)) or _at(found, known["renewed_by"] or [""]):
            return b""
        return str(float(end / scale)).encode()

    said = as_slot(slot.uid, slot.gid, work, MOST_ANSWER)
    try:
        end = float(said)
    except ValueError:
        return None
    return end if 0 < end < LATEST else None


def _before(end: float, until: float, what: str, cure: str) -> str:
    words = f"{what} ends {_as_text(end)}"
    if end <= until:
        raise Refusal("credential-expiring", f"{words}, and is needed until {_as_text(until)}", cure)
    return words


def _at(found: t.Any, keys: list[str]) -> t.Any:
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _midnight(day: str) -> float:
    """Return when a declared day begins, in UTC; 0, which is long ago, if it is none."""
    try:
        return float(calendar.timegm(time.strptime(day, "%Y-%m-%d")))
    except ValueError:
        return 0.0


def _as_text(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
