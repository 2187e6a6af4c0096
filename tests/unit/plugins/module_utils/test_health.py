# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""MO-02, MO-03: what a check says, the worst of it, and that nothing which is no result passes for health."""

from __future__ import annotations

import json
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _health

HOSTILE = 'a"b\\c\nd|e\x1b[31m\u202e🙂'


def report(**states: str) -> dict[str, t.Any]:
    """Return a report with one check of the host and one of a slot for each state given."""
    checks = [_health.as_json(name, _health.Outcome(state, "found"), 1.0) for name, state in states.items()]
    about = {
        **{"mode": "isolated", "note": "", "enabled": True, "provider": "shell", "version": "1", "docker": False},
        **{"certification": "certified", "network": "none", "fingerprint": "sha256:0", "capabilities": []},
        **{"workspaces": ["main"], "mounts": []},
    }
    slots = [{"slot": "coder", "about": about, "checks": checks}]
    return _health.report("box", 1000.5, 1.25, [_health.as_json("release", _health.ok("as made"), 2.0)], slots, [])


@pytest.mark.parametrize("state", ["OK", "", "okay", "failed", "none"])
def test_mo_03_a_state_that_there_is_not_cannot_be_said(state: str) -> None:
    with pytest.raises(ValueError, match="is no state"):
        _health.Outcome(state, "found")


def test_a_complaint_must_say_what_it_found() -> None:
    with pytest.raises(ValueError, match="must say"):
        _health.Outcome("critical", "")


def test_the_worst_is_critical_then_unknown_then_warn_and_nothing_at_all_is_unknown() -> None:
    assert _health.worst(["ok", "warn", "unknown", "critical"]) == "critical"
    assert _health.worst(["ok", "warn", "unknown"]) == "unknown"
    assert _health.worst(["warn", "ok"]) == "warn"
    assert _health.worst([]) == "unknown"


def test_unknown_fails_a_task_as_critical_does() -> None:
    assert "unknown" in _health.FAILING["critical"] and "unknown" in _health.FAILING["warn"]
    assert "warn" not in _health.FAILING["critical"] and _health.FAILING["never"] == ()


@pytest.mark.parametrize(
    ("states", "status", "word"),
    [
        ({"marker": "ok"}, 0, "OK"),
        ({"marker": "ok", "login": "warn"}, 1, "WARN"),
        ({"marker": "critical", "login": "unknown"}, 2, "CRITICAL"),
        ({"marker": "unknown", "login": "warn"}, 3, "UNKNOWN"),
    ],
)
def test_mo_03_a_nagios_plugin_ends_with_the_status_of_the_worst(
    states: dict[str, str], status: int, word: str
) -> None:
    found, line = _health.nagios(report(**states))
    assert found == status and line.startswith(f"SLOTS {word} - ")
    assert "\n" not in line and line.count("|") == 1


def test_a_hostile_text_cannot_end_the_line_of_a_plugin_or_begin_its_numbers() -> None:
    found = report(marker="critical")
    found["slots"][0]["checks"][0] = _health.as_json("marker", _health.critical(HOSTILE, "x", "y"), 1.0)
    line = _health.nagios(found)[1]
    assert line.count("|") == 1 and line.isprintable()


def test_texts_are_short_and_on_one_line() -> None:
    words = _health.as_json("x", _health.critical(HOSTILE * 500, "", ""), 1.0)["found"]
    assert len(words) == _health.MOST_TEXT and words.isprintable()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found | {"schema": 2},
        lambda found: found | {"checks": [], "slots": []},
        lambda found: found | {"state": "ok"},
        lambda found: found | {"checks": [{"check": "release", "state": "fine"}]},
        lambda found: found | {"slots": [{"slot": "coder"}]},
        lambda found: {key: word for key, word in found.items() if key != "time"},
        lambda _found: None,
        lambda _found: [],
    ],
    ids=["schema", "nothing looked at", "too good a state", "unknown state", "no checks", "no time", "none", "a list"],
)
def test_mo_03_what_is_no_report_is_refused(change: t.Callable[[t.Any], t.Any]) -> None:
    _health.check_report(report(marker="critical"))
    with pytest.raises(ValueError):
        _health.check_report(change(report(marker="critical")))


