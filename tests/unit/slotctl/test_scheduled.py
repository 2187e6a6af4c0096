# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A schedule is root's word or none, and a session without a person is refused with all that it lacks."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

import pytest
from confined_slots import _layout
from confined_slots._manifest import Untrusted
from confined_slots._refusals import Refusal
from slotctl import cli, ended, preflight, run, scheduled


@pytest.fixture
def schedules(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the directory of a slot's schedules, taken for root's."""
    monkeypatch.setattr(_layout, "SLOTS_D", str(tmp_path))
    monkeypatch.setattr(scheduled, "open_trusted", lambda path: os.open(path, os.O_RDONLY))
    monkeypatch.setattr(
        scheduled, "read_checked", lambda name, directory: (tmp_path / "coder/schedules" / name).read_bytes()
    )
    (tmp_path / "coder" / "schedules").mkdir(parents=True)
    return tmp_path / "coder" / "schedules"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        pytest.param({"prompt": 'a %n $X "q"\nb'}, ["-p", 'a %n $X "q"\nb'], id="a prompt"),
        pytest.param({"arguments": ["-c", "", "a b"]}, ["-c", "", "a b"], id="arguments"),
    ],
)
def test_a_schedule_is_what_its_file_says(schedules: pathlib.Path, words: dict[str, t.Any], wanted: list[str]) -> None:
    (schedules / "nightly.json").write_text(json.dumps({"workspace": "main", **words}))
    found = scheduled.load("coder", "nightly")

    class Slot:
        policy: t.ClassVar = {"provider": {"name": "cli", "headless": ["-p", "{prompt}"]}}

    assert (found.workspace, found.words(Slot())) == ("main", wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"workspace": "main"}', '{"workspace": 1, "prompt": "x"}'),
        *('{"workspace": "m", "arguments": [1]}', '{"workspace": "m", "prompt": "x", "arguments": []}'),
        pytest.param("[" * 100_000, id="too deep"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(schedules: pathlib.Path, content: str) -> None:
    (schedules / "nightly.json").write_text(content)
    with pytest.raises(Refusal, match=r"policy-invalid: .*nightly\.json holds no schedule"):
        scheduled.load("coder", "nightly")


@pytest.mark.parametrize("name", ["", ".", "..", "../coder/schedules/nightly", "nightly.json", ".hidden", "\x1b[2J"])
def test_a_name_that_is_no_schedules_is_refused_with_those_there_are(schedules: pathlib.Path, name: str) -> None:
    (schedules / "nightly.json").write_text("{}")
    (schedules / ".hidden.json").write_text("{}")
    with pytest.raises(Refusal, match=r"policy-missing: .*it has nightly"):
        scheduled.load("coder", name)


def test_a_schedule_that_others_could_write_is_refused_and_on_record(
    schedules: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untrusted(name: str, directory: int) -> bytes:
        raise Untrusted(f"{name} can be written by others")

    recorded = []
    monkeypatch.setattr(scheduled, "read_checked", untrusted)
    monkeypatch.setattr(ended, "record_refusal", lambda start, refusal: recorded.append((start, refusal.code)))
    monkeypatch.setattr(run, "run", lambda *_unused, **_more: pytest.fail("it was started"))
    (schedules / "nightly.json").write_text("{}")
    with pytest.raises(Refusal, match="policy-tampered"):
        scheduled.scheduled("coder", "nightly")
    ((start, code),) = recorded
    assert (start["slot"], start["unattended"], start["schedule"], code) == (
        *("coder", True, "nightly"),
        "policy-tampered",
    )


def test_a_schedule_is_named_on_record_by_its_unit_alone(
    schedules: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, t.Any] = {}
    monkeypatch.setattr(run, "run", lambda slot, workspace, words, **more: given.update(more) or 7)
    (schedules / "nightly.json").write_text(json.dumps({"workspace": "main", "prompt": "x"}))
    assert scheduled.scheduled("coder", "nightly") == 7
    assert given["unattended"] == {"unattended": True, "schedule": "nightly"}


def test_pl_09_all_that_is_missing_is_one_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [
        {"check": "enabled", "refusal": "slot-disabled", "what": "it is off [enable it]"},
        {"check": "space", "refusal": "", "what": "much"},
        {"check": "approval", "refusal": "approval-missing", "what": "none [approve it]"},
        {"check": "binds", "refusal": "approval-missing", "what": "none [approve it]"},
    ]
    monkeypatch.setattr(preflight, "preflight", lambda *_unused: {"slot": "coder", "checks": checks})
    with pytest.raises(Refusal) as refused:
        run.check_all("coder", None, lambda _unused: [])
    assert str(refused.value) == (
        "slot-disabled: preflight failed: slot-disabled: it is off [enable it]; approval-missing: none [approve it]"
        " [slotctl preflight coder]"
    )


def test_an_unattended_session_without_anything_to_do_is_no_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cli.main("/release", ["run", "coder", "--unattended"]) == 2
    assert "--unattended needs something to do" in capsys.readouterr().err
