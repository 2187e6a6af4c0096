# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl stop`: ends sessions; when it returns, none of their processes is left."""

from __future__ import annotations

import os

from confined_slots import _sessions
from confined_slots._refusals import printable

from . import ended, unit
from .slots import check_known

NO_SUCH_UNIT = 5


class NotStopped(Exception):
    """Systemd could not stop a session; the text says which."""


def stop(slot: str, session: str | None) -> list[str]:
    """Stop the slot's session, or all of them; return the ids of those that were stopped. NotStopped if one lives on."""
    check_known(slot)
    live = [str(record["session"]) for record in _sessions.live_sessions(slot)]
    if session is not None and session not in live:
        there = f"its sessions are {', '.join(live)}" if live else "it has none"
        raise NotStopped(f"slot {slot} has no session {printable(session)[:80]} that runs; {there} [see 'slotctl sessions {slot}']")
    wanted = live if session is None else [session]
    for each in wanted:
        _ask(slot, each)
    for each in wanted:
        status = unit.stop(slot, each)
        if status not in (0, NO_SUCH_UNIT):
            raise NotStopped(f"session {each} could not be stopped: systemctl ended with {status} [see 'journalctl -n 50']")
        if status == NO_SUCH_UNIT and _sessions.read_record(slot, each):
            # a slotctl that was killed before its unit began, or a PID 1 that could not run ExecStopPost
            ended.end_session(slot, each, "", "", "")
    return wanted


def _ask(slot: str, session: str) -> None:
    try:
        record = os.open(_sessions.path_of(slot, session, "record"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # it has just ended
        return
    try:
        ended.ask(record, "slotctl stop")
    finally:
        os.close(record)
