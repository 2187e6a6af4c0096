# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedules: what a slot is to do without a person, as a file of root's, a service and a timer of systemd's each.

The text of a prompt stands in the file only, which slotctl reads: in a unit file systemd would take %, $, quotes and
line breaks for its own. The units hold names and times.
"""

from __future__ import annotations

import calendar as calendars
import contextlib
import dataclasses
import json
import os
import re
import time
import typing as t

from . import _files, _layout
from ._declarations import Invalid, Schedule, Slot
from ._files import Owned
from ._programs import Done, Failed, NotInstalled, ask, run
from ._steps import Step
from ._units import UNIT, Change, File, states

SLOTCTL = f"{_layout.CURRENT}/bin/slotctl"
# slotctl has the session stopped, which takes up to STOP_PATIENCE of its run.py, and then puts the end on record.
STOP_SECONDS = 60
PREFLIGHT_SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Found:
    """What the host has of the declared slots' schedules.

    files by path (those of timers' stamps without content), directories by path, and of each timer that is enabled,
    active or not as its file says the words `enabled`, `active` and `stale`.
    """

    files: t.Mapping[str, File]
    directories: t.Mapping[str, Owned]
    timers: t.Mapping[str, frozenset[str]]


def timer(slot: str, name: str) -> str:
    """Return the timer of a schedule."""
    return f"{_layout.schedule_unit(slot, name)}.timer"


def files_of(slot: Slot, schedule: Schedule, gid: int, delay: str) -> dict[str, File]:
    """Return the files of a schedule by path; delay is the most that systemd may add to each start at random."""
    doing = {"prompt": schedule.prompt, "arguments": schedule.arguments}
    when = {"calendar": schedule.calendar, "timeout": schedule.timeout}
    words = {"workspace": schedule.workspace, **when, **{key: text for key, text in doing.items() if text is not None}}
    about = f"schedule {schedule.name} of slot {slot.name}"
    service = (
        *("# Made by confined.slots", "[Unit]", f"Description=Run {about}", "After=network-online.target"),
        *("", "[Service]", "Type=oneshot"),
        *(f"ExecStart={SLOTCTL} scheduled {slot.name} {schedule.name}", "StandardInput=null"),
        *(f"TimeoutStartSec={schedule.timeout}", f"TimeoutStopSec={STOP_SECONDS}"),
        # what the CLI prints is neither an emergency, which each terminal of the host would show, nor slotctl's word
        *(f"SyslogIdentifier={_layout.account(slot.name)}", "SyslogLevelPrefix=no"),
    )
    clock = (
        *("# Made by confined.slots", "[Unit]", f"Description=Start {about}", "", "[Timer]"),
        *(f"OnCalendar={schedule.calendar}", f"RandomizedDelaySec={delay}", "AccuracySec=1s", "Persistent=true"),
        *("", "[Install]", "WantedBy=timers.target"),
    )
    base = f"{_layout.UNITS}/{_layout.schedule_unit(slot.name, schedule.name)}"
    return {
        _layout.schedule(slot.name, schedule.name): File(
            (json.dumps(words, indent=1) + "\n").encode("ascii"), Owned(0, gid, 0o640)
        ),
        f"{base}.service": File(("\n".join(service) + "\n").encode("ascii"), UNIT),
        f"{base}.timer": File(("\n".join(clock) + "\n").encode("ascii"), UNIT),
    }


def find(slots: t.Sequence[Slot]) -> Found:
    """Return what the host has for the declared slots, of schedules that are not declared (any more) too."""
    files: dict[str, File] = {}
    directories: dict[str, Owned] = {}
    timers: set[str] = set()
    units = [name for name in _files.names(_layout.UNITS) if name.startswith("confined-slots-")]
    for slot in slots:
        paths = [f"{_layout.UNITS}/{name}" for name in units if _is_unit_of(slot.name, name)]
        timers |= {f"{os.path.basename(path).rpartition('.')[0]}.timer" for path in paths}
        timers |= {timer(slot.name, schedule.name) for schedule in slot.schedules}
        directory = _layout.schedules(slot.name)
        owned = _files.owned(directory)
        if owned is not None:
            directories[directory] = owned
            paths += [f"{directory}/{name}" for name in _files.names(directory)]
        for path in paths:
            content, owner = _files.read(path), _files.owned(path)
            if content is not None and owner is not None:
                files[path] = File(content, owner)
    return Found(files, directories, states(sorted(timers)))


def plan(slots: t.Sequence[Slot], gids: t.Mapping[str, int], found: Found, delay: str) -> t.Iterator[Change]:
    """Yield what leads to the declared schedules, but for the timers that are to be switched on (`to_switch_on`).

    First what is not to start is switched off, then its files go, then files are written; gids are the slots' groups.
    """
    on = {timer(slot.name, each.name) for slot in slots if slot.enabled for each in slot.schedules}
    for name, words in sorted(found.timers.items()):
        if name not in on and words & {"enabled", "active"}:
            yield Change(Step(name, "switch off", ", ".join(sorted(words - {"stale"}))))
    wanted: dict[str, File] = {}
    for slot in slots:
        for schedule in slot.schedules:
            wanted |= files_of(slot, schedule, gids[slot.name], delay)
    for path in sorted(set(found.files) - set(wanted)):
        yield Change(Step(path, "remove", found.files[path].content.decode(errors="replace")))
    for slot in slots:
        directory, owned = _layout.schedules(slot.name), Owned(0, gids[slot.name], 0o750)
        have = found.directories.get(directory)
        if slot.schedules and have != owned:
            yield Change(Step(directory, "keep directory", str(have) if have else None, str(owned)), directory=owned)
        elif not slot.schedules and have:
            yield Change(Step(directory, "remove directory", str(have)))
    for path, file in wanted.items():
        there = found.files.get(path)
        if there is None or there.content != file.content:
            before = there.content.decode(errors="replace") if there else None
            yield Change(Step(path, "write", before, file.content.decode("ascii")), file)
        elif there.owned != file.owned:
            yield Change(Step(path, "give", str(there.owned), str(file.owned)), file)


def to_switch_on(slots: t.Sequence[Slot], found: Found, refused: t.Container[str] = ()) -> t.Iterator[Change]:
    """Yield the switching on of each timer that is to start its schedule, but of none that is refused."""
    for slot in slots:
        for schedule in slot.schedules if slot.enabled else ():
            name = timer(slot.name, schedule.name)
            have = found.timers.get(name, frozenset()) & {"enabled", "active"}
            if have != {"enabled", "active"} and name not in refused:
                yield Change(Step(name, "switch on", ", ".join(sorted(have)) or "off", "active, enabled"))


def switch_on(changes: t.Sequence[Change]) -> None:
    """Have systemd start the schedules at their times, now and after each boot."""
    if changes:
        run(("systemctl", "enable", "--quiet", "--now", "--", *(change.step.subject for change in changes)))


def check_calendars(slots: t.Sequence[Slot]) -> None:
    """Raise Invalid for the first calendar that the host's systemd does not take."""
    declared = [(slot, schedule) for slot in slots for schedule in slot.schedules]
    if not declared or not _calendar_fault(sorted({schedule.calendar for _unused, schedule in declared})):
        return
    for slot, schedule in declared:
        if fault := _calendar_fault([schedule.calendar]):
            raise Invalid(
                f"slot '{slot.name}': schedule '{schedule.name}': calendar is '{schedule.calendar}', which systemd does"
                f" not take: {fault} [see systemd.time(7), and try it with: systemd-analyze calendar]"
            )


def next_start(calendar: str) -> float | None:
    """Return when systemd would next start something at a calendar, in seconds since 1970; None if it never would."""
    try:
        return read_next_start(ask(("systemd-analyze", "calendar", "--", calendar)).out)
    except Failed:
        return None


def read_next_start(said: str) -> float | None:
    """Return the time that `systemd-analyze calendar` names, of the zones that of UTC; None if it names none."""
    found = [line.removesuffix(" UTC").rpartition(": ")[2] for line in said.split("\n") if line.endswith(" UTC")]
    for text in found:
        with contextlib.suppress(ValueError):
            return float(calendars.timegm(time.strptime(text, "%a %Y-%m-%d %H:%M:%S")))
    return None


def seconds(span: str) -> int:
    """Return the seconds of a span such as 2h, as a schedule's timeout is declared; ValueError if it is none."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})(s|min|h|d)", span)
    if match is None:
        raise ValueError(f"{span!r:.40} is no span")
    return int(match[1]) * {"s": 1, "min": 60, "h": 3600, "d": 86400}[match[2]]


def failures_in_a_row(records: t.Iterable[t.Mapping[str, t.Any]]) -> dict[str, int]:
    """Return, by schedule, how many of its newest runs have failed one after the other; records are the oldest first.

    A run that was refused has failed, and one that did not end by itself with status 0: what its unit says too, but for
    lost output. One that goes on counts for nothing yet.
    """
    found: dict[str, int] = {}
    for record in records:
        name, event = record.get("schedule"), record.get("event")
        if not isinstance(name, str) or event not in ("end", "refused"):
            continue
        went_well = event == "end" and record.get("outcome") == "ended" and record.get("exit_status") == 0
        found[name] = 0 if went_well else found.get(name, 0) + 1
    return found


def refusal(slot: str, name: str) -> str | None:
    """Return all that a schedule's session would be refused for, by slotctl's word; None if it would start."""
    asked = (SLOTCTL, "preflight", slot, "--schedule", name, "--json")
    try:
        done = ask(asked, seconds=PREFLIGHT_SECONDS)
    except NotInstalled:
        return f"launcher-tampered: {SLOTCTL} is not there [run the role confined.slots.launcher first]"
    except Failed as failure:
        return f"sandbox-unavailable: {failure}"
    return read_preflight(done)


def read_preflight(done: Done) -> str | None:
    """Return what `slotctl preflight --json` found missing; whatever it did not say in so many words is missing too."""
    try:
        if done.status in (0, 1):
            found = json.loads(done.out)
            lacking = [f"{each['refusal']}: {each['what']}" for each in found["checks"] if each["refusal"]]
            if found["ready"] and done.status == 0 and not lacking:
                return None
            return "; ".join(dict.fromkeys(lacking)) or f"slotctl ended with {done.status}"
        words = json.loads(done.error.strip().split("\n")[-1])
        return f"{words['refusal']}: {words['what']} [{words['cure']}]"
    except (ValueError, KeyError, TypeError):
        return f"slotctl ended with {done.status}: {done.why[-500:]}"


def _calendar_fault(calendars: t.Sequence[str]) -> str:
    done = ask(("systemd-analyze", "calendar", "--", *calendars))
    return done.why if done.status else ""


def _is_unit_of(slot: str, unit: str) -> bool:
    return unit.startswith(_layout.schedule_unit(slot, "")) and unit.endswith((".service", ".timer"))
