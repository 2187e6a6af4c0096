# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a schedule may be, what of it stands in units, and the steps to it."""

from __future__ import annotations

import dataclasses
import json
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _layout, _programs, _schedules, _sessions, _units
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid, Slot, parse
from ansible_collections.confined.slots.plugins.module_utils._files import Owned
from ansible_collections.confined.slots.plugins.module_utils._schedules import Found

NIGHTLY = {"name": "nightly", "calendar": "03:00", "prompt": "go"}
NOTHING = Found({}, {}, {})
GIDS = {"a-b": 20000}
ON = frozenset({"enabled", "active"})
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(str.strip)


def slot(*schedules: dict[str, t.Any], **more: t.Any) -> Slot:
    (found,) = parse([{"name": "a-b", "workspaces": ["main", "review"], "schedules": list(schedules), **more}])
    return found


def steps(declared: Slot, found: Found) -> list[tuple[str, str]]:
    changes = [*_schedules.plan([declared], GIDS, found, "0s"), *_schedules.to_switch_on([declared], found)]
    return [(change.step.action, change.step.subject.rpartition("/")[2]) for change in changes]


def converged(declared: Slot) -> Found:
    files: dict[str, _units.File] = {}
    for schedule in declared.schedules:
        files |= _schedules.files_of(declared, schedule, 20000, "0s")
    on = {_schedules.timer("a-b", schedule.name): ON for schedule in declared.schedules if declared.enabled}
    return Found(files, {_layout.schedules("a-b"): Owned(0, 20000, 0o750)} if files else {}, on)


def test_a_schedule_works_in_the_slots_first_workspace_for_at_most_an_hour() -> None:
    (schedule,) = slot(NIGHTLY).schedules
    assert (schedule.workspace, schedule.timeout, schedule.arguments) == ("main", "1h", None)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        pytest.param({"name": "../x"}, r"schedules\[0\]\.name is '\.\./x'", id="a name that is a path"),
        pytest.param({"name": "x%n"}, r"schedules\[0\]\.name", id="a name with a specifier"),
        pytest.param({"name": "x\n"}, r"schedules\[0\]\.name", id="a name with a line break"),
        pytest.param({"calendar": "03:00\nOnBootSec=1"}, "'nightly': calendar is", id="a calendar of two lines"),
        pytest.param({"calendar": "%i"}, "calendar is '%i'", id="a calendar with a specifier"),
        pytest.param({"calendar": ""}, "calendar is ''", id="no calendar"),
        pytest.param({"calendar": "-h"}, "calendar is '-h'", id="a calendar that is an option"),
        pytest.param({"workspace": "other"}, "workspace is 'other'; it can be main or review", id="no such workspace"),
        pytest.param({"workspace": ["main"]}, "workspace is", id="a workspace that is no name"),
        pytest.param({"prompt": None}, "neither prompt nor arguments", id="nothing to do"),
        pytest.param({"arguments": ["-c"]}, "both prompt and arguments", id="two things to do"),
        pytest.param({"prompt": "a\0b"}, "text without NUL", id="a prompt with NUL"),
        pytest.param({"prompt": " \n"}, "prompt is empty", id="an empty prompt"),
        pytest.param({"prompt": "\ud800"}, "surrogate", id="half a character"),
        pytest.param({"prompt": "ä" * 50_001}, "has 100002 bytes; it can have 100000", id="a prompt too long"),
        pytest.param({"prompt": None, "arguments": ["a\0b"]}, r"arguments\[0\] .* NUL", id="an argument with NUL"),
        pytest.param({"prompt": None, "arguments": "ls"}, "arguments is 'ls'; it must be a list", id="no list"),
        pytest.param({"timeout": "infinity"}, "timeout is 'infinity'", id="no end"),
        pytest.param({"timeout": "0s"}, "timeout is '0s'", id="no time"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_the_name_of_its_value(bad: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid, match=f"slot 'a-b': .*{said}"):
        slot(NIGHTLY | bad)


def test_two_schedules_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match="schedules has a name twice: nightly, nightly"):
        slot(NIGHTLY, NIGHTLY)


@hypothesis.given(TEXT)
def test_no_character_of_a_prompt_reaches_a_unit_file_and_all_of_them_the_file_of_roots(prompt: str) -> None:
    declared = slot(NIGHTLY | {"prompt": prompt})
    files = _schedules.files_of(declared, declared.schedules[0], 20000, "0s")
    plain = _schedules.files_of(slot(NIGHTLY), slot(NIGHTLY).schedules[0], 20000, "0s")
    path = _layout.schedule("a-b", "nightly")
    wanted = {"workspace": "main", "calendar": "03:00", "timeout": "1h", "prompt": prompt}
    assert json.loads(files[path].content) == wanted
    assert {name: file for name, file in files.items() if name != path} == {
        name: file for name, file in plain.items() if name != path
    }


