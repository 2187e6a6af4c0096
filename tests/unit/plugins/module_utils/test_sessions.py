# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ids, records, and the judgement of how a session ended."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _sessions
from ansible_collections.confined.slots.plugins.module_utils._refusals import CODES, Refusal
from hypothesis import given
from hypothesis import strategies as st

BEGAN = b'{ "child-pid": 820, "mnt-namespace": 4026532957 }\n'
REFUSED = Refusal("provider-changed", 'a "b" \\ c', "converge").as_json().encode() + b"\n"


def exited(number: object) -> bytes:
    """Return bwrap's report of an exit status."""
    return BEGAN + b'{ "exit-code": %s }\n' % str(number).encode()


def test_new_sessions_have_ids_of_one_form_and_differ() -> None:
    ids = {_sessions.new_session() for _unused in range(50)}
    assert len(ids) == 50
    assert all(_sessions.is_session(each) for each in ids)


@given(st.text(max_size=30))
def test_an_id_is_safe_in_a_path_and_on_a_command_line(name: str) -> None:
    if _sessions.is_session(name):
        assert set(name) <= set("0123456789abcdeft-")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "20261129t190205-74631a5",
        "20261129t190205-74631A56",
        "20261129t190205/74631a56",
        "٢0261129t190205-74631a56",
    ],
)
def test_what_has_not_the_form_of_an_id_is_none(name: str) -> None:
    assert not _sessions.is_session(name)


@pytest.mark.parametrize(
    ("report", "ending", "stopped", "outcome", "status"),
    [
        pytest.param(exited(0), ("success", "exited", "0"), False, "ended", 0, id="the-cli-ends-well"),
        pytest.param(exited(1), ("exit-code", "exited", "1"), False, "ended", 1, id="the-cli-ends-with-1"),
        pytest.param(exited(125), ("exit-code", "exited", "125"), False, "ended", 125, id="the-clis-own-125"),
        pytest.param(exited(137), ("exit-code", "exited", "137"), False, "ended", 137, id="the-cli-is-killed"),
        pytest.param(exited(137), ("oom-kill", "exited", "137"), False, "ended", 137, id="out-of-memory"),
        pytest.param(exited(143), ("exit-code", "exited", "143"), True, "stopped", 143, id="stopped-gently"),
        pytest.param(exited(143), ("timeout", "exited", "143"), False, "timed-out", 143, id="session-max"),
        pytest.param(BEGAN, ("timeout", "killed", "KILL"), False, "timed-out", 137, id="session-max-stubborn"),
        pytest.param(BEGAN, ("timeout", "killed", "KILL"), True, "stopped", 137, id="stopped-stubborn"),
        pytest.param(BEGAN, ("success", "killed", "TERM"), False, "stopped", 143, id="somebody-killed-bwrap"),
        pytest.param(BEGAN, ("exit-code", "exited", "1"), False, "sandbox-failed", 125, id="bwrap-fails"),
        pytest.param(b"", ("exit-code", "exited", "203"), False, "sandbox-failed", 125, id="no-launcher"),
        pytest.param(b"", ("resources", "", ""), False, "sandbox-failed", 125, id="systemd-fails"),
        pytest.param(b"", ("", "", ""), False, "sandbox-failed", 125, id="no-unit"),
        pytest.param(b"", ("", "", ""), True, "stopped", 143, id="killed-before-the-unit"),
        pytest.param(REFUSED, ("exit-code", "exited", "125"), False, "refused", 125, id="the-launcher-refuses"),
        pytest.param(BEGAN + REFUSED, ("exit-code", "exited", "1"), False, "sandbox-failed", 125, id="forged-after"),
        pytest.param(REFUSED + BEGAN, ("exit-code", "exited", "1"), False, "sandbox-failed", 125, id="forged-before"),
        pytest.param(BEGAN, ("core-dump", "dumped", "SEGV"), False, "stopped", 139, id="bwrap-crashes"),
    ],
)
def test_se_09_each_end_has_its_name(
    report: bytes, ending: tuple[str, str, str], stopped: bool, outcome: str, status: int
) -> None:
    verdict = _sessions.judge(report, *ending, stopped=stopped)
    assert (verdict.outcome, verdict.exit_status) == (outcome, status)
    assert verdict.outcome in _sessions.OUTCOMES


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(exited(-1), id="negative"),
        pytest.param(exited(256), id="too-large"),
        pytest.param(exited("true"), id="a-boolean"),
        pytest.param(exited("1e999"), id="infinity"),
        pytest.param(exited("9" * 5000), id="thousands-of-digits"),
        pytest.param(b"[" * 60000, id="deep"),
        pytest.param(b"\xff\xfe\x00" * 100, id="no-text"),
        pytest.param(BEGAN + b'{ "exit-code": 0 ', id="cut-off"),
        pytest.param(b" " * _sessions.MOST_REPORTED + exited(0), id="beyond-the-bound"),
    ],
)
def test_only_a_whole_record_of_an_exit_counts_as_one(report: bytes) -> None:
    assert _sessions.judge(report, "exit-code", "exited", "1", stopped=False).outcome == "sandbox-failed"


