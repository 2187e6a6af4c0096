# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ids are given once, out of free space, and remembered."""

from __future__ import annotations

import json
import multiprocessing
import pathlib
import time

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _ledger, _manifest
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid
from ansible_collections.confined.slots.plugins.module_utils._ledger import Entry, Ids, Ledger, Pool
from hypothesis import given
from hypothesis import strategies as st

POOL = Pool(uid_first=20000, uid_last=20029, subid_first=100_000, subid_count=1000)

spans = st.tuples(st.integers(65536, 140_000), st.integers(1, 9000)).map(lambda pair: (pair[0], pair[0] + pair[1]))
low_spans = st.tuples(st.integers(19_990, 20_040), st.integers(1, 5)).map(lambda pair: (pair[0], pair[0] + pair[1]))
ids = st.integers(19_990, 20_040) | st.integers(65536, 140_000)
given_ids = st.builds(Ids, st.integers(20_000, 20_029), st.integers(100_000, 130_000), st.integers(1, 3000))
slot_names = st.from_regex(r"[a-z][a-z0-9-]{0,22}", fullmatch=True)
ledgers = st.builds(
    Ledger,
    st.dictionaries(slot_names, st.builds(Entry, given_ids, st.booleans()), max_size=3),
    st.lists(st.tuples(slot_names, given_ids), max_size=3).map(tuple),
)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@given(st.integers(1, 12), ledgers, st.sets(ids, max_size=30), st.lists(spans | low_spans, max_size=8))
def test_rd_02_new_ids_meet_nothing_that_is_or_was_in_use(
    count: int, ledger: Ledger, taken: set[int], foreign: list[tuple[int, int]]
) -> None:
    names = [f"new{number}" for number in range(count)]
    try:
        new = _ledger.allocate(names, POOL, ledger, taken, foreign)
    except Invalid as refused:
        assert str(refused).startswith(("uid-exhausted: ", "subid-exhausted: "))
        return
    old = list(ledger.all_ids())
    assert list(new) == names
    assert len({entry.uid for entry in new.values()}) == count
    for name, entry in new.items():
        assert 20000 <= entry.uid <= 20029 and entry.subid_first >= 100_000 and entry.subid_count == 1000
        assert entry.uid not in taken and all(entry.uid != other.uid for other in old)
        others = [*foreign, *(other.span for other in old), *(new[other].span for other in names if other != name)]
        assert not any(overlap(entry.span, other) for other in others)
        assert not any(overlap((entry.uid, entry.uid + 1), other) for other in others)
        assert not any(entry.span[0] <= number < entry.span[1] for number in (*taken, *(other.uid for other in old)))


@given(st.lists(spans, max_size=10), st.integers(60_000, 100_000), st.integers(100_001, 150_000))
def test_gaps_and_taken_spans_together_are_the_whole(taken: list[tuple[int, int]], start: int, end: int) -> None:
    free = {number for first, after in _ledger.gaps(sorted(taken), start, end) for number in range(first, after)}
    used = {number for first, after in taken for number in range(first, after)}
    assert free == set(range(start, end)) - used


def test_rd_02_a_gap_too_small_is_left_and_the_next_large_enough_taken() -> None:
    new = _ledger.allocate(["a", "b"], POOL, Ledger(), {102_500}, [(100_999, 101_000), (104_000, 105_000)])
    assert [entry.subid_first for entry in new.values()] == [101_000, 102_501]


def test_rd_02_a_real_uid_inside_the_pool_of_ranges_is_left_out() -> None:
    new = _ledger.allocate(["a"], Pool(), Ledger(), {200_000_000}, [])
    assert new["a"].span == (200_000_001, 200_065_537)


def test_rd_02_a_uid_inside_a_foreign_range_is_not_given() -> None:
    assert _ledger.allocate(["a"], POOL, Ledger(), set(), [(19_000, 20_003)])["a"].uid == 20003


