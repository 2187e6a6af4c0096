# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedules on real hosts: timers start sessions without a person, byte for byte, and what fails is seen to fail."""

from __future__ import annotations

import json
import typing as t

import pytest
from waiting import until

if t.TYPE_CHECKING:
    from conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

FAR = "*-01-01 04:00"
ETC = "/etc/confined-slots/slots.d/night-shift/schedules"
WORKSPACES = "/var/lib/confined-slots/slots/night-shift/workspaces"


def doing(prompt: str, **more: t.Any) -> dict[str, t.Any]:
    return {"name": "test", "calendar": FAR, "prompt": prompt} | more


def quoted(script: str) -> str:
    return "'" + script.replace("'", "'\\''") + "'"


def test_a_second_converge_changes_nothing(operator: Operator) -> None:
    assert operator.kept("schedule", slots=[operator.slot])["steps"] == []
    assert all(operator.on("night-shift", name) for name in operator.schedules)


def test_a_timer_fires_and_the_session_is_on_record_as_unattended(operator: Operator) -> None:
    operator.do(f"rm -f {WORKSPACES}/main/fired; touch /var/log/confined-slots/night-shift/sessions.jsonl")
    before = len(operator.records("night-shift"))
    assert not operator.keep(doing("echo $$ >> fired", calendar="*:*:*"))["failed"]
    operator.do(until(f"test -s {WORKSPACES}/main/fired"))
    assert not operator.keep()["failed"]
    operator.do(until(f"! systemctl is-active {operator.unit('test')}.service | grep -q activating"))
    start, end, *_unused = operator.records("night-shift")[before:]
    for record, event in ((start, "start"), (end, "end")):
        assert (record["event"], record["unattended"], record["schedule"]) == (event, True, "test")
        assert (record["workspace"], record["session"]) == ("main", start["session"])
    assert (end["outcome"], end["exit_status"]) == ("ended", 0)
    assert "schedule test" in operator.do("slotctl sessions night-shift")


def test_a_prompt_arrives_byte_for_byte(operator: Operator) -> None:
    assert operator.start("night-shift", "nightly")[0] == "inactive"
    words = operator.file("night-shift", "review/arrived").split(b"\0")
    assert words[-3:] == [b"-c", operator.schedules["nightly"]["prompt"].encode(), b""]


def test_arguments_arrive_as_they_were_declared(operator: Operator) -> None:
    assert operator.start("night-shift", "by-arguments")[0] == "inactive"
    wanted = "".join(f"{word}|" for word in operator.schedules["by-arguments"]["arguments"][3:])
    assert operator.file("night-shift", "main/words") == wanted.encode()


def test_no_text_of_a_prompt_is_in_a_unit_file(operator: Operator) -> None:
    assert not operator.says("grep -q arrived /etc/systemd/system/confined-slots-*")
    assert operator.says(f"grep -q arrived {ETC}/nightly.json")


@pytest.mark.parametrize(
    ("prompt", "status", "outcome"),
    [
        pytest.param("exit 7", "7", "ended", id="its own status"),
        pytest.param("kill -KILL $$", "137", "ended", id="a signal"),
        pytest.param("trap 'exit 0' TERM; sleep 300 & wait", "143", "stopped", id="too long, and then a clean exit"),
    ],
)
def test_a_session_that_fails_fails_its_unit(operator: Operator, prompt: str, status: str, outcome: str) -> None:
    operator.keep(doing(prompt, timeout="20s" if outcome == "stopped" else "5min"))
    assert operator.start("night-shift", "test")[0] == "failed"
    shown = operator.do(f"systemctl show --value -p ExecMainStatus {operator.unit('test')}.service")
    assert shown == status
    assert operator.records("night-shift")[-1]["outcome"] == outcome
    assert "no session runs" in operator.do("slotctl stop night-shift")


def test_pl_09_how_often_a_schedule_has_failed_in_a_row_is_said_until_it_succeeds(operator: Operator) -> None:
    told = "slot night-shift: schedule row: failed {} times in a row"
    operator.keep(doing("test -e works", name="row"))
    works = f"{WORKSPACES}/main/works"
    operator.do(f"rm -f {works}")
    assert [operator.start("night-shift", "row")[0] for _unused in range(2)] == ["failed"] * 2
    assert told.format(2) in operator.do("slotctl list")
    assert "row: failed 2 times in a row" in operator.host.run("slotctl status night-shift").stdout
    operator.do("logrotate --force /etc/logrotate.d/confined-slots")
    assert told.format(2) in operator.do("slotctl list"), "what was rotated away still counts"
    operator.start("night-shift", "row")
    operator.do("logrotate --force /etc/logrotate.d/confined-slots")
    operator.start("night-shift", "row")
    assert told.format(4) in operator.do("slotctl list"), "what was compressed too"
    operator.do(f"touch {works}")
    assert operator.start("night-shift", "row")[0] == "inactive"
    assert "in a row" not in operator.do("slotctl list; slotctl status night-shift")
    operator.do(f"rm {works}")


