# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions and schedules: what runs is on record, what is on record runs, none past its limit, none failing unseen."""

from __future__ import annotations

import calendar
import os
import time
import typing as t

from confined_slots import _layout, _schedules, _sessions
from confined_slots._health import DoesNotApply, Outcome, critical, ok, warn
from confined_slots._refusals import printable

from .. import scheduled, unit
from .context import CONVERGE, Check, Context, units_of

GRACE_SECONDS = 60


def sessions(context: Context) -> Outcome:
    """Return whether each session on record runs, and each that runs is on record."""
    name = context.name
    live = [str(record.get("session")) for record in _sessions.live_sessions(name)]
    there = _in_slice(name)
    expected = "each session that is on record runs, and each that runs is on record"
    states = units_of([_layout.session_unit(name, session) for session in live])
    gone = [session for session in live if _is_over(states.get(_layout.session_unit(name, session), {}))]
    unrecorded = sorted(there - set(live))
    if gone:
        what = f"on record and over: {', '.join(gone)}"
        return warn(what, expected, f"slotctl status {name} puts their end on record")
    if unrecorded:
        what = f"runs without a record: {', '.join(unrecorded)}"
        return critical(what, expected, f"systemctl stop {_layout.session_unit(name, unrecorded[0])}")
    return ok(f"{len(live)} running", expected)


def _in_slice(name: str) -> set[str]:
    """Return the ids of the sessions that have a control group in the slot's slice."""
    try:
        names = os.listdir(f"{_layout.CGROUPS}{_layout.slice_group(name)}")
    except FileNotFoundError:
        return set()
    prefix = f"confined-slots-{_layout.escaped(name)}-"
    found = {each.removeprefix(prefix).removesuffix(".service") for each in names if each.endswith(".service")}
    return {each for each in found if _sessions.is_session(each)}


def _is_over(shown: t.Mapping[str, str]) -> bool:
    return shown.get("ActiveState") in ("inactive", "failed", None)


def overdue(context: Context) -> Outcome:
    """Return whether a session runs past the limit that its slot has."""
    limit = context.policy["resources"].get("session_max")
    if limit is None:
        raise DoesNotApply("its sessions have no limit")
    expected = f"no session runs longer than {limit}"
    most = _schedules.seconds(limit) + unit.STOP_SECONDS + GRACE_SECONDS
    late = []
    for record in _sessions.live_sessions(context.name):
        began = started_at(record)
        if began is None or time.time() - began > most:
            since = f"since {record.get('start')}" if began is not None else "since nobody knows when"
            late.append(printable(f"{record.get('session')} {since}")[:80])
    if late:
        return critical(", ".join(late), expected, f"slotctl stop {context.name}")
    return ok("none does", expected)


def started_at(record: t.Mapping[str, t.Any]) -> float | None:
    """Return when a session started, in seconds since the epoch; None if its record does not say."""
    try:
        return calendar.timegm(time.strptime(str(record.get("start"))[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def schedules(context: Context) -> Outcome:
    """PL-09: each schedule's timer is on, its last run was one, and it has not failed twice in a row."""
    names = scheduled.names(context.name)
    if not names:
        raise DoesNotApply("it has no schedule")
    enabled = bool(context.slot.base["enabled"])
    expected = (
        "each schedule is on and its last run, if there was one, succeeded"
        if enabled
        else "each schedule is off, as its slot is"
    )
    off, failed, state = [], [], "warn"
    records = _sessions.read_history(context.name)
    in_a_row = _schedules.failures_in_a_row(records)
    shown = units_of([_schedules.timer(context.name, name) for name in names])
    for name in names:
        found = shown.get(_schedules.timer(context.name, name), {})
        is_on = (found.get("UnitFileState"), found.get("ActiveState")) == ("enabled", "active")
        if is_on != enabled:
            off.append(f"{name} is {'on' if is_on else 'off'}")
        runs = in_a_row.get(name, 0)
        if runs:
            last = next(record for record in reversed(records) if record.get("schedule") == name)
            times = f"{runs} times in a row" if runs > 1 else "once"
            failed.append(f"{name} failed {times}: {_why(last)}")
            state = "critical" if runs > 1 else state
    if off:
        return critical("; ".join((*off, *failed)), expected, CONVERGE)
    if failed:
        first = failed[0].partition(" ")[0]
        cure = f"slotctl preflight {context.name} --schedule {first}; slotctl sessions {context.name}"
        return Outcome(state, "; ".join(failed), expected, cure)
    return ok(f"{len(names)} schedules", expected)


def _why(record: t.Mapping[str, t.Any]) -> str:
    refusal = record.get("refusal")
    if isinstance(refusal, dict):
        return printable(f"{refusal.get('code')}: {refusal.get('what')}")[:200]
    return printable(f"{record.get('outcome')}, exit status {record.get('exit_status')}")


SLOT = (
    Check("sessions", "sessions and their records agree", sessions),
    Check("overdue", "no session runs past its limit", overdue),
    Check("schedules", "schedules run and succeed", schedules),
)
