# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A removal ends the slot before it takes anything of it, and goes on where it was killed."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _accounts, _files, _layout, _programs, _removal
from ansible_collections.confined.slots.plugins.module_utils._accounts import Account
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid
from ansible_collections.confined.slots.plugins.module_utils._ledger import Entry, Ids, Ledger
from ansible_collections.confined.slots.plugins.module_utils._removal import Found
from hypothesis import given
from hypothesis import strategies as st

IDS = Ids(20000, 200_000_000, 65536)
WHOLE = Found(
    name="a-b",
    ids=IDS,
    leaving=False,
    account=True,
    group=True,
    schedule=("/var/lib/systemd/linger/slot-a-b", "/var/spool/cron/crontabs/slot-a-b"),
    switched=(f"{_layout.schedule_unit('a-b', 'nightly')}.timer",),
    units=(_layout.slice_unit("a-b"),),
    processes=((4711, "tmux"),),
    unit_files=(f"{_layout.UNITS}/{_layout.slice_unit('a-b')}",),
    plan=True,
    workspaces=True,
    log=True,
    trees=(_layout.policy("a-b"), _layout.state("a-b"), _layout.log("a-b")),
    ranges=("/etc/subuid", "/etc/subgid"),
)
ARCHIVE = f"{_layout.ARCHIVE}/a-b-20000-workspaces.tar.gz"


def actions(found: Found, workspaces: str = "archive") -> list[str]:
    return [step.action for step in _removal.steps(found, workspaces)]


def test_rd_11_the_order_lets_nothing_come_back() -> None:
    assert actions(WHOLE) == [
        "begin removal",
        "close account",
        "remove file",
        "remove file",
        "remove file",
        "switch off",
        "end processes",
        "archive workspaces",
        "archive logs",
        "remove unit",
        "remove tree",
        "remove tree",
        "remove tree",
        "take ranges back",
        "take ranges back",
        "remove account",
        "retire",
    ]


def test_the_ledger_is_first_and_last() -> None:
    subjects = [step.subject for step in _removal.steps(WHOLE, "archive")]
    assert subjects[0] == subjects[-1] == _layout.LEDGER


def test_workspaces_are_only_deleted_unarchived_when_asked_for() -> None:
    assert "archive workspaces" not in actions(WHOLE, "delete") and "archive logs" in actions(WHOLE, "delete")


def test_an_archive_that_was_finished_is_never_written_over_by_what_a_killed_removal_left() -> None:
    assert "archive workspaces" not in actions(dataclasses.replace(WHOLE, leaving=True, archives=(ARCHIVE,)))


@given(st.sets(st.sampled_from([field.name for field in dataclasses.fields(Found)][2:])))
def test_a_killed_removal_does_only_what_is_left_and_ends_in_the_ledger(done: set[str]) -> None:
    nothing = Found("a-b", IDS, leaving=True)
    left = dataclasses.replace(WHOLE, **{name: getattr(nothing, name) for name in done})
    steps = actions(left)
    assert steps[-1] == "retire"
    whole = iter(actions(WHOLE))
    assert all(step in whole for step in steps if step != "remove group"), "the rest keeps its order"
    assert ("remove account" in steps) == left.account


def test_a_group_that_outlived_its_account_is_removed() -> None:
    assert actions(Found("a", IDS, leaving=True, group=True)) == ["remove group", "retire"]


def test_a_slot_that_the_host_never_had_is_unknown() -> None:
    with pytest.raises(Invalid, match=r"^slot-unknown: no slot 'b' .* there are: a \[name one of them\]"):
        _removal.find("b", Ledger({"a": Entry(IDS)}))


def test_a_slot_that_was_removed_before_is_gone() -> None:
    assert _removal.find("a", Ledger({}, (("a", IDS),))) is None


def test_lines_of_others_stay_byte_for_byte() -> None:
    content = b"# slot-a\nslot-a:1:2\nslot-ab:1:2\r\n 20000:7:8\n20000:7:8\n\xff:1:2\n\nslot-a:5:6\nlast:1:2"
    assert (
        _removal.without_ranges(content, "slot-a", 20000)
        == b"# slot-a\nslot-ab:1:2\r\n 20000:7:8\n\xff:1:2\n\nlast:1:2"
    )


@given(st.lists(st.binary(max_size=30)))
def test_nothing_but_lines_of_the_account_is_ever_dropped(lines: list[bytes]) -> None:
    content = b"\n".join(lines)
    kept = _removal.without_ranges(content, "slot-a", 20000)
    assert kept == content or b"slot-a" in content or b"20000" in content


