# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units of a session, and what a caller's environment can do to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slotctl import unit

SESSION = "20261129t190205-74631a56"


def properties(slot: str = "coder", *, terminal: bool = False, credential: str | None = None) -> dict[str, str]:
    """Return the properties of a session's service."""
    return dict(unit.properties(slot, SESSION, "/release", credential, None, terminal=terminal))


def test_a_session_is_bound_to_its_callers_scope_which_must_be_there_before() -> None:
    found = properties()
    assert found["BindsTo"] == found["After"] == f"confined-slots-coder-{SESSION}.scope"


def test_a_dash_in_a_slots_name_nests_no_unit_in_another_slots_slice() -> None:
    found = properties("a-b")
    assert found["Slice"] == r"confined-slots-a\x2db.slice"
    assert found["User"] == found["Group"] == "slot-a-b"
    assert found["RuntimeDirectory"] == f"confined-slots/a-b/{SESSION}"


def test_the_credential_is_a_file_for_pid_1_and_stands_in_no_command_line() -> None:
    assert "EnvironmentFile" not in properties()
    assert properties(credential="/etc/x.env")["EnvironmentFile"] == "/etc/x.env"


def test_the_client_dies_with_its_parent_and_checks_that_it_still_has_one() -> None:
    words = unit.client("coder", SESSION, ["x"], parent=42)
    assert words[:3] == ["/usr/bin/setpriv", "--pdeathsig", "KILL"]
    assert words[words.index(unit.IF_PARENT_LIVES) + 2] == "42"
    assert words[-1] == "x"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_is_given_where_the_caller_has_one(terminal: bool) -> None:
    words = unit.service("coder", SESSION, [], {}, ["launcher"], terminal=terminal)
    assert ("--pty" in words, "--pipe" in words) == (terminal, not terminal)


@given(st.dictionaries(st.sampled_from(["TERM", "COLORTERM", "LD_PRELOAD", "DBUS_SYSTEM_BUS_ADDRESS"]), st.text()))
def test_of_the_callers_environment_only_a_plain_terminal_arrives(environ: dict[str, str]) -> None:
    found = unit.terminal_environment(environ)
    assert found.keys() <= {"TERM", "COLORTERM"}
    assert all(word.isascii() and not set(word) & set("%$/\\ \n=") for word in found.values())
    assert "DBUS_SYSTEM_BUS_ADDRESS" not in unit.tool_environment(environ)


@pytest.mark.parametrize("term", ["xterm-256color", "tmux-256color", "dumb", "rxvt+x", "Eterm.1"])
def test_usual_terminals_arrive(term: str) -> None:
    assert unit.terminal_environment({"TERM": term}) == {"TERM": term}
