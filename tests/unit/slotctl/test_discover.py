# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A discovery's evidence is all there, or nothing comes of it; and a process that is to be traced waits for that."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import types
import typing as t

import pytest
from confined_slots import _discovery, _layout
from confined_slots._manifest import sha256
from confined_slots._refusals import Refusal
from slotctl import approve, discover, observer

SESSION = "20261130t101530-1a2b3c4d"
LAUNCHER = "/r/bin/slot-launcher"
TRACE = f'9 execve("{_discovery._in_hex(LAUNCHER)}", [...], 0x1 /* 3 vars */) = 0\n9 +++ exited with 0 +++\n'.encode()
ABOUT: dict[str, t.Any] = {
    **{"slot": "coder", "session": SESSION, "workspace": "main", "start": "2026-11-30T10:15:30.000Z"},
    **{"launcher": LAUNCHER, "policy": {"mode": "isolated", "mounts": []}, "host": {}},
    **{"tracer": {"status": 0, "said": "", "fault": ""}, "trace": sha256(TRACE)},
}


@pytest.fixture
def kept(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the directory of the slot's only discovery, which is taken for root's."""
    monkeypatch.setattr(_layout, "DISCOVERIES", str(tmp_path))
    monkeypatch.setattr(discover, "check_known", lambda _slot: None)
    monkeypatch.setattr(discover, "read", lambda path, _limit=0: pathlib.Path(path).read_bytes())
    directory = tmp_path / "coder" / SESSION
    directory.mkdir(parents=True)
    (directory / "trace").write_bytes(TRACE)
    (directory / "about.json").write_text(json.dumps(ABOUT))
    return directory


def test_whole_evidence_comes_to_a_candidate_and_an_overlay(kept: pathlib.Path) -> None:
    found, overlay = discover.replay("coder", None)
    assert found["complete"] and found["session"] == SESSION
    assert "binds: []" in overlay
    assert "complete" in discover.show(found)


@pytest.mark.parametrize(
    ("about", "why"),
    [
        pytest.param({"tracer": None}, "its end was not recorded", id="slotctl was killed"),
        pytest.param({"tracer": {"status": -9, "said": "", "fault": ""}}, "killed by signal 9", id="strace was killed"),
        pytest.param({"tracer": {"status": 1, "said": "", "fault": ""}}, "strace ended with 1", id="strace failed"),
        pytest.param(
            {"tracer": {"status": 0, "said": "ENOSPC", "fault": ""}}, "strace said: ENOSPC", id="it complained"
        ),
        pytest.param({"tracer": {"status": 0, "said": "", "fault": "late"}}, "late", id="it could not begin"),
        pytest.param({"trace": "0" * 64}, "not the one that was recorded", id="another trace"),
    ],
)
def test_evidence_of_less_than_the_whole_session_is_refused(
    kept: pathlib.Path, about: dict[str, t.Any], why: str
) -> None:
    changed = {key: value for key, value in {**ABOUT, **about}.items() if value is not None}
    (kept / "about.json").write_text(json.dumps(changed))
    assert not discover.candidate("coder", SESSION)["complete"]
    with pytest.raises(Refusal, match=f"discovery-incomplete: .*{why}"):
        discover.replay("coder", SESSION)


@pytest.mark.parametrize("content", ["", "[]", "{}", "[" * 100_000, '{"slot": 1}'])
def test_what_is_no_evidence_is_refused_and_breaks_nothing(kept: pathlib.Path, content: str) -> None:
    (kept / "about.json").write_text(content)
    with pytest.raises(Refusal, match="discovery-incomplete"):
        discover.candidate("coder", SESSION)


@pytest.mark.parametrize("found", [1, {}, {"source": 1, "shut": False}, {"source": {"a": 1}, "shut": False}])
def test_evidence_with_no_word_on_the_host_that_can_be_read_is_refused(kept: pathlib.Path, found: t.Any) -> None:
    line = f'9 access("{_discovery._in_hex("/etc/x")}", R_OK) = -1 ENOENT (No such file)\n'
    inside = f'8 access("{_discovery._in_hex("/etc/x")}", R_OK) = -1 ENOENT (No such file)\n8 +++ exited with 0 +++\n'
    trace = TRACE.replace(b"9 +++", f"{line}{inside}9 +++".encode())
    (kept / "trace").write_bytes(trace)
    (kept / "about.json").write_text(json.dumps({**ABOUT, "trace": sha256(trace), "host": {"/etc/x": found}}))
    with pytest.raises(Refusal, match=r"discovery-incomplete: .*does not say what stood on the host"):
        discover.candidate("coder", SESSION)


@pytest.mark.parametrize("session", ["20200101t000000-00000000", "../coder", "x\x1b[2J"])
def test_a_discovery_that_is_not_there_is_refused_with_those_that_are(kept: pathlib.Path, session: str) -> None:
    with pytest.raises(Refusal, match=f"it has {SESSION}") as refused:
        discover.candidate("coder", session)
    assert str(refused.value).isprintable()


def test_the_oldest_discoveries_go_and_nothing_else(kept: pathlib.Path) -> None:
    for number in range(12):
        (kept.parent / f"20270101t0000{number:02d}-00000000").mkdir()
    (kept.parent / "of-somebody").mkdir()
    observer.prune("coder")
    left = sorted(path.name for path in kept.parent.iterdir())
    assert left == [*(f"20270101t0000{number:02d}-00000000" for number in range(3, 12)), "of-somebody"]


def test_without_strace_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "STRACE", "/nowhere/strace")
    with pytest.raises(Refusal, match=r"/nowhere/strace is not there.*install the package strace"):
        discover.discover("coder", None, lambda _slot: [], json=False)


def test_what_is_to_be_traced_waits_and_then_is_the_very_command() -> None:
    words = [word.replace("$$", "$") for word in observer.Observer().held(["/bin/sh", "-c", 'echo "$1"', "x", "a b"])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert observer._state(child.pid) == "T"
        child.send_signal(signal.SIGCONT)
        assert child.communicate()[0] == "a b\n"


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a directory that a policy could have, whatever is forbidden of the one it stands in."""
    monkeypatch.setattr(_discovery, "FORBIDDEN", (str(tmp_path / "home"),))
    (tmp_path / "home").mkdir()
    (tmp_path / "srv").mkdir()
    return tmp_path / "srv"


def looked_for(*paths: pathlib.Path) -> tuple[dict[str, t.Any], str]:
    """Return what stands on the host at these paths, as a discovery keeps it."""
    return observer.outside([str(path) for path in paths], 64001, 64001)


def test_where_a_link_leads_is_looked_at_and_what_is_absent_takes_no_room(place: pathlib.Path) -> None:
    (place / "real").mkdir()
    (place / "link").symlink_to("real")
    (place / "dangling").symlink_to("nothing")
    found, beyond = looked_for(place / "link", place / "dangling", place / ("x" * 5000), place / "gone", place / "\0")
    assert (list(found), beyond) == ([str(place / "link")], "")
    assert found[str(place / "link")]["source"]["path"] == str(place / "real")


def test_what_is_forbidden_is_neither_followed_nor_looked_into(
    place: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(*_words: t.Any) -> t.NoReturn:
        raise AssertionError("it looks")

    home = place.parent / "home"
    (home / "link").symlink_to(place)
    for name in ("open", "readlink", "scandir"):
        monkeypatch.setattr(observer.os, name, looks)
    found, beyond = looked_for(home, home / "link", home / "gone")
    assert (list(found), beyond) == ([str(home), str(home / "link")], "")
    assert found[str(home / "link")]["source"]["path"] == str(home / "link")


def test_many_paths_that_lead_to_one_tree_have_it_looked_through_once(
    place: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: seen.append(path) or real(path))
    (place / "tree").mkdir()
    for number in range(20):
        (place / f"link{number}").symlink_to("tree")
    found, beyond = looked_for(*(place / f"link{number}" for number in range(20)))
    assert (len(found), beyond, seen) == (20, "", [str(place / "tree")])


@pytest.mark.parametrize(
    ("limit", "least"),
    [
        pytest.param({"MOST_ENTRIES": 30}, 2, id="entries"),
        pytest.param({"MOST_SECONDS": 0.0}, 0, id="seconds"),
        pytest.param({"MOST_EVIDENCE": 1000}, 1, id="evidence"),
    ],
)
def test_what_all_paths_together_may_take_is_limited_and_what_is_beyond_makes_the_trace_partial(
    kept: pathlib.Path, place: pathlib.Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, t.Any], least: int
) -> None:
    for name, most in limit.items():
        monkeypatch.setattr(observer, name, most)
    trees = [place / f"tree{number}" for number in range(10)]
    for tree in trees:
        tree.mkdir()
        for number in range(10):
            (tree / f"{number}").touch()
    found, beyond = looked_for(*trees)
    assert least <= len(found) < len(trees)
    (kept / "about.json").write_text(json.dumps({**ABOUT, "host": found, "beyond": beyond}))
    assert not discover.candidate("coder", SESSION)["complete"]
    with pytest.raises(Refusal, match=r"discovery-incomplete: .*only a part was looked for"):
        discover.replay("coder", SESSION)


def test_a_tree_that_was_not_looked_through_whole_is_not_proposed(
    place: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "MOST_ENTRIES", 3)
    for number in range(5):
        (place / f"{number}").touch()
    found, _beyond = looked_for(place)
    assert "nobody knows what" in found[str(place)]["source"]["socket"]


def test_links_that_multiply_on_the_way_are_given_up_at_once(place: pathlib.Path) -> None:
    below = "/".join(["."] * 2000)
    for number in range(100):
        (place / f"{number}").symlink_to(f"{number + 1}/{below}")
    (place / "100").mkdir()
    found, beyond = looked_for(place / "0", place / "90")
    assert (list(found), beyond) == ([str(place / "90")], "")


def test_a_link_to_what_has_no_name_on_the_host_leads_nowhere(place: pathlib.Path) -> None:
    read_end, write_end = os.pipe()
    try:
        (place / "link").symlink_to(f"/proc/{os.getpid()}/fd/{read_end}")
        assert looked_for(place / "link") == ({}, "")
    finally:
        os.close(read_end)
        os.close(write_end)


def test_the_evidence_of_very_many_long_names_can_still_be_read(
    kept: pathlib.Path, place: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = observer.Observer()
    looking.slot = t.cast("t.Any", types.SimpleNamespace(uid=64001, gid=64001))
    looking.directory, looking.about = str(kept), {**ABOUT, "host": {}}
    (place / "there").mkdir()
    names = [f"{place}/{number}{'x' * 3000}" for number in range(7000)]
    monkeypatch.setattr(_discovery, "refused", lambda _trace, _policy: [*names, str(place / "there")])
    monkeypatch.setattr(observer, "write", lambda path, data, _owned: pathlib.Path(path).write_bytes(data))
    looking.finish()
    assert list(looking.about["host"]) == [str(place / "there")]
    assert (kept / "about.json").stat().st_size < 1 << 20
    assert looking.about["beyond"] == ""


def test_a_person_who_hangs_up_has_said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_text: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", gone)
    monkeypatch.setattr("termios.tcflush", lambda _terminal, _queue: None)
    assert approve.asked("?") == ""
