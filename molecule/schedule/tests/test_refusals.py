# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""PL-09: what a session without a person lacks is refused when it is declared and when it starts, where it is seen."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing as t

import pytest

if t.TYPE_CHECKING:
    from conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

WORKSPACE = "/var/lib/confined-slots/slots/sleeper/workspaces/main"
EVERYTHING = "accounts,policy,permissions,schedule"
CREDENTIAL = "/etc/confined-slots/credentials/sleeper/shell.env"
NIGHTLY = {"name": "nightly", "calendar": "*-01-01 04:00", "prompt": "touch started"}
SLEEPER: dict[str, t.Any] = {
    "name": "sleeper",
    "credential": {"name": "API_KEY", "value": "sk-nobody-0123456789"},
    "schedules": [NIGHTLY],
}


@dataclasses.dataclass(frozen=True)
class Lack:
    """Something that a session needs, taken away by a script or by what is declared, and the refusals that name it."""

    codes: tuple[str, ...]
    bend: str = "true"
    mend: str = "true"
    declared: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)


AWAY = "/root/of-the-tests"
LACKS = {
    "workspace": Lack(("policy-invalid",), f"mv {WORKSPACE} {AWAY}", f"mv {AWAY} {WORKSPACE}"),
    "credential": Lack(("credential-missing",), f"mv {CREDENTIAL} {AWAY}", f"mv {AWAY} {CREDENTIAL}"),
    "what has ended": Lack(
        ("credential-expiring",), declared={"credential": SLEEPER["credential"] | {"expires": "2020-01-01"}}
    ),
    "all at once": Lack(
        ("approval-missing", "credential-missing", "policy-invalid"),
        f"mkdir {AWAY}; mv {WORKSPACE} {CREDENTIAL} {AWAY}",
        f"mv {AWAY}/main {WORKSPACE}; mv {AWAY}/shell.env {CREDENTIAL}; rmdir {AWAY}",
        {"mode": "verified"},
    ),
}


@pytest.fixture(scope="module")
def made(operator: Operator) -> collections.abc.Iterator[None]:
    """Have a second slot; it goes with all that it had."""
    done, said = operator.site(SLEEPER | {"schedules": []}, tags=EVERYTHING)
    assert done, said
    yield
    operator.kept("removal", names=["sleeper"], workspaces="delete")


@pytest.fixture
def sleeper(made: None, operator: Operator) -> None:
    """Have the second slot without schedules yet, and with no trace of an earlier session."""
    operator.kept("schedule", slots=[SLEEPER | {"schedules": []}])
    operator.do(f"rm -f {WORKSPACE}/started; truncate --size=0 /var/log/confined-slots/sleeper/sessions.jsonl")
    assert not started(operator)


def started(operator: Operator) -> bool:
    """Return whether a CLI ever ran in the slot: by its own mark, or by what root recorded of it."""
    marks = [f"test -e {place}/started" for place in (WORKSPACE, AWAY, f"{AWAY}/main")]
    recorded = any(record["event"] == "start" for record in operator.records("sleeper"))
    return operator.says(" || ".join(marks)) or recorded


@pytest.mark.usefixtures("sleeper")
@pytest.mark.parametrize("lack", LACKS.values(), ids=LACKS)
def test_pl_09_what_is_missing_is_refused_at_converge_and_at_start_in_one_message(
    operator: Operator, lack: Lack
) -> None:
    slot = SLEEPER | lack.declared
    # its timer is switched on by the same converge, after the one that is refused
    other = operator.slot | {"schedules": [*operator.schedules.values(), NIGHTLY | {"name": "other"}]}
    if lack.declared:
        done, said = operator.site(slot | {"schedules": []})
        assert done, said
    operator.do(lack.bend)
    try:
        refused = operator.module("schedule", slots=[slot, other])
        assert "schedules that could not run: slot sleeper, schedule nightly: " in refused["msg"]
        assert all(f"{code}: " in refused["msg"] for code in lack.codes)
        assert list(refused["refused"]) == ["sleeper nightly"]
        assert not operator.on("sleeper", "nightly") and operator.on("night-shift", "other")
        again = operator.module("schedule", slots=[slot, other])
        assert (again["msg"], again["steps"]) == (refused["msg"], []), "refused as before, and nothing changed"

        state, journal = operator.start("sleeper", "nightly")
        assert state == "failed"
        (line,) = [each for each in journal.splitlines() if each.startswith("slotctl: ")]
        assert "preflight failed: " in line and all(f"{code}: " in line for code in lack.codes)
        assert "schedule-nightly" in operator.do("systemctl list-units --failed --plain 'confined-slots-sleeper-*'")
        record = operator.records("sleeper")[-1]
        assert (record["event"], record["unattended"], record["schedule"]) == ("refused", True, "nightly")
        assert record["mode"] == slot.get("mode", "isolated"), "no fallback"
        assert all(f"{code}: " in record["refusal"]["what"] for code in lack.codes)
        assert not started(operator)
    finally:
        operator.do(lack.mend)
    # The proof can fail: mended, the same start does leave its marks.
    if lack.declared:
        done, said = operator.site(SLEEPER | {"mode": "isolated"})
        assert done, said
    else:
        operator.kept("schedule", slots=[SLEEPER])
    assert operator.on("sleeper", "nightly")
    assert operator.start("sleeper", "nightly")[0] == "inactive"
    assert started(operator) and operator.says(f"test -e {WORKSPACE}/started")


