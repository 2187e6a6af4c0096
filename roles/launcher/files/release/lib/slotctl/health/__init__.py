# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl health`: is this host as it was made, and does the confinement hold, found by looking and by trying.

A subject has a file here with functions that look, and a row for each in its HOST or SLOT; the file stands in SUBJECTS.
"""

from __future__ import annotations

import fnmatch
import os
import socket
import time
import typing as t

from confined_slots import _health, _layout
from confined_slots._health import CouldNot, Json
from confined_slots._refusals import Refusal

from .. import slots
from . import accounts, apparmor, confinement, docker, files, host, limits, logs, policy, release, runner, sessions
from .context import Check, Context, Host, Options, units_of

SUBJECTS: tuple[t.Any, ...] = (
    *(release, host, apparmor, accounts, policy, confinement, limits, files, logs, sessions, docker),
)
HOST_CHECKS: tuple[Check, ...] = tuple(check for subject in SUBJECTS for check in getattr(subject, "HOST", ()))
SLOT_CHECKS: tuple[Check, ...] = tuple(check for subject in SUBJECTS for check in getattr(subject, "SLOT", ()))
BUDGET_SECONDS = 120.0


class NoSuchCheck(Exception):
    """No check is meant: nothing would be looked at, and that must not pass for health."""


def health(
    options: Options,
    *,
    only: t.Sequence[str] = (),
    checks: t.Sequence[str] = (),
    budget: float = BUDGET_SECONDS,
    jobs: int | None = None,
) -> Json:
    """Return the report of this host; only names slots (the host's own checks are left out then), checks are patterns.

    Refusal `slot-unknown` for a name that is no slot's, NoSuchCheck for patterns that fit no check.
    """
    began, when = time.monotonic(), time.time()
    of_host, of_slots = (_chosen(each, checks) for each in (HOST_CHECKS, SLOT_CHECKS))
    if not of_host and not of_slots:
        raise NoSuchCheck(f"no check is called {', '.join(checks)} [see docs/monitoring.md]")
    known = slots.known()
    for name in only:
        slots.check_known(name)
    names = [name for name in known if not only or name in only]
    found = _host(options, known)
    subjects = [] if only else [runner.Subject(Context(found), of_host)]
    subjects += [runner.Subject(Context(found, name), of_slots) for name in names]
    results = runner.run(subjects, budget, jobs or 2 + 2 * (os.cpu_count() or 1))
    own = [] if only else results[0].checks
    of_names = zip(names, results[0 if only else 1 :], strict=True)
    parts = [{"slot": name, "about": about(name), "checks": result.checks} for name, result in of_names]
    beside = [each for result in results for each in result.not_applicable]
    return _health.report(socket.gethostname(), when, time.monotonic() - began, own, parts, beside)


def _chosen(every: tuple[Check, ...], patterns: t.Sequence[str]) -> tuple[Check, ...]:
    return tuple(each for each in every if not patterns or any(fnmatch.fnmatchcase(each.id, one) for one in patterns))


def _host(options: Options, known: t.Sequence[str]) -> Host:
    """Return what is asked once for all slots."""
    units, trouble = None, ""
    try:
        units = units_of([logs.TIMER, *(_layout.slice_unit(name) for name in known)])
    except CouldNot as error:
        trouble = str(error)
    return Host(options, tuple(known), confinement.listeners(), units, trouble)


def about(name: str) -> Json:
    """Return what a slot is and may do, in words, as far as its plan can be read."""
    try:
        found = slots.load(name).base
    except Refusal as refusal:
        return {"refusal": refusal.code}
    provider = found["provider"]
    return {
        "mode": found["mode"],
        "note": found.get("note", ""),
        "enabled": found["enabled"],
        "provider": provider["name"],
        "version": provider["version"],
        "certification": provider["certification"],
        "network": found["network"],
        "docker": bool(found.get("docker")),
        "capabilities": [{"words": each["words"], "why": each["why"]} for each in found["capabilities"]],
        "workspaces": sorted(found["workspaces"]),
        "fingerprint": found["fingerprint"],
        "mounts": [
            {key: each.get(key, "") for key in ("kind", "target", "mode", "reason")} for each in found["mounts"]
        ],
    }


__all__ = ["HOST_CHECKS", "SLOT_CHECKS", "Options", "health"]
