# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: help, errors, exit statuses."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
from confined_slots import _layout
from confined_slots._refusals import Refusal
from slotctl import cli, slots

COMMANDS = ("list", "status", "policy", "binds", "run", "selftest", "stop", "sessions", "release")
LATER = ("resume", "login", "approve", "preflight")
LIBRARY = pathlib.Path(__file__).resolve().parents[3] / "roles" / "launcher" / "files" / "release" / "lib"


@pytest.fixture(autouse=True)
def _as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def slots_d(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the place of the slots' policies."""
    monkeypatch.setattr(_layout, "SLOTS_D", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("command", [*COMMANDS, *LATER])
def test_every_command_has_help_that_names_its_words(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main("/release", [command, "--help"])
    assert ended.value.code == 0
    assert f"usage: slotctl {command}" in capsys.readouterr().out


def test_the_help_of_all_shows_examples_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main("/release", ["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {command}" in shown for command in (*COMMANDS, *LATER))
    assert "sudo slotctl run coder --workspace review -- --continue" in shown
    assert "125" in shown


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main("/release", ["list"]) == 77
    assert "sudo" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["status", "policy", "binds", "run", "selftest", "stop", "sessions", "approve", "preflight"]
)
def test_an_unknown_slot_is_refused_with_the_known_ones(
    command: str, slots_d: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slots_d / "coder").mkdir()
    with pytest.raises(Refusal, match=r"slot-unknown.*coder"):
        slots.load("../coder")
    if command == "run":  # starts with its standard streams, which pytest holds
        return
    assert cli.main("/release", [command, "code", "--json"]) == 125
    assert json.loads(capsys.readouterr().err)["refusal"] == "slot-unknown"


@pytest.mark.parametrize("name", ["", ".", "..", "/etc", "a/b", "-x", "a\nb"])
def test_bw_14_a_name_that_is_no_slot_never_becomes_a_path(name: str, slots_d: pathlib.Path) -> None:
    with pytest.raises(Refusal, match="slot-unknown"):
        slots.load(name)


def test_a_host_without_slots_says_how_to_get_some(slots_d: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main("/release", ["list"]) == 0
    assert "converge" in capsys.readouterr().out


def test_an_error_of_our_own_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[str]:
        raise KeyError("a\nb")

    monkeypatch.setattr(slots, "known", broken)
    monkeypatch.setitem(cli.COMMANDS, "list", lambda release, options: len(slots.known()))
    assert cli.main("/release", ["list"]) == 70
    error = capsys.readouterr().err
    assert error.startswith("slotctl: internal error: KeyError: ")
    assert "test_cli.py:" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("argv", [["list", "--", "x"], ["list", "--js"], ["nothing"], [], ["run"], ["session-ended"]])
def test_a_wrong_command_line_is_exit_status_2(argv: list[str]) -> None:
    try:
        status: object = cli.main("/release", argv)
    except SystemExit as ended:
        status = ended.code
    assert status == 2


def test_what_stands_after_two_dashes_is_the_clis(monkeypatch: pytest.MonkeyPatch) -> None:
    from slotctl import run

    seen: list[object] = []

    def started(name: str, workspace: str | None, words: run.Words, *, json: bool, unattended: object) -> int:
        assert unattended is None
        seen.extend((name, workspace, words(t.cast("slots.Slot", None)), json))
        return 42

    monkeypatch.setattr(run, "run", started)
    assert cli.main("/release", ["run", "coder", "--workspace", "w", "--", "--json", "--", "-h", ""]) == 42
    assert seen == ["coder", "w", ["--json", "--", "-h", ""], False]


def test_the_record_of_a_refusal_holds_no_more_of_unchecked_words_than_a_name(
    slots_d: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slotctl import run

    kept: list[dict[str, object]] = []
    monkeypatch.setattr(run.ended, "record_refusal", lambda start, refusal: kept.append(start))
    with pytest.raises(Refusal, match="slot-unknown"):
        run.run("\x1b" * 9999, "\x1b" * 9999, lambda slot: [], json=False)
    assert [kept[0][key] for key in ("slot", "workspace")] == [r"\x1b" * 20] * 2


@pytest.mark.parametrize(("word", "how"), [("", ">/dev/full"), ("--help", ">/dev/full"), ("", ">&-")])
def test_output_that_cannot_be_written_is_one_line_and_exit_status_1(word: str, how: str) -> None:
    program = f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); from slotctl import cli; "
    program += f"sys.exit(cli.main('/x', {['list', word][: 1 + bool(word)]!r}))"
    words = ["sh", "-c", f'exec "$0" -IS -c "$1" {how}', sys.executable, program]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert found.stderr.startswith("slotctl: standard output")


@pytest.mark.parametrize(("words", "heavy"), [(["session-ended", "a", "b"], "argparse"), (["run", "a"], "dataclasses")])
def test_the_way_to_a_session_imports_nothing_heavy(words: list[str], heavy: str) -> None:
    program = f"import sys; sys.path.insert(0, {str(LIBRARY)!r}); from slotctl import cli; cli.main('/x', {words!r}); "
    program += "print(list(sys.modules))"
    found = subprocess.run([sys.executable, "-IS", "-c", program], capture_output=True, text=True, check=True)
    assert heavy not in found.stdout
