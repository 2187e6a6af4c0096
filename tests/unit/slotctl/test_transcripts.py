# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversations are found in what the slot wrote, whatever it wrote, and only as the slot."""

from __future__ import annotations

import os
import pathlib
import tempfile
import time
import typing as t
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slotctl import transcripts

UID = 64000
ID = "0198c2d4-1e4f-7c3a-9b1d-2f6a7b8c9d0e"
PATTERN = "sessions/*/rollout-*-{session}.jsonl"


@given(st.uuids())
def test_a_lower_case_uuid_is_an_id(name: uuid.UUID) -> None:
    assert transcripts.is_conversation(str(name))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "last",
        "1",
        ID[:-1],
        f"{ID}0",
        ID.upper(),
        f" {ID}",
        f"{ID}\n",
        f"../{ID}",
        "-" * 36,
        f"--{ID}",
        ID.replace("-", "_"),
    ],
)
def test_part_of_an_id_a_title_or_a_path_is_none(name: str) -> None:
    assert not transcripts.is_conversation(name)


@given(st.text())
def test_no_text_but_a_uuid_passes(name: str) -> None:
    if transcripts.is_conversation(name):
        assert str(uuid.UUID(name)) == name


def policy(mounts: list[dict[str, str]], **provider: t.Any) -> dict[str, t.Any]:
    """Return what a policy says of HOME, mounts and transcripts."""
    return {"environment": {"set": {"HOME": "/h"}}, "provider": provider, "mounts": mounts}


HOME = {"kind": "bind", "target": "/h", "source": "/state/homes/fake"}
STATE = {"kind": "bind", "target": "/h/.fake", "source": "/state/states/fake/.fake"}


@pytest.mark.parametrize(
    ("mounts", "root"),
    [
        pytest.param([HOME], "/state/homes/fake/.fake", id="isolated"),
        pytest.param([{"kind": "home", "target": "/h"}, STATE], "/state/states/fake/.fake", id="verified"),
        pytest.param([{"kind": "home", "target": "/h"}], "", id="nothing-stays"),
    ],
)
def test_they_are_looked_for_where_the_policy_keeps_state(mounts: list[dict[str, str]], root: str) -> None:
    found = transcripts.where(policy(mounts, transcript=[".fake/*/{session}.jsonl"]))
    assert (found["root"].rstrip("/"), found["pattern"]) == (root, "*/{session}.jsonl" if root else "")


@pytest.mark.parametrize("provider", [{}, {"transcript": []}, {"transcript": ["{session}.jsonl"]}], ids=str)
def test_a_cli_that_keeps_none_has_none(provider: dict[str, t.Any]) -> None:
    assert transcripts.where(policy([HOME], **provider))["root"] == ""
    assert transcripts.written_since({"event": "transcripts"}, 0, UID, UID) == []


@pytest.fixture
def root() -> t.Iterator[pathlib.Path]:
    """Return a directory of the slot's, at the way that the pattern takes."""
    if os.geteuid() != 0:
        pytest.skip("root is missing: nobody else can become the slot")
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        path.chmod(0o755)
        (path / "sessions/2026").mkdir(parents=True)
        yield path / "sessions/2026"


def found(root: pathlib.Path, since: float = 0) -> list[str]:
    """Return the conversations that are found."""
    record = {"root": str(root.parents[1]), "pattern": PATTERN}
    return transcripts.written_since(record, since, UID, UID)


def write(directory: pathlib.Path, name: str, age: float = 0) -> pathlib.Path:
    """Write a transcript."""
    path = directory / f"rollout-2026-{name}.jsonl"
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_those_written_since_are_found_the_newest_first(root: pathlib.Path) -> None:
    names = [str(uuid.uuid4()) for _unused in range(3)]
    for age, name in zip((5, 50, 500), names, strict=True):
        write(root, name, age)
    assert found(root, time.time() - 100) == names[:2]


@pytest.mark.parametrize(
    "name",
    [
        f"rollout-x-{ID}.jsonl.bak",
        f"other-x-{ID}.jsonl",
        f"{ID}.jsonl",
        f"rollout-x-{ID.upper()}.jsonl",
        "rollout-x-\x1b[31m.jsonl",
        "rollout-x-..jsonl",
        f"rollout-x-{ID}\n{ID}.json",
        f"rollout-x-{'a' * 36}.jsonl",
    ],
)
def test_hostile_names_are_passed_over(root: pathlib.Path, name: str) -> None:
    (root / name).touch()
    (root / os.fsdecode(b"rollout-\xff-" + ID.encode() + b".jsonl")).touch()
    assert found(root) == [ID]


def test_no_link_leads_out_of_the_place(root: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as outside:
        pathlib.Path(outside).chmod(0o755)
        write(pathlib.Path(outside), ID)
        (root.parent / "2027").symlink_to(outside)
        assert found(root) == []
        (root.parent / "2028").mkdir()
        write(root.parent / "2028", ID)
        assert found(root) == [ID], "a directory in the link's place is looked into"


def test_what_only_root_can_read_is_not_looked_at(root: pathlib.Path) -> None:
    write(root, ID)
    root.chmod(0o700)
    assert found(root) == []
    os.chown(root, UID, UID)
    assert found(root) == [ID]


def test_more_than_a_person_can_choose_from_are_cut_off(root: pathlib.Path) -> None:
    for _unused in range(transcripts.MOST_IDS + 5):
        write(root, str(uuid.uuid4()))
    assert len(found(root)) == transcripts.MOST_IDS


def test_a_huge_directory_is_given_up_on(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MOST_ENTRIES", 50)
    for number in range(60):
        (root / f"filler-{number}").touch()
    (root.parent / "2027").mkdir()
    write(root.parent / "2027", ID)
    assert found(root) == []


def test_a_search_that_takes_too_long_is_ended(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "SECONDS", 0.2)
    monkeypatch.setattr(transcripts, "_find", lambda *_unused: time.sleep(600))
    assert found(root) == []


def test_a_search_that_breaks_leaves_no_second_slotctl_behind(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_unused: object) -> t.NoReturn:
        raise RuntimeError

    forked: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(fork()) or forked[0])
    monkeypatch.setattr(transcripts, "_find", broken)
    assert found(root) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(forked[0], os.WNOHANG)
