# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What slotctl shows to people: aligned, on one line each, nothing that steers a terminal."""

from __future__ import annotations

import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slotctl import show, tables

START = {
    "event": "start",
    "session": "20261129t190205-74631a56",
    "workspace": "main",
    "start": "2026-11-29T19:02:05.000Z",
}
END = {"event": "end", "session": START["session"], "outcome": "ended", "exit_status": 3}


@given(st.lists(st.tuples(st.text(max_size=9), st.text(max_size=9), st.text(max_size=9)), max_size=5))
def test_a_table_has_a_line_for_each_row_and_no_control_characters(rows: list[tuple[str, str, str]]) -> None:
    text = tables.table(("A", "B", "C"), rows)
    assert text.count("\n") == len(rows) + 1
    assert text.replace("\n", "").isprintable()


def test_columns_are_aligned() -> None:
    assert tables.table(("A", "B"), [("long one", "x"), ("s", "y")]) == "A         B\nlong one  x\ns         y\n"


@pytest.mark.parametrize(
    ("records", "live", "outcome"),
    [
        ([START, END], [], "ended"),
        ([START], [START], "running"),
        ([START], [], "lost"),
        (
            [{"event": "refused", "outcome": "refused", "session": "", "refusal": {"code": "slot-disabled"}}],
            [],
            "refused",
        ),
    ],
)
def test_sessions_show_how_they_ended(
    monkeypatch: pytest.MonkeyPatch, records: list[t.Any], live: list[t.Any], outcome: str
) -> None:
    monkeypatch.setattr(show, "check_known", lambda name: None)
    monkeypatch.setattr(show.ended, "sweep", lambda name: None)
    monkeypatch.setattr(show._sessions, "live_sessions", lambda name: live)
    monkeypatch.setattr(show._sessions, "read_records", lambda name: records)
    found = show.sessions("coder", 20)
    assert [entry["outcome"] for entry in found] == [outcome]
    assert outcome in show.show_sessions(found)


@pytest.mark.parametrize("wrong", [None, 7, "x", [1], {"code": [1], "user": {}}])
def test_records_of_any_shape_are_shown(monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    keys = ("event", "session", "workspace", "start", "caller", "refusal", "reason", "outcome", "exit_status")
    monkeypatch.setattr(show, "check_known", lambda name: None)
    monkeypatch.setattr(show.ended, "sweep", lambda name: None)
    monkeypatch.setattr(show._sessions, "live_sessions", lambda name: [{"session": wrong}])
    monkeypatch.setattr(show._sessions, "read_records", lambda name: [dict.fromkeys(keys, wrong), {"session": wrong}])
    assert show.show_sessions(show.sessions("coder", 20)).count("\n") in (2, 3)


def test_the_newest_session_comes_first_and_no_more_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "check_known", lambda name: None)
    monkeypatch.setattr(show.ended, "sweep", lambda name: None)
    monkeypatch.setattr(show._sessions, "live_sessions", lambda name: [])
    monkeypatch.setattr(
        show._sessions, "read_records", lambda name: [{**START, "session": str(each)} for each in range(9)]
    )
    assert [entry["session"] for entry in show.sessions("coder", 3)] == ["8", "7", "6"]


def test_binds_are_shown_with_mode_size_and_reason() -> None:
    mounts = [
        {"kind": "bind", "target": "/inside", "source": "/outside", "mode": "ro", "reason": "why"},
        {"kind": "tmpfs", "target": "/tmp", "mode": "1777", "size": 1 << 30, "reason": "scratch"},
    ]
    text = show.show_binds({"mounts": mounts})
    assert "/inside <- /outside" in text
    assert "tmpfs 1024M" in text
    assert text.splitlines()[1].endswith("why")