def test_counts_and_the_states_of_slots_are_made_anew_of_the_checks() -> None:
    real = report(marker="critical", login="warn")
    lie = {**report(marker="critical", login="warn"), "counts": {"ok": 10**6}}
    lie["slots"][0]["state"] = "ok"
    assert _health.check_report(lie) == real
    lie["slots"][0]["state"], lie["counts"] = ["ok"], None
    assert _health.check_report(lie) == real


def test_a_slot_whose_plan_could_not_be_read_is_in_a_report_with_the_reason() -> None:
    found = report(policy="critical")
    for about in ({"refusal": "policy-invalid"}, {}):
        found["slots"][0]["about"] = about
        assert _health.check_report(found)["slots"][0]["about"] == about


def test_a_run_in_which_nothing_applied_is_a_report_and_unknown() -> None:
    beside = [{"slot": "coder", "check": "quota", "why": "none is kept"}]
    found = _health.check_report(_health.report("box", 1.0, 1.0, [], [], beside))
    assert found["state"] == "unknown" and "no check had anything to look at" in _health.summary(found)


def test_a_run_that_failed_is_a_report_with_the_state_unknown() -> None:
    found = _health.check_report(_health.failed("box", 5.0, "killed"))
    assert found["state"] == "unknown" and found["slots"] == []
    assert "confined_slots_health_state 3\n" in _health.prometheus(found)


def test_the_textfile_has_every_check_a_timestamp_and_a_version() -> None:
    text = _health.prometheus(report(marker="critical", login="warn"))
    assert 'confined_slots_health_check_state{check="marker",slot="coder"} 2\n' in text
    assert 'confined_slots_health_check_state{check="release",slot=""} 0\n' in text
    assert "confined_slots_health_timestamp_seconds 1000.5\n" in text
    assert "confined_slots_health_schema_version 1\n" in text
    assert 'confined_slots_health_slot_info{slot="coder",mode="isolated",provider="shell"} 1\n' in text


def test_every_metric_is_announced_once_and_hostile_labels_stay_in_their_quotes() -> None:
    hosts = [{**report(marker="ok"), "host": HOSTILE}, {**report(marker="warn"), "host": "b"}]
    lines = _health.prometheus_of(hosts).splitlines()
    announced = [line for line in lines if line.startswith("# TYPE")]
    assert len(announced) == len(set(announced)) == len(_health.METRICS)
    for line in lines:
        if not line.startswith("#"):
            name, _unused, number = line.rpartition(" ")
            float(number)
            assert name.replace("\\\\", "").replace('\\"', "").count('"') % 2 == 0
    assert any('host="a\\"b\\\\c\\\\nd|e' in line for line in lines)


def test_only_changes_of_state_are_told_and_a_new_check_that_is_ok_is_none() -> None:
    before, after = report(marker="ok", login="warn"), report(marker="critical", login="warn", view="ok", mode="warn")
    told = [(slot, check["check"], state) for slot, check, state in _health.changes(before, after)]
    assert told == [("coder", "marker", "ok"), ("coder", "mode", "")]
    assert [check["check"] for _slot, check, _state in _health.changes(None, after)] == ["marker", "login", "mode"]


def test_a_report_of_a_fleet_has_every_host_by_its_own_name() -> None:
    found = _health.fleet({"b": report(marker="ok"), "a": {"unreachable": True, "msg": "gone"}, "c": None}, 7.0)
    assert [(host["host"], host["state"]) for host in found["hosts"]] == [
        ("a", "unknown"),
        ("b", "ok"),
        ("c", "unknown"),
    ]
    assert found["state"] == "unknown" and found["counts"]["unknown"] == 2
    json.dumps(found)
