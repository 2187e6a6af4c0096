# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""CR-08: a state file that a full disk cut short can be brought back, and nothing but the slot's own is touched."""

from __future__ import annotations

import os
import pathlib
import signal
import types
import typing as t

import pytest
from confined_slots import _layout
from confined_slots._as_slot import as_slot
from confined_slots._refusals import Refusal
from slotctl import kept
from slotctl.as_slot import place

HOME = "/inside/home"


@pytest.fixture
def slot(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> t.Any:
    """Return a slot whose HOME and copies stand in a temporary directory."""
    monkeypatch.setattr(_layout, "kept", lambda _slot, _provider: str(tmp_path / "kept"))
    monkeypatch.setattr(kept, "as_slot", lambda _uid, _gid, work, most: work()[:most])
    (tmp_path / "kept").mkdir()
    (tmp_path / "home/.cli").mkdir(parents=True)
    policy = {
        "environment": {"set": {"HOME": HOME}},
        "mounts": [{"kind": "bind", "source": str(tmp_path / "home"), "target": HOME, "reason": "home"}],
        "provider": {"name": "cli", "renames": [".cli/auth.json"]},
    }
    return types.SimpleNamespace(name="coder", uid=0, gid=0, policy=policy)


def auth(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "home/.cli/auth.json"


def test_a_file_that_was_emptied_is_brought_back(slot: t.Any, tmp_path: pathlib.Path) -> None:
    auth(tmp_path).write_text("login")
    kept.keep(slot)
    auth(tmp_path).write_text("")
    (date,) = kept.listed(slot)
    assert kept.restore(slot, date) == [".cli%auth.json"]
    assert auth(tmp_path).read_text() == "login"


def test_what_has_not_changed_is_not_copied_again(slot: t.Any, tmp_path: pathlib.Path) -> None:
    auth(tmp_path).write_text("login")
    kept.keep(slot)
    kept.keep(slot)
    assert len(kept.listed(slot)) == 1


def test_an_emptied_file_takes_no_copys_place(slot: t.Any, tmp_path: pathlib.Path) -> None:
    auth(tmp_path).write_text("login")
    kept.keep(slot)
    auth(tmp_path).write_text("")
    kept.keep(slot)
    assert len(kept.listed(slot)) == 1


def test_only_the_newest_copies_stay(slot: t.Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(kept.COPIES + 3):
        monkeypatch.setattr(kept.time, "strftime", lambda _form, _time, number=number: f"20261129t00000{number}")
        auth(tmp_path).write_text(f"login {number}")
        kept.keep(slot)
    assert kept.listed(slot) == [f"20261129t00000{number}" for number in range(3, kept.COPIES + 3)]


@pytest.mark.parametrize("lay", ["link", "pipe", "large"])
def test_what_is_no_small_file_is_not_copied(slot: t.Any, tmp_path: pathlib.Path, lay: str) -> None:
    if lay == "link":
        auth(tmp_path).symlink_to("/etc/passwd")
    elif lay == "pipe":
        os.mkfifo(auth(tmp_path))
    else:
        auth(tmp_path).write_bytes(b"x" * (kept.LARGEST + 1))
    kept.keep(slot)
    assert kept.listed(slot) == []


def test_no_link_on_the_way_leads_to_what_a_session_cannot_reach(slot: t.Any, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other-workspace"
    other.mkdir()
    auth(tmp_path).write_text("the attacker's")
    kept.keep(slot)
    (date,) = kept.listed(slot)
    auth(tmp_path).unlink()
    auth(tmp_path).parent.rmdir()
    auth(tmp_path).parent.symlink_to(other)
    (other / "auth.json").write_text("the other's")
    kept.keep(slot)
    assert kept.listed(slot) == [date]
    with pytest.raises(OSError):
        kept.restore(slot, date)
    assert (other / "auth.json").read_text() == "the other's"


@pytest.mark.parametrize("lay", ["link", "pipe"])
def test_what_lies_where_a_file_is_put_back_is_neither_followed_nor_waited_for(
    slot: t.Any, tmp_path: pathlib.Path, lay: str
) -> None:
    auth(tmp_path).write_text("login")
    kept.keep(slot)
    (date,) = kept.listed(slot)
    trap, other = auth(tmp_path).with_name("auth.json.restoring"), tmp_path / "other"
    other.write_text("the other's")
    trap.symlink_to(other) if lay == "link" else os.mkfifo(trap)
    assert kept.restore(slot, date) == [".cli%auth.json"]
    assert (other.read_text(), auth(tmp_path).read_text()) == ("the other's", "login")
    assert not auth(tmp_path).is_symlink()


def test_only_names_of_dates_are_listed(slot: t.Any, tmp_path: pathlib.Path) -> None:
    for name in ("\x1b[2J", "20261129t00000\n", "20261129t000000", "20261129t00000٣"):
        (tmp_path / "kept" / name).mkdir()
    assert kept.listed(slot) == ["20261129t000000"]


def test_of_very_many_names_of_dates_only_the_newest_are_listed(slot: t.Any, tmp_path: pathlib.Path) -> None:
    names = [f"20261129t{number:06d}" for number in range(4000)]
    for name in names:
        (tmp_path / "kept" / name).mkdir()
    assert kept.listed(slot) == names[-kept.COPIES :]
    with pytest.raises(Refusal, match="there is no copy"):
        kept.restore(slot, names[0])


@pytest.mark.parametrize("answer", [b"", b'["2026', b"\xff", b"{}", b"[1]", b"[" * 10_000])
def test_an_answer_that_cannot_be_read_is_refused(
    slot: t.Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    auth(tmp_path).write_text("login")
    kept.keep(slot)
    (date,) = kept.listed(slot)
    monkeypatch.setattr(kept, "as_slot", lambda *_words: answer)
    with pytest.raises(Refusal, match="cannot be listed"):
        kept.listed(slot)
    monkeypatch.setattr(kept, "listed", lambda _slot: [date])
    with pytest.raises(Refusal, match="could not be put back"):
        kept.restore(slot, date)


def test_what_else_lies_in_a_copy_is_not_read(
    slot: t.Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth(tmp_path).write_text("login")
    kept.keep(slot)
    (date,) = kept.listed(slot)
    for number in range(20):
        (tmp_path / "kept" / date / f"{number}").write_text("more")
    real, seen = kept.read, []
    monkeypatch.setattr(kept, "read", lambda path: seen.append(path) or real(path))
    assert kept.restore(slot, date) == [".cli%auth.json"]
    assert seen == [str(tmp_path / "kept" / date / ".cli%auth.json")]


def test_work_that_the_account_stopped_after_its_answer_is_not_waited_for() -> None:
    def answers_and_stops() -> bytes:
        os._exit = lambda _status: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[assignment]  # in the child only
        return b"answer"

    def hangs(_number: int, _frame: object) -> None:
        raise AssertionError("it waits for a stopped child")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(30)
    try:
        assert as_slot(os.getuid(), os.getgid(), answers_and_stops, 10) == b"answer"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("date", ["../../etc", "20000101t000000", ".new", ""])
def test_only_a_listed_copy_is_put_back(slot: t.Any, date: str) -> None:
    with pytest.raises(Refusal, match="there is no copy"):
        kept.restore(slot, date)


def test_state_that_ends_with_the_session_has_no_place() -> None:
    policy: dict[str, t.Any] = {"environment": {"set": {"HOME": HOME}}, "mounts": []}
    assert place(policy, ".cli/auth.json") == ""
    policy["mounts"] = [{"kind": "bind", "source": "/states/.cli", "target": f"{HOME}/.cli"}]
    assert place(policy, ".cli/auth.json") == "/states/.cli/auth.json"


def test_work_that_fails_says_nothing_and_ends() -> None:
    def broken() -> bytes:
        raise ValueError("hostile")

    assert as_slot(os.getuid(), os.getgid(), broken, 10) == b""


@pytest.mark.skipif(os.getuid() != 0, reason="root is missing: another account cannot be taken on")
def test_work_is_done_as_the_slot(tmp_path: pathlib.Path) -> None:
    def ids() -> bytes:
        return f"{os.getresuid()} {os.getresgid()} {os.getgroups()}".encode()

    assert as_slot(64001, 64002, ids, 200) == b"(64001, 64001, 64001) (64002, 64002, 64002) []"
