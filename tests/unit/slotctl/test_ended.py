# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which conversations a session's record names."""

from __future__ import annotations

import pwd
import typing as t

import pytest
from slotctl import ended

ACCOUNT = pwd.struct_passwd(("slot-a", "x", 20000, 20001, "", "/", "/bin/bash"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[t.Any]:
    """Return what the search was asked, which looks nowhere."""
    seen: list[t.Any] = []
    monkeypatch.setattr(pwd, "getpwnam", lambda name: ACCOUNT)
    monkeypatch.setattr(ended.transcripts, "written_since", lambda *given: seen.append(given) or ["id"])
    return seen


def test_those_of_a_session_that_ended_in_the_same_second_are_not_its_own(asked: list[t.Any]) -> None:
    assert ended._conversations("a", {"root": "/r"}, "1970-01-01T00:01:00.750Z") == ["id"]
    assert asked == [({"root": "/r"}, 60.75, 20000, 20001)]


@pytest.mark.parametrize("start", ["", "yesterday", "1970-01-01T00:01:00", "1970-01-01T00:01:00.xyzZ"])
def test_a_record_without_a_time_names_none(asked: list[t.Any], start: str) -> None:
    assert ended._conversations("a", {}, start) == []
    assert asked == []
