# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session lays into a directory does not answer for the probes that write there."""

from __future__ import annotations

import os
import pathlib
import typing as t

import pytest
from slotctl import probe

LOOKS: tuple[tuple[t.Callable[[str], str], str], ...] = (
    (probe.writable, ""),
    (probe.sealed, "{} can be added to"),
)


@pytest.mark.parametrize(("look", "answer"), LOOKS, ids=["writable", "sealed"])
def test_names_that_were_laid_before_change_no_answer(
    tmp_path: pathlib.Path, look: t.Callable[[str], str], answer: str
) -> None:
    laid = [f".selftest-{process}" for process in range(max(1, os.getpid() - 50), os.getpid() + 50)]
    for name in (*laid, "selftest"):
        (tmp_path / name).mkdir()
    assert look(str(tmp_path)) == answer.format(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*laid, "selftest"])


@pytest.mark.parametrize("look", [look for look, _answer in LOOKS], ids=["writable", "sealed"])
def test_no_name_comes_twice(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, look: t.Callable[[str], str]
) -> None:
    real, asked = probe.fresh, []
    monkeypatch.setattr(probe, "fresh", lambda directory: asked.append(real(directory)) or asked[-1])
    for _unused in range(3):
        look(str(tmp_path))
    assert len(set(asked)) == 3