def test_the_units_hold_no_more_than_names_and_times() -> None:
    declared = slot(NIGHTLY | {"timeout": "90min"})
    files = _schedules.files_of(declared, declared.schedules[0], 20000, "10min")
    service, timer = (
        files[f"{_layout.UNITS}/confined-slots-a\\x2db-schedule-nightly.{kind}"].content.decode()
        for kind in ("service", "timer")
    )
    assert "\nExecStart=/opt/confined-slots/current/bin/slotctl scheduled a-b nightly\n" in service
    assert all(f"\n{line}\n" in service for line in ("Type=oneshot", "StandardInput=null", "TimeoutStartSec=90min"))
    assert "Restart" not in service and "%" not in service + timer
    assert all(f"\n{line}\n" in timer for line in ("OnCalendar=03:00", "RandomizedDelaySec=10min", "Persistent=true"))


def test_what_the_cli_prints_is_no_emergency_and_not_slotctls_word() -> None:
    declared = slot(NIGHTLY)
    files = _schedules.files_of(declared, declared.schedules[0], 20000, "0s")
    (service,) = (file.content.decode() for path, file in files.items() if path.endswith(".service"))
    assert "\nSyslogLevelPrefix=no\n" in service
    assert "\nSyslogIdentifier=slot-a-b\n" in service


def test_only_root_writes_what_is_to_be_done() -> None:
    declared = slot(NIGHTLY)
    for file in _schedules.files_of(declared, declared.schedules[0], 20000, "0s").values():
        assert file.owned.uid == 0 and not file.owned.mode & 0o022
        assert file.owned.gid == 0 or not file.owned.mode & 0o007


@hypothesis.given(st.sets(st.from_regex(r"[a-z][a-z0-9-]{0,9}\Z"), min_size=2), st.from_regex(r"[a-z][a-z0-9-]{0,9}\Z"))
def test_no_schedules_unit_is_another_slots_or_a_sessions(names: set[str], schedule: str) -> None:
    for name in {*names, "schedule"}:
        unit = f"{_layout.schedule_unit(name, schedule)}.service"
        for other in {*names, "schedule"} - {name}:
            assert not _schedules._is_unit_of(other, unit)
            assert not unit.startswith(f"confined-slots-{_layout.escaped(other)}-")
        assert not _schedules._is_unit_of(name, _layout.session_unit(name, _sessions.new_session()))


def test_what_is_new_is_written_and_then_switched_on() -> None:
    stem = "confined-slots-a\\x2db-schedule-nightly"
    assert steps(slot(NIGHTLY), NOTHING) == [
        ("keep directory", "schedules"),
        ("write", "nightly.json"),
        ("write", f"{stem}.service"),
        ("write", f"{stem}.timer"),
        ("switch on", f"{stem}.timer"),
    ]


def test_a_second_converge_has_nothing_to_do() -> None:
    declared = slot(NIGHTLY, NIGHTLY | {"name": "weekly"})
    assert steps(declared, converged(declared)) == []
    assert not _units.reloads([], converged(declared).timers)


def test_what_is_withdrawn_is_switched_off_before_its_files_go() -> None:
    stem = "confined-slots-a\\x2db-schedule-nightly"
    assert steps(slot(), converged(slot(NIGHTLY))) == [
        ("switch off", f"{stem}.timer"),
        ("remove", "nightly.json"),
        ("remove", f"{stem}.service"),
        ("remove", f"{stem}.timer"),
        ("remove directory", "schedules"),
    ]


def test_a_disabled_slots_timers_are_switched_off_and_its_files_stay() -> None:
    assert [action for action, _unused in steps(slot(NIGHTLY, enabled=False), converged(slot(NIGHTLY)))] == [
        "switch off"
    ]


@pytest.mark.parametrize("have", [frozenset(), frozenset({"enabled"}), frozenset({"active"}), frozenset({"stale"})])
def test_a_timer_that_is_not_wholly_on_is_switched_on_unless_its_schedule_is_refused(have: frozenset[str]) -> None:
    declared, name = slot(NIGHTLY), _schedules.timer("a-b", "nightly")
    found = dataclasses.replace(converged(declared), timers={name: have})
    assert [change.step.action for change in _schedules.to_switch_on([declared], found)] == ["switch on"]
    assert list(_schedules.to_switch_on([declared], found, {name})) == []


