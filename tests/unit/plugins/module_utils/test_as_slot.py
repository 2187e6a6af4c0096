# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work as a slot's account never holds root, however it ends."""

from __future__ import annotations

import os
import select
import time
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _as_slot
from ansible_collections.confined.slots.plugins.module_utils._as_slot import as_slot

OWN = (os.getuid(), os.getgid())


@pytest.fixture(autouse=True)
def root() -> None:
    if OWN[0] != 0:
        pytest.skip("root is missing: no process may become another account")


def test_what_it_says_is_returned() -> None:
    assert as_slot(*OWN, lambda: b"said", 100) == b"said"


def test_what_does_not_end_is_killed() -> None:
    before = time.monotonic()
    assert as_slot(*OWN, lambda: time.sleep(60) or b"late", 100, seconds=0.1) == b""
    assert time.monotonic() - before < 30


def test_what_fills_the_memory_says_nothing() -> None:
    assert as_slot(*OWN, lambda: b"x" * (2 << 30), 100) == b""


def test_what_cannot_be_killed_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file system that does not answer would have it, which no test here can mount."""
    real = select.select

    def never_ends(read: list[int], *rest: t.Any) -> object:
        return ([], [], []) if "pidfd" in os.readlink(f"/proc/self/fd/{read[0]}") else real(read, *rest)

    monkeypatch.setattr(_as_slot.select, "select", never_ends)
    assert as_slot(*OWN, lambda: b"said", 100) == b"said"
    os.wait()
