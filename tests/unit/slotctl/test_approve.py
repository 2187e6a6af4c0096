# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""PL-03: only a person on a terminal approves, outside of any slot, and what was shown is what is approved."""

from __future__ import annotations

import builtins
import io
import os
import pwd
import select
import typing as t

import pytest
from confined_slots import _approvals, _layout, _sessions
from confined_slots._refusals import Refusal
from slotctl import approve, slots

from .test_slots import POLICY

VERIFIED = {**POLICY, "mode": "verified"}
ALICE = pwd.struct_passwd(("alice", "x", 1000, 1000, "", "/home/alice", "/bin/bash"))


def slot(policy: dict[str, t.Any] | None = None, **changed: str) -> slots.Slot:
    """Return the slot as it is compiled."""
    fingerprint = changed.get("fingerprint", "sha256:0")
    records: list[tuple[str, ...]] = [("ids", "1", "1"), ("approved", fingerprint)]
    return slots.Slot("a", "/plan", records, policy or VERIFIED)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, t.Any]:
    """Return what the host says, to be changed: terminal, caller, control group, the plan as it is compiled."""
    says: dict[str, t.Any] = {
        "terminal": {0, 1},
        "caller": {"uid": 1000, "user": "alice", "login_uid": 1000},
        "cgroup": "0::/user.slice/user-1000.slice\n",
        "slots": [slot()],
        "old": None,
        "written": [],
    }
    real = builtins.open

    def opened(path: str, *rest: t.Any, **more: t.Any) -> t.Any:
        return io.StringIO(says["cgroup"]) if path == "/proc/self/cgroup" else real(path, *rest, **more)

    def loaded(name: str, workspace: str) -> slots.Slot:
        return t.cast("slots.Slot", says["slots"].pop(0) if len(says["slots"]) > 1 else says["slots"][0])

    def written(path: str, content: bytes, owned: object) -> None:
        says["written"].append((path, content, str(owned)))

    monkeypatch.setattr(os, "isatty", lambda number: number in says["terminal"])
    monkeypatch.setattr(os, "ttyname", lambda number: "/dev/pts/7")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {1000: ALICE}[uid])
    monkeypatch.setattr(approve.run, "caller", lambda: says["caller"])
    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(approve, "load", loaded)
    monkeypatch.setattr(_approvals, "read", lambda name: says["old"])
    monkeypatch.setattr(approve, "write", written)
    monkeypatch.setattr(_sessions, "append", lambda *given: says.setdefault("record", given[2]))
    return says


def refused(answer: str = "a") -> Refusal:
    """Return what an approval is refused with."""
    with pytest.raises(Refusal) as caught:
        approve.approve("a", lambda question: answer)
    assert caught.value.code == "approval-missing"
    return caught.value


def test_a_person_who_types_the_slots_name_approves_what_was_shown(
    host: dict[str, t.Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given = approve.approve("a", lambda question: "a\n")
    ((path, content, owned),) = host["written"]
    found = _approvals.of_bytes(content)
    assert (path, owned) == (_layout.approval("a"), "0:1 0640")
    assert (found.by, found.policy["fingerprint"], found.evidence["terminal"]) == ("alice", "sha256:0", "/dev/pts/7")
    assert given["fingerprint"] == host["record"]["policy"] == "sha256:0"
    assert "Use a shell: works" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["", "y", "yes", "A", "b", "a b"])
def test_any_other_answer_approves_nothing(host: dict[str, t.Any], answer: str) -> None:
    assert "nothing was approved" in refused(answer).what
    assert host["written"] == []


@pytest.mark.parametrize("terminal", [set(), {0}, {1}], ids=str)
def test_without_a_terminal_nobody_is_asked(host: dict[str, t.Any], terminal: set[int]) -> None:
    host["terminal"] = terminal
    assert "only a person on a terminal can approve" in refused().what
    assert host["written"] == []


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(
            {"cgroup": "0::/confined.slice/confined-slots.slice/confined-slots-a.slice/x.service\n"}, id="cgroup"
        ),
        pytest.param({"caller": {"uid": 1000, "user": "slot-a"}}, id="sudo's word"),
    ],
)
def test_nothing_in_a_slot_approves(host: dict[str, t.Any], changed: dict[str, t.Any]) -> None:
    host.update(changed)
    assert "what runs in a slot cannot approve" in refused().what
    assert host["written"] == []


def test_the_kernels_word_about_the_caller_beats_sudos(host: dict[str, t.Any], monkeypatch: pytest.MonkeyPatch) -> None:
    builder = pwd.struct_passwd(("slot-a", "x", 20000, 20000, "", "/", "/bin/bash"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {1000: ALICE, 20000: builder}[uid])
    host["caller"] = {"uid": 1000, "user": "alice", "login_uid": 20000}
    assert "what runs in a slot cannot approve" in refused().what


def test_who_has_no_account_is_no_person(host: dict[str, t.Any]) -> None:
    host["caller"] = {"uid": 4321, "user": "ghost"}
    assert "uid 4321 has no account" in refused().what


def test_a_policy_that_changes_while_a_person_reads_is_not_approved(host: dict[str, t.Any]) -> None:
    host["slots"] = [slot(), slot(fingerprint="sha256:1")]
    assert "compiled anew meanwhile" in refused().what
    assert host["written"] == []


def test_what_needs_no_approval_is_not_asked_about(host: dict[str, t.Any]) -> None:
    host["slots"] = [slots.Slot("a", "/plan", [("ids", "1", "1")], POLICY)]
    assert "is not in verified mode" in refused().what


def test_what_changed_since_somebody_approved_is_shown(
    host: dict[str, t.Any], capsys: pytest.CaptureFixture[str]
) -> None:
    host["old"] = _approvals.Approval("bob", "2026-11-01", {**VERIFIED, "network": "host"}, {})
    approve.approve("a", lambda question: "a")
    assert 'since bob approved it: network: "host" -> "none"' in capsys.readouterr().out


def test_an_approval_that_cannot_be_recorded_says_so(
    host: dict[str, t.Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_unused: object) -> None:
        raise Refusal("audit-unavailable", "disk full", "make room")

    monkeypatch.setattr(_sessions, "append", full)
    approve.approve("a", lambda question: "a")
    assert "approved, but not on record: audit-unavailable" in capsys.readouterr().err


def test_what_was_typed_before_the_question_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    master, terminal = os.openpty()
    monkeypatch.setattr(builtins, "input", lambda _text: f"{len(select.select([terminal], [], [], 0)[0])} waiting")
    try:
        os.write(master, b"a\n")
        assert select.select([terminal], [], [], 10)[0] == [terminal]
        assert approve.asked("? ", terminal) == "0 waiting"
    finally:
        os.close(master)
        os.close(terminal)