HOST = _accounts.Found(
    accounts=(Account("slot-a", True, 20000, 20000, _layout.account_home("a"), "/bin/bash"),),
    directories={_layout.account_home("a"): _files.Owned(20000, 20000, 0o700)},
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param(
            {"directories": {_layout.account_home("a"): _files.Owned(0, 0, 0o755)}},
            "belongs to uid 0, not to",
            id="root's",
        ),
        pytest.param(
            {"accounts": (*HOST.accounts, Account("bob", True, 7, 7, _layout.account_home("a"), "/bin/sh"))},
            "is the home of account 'bob' too",
            id="shared",
        ),
        pytest.param(
            {"accounts": (*HOST.accounts, Account("bob", True, 7, 7, f"{_layout.state('a')}/workspaces/x", "/bin/sh"))},
            "is the home of account 'bob' too",
            id="within",
        ),
        pytest.param(
            {"accounts": (dataclasses.replace(HOST.accounts[0], home="/root"),)}, "is /root, not", id="another home"
        ),
    ],
)
def test_rd_11_a_home_that_is_not_the_slots_alone_is_refused(changed: dict[str, t.Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        _removal._check_alone("a", IDS, dataclasses.replace(HOST, **changed))


def test_a_home_that_is_the_slots_alone_is_not_refused() -> None:
    _removal._check_alone("a", IDS, HOST)


def test_what_is_mounted_in_a_slot_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_removal, "_mount_points", lambda: ["/", f"{_layout.state('a')}/workspaces/main/data"])
    with pytest.raises(Invalid, match=r"main/data is a mount; .* \[umount "):
        _removal._check_alone("a", IDS, HOST)


def test_rd_11_processes_that_do_not_end_are_slot_busy_with_their_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_removal, "processes", lambda _ids: ((4711, "stuck"),))
    monkeypatch.setattr(_removal, "_kill_all", lambda _uid: None)
    monkeypatch.setattr(_removal, "_kill", lambda _pid, _ids: None)
    with pytest.raises(_programs.Failed, match=r"^slot-busy: 1 processes of slot 'a-b' .* 4711 \(stuck\) \[see"):
        _removal._end(dataclasses.replace(WHOLE, units=()), 0.1)


def test_a_process_is_found_by_any_of_its_uids() -> None:
    uid = os.getuid()
    for ids in (Ids(uid or 1 << 30, 1 << 29, 1), Ids(1 << 30, uid, 1)):
        found = dict(_removal.processes(ids))
        assert (os.getpid() in found) == (ids.uid == uid or ids.subid_first == uid)
    assert os.getpid() not in dict(_removal.processes(Ids(1 << 30, uid + 1, 5)))


def test_a_process_is_killed_only_while_it_is_the_slots() -> None:
    uid = os.getuid()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        _removal._kill(process.pid, Ids(1 << 30, uid + 1, 5))
        assert process.poll() is None
        _removal._kill(process.pid, Ids(1 << 30, uid, 1))
        assert process.wait(20) == -9
    _removal._kill(process.pid, Ids(1 << 30, uid, 1))


def test_the_name_that_a_process_gave_itself_cannot_steer_a_terminal() -> None:
    program = "import time; open('/proc/self/comm', 'w').write('\\x1b[2Jx'); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        found = dict(_removal.processes(Ids(1 << 30, os.getuid(), 1)))
        process.kill()
    assert found[process.pid] == r"\x1b[2Jx"


@pytest.fixture
def sparse(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a directory with workspaces that hold 300 GiB of nothing, and a place for archives beside it."""
    (tmp_path / "workspaces").mkdir()
    with (tmp_path / "workspaces" / "huge").open("wb") as file:
        file.truncate(300 << 30)
    monkeypatch.setattr(_layout, "ARCHIVE", str(tmp_path / "archive"))
    return tmp_path


def test_holes_in_a_file_take_neither_time_nor_room(sparse: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_removal, "ARCHIVE_SECONDS", 60)
    archive = sparse / "archive" / "a.tar.gz"
    _removal._archive(str(archive), 20000, str(sparse), "workspaces")
    assert archive.stat().st_size < 1 << 16


def test_an_archive_that_takes_too_long_says_how_to_do_without(
    sparse: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_removal, "ARCHIVE_SECONDS", 0)
    with pytest.raises(_programs.Failed, match=r"nothing of it was removed.*workspaces=delete"):
        _removal._archive(str(sparse / "archive" / "a.tar.gz"), 20000, str(sparse), "workspaces")
    assert os.listdir(sparse / "archive") == []


@pytest.mark.parametrize("uid", [0, 1, 999])
def test_killing_all_of_a_system_account_is_out_of_the_question(uid: int) -> None:
    with pytest.raises(ValueError, match=str(uid)):
        _removal._kill_all(uid)
