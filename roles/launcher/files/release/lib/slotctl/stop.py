# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl stop`: ends sessions; when it returns, none of their processes is left."""

from __future__ import annotations

import os

from confined_slots import _sessions
from confined_slots._refusals import printable

from . import ended, unit
from .slots import check_known


class NotStopped(Exception):
    """Systemd could not stop a session; the text says which."""


def stop(slot: str, session: str | None) -> list[str]:
    """Stop the slot's session, or all of them; return the ids of those stopped. NotStopped if one lives on."""
    check_known(slot)
    ended.sweep(slot)
    live = [str(record["session"]) for record in _sessions.live_sessions(slot)]
    if session is not None and session not in live:
        there = f"its sessions are {', '.join(live)}" if live else "it has none"
        what = f"no session {printable(session)[:80]} of slot {slot} runs"
        raise NotStopped(f"{what}; {there} [see 'slotctl sessions {slot}']")
    wanted = live if session is None else [session]
    for each in wanted:
        _ask(slot, each)
    if wanted:
        unit.stop(slot, wanted)
    for each in wanted:
        if unit.runs(slot, each):
            raise NotStopped(f"session {each} could not be stopped [see 'journalctl -n 50']")
    ended.sweep(slot)
    return wanted


def _ask(slot: str, session: str) -> None:
    try:
        record = os.open(
            _sessions.path_of(slot, session, "record"), os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except FileNotFoundError:  # it has just ended
        return
    try:
        ended.ask(record, "slotctl stop")
    finally:
        os.close(record)
