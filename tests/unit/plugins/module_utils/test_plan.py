# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The launch plan's bytes."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _plan

NEEDED: list[_plan.Record] = [
    ("slot", "coder"),
    ("enabled", "yes"),
    ("fingerprint", "sha256:00"),
    ("ids", "20000", "20000"),
    ("policy", "{}"),
]
# What os.fsdecode can give: every text without NUL, and bytes that are no UTF-8 as lone low surrogates.
WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])) | st.binary().map(
    lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")
)


@hypothesis.given(st.lists(st.tuples(st.just("bind"), st.sampled_from(["ro", "rw"]), WORDS, WORDS)))
def test_a_plan_carries_any_path_unchanged(binds: list[_plan.Record]) -> None:
    """BW-14: spaces, line breaks, dashes and bytes that are no UTF-8 come back as they went in."""
    assert _plan.load(_plan.dump(NEEDED + binds)) == NEEDED + binds


@hypothesis.given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    good = _plan.dump(NEEDED)
    position = data.draw(st.integers(0, len(good) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != good[position]))
    with pytest.raises(_plan.BadPlan):
        _plan.load(good[:position] + bytes([byte]) + good[position + 1 :])


@hypothesis.given(st.binary())
def test_bytes_that_are_no_plan_are_refused_without_a_traceback(data: bytes) -> None:
    with pytest.raises(_plan.BadPlan):
        _plan.load(data)


@hypothesis.given(st.binary(max_size=200))
def test_a_right_hash_does_not_make_a_plan(body: bytes) -> None:
    with pytest.raises(_plan.BadPlan):
        _plan.load(f"{_plan.MAGIC}\0{_plan.sha256(body)}\0".encode() + body)


@pytest.mark.parametrize("extra", [b"x", b"\0", b"slot\0other\0"])
def test_appended_bytes_are_noticed(extra: bytes) -> None:
    with pytest.raises(_plan.BadPlan) as caught:
        _plan.load(_plan.dump(NEEDED) + extra)
    assert caught.value.tampered


def test_another_format_is_told_from_tampering() -> None:
    other = _plan.dump(NEEDED).replace(_plan.MAGIC.encode(), b"confined-slots-plan 99")
    with pytest.raises(_plan.BadPlan) as caught:
        _plan.load(other)
    assert not caught.value.tampered


@pytest.mark.parametrize("missing", [record[0] for record in NEEDED])
def test_a_plan_without_a_needed_record_is_refused(missing: str) -> None:
    with pytest.raises(_plan.BadPlan, match=missing):
        _plan.load(_plan.dump([record for record in NEEDED if record[0] != missing]))


@pytest.mark.parametrize(
    "record",
    [("bind", "ro", "/only-source"), ("unheard-of",), ("bind", "ro", "/a\0b", "/c")],
    ids=["arity", "keyword", "nul"],
)
def test_a_record_that_cannot_be_is_not_written(record: _plan.Record) -> None:
    with pytest.raises(ValueError):
        _plan.dump([*NEEDED, record])