def test_units_that_a_killed_converge_left_unread_are_read() -> None:
    found = dataclasses.replace(converged(slot(NIGHTLY)), timers={"x.timer": frozenset({*ON, "stale"})})
    assert _units.reloads([], found.timers)


READY = json.dumps({"ready": True, "checks": [{"check": "space", "refusal": "", "what": "much"}]})
LACKING = json.dumps(
    {
        "ready": False,
        "checks": [
            {"check": "enabled", "refusal": "slot-disabled", "what": "it is off [enable it]"},
            {"check": "space", "refusal": "", "what": "much"},
            {"check": "credential", "refusal": "credential-missing", "what": "no file [converge]"},
        ],
    }
)


@pytest.mark.parametrize(
    ("status", "out", "error", "said"),
    [
        pytest.param(0, READY, "", None, id="ready"),
        pytest.param(
            1, LACKING, "", "slot-disabled: it is off [enable it]; credential-missing: no file [converge]", id="lacking"
        ),
        pytest.param(0, LACKING, "", "slot-disabled: ", id="its status is not enough"),
        pytest.param(1, READY, "", "slotctl ended with 1", id="its word is not enough"),
        pytest.param(
            125,
            "",
            '{"refusal": "policy-missing", "what": "no plan", "cure": "converge"}\n',
            "policy-missing: no plan [converge]",
            id="refused outright",
        ),
        pytest.param(70, "", "slotctl: internal error: x\n", "slotctl ended with 70: slotctl: internal", id="broken"),
        pytest.param(0, "", "", "slotctl ended with 0", id="silent"),
        pytest.param(0, "[]", "", "slotctl ended with 0", id="another shape"),
        pytest.param(-9, "", "", "slotctl ended with -9: no message", id="killed"),
    ],
)
def test_pl_09_only_a_preflight_that_says_so_in_full_lets_a_schedule_be_switched_on(
    status: int, out: str, error: str, said: str | None
) -> None:
    found = _schedules.read_preflight(_programs.Done(status, out, error))
    assert found is None if said is None else found is not None and found.startswith(said)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        pytest.param("    Next elapse: Mon 2026-11-30 03:00:00 UTC\n       From now: 1h left\n", 1796007600, id="UTC"),
        pytest.param(
            "    Next elapse: Mon 2026-11-30 03:00:00 CET\n       (in UTC): Mon 2026-11-30 02:00:00 UTC\n",
            1796004000,
            id="another zone",
        ),
        pytest.param("    Next elapse: never\n", None, id="never"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_the_next_start_is_read_as_systemd_names_it(said: str, wanted: float | None) -> None:
    assert _schedules.read_next_start(said) == wanted


def test_a_span_has_seconds() -> None:
    assert [_schedules.seconds(span) for span in ("90s", "2min", "1h", "3d")] == [90, 120, 3600, 259200]
    for span in ("", "1", "0h", "1w", "1h\n", "-1h", "\u0661h"):
        with pytest.raises(ValueError, match="is no span"):
            _schedules.seconds(span)


RAN = {"event": "end", "schedule": "nightly", "outcome": "ended", "exit_status": 0}
FAILED = {
    "its status": RAN | {"exit_status": 7},
    "stopped": RAN | {"outcome": "stopped"},
    "timed out": RAN | {"outcome": "timed-out"},
    "refused": {"event": "refused", "schedule": "nightly", "outcome": "refused"},
}


@pytest.mark.parametrize("failed", FAILED.values(), ids=FAILED)
def test_failures_in_a_row_are_counted_from_the_newest_run_back_to_one_that_went_well(
    failed: dict[str, object],
) -> None:
    begun = {"event": "start", "schedule": "nightly"}
    by_hand, other = RAN | {"exit_status": 1, "schedule": None}, RAN | {"schedule": "other"}
    count = _schedules.failures_in_a_row
    assert count([]) == {}
    assert count([failed, RAN, begun, failed, by_hand, other, failed, begun]) == {"nightly": 2, "other": 0}
    assert count([failed, failed, RAN]) == {"nightly": 0}


@hypothesis.given(st.lists(st.sampled_from([RAN, *FAILED.values()])))
def test_failures_in_a_row_are_as_many_as_follow_the_last_good_run(records: list[dict[str, object]]) -> None:
    good = max((index for index, record in enumerate(records) if record is RAN), default=-1)
    assert _schedules.failures_in_a_row(records).get("nightly", 0) == len(records) - 1 - good
