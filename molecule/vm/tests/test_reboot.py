# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host of slots that boots again is one."""

from __future__ import annotations

import json
import typing as t

import pytest


@pytest.fixture(scope="module", autouse=True)
def rebooted(guest: t.Any) -> None:
    guest.session("coder", "echo kept > notes")
    guest.reboot()


def test_every_unit_is_up_and_the_profiles_are_in_force(guest: t.Any) -> None:
    assert guest.run("systemctl --failed --no-legend") == ""
    assert not guest.module("apparmor", required=True, confine_slots=True)["changed"]
    proved = guest.module("apparmor_proof")["proved"]
    assert proved == {"coder": ["label", "nested-namespaces"], "nester": ["label", "nested-namespaces"]}


def test_sessions_start_and_find_what_they_left(guest: t.Any) -> None:
    assert guest.session("coder", "cat notes").stdout == "kept\n"
    rows = json.loads(guest.asked("slotctl selftest outgoing --no-mutations --json").stdout)
    assert rows and [row for row in rows if not row["ok"]] == []