def test_a_session_that_is_stopped_has_failed_however_its_cli_ends(operator: Operator) -> None:
    operator.keep(doing("trap 'exit 0' TERM; touch waits; sleep 300 & wait"))
    waits = f"{WORKSPACES}/main/waits"
    operator.do(f"rm -f {waits}; systemctl start --no-block {operator.unit('test')}.service")
    operator.do(until(f"test -e {waits}"))
    operator.do("slotctl stop night-shift")
    operator.do(until(f"! systemctl is-active {operator.unit('test')}.service | grep -q activating"))
    assert operator.says(f"systemctl is-failed --quiet {operator.unit('test')}.service")
    assert operator.records("night-shift")[-1]["exit_status"] == 0, "the CLI's own status would not have shown it"


def test_an_unattended_session_has_nothing_to_read_and_waits_for_nobody(operator: Operator) -> None:
    script = "cd /run && rm -f nobody && mkfifo nobody && exec 3<>nobody && timeout {} slotctl run night-shift {} <&3"
    reading = "-- -c 'echo reads; read word || echo no input'"
    assert operator.do(script.format(60, f"--unattended {reading}")) == "reads\nno input"
    waited = operator.host.run(script.format(10, reading))
    assert waited.rc == 124 and waited.stdout == "reads\n", "without --unattended it waits for what somebody may write"


def test_a_slot_cannot_change_what_it_is_to_do(operator: Operator) -> None:
    slot = "setpriv --reuid=slot-night-shift --regid=slot-night-shift --clear-groups sh -c"
    forged = json.dumps({"workspace": "main", "prompt": "touch forged"})
    attempts = [
        f"echo {quoted(forged)} > {ETC}/nightly.json",
        f"mv {ETC}/nightly.json {ETC}/other.json",
        f"touch {ETC}/new.json",
        f"mv {ETC} {ETC}-away",
        f"echo >> {operator.unit('nightly')}.service",
    ]
    for attempt in attempts:
        assert not operator.says(f"cd /etc/systemd/system && {slot} {quoted(attempt)}"), attempt
    # Where a mode lets it, it does change it, and is found out by that mode.
    operator.do(f"rm -f {WORKSPACES}/main/forged; chmod 0666 {ETC}/nightly.json")
    assert operator.says(f"{slot} {quoted(attempts[0])}")
    state, said = operator.start("night-shift", "nightly")
    assert state == "failed" and "slotctl: policy-tampered: nightly.json" in said
    record = operator.records("night-shift")[-1]
    assert (record["refusal"]["code"], record["schedule"]) == ("policy-tampered", "nightly")
    assert not operator.says(f"test -e {WORKSPACES}/main/forged")
    # Nothing but that check stood there: with the mode put back, what was forged runs.
    operator.do(f"chmod 0640 {ETC}/nightly.json")
    assert operator.start("night-shift", "nightly")[0] == "inactive"
    operator.do(f"rm {WORKSPACES}/main/forged")


def test_check_mode_predicts_what_is_written_changed_and_withdrawn(operator: Operator) -> None:
    for wanted in (
        [*operator.schedules.values(), doing("true")],
        [*operator.schedules.values(), doing("false", calendar="hourly")],
        [doing("false", calendar="hourly")],
        [],
    ):
        foreseen = operator.keep(*wanted, check=True)
        done = operator.keep(*wanted)
        assert foreseen["steps"] == done["steps"] != [], wanted
        assert operator.keep(*wanted)["steps"] == []


def test_a_changed_calendar_is_in_force_at_once(operator: Operator) -> None:
    operator.keep(doing("true"))
    operator.keep(doing("true", calendar="2099-05-06 07:08:09 UTC"))
    shown = operator.do(f"systemctl show -p NextElapseUSecRealtime {operator.unit('test')}.timer")
    assert "2099-05-06 07:08:09" in shown
    assert operator.on("night-shift", "test")


def test_a_withdrawn_schedule_is_gone_and_nothing_of_it_alarms(operator: Operator) -> None:
    operator.keep(doing("exit 1"))
    assert operator.start("night-shift", "test")[0] == "failed"
    assert "schedule-test" in operator.do("systemctl list-units --failed --plain")
    operator.keep()
    assert "schedule-test" not in operator.do("systemctl list-units --all --plain")
    left = operator.do(f"find /etc/systemd /var/lib/systemd /run/systemd {ETC.rpartition('/')[0]} -name '*schedule*'")
    assert left == ""


def test_an_interrupted_converge_is_finished_by_the_next(operator: Operator) -> None:
    operator.do(f"systemctl disable --quiet {operator.unit('nightly')}.timer")
    operator.do(f"rm /etc/systemd/system/{operator.unit('by-arguments')}.service")
    operator.do("echo stale > '/etc/systemd/system/confined-slots-night\\x2dshift-schedule-old.timer'")
    operator.do(f"echo stale > {ETC}/.nightly.json.0123")
    result = operator.module("schedule", slots=[operator.slot])
    assert [step["action"] for step in result["steps"]] == ["remove", "remove", "write", "switch on"]
    assert operator.kept("schedule", slots=[operator.slot])["steps"] == []


def test_a_calendar_that_the_hosts_systemd_does_not_take_changes_nothing(operator: Operator) -> None:
    refused = operator.keep(doing("true", calendar="Mon..Fri 25:00"))
    assert "slot 'night-shift': schedule 'test': calendar is 'Mon..Fri 25:00', which systemd does not" in refused["msg"]
    assert operator.kept("schedule", slots=[operator.slot])["steps"] == []