def test_rd_02_no_space_is_subid_exhausted() -> None:
    with pytest.raises(Invalid, match=r"^subid-exhausted: .* slot 'a'.*\[lower subid_first\]$"):
        _ledger.allocate(["a"], POOL, Ledger(), set(), [(99_000, 1 << 31)])


def test_an_account_that_only_a_directory_server_knows_keeps_its_uid() -> None:
    assert _ledger.allocate(["a"], POOL, Ledger(), set(), [], lambda uid: uid < 20007)["a"].uid == 20007


def test_rd_11_a_removed_slot_leaves_its_ids_to_nobody() -> None:
    pool = Pool(uid_first=20000, uid_last=20001)
    ledger = Ledger().with_slots(_ledger.allocate(["a"], pool, Ledger(), set(), []))
    old = ledger.slots["a"].ids
    ledger = ledger.leaving("a").without("a")
    new = _ledger.allocate(["a"], pool, ledger, set(), [])["a"]
    assert new.uid != old.uid and not overlap(new.span, old.span)
    ledger = ledger.with_slots({"a": new}).leaving("a").without("a")
    with pytest.raises(Invalid, match=r"^uid-exhausted: .*\[raise uid_last\]$"):
        _ledger.allocate(["a"], pool, ledger, set(), [])


@given(ledgers)
def test_a_ledger_is_read_as_it_was_written(ledger: Ledger) -> None:
    assert _ledger.parse(ledger.as_bytes()) == ledger


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(Ledger().with_slots({"a": Ids(20000, 70000, 1)}).as_bytes()[:-20], id="cut off"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"format": 1, "slots": {"a": {"uid": -1}}, "retired": []}', id="negative"),
        pytest.param(
            b'{"format": 1, "retired": [], "slots":'
            b' {"../x": {"uid": 20000, "subid_first": 70000, "subid_count": 1, "leaving": false}}}',
            id="a name that is a path",
        ),
        pytest.param(b'{"format": 1, "slots": {"a": {"uid": true, "subid_first": 1, "subid_count": 1}}}', id="true"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
    ],
)
def test_a_damaged_ledger_is_refused_with_its_path(data: bytes) -> None:
    with pytest.raises(Invalid, match=r"ledger\.json is damaged .*\[restore it from a backup, do not delete it\]"):
        _ledger.parse(data)


def test_a_ledger_of_a_later_release_is_refused() -> None:
    with pytest.raises(Invalid, match="format 2"):
        _ledger.parse(json.dumps({"format": 2}).encode())


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((999, 2000, 70_000, 1), id="system uids"),
        pytest.param((3000, 2000, 70_000, 1), id="out of order"),
        pytest.param((20000, 60500, 70_000, 1), id="uids of systemd"),
        pytest.param((61000, 61100, 70_000, 1), id="within the uids of systemd"),
        pytest.param((20000, 29999, 65_000, 1), id="subordinate ids too low"),
        pytest.param((20000, 29999, 70_000, 0), id="no subordinate ids"),
        pytest.param((20000, 29999, 1 << 31, 1), id="beyond the last id"),
    ],
)
def test_a_pool_that_no_host_can_give_is_refused(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(Invalid):
        Pool(*numbers)


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lock stand in a temporary directory."""
    monkeypatch.setattr(_manifest, "check_directory", lambda _found, _path, on_the_way: None)


def hold(path: str, held: multiprocessing.synchronize.Event) -> None:
    with _ledger.exclusive(path):
        held.set()
        time.sleep(60)


@pytest.mark.usefixtures("anywhere")
def test_rd_02_converges_wait_for_each_other_and_a_killed_one_frees_the_next(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "lock")
    context = multiprocessing.get_context("fork")
    held = context.Event()
    holder = context.Process(target=hold, args=(path, held))
    holder.start()
    try:
        assert held.wait(20)
        with (
            pytest.raises(Invalid, match=r"another converge has held .*\[wait for it to end"),
            _ledger.exclusive(path, 0.2),
        ):
            pass
        holder.kill()
        with _ledger.exclusive(path, 20):
            pass
    finally:
        holder.kill()
        holder.join()