@pytest.mark.usefixtures("sleeper")
def test_pl_09_a_credential_that_ends_before_the_next_run_does_is_refused_while_it_is_still_good(
    operator: Operator,
) -> None:
    late = NIGHTLY | {"calendar": "2098-12-31 23:30 UTC", "timeout": "1h"}
    slot = SLEEPER | {"schedules": [late], "credential": SLEEPER["credential"] | {"expires": "2099-01-01"}}
    done, said = operator.site(slot)
    assert not done and "credential-expiring: the credential ends 2099-01-01T00:00:00Z, and is needed until" in said
    assert not operator.on("sleeper", "nightly") and not started(operator)
    # It is the end of the run that counts, and the time of that run: an hour less is enough, and so is another start.
    assert operator.start("sleeper", "nightly")[0] == "inactive" and started(operator)
    shorter = slot | {"schedules": [late | {"timeout": "29min"}]}
    done, said = operator.site(shorter)
    assert done and operator.on("sleeper", "nightly"), said


@pytest.mark.usefixtures("sleeper")
def test_pl_09_a_new_day_of_a_credential_asks_for_no_new_approval_and_shows_in_no_policy(operator: Operator) -> None:
    before = operator.do("slotctl policy sleeper --json")
    done, said = operator.site(SLEEPER | {"credential": SLEEPER["credential"] | {"expires": "2090-01-01"}})
    assert done, said
    assert operator.do("slotctl policy sleeper --json") == before
    assert "the credential ends 2090-01-01T00:00:00Z" in operator.do("slotctl preflight sleeper")


@pytest.mark.usefixtures("sleeper")
def test_pl_09_a_disabled_slots_timers_are_off_with_a_warning_and_its_start_is_refused(operator: Operator) -> None:
    operator.kept("schedule", slots=[SLEEPER])
    assert operator.on("sleeper", "nightly")
    done, said = operator.site(SLEEPER | {"enabled": False})
    assert done and "slot 'sleeper' is not enabled, so none of its schedules is started: nightly" in said, said
    assert not operator.says(f"systemctl is-active --quiet {operator.unit('nightly', 'sleeper')}.timer")
    assert not operator.says(f"systemctl is-enabled --quiet {operator.unit('nightly', 'sleeper')}.timer")
    state, journal = operator.start("sleeper", "nightly")
    assert state == "failed" and "slotctl: slot-disabled: preflight failed: " in journal
    assert operator.records("sleeper")[-1]["refusal"]["code"] == "slot-disabled"
    assert not started(operator)
    done, said = operator.site(SLEEPER)
    assert done and operator.on("sleeper", "nightly"), said
    assert operator.start("sleeper", "nightly")[0] == "inactive" and started(operator)


@pytest.mark.usefixtures("sleeper")
def test_pl_09_a_timer_that_is_on_stays_on_so_that_its_runs_are_seen_to_fail(operator: Operator) -> None:
    operator.kept("schedule", slots=[SLEEPER])
    operator.do(LACKS["credential"].bend)
    try:
        refused = operator.module("schedule", slots=[SLEEPER])
        assert "credential-missing: " in refused["msg"] and operator.on("sleeper", "nightly")
        assert operator.start("sleeper", "nightly")[0] == "failed" and not started(operator)
    finally:
        operator.do(LACKS["credential"].mend)


def test_a_slot_that_is_removed_takes_its_schedules_along_and_no_other_ones(operator: Operator) -> None:
    done, said = operator.site(SLEEPER, tags=EVERYTHING)
    assert done, said
    operator.do(f"echo exit 1 > {WORKSPACE}/unused")
    assert operator.start("sleeper", "nightly")[0] == "inactive"
    foreseen = operator.module("removal", check=True, names=["sleeper"], workspaces="delete")
    assert [step["action"] for step in foreseen["steps"]].count("switch off") == 1
    operator.kept("removal", names=["sleeper"], workspaces="delete")
    assert operator.do("find /etc/systemd /run/systemd /var/lib/systemd/timers -name '*sleeper*'") == ""
    assert "sleeper" not in operator.do("systemctl list-units --all --plain 'confined-slots-*'")
    assert operator.on("night-shift", "nightly")