@given(st.binary(max_size=400), st.text(max_size=9), st.text(max_size=9), st.text(max_size=9), st.booleans())
def test_whatever_the_slot_wrote_there_is_a_verdict_that_fits_on_a_line(
    report: bytes, result: str, code: str, status: str, stopped: bool
) -> None:
    verdict = _sessions.judge(report, result, code, status, stopped=stopped)
    assert verdict.outcome in _sessions.OUTCOMES
    assert 0 <= verdict.exit_status <= 255
    assert _sessions.as_line(verdict.fields()).count("\n") == 1


@given(st.sampled_from(CODES), st.text(max_size=50), st.text(max_size=50))
def test_the_launchers_refusal_is_read_back(code: str, what: str, cure: str) -> None:
    refusal = Refusal(code, what, cure)
    found, _unused = _sessions.read_report(refusal.as_json().encode() + b"\n")
    assert found == {"code": code, "what": refusal.what, "cure": refusal.cure}


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=40), max_size=5))
def test_bw_14_a_record_is_one_line_of_ascii_and_reads_back(record: dict[str, str]) -> None:
    line = _sessions.as_line(record)
    assert line.isascii()
    assert line.index("\n") == len(line) - 1
    assert _sessions.lines_of(line.encode()) == [record]


@pytest.fixture
def log(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a slot's log directory below tmp_path, with a journal that listens."""
    directory = tmp_path / "coder"
    directory.mkdir(mode=0o750)
    monkeypatch.setattr(_sessions._layout, "LOG", str(tmp_path))
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    monkeypatch.chdir(tmp_path)
    journal.bind("journal")
    monkeypatch.setattr(_sessions, "JOURNAL", "journal")
    monkeypatch.setattr(_sessions, "to_journal_of_test", journal, raising=False)
    return directory


RECORD: dict[str, t.Any] = {"event": "start", "slot": "coder", "session": "20261129t190205-74631a56"}


def test_records_are_added_line_by_line_with_the_right_owner_and_mode(log: pathlib.Path) -> None:
    for _unused in range(2):
        _sessions.append("coder", os.getgid(), RECORD)
    file = log / _sessions.RECORDS
    assert (file.stat().st_uid, file.stat().st_mode & 0o7777) == (0, 0o640)
    assert _sessions.read_records("coder") == [RECORD, RECORD]


def test_after_half_a_line_a_record_begins_a_new_one(log: pathlib.Path) -> None:
    file = log / _sessions.RECORDS
    file.write_text('{"event": "sta')
    file.chmod(0o640)
    _sessions.append("coder", os.getgid(), RECORD)
    assert _sessions.read_records("coder") == [RECORD]


def test_a_record_in_the_journal_has_its_fields(log: pathlib.Path) -> None:
    _sessions.append("coder", os.getgid(), {**RECORD, "workspace": "a\nMESSAGE=b"})
    fields = _sessions.to_journal_of_test.recv(9999).decode().splitlines()  # type: ignore[attr-defined]
    names = [field.partition("=")[0] for field in fields]
    assert names.count("MESSAGE") == 1
    assert "CONFINED_SLOTS_SLOT=coder" in fields
    assert (
        json.loads(next(field for field in fields if field.startswith("CONFINED_SLOTS_RECORD=")).partition("=")[2])[
            "event"
        ]
        == "start"
    )


def _link(file: pathlib.Path) -> None:
    file.symlink_to("/etc/hostname")


def _fifo(file: pathlib.Path) -> None:
    os.mkfifo(file)


def _writable(file: pathlib.Path) -> None:
    file.touch()
    file.chmod(0o666)


def _two_names(file: pathlib.Path) -> None:
    file.touch()
    file.chmod(0o640)
    os.link(file, file.with_name("other"))


def _directory_of_others(file: pathlib.Path) -> None:
    file.parent.chmod(0o777)


@pytest.mark.parametrize("damage", [_link, _fifo, _writable, _two_names, _directory_of_others])
def test_lg_04_a_file_that_others_could_have_laid_out_takes_no_record(
    log: pathlib.Path, damage: t.Callable[[pathlib.Path], None]
) -> None:
    damage(log / _sessions.RECORDS)
    with pytest.raises(Refusal, match="audit-unavailable"):
        _sessions.append("coder", os.getgid(), RECORD)


def test_lg_04_a_full_disk_is_a_refusal(log: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) - 1)
    with pytest.raises(Refusal, match="no space left"):
        _sessions.append("coder", os.getgid(), RECORD)


def test_without_a_journal_there_is_a_refusal(log: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sessions, "JOURNAL", str(log / "nothing"))
    with pytest.raises(Refusal, match="audit-unavailable"):
        _sessions.append("coder", os.getgid(), RECORD)
    assert _sessions.read_records("coder") == [RECORD]


@pytest.mark.parametrize("damage", [_link, _fifo, os.mkdir])
def test_reading_back_what_is_no_file_is_a_refusal_that_does_not_wait(
    log: pathlib.Path, damage: t.Callable[[pathlib.Path], None]
) -> None:
    damage(log / _sessions.RECORDS)
    with pytest.raises(Refusal, match="audit-unavailable"):
        _sessions.read_records("coder")
