# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a trial says is taken in up to a limit and for a while; whatever it says, no check ends with a traceback."""

from __future__ import annotations

import contextlib
import subprocess
import time
import types
import typing as t

import pytest
from confined_slots._health import CouldNot
from confined_slots._refusals import Refusal
from slotctl import preflight, selftest, trial

RECORDS: list[tuple[str, ...]] = [("ids", "1", "1")]


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> t.Callable[[str], None]:
    """Return what has a script of the shell run in the place of each unit."""

    def runs(script: str) -> None:
        real = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", lambda _command, **words: real(["/bin/sh", "-c", script], **words))

    return runs


def ran(given: str = "") -> subprocess.CompletedProcess[str]:
    """Return how the unit's trial has ended."""
    return trial.ran("coder", "s", ["/bin/x"], given=given)


def test_a_trial_reads_what_it_is_given_and_all_that_it_says_is_heard(unit: t.Callable[[str], None]) -> None:
    unit("cat; printf 'odd \\377' >&2; exit 3")
    given = "x" * 300_000
    done = ran(given)
    assert (done.stdout == given, done.stderr, done.returncode) == (True, "odd \ufffd", 3)


def test_a_trial_that_reads_nothing_ends_all_the_same(unit: t.Callable[[str], None]) -> None:
    unit("exec <&-; echo done")
    assert ran("x" * 300_000).stdout == "done\n"


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_trial_that_says_too_much_is_ended(unit: t.Callable[[str], None], stream: str) -> None:
    unit(f"exec yes >&{stream}")
    with pytest.raises(CouldNot, match="more than 4 MiB"):
        ran()


@pytest.mark.parametrize("script", ["exec sleep 60", "exec >&- 2>&- <&-; exec sleep 60"])
def test_a_trial_that_does_not_end_is_ended(
    unit: t.Callable[[str], None], monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(trial, "PATIENCE", 0.3)
    unit(script)
    began = time.monotonic()
    with pytest.raises(CouldNot, match="has not ended"):
        ran()
    assert time.monotonic() - began < 30


def floods(*_words: t.Any, **_more: t.Any) -> t.NoReturn:
    raise CouldNot("it said more than 4 MiB")


def test_a_probe_that_says_too_much_is_refused_by_selftest_and_by_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    slot = types.SimpleNamespace(name="a", records=RECORDS, base={"workspaces": {"main": "/w"}})
    stands = selftest.Bench("token", [], "", 0)
    monkeypatch.setattr(selftest, "load", lambda _slot, _workspace: slot)
    monkeypatch.setattr(selftest, "workspace_path", lambda _records, _workspace: "/w")
    monkeypatch.setattr(selftest, "bench", lambda _slot, _records: contextlib.nullcontext(stands))
    monkeypatch.setattr(selftest, "Run", lambda *_words: types.SimpleNamespace(confined=floods))
    with pytest.raises(Refusal, match=r"sandbox-unavailable: .*more than 4 MiB"):
        selftest.selftest("a", "/r")
    monkeypatch.setattr(preflight, "current_release", lambda: "/r")
    monkeypatch.setattr(preflight, "ensure_directory", lambda _path, _wanted: None)
    monkeypatch.setattr(trial, "files", lambda *_words: contextlib.nullcontext("/plan"))
    monkeypatch.setattr(trial, "ran", floods)
    with pytest.raises(Refusal, match=r"sandbox-unavailable: .*more than 4 MiB"):
        preflight._sandbox(t.cast("t.Any", slot), "main")


@pytest.mark.parametrize("said", ["", "[]", "[" * 100_000, "{", "1"])
def test_what_is_no_finding_is_none(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    done = subprocess.CompletedProcess(["x"], 0, said, "")
    monkeypatch.setattr(trial, "ran", lambda *_words, **_more: done)
    run = types.SimpleNamespace(slot="a", stands=selftest.Bench("token", [], "", 0), said="")
    assert selftest.Run._finish(t.cast("t.Any", run), [], "s", "", "") is None
