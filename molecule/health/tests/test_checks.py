# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""For each check: break exactly that thing on a real host, see exactly that check turn, mend it, see it turn back."""

from __future__ import annotations

import re
import sys
import typing as t

import pytest

from .conftest import COLLECTION, Bad, Operator, bad_of, state_of
from .table import TABLE, Row

sys.path.insert(0, str(COLLECTION / "roles/launcher/files/release/lib"))

from slotctl import health

testinfra_hosts = ["ansible://slot_hosts"]


@pytest.fixture(scope="module")
def well(operator: Operator) -> Bad:
    """Return what is not ok while nothing is broken."""
    return bad_of(operator.health())


def test_nothing_of_the_patients_is_wrong_before_anything_is_broken(well: Bad) -> None:
    assert not [one for one in well if one[0] in ("patient", "signed", "outgoing")]
    assert set(well.values()) <= {"warn"}


def test_each_check_has_a_row() -> None:
    ids = {check.id for check in (*health.HOST_CHECKS, *health.SLOT_CHECKS)}
    assert {row.check for row in TABLE} == ids


def test_each_check_is_documented_with_its_id() -> None:
    text = (COLLECTION / "docs/monitoring.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", text[text.index("## Checks") :], re.MULTILINE)
    assert sorted(rows) == sorted(check.id for check in (*health.HOST_CHECKS, *health.SLOT_CHECKS))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.id)
def test_exactly_the_check_of_what_is_broken_turns_and_turns_back(row: Row, operator: Operator, well: Bad) -> None:
    lacking = operator.host.run(row.needs) if row.needs else None
    if lacking is not None and lacking.failed:
        pytest.skip(f"needs {str(lacking.stdout).strip()}")
    one = (row.slot, row.check)
    broken, mended = row.how
    try:
        slots = operator.slots(**({row.slot: {"mode": row.mode, "profile_version": None}} if row.mode else {}))
        operator.options(slots, **row.options)
        if broken:
            operator.do(f"set -e; {broken}")
        found = operator.health(before=row.before)
    finally:
        operator.host.run(mended or "true")
        operator.options()
    expected = {"warn": "ok", "ok": "warn"}[well.get(one, "ok")] if row.state == "turned" else row.state
    wanted = {**well, **spread(row.also, found), one: expected}
    assert bad_of(found) == {each: state for each, state in wanted.items() if state != "ok"}
    assert state_of(found, *one) == expected
    turned = {each[1] for each in wanted if wanted[each] != well.get(each, "ok")} | {row.check}
    again = bad_of(operator.health(" ".join(f"--check={check}" for check in sorted(turned))))
    assert again == {each: state for each, state in well.items() if each[1] in turned}


def test_all_is_as_it_was_before_the_table(operator: Operator, well: Bad) -> None:
    assert bad_of(operator.health()) == well


def spread(also: Bad, found: dict[str, t.Any]) -> Bad:
    """Return what follows, `*` standing for each slot that the check applies to."""
    names = [slot["slot"] for slot in found["slots"]]
    spread = {
        (name, check): state for (slot, check), state in also.items() for name in (names if slot == "*" else [slot])
    }
    return {one: state for one, state in spread.items() if state_of(found, *one)}
