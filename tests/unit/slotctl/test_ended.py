# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a session's record begins, and which conversations it names."""

from __future__ import annotations

import fcntl
import os
import pathlib
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


def test_a_record_has_its_name_only_once_it_is_whole_and_held(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def named(source: str, name: str, **where: int) -> None:
        assert os.listdir(tmp_path) == []
        with open(source) as other, pytest.raises(BlockingIOError):
            assert other.read() == '{"event":"start"}\n{"event":"transcripts"}\n'
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        link(source, name, **where)

    monkeypatch.setattr(os, "link", named)
    parent = os.open(tmp_path, os.O_RDONLY)
    record = ended.begin(parent, "it", {"event": "start"}, {"event": "transcripts"})
    assert os.listdir(tmp_path) == ["it.record"]
    assert os.path.samestat(os.fstat(record), (tmp_path / "it.record").stat())
    os.close(record)
    os.close(parent)


def test_a_record_for_which_there_is_no_room_has_no_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda to, data: write(to, data.removesuffix(b'"}\n')))
    parent = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="no space left for the record"):
        ended.begin(parent, "it", {"event": "start"})
    assert os.listdir(tmp_path) == []
    os.close(parent)
