# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ids every slot has or ever had, so that none is given twice; and the allocator of new ones."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import typing as t

from . import _files, _layout
from ._declarations import Invalid

LOCK = "/run/confined-slots.lock"
PRIVATE = _files.Owned(0, 0, 0o600)

# systemd keeps 60001-65533 for itself (homed, dynamic users), 65534 and 65535 are nobody and "no id".
_RESERVED = range(60001, 65536)
_END = 1 << 31
_FORMAT = 1
_NAME = re.compile(r"[a-z][a-z0-9-]{0,22}")

Span = tuple[int, int]  # the first id, and the one after the last


@dataclasses.dataclass(frozen=True)
class Ids:
    """The numbers of one slot: uid (the gid is the same) and the first and count of its subordinate ids."""

    uid: int
    subid_first: int
    subid_count: int

    @property
    def span(self) -> Span:
        """The subordinate ids."""
        return self.subid_first, self.subid_first + self.subid_count


@dataclasses.dataclass(frozen=True)
class Pool:
    """Where new ids are taken from: uids from first to last, ranges of subid_count from subid_first up."""

    uid_first: int = 20000
    uid_last: int = 29999
    subid_first: int = 200_000_000
    subid_count: int = 65536

    def __post_init__(self) -> None:
        """Raise Invalid if no host could give such ids."""
        if not 1000 <= self.uid_first <= self.uid_last < _END:
            raise Invalid(
                f"uid_first and uid_last are {self.uid_first} and {self.uid_last};"
                f" they can be 1000 to {_END - 1}, in order"
            )
        if self.uid_first < _RESERVED.stop and _RESERVED.start <= self.uid_last:
            raise Invalid(
                f"uid_first and uid_last are {self.uid_first} and {self.uid_last};"
                f" {_RESERVED.start} to {_RESERVED.stop - 1} belong to systemd [end below or begin above]"
            )
        if not _RESERVED.stop <= self.subid_first < _END:
            raise Invalid(f"subid_first is {self.subid_first}; it can be {_RESERVED.stop} to {_END - 1}")
        if not 1 <= self.subid_count <= 1 << 24:
            raise Invalid(
                f"subid_count is {self.subid_count}; it can be 1 to {1 << 24} [65536 is what rootless Docker needs]"
            )


@dataclasses.dataclass(frozen=True)
class Entry:
    """One slot of the ledger; leaving means that its removal has begun and must be finished."""

    ids: Ids
    leaving: bool = False


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Every id ever given: to the slots there are, by name, and to those removed."""

    slots: t.Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    retired: tuple[tuple[str, Ids], ...] = ()

    def all_ids(self) -> t.Iterator[Ids]:
        """Yield the ids of every slot that is or was."""
        yield from (entry.ids for entry in self.slots.values())
        yield from (ids for _name, ids in self.retired)

    def with_slots(self, added: t.Mapping[str, Ids]) -> Ledger:
        """Return the ledger with new slots."""
        return dataclasses.replace(self, slots={**self.slots, **{name: Entry(ids) for name, ids in added.items()}})

    def leaving(self, name: str) -> Ledger:
        """Return the ledger in which the removal of the slot has begun."""
        return dataclasses.replace(
            self, slots={**self.slots, name: dataclasses.replace(self.slots[name], leaving=True)}
        )

    def without(self, name: str) -> Ledger:
        """Return the ledger in which the slot is removed; its ids stay taken for ever."""
        rest = {other: entry for other, entry in self.slots.items() if other != name}
        return Ledger(rest, (*self.retired, (name, self.slots[name].ids)))

    def as_bytes(self) -> bytes:
        """Return the ledger's file, one line for each slot."""
        slots = {
            name: {**dataclasses.asdict(entry.ids), "leaving": entry.leaving} for name, entry in self.slots.items()
        }
        retired = [{"name": name, **dataclasses.asdict(ids)} for name, ids in self.retired]
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(slots[name])}" for name in sorted(slots))
        gone = ",\n".join(f"  {json.dumps(entry)}" for entry in retired)
        return f'{{\n "format": {_FORMAT},\n "slots": {{\n{lines}\n }},\n "retired": [\n{gone}\n ]\n}}\n'.encode(
            "ascii"
        )


def parse(data: bytes) -> Ledger:
    """Return the ledger that as_bytes wrote; Invalid if it is anything else."""
    try:
        raw = json.loads(data)
        if raw["format"] != _FORMAT:
            raise Invalid(
                f"{_layout.LEDGER} has format {raw['format']!r}, this release knows {_FORMAT}"
                " [use the release that wrote it]"
            )
        if any(_NAME.fullmatch(name) is None for name in raw["slots"]):
            raise ValueError("a name that no slot can have")
        slots = {str(name): Entry(_ids(entry), bool(entry["leaving"])) for name, entry in raw["slots"].items()}
        retired = tuple((str(entry["name"]), _ids(entry)) for entry in raw["retired"])
    except (ValueError, TypeError, KeyError, AttributeError) as broken:
        if isinstance(broken, Invalid):
            raise
        raise Invalid(
            f"{_layout.LEDGER} is damaged ({type(broken).__name__}); without it ids could be given twice"
            " [restore it from a backup, do not delete it]"
        ) from None
    return Ledger(slots, retired)


def load() -> Ledger:
    """Return the host's ledger, an empty one if there is none."""
    data = _files.read(_layout.LEDGER)
    return Ledger() if data is None else parse(data)


def save(ledger: Ledger) -> None:
    """Write the host's ledger in one rename."""
    _files.ensure_directory(_layout.ETC)
    _files.write(_layout.LEDGER, ledger.as_bytes(), PRIVATE)


@contextlib.contextmanager
def exclusive(path: str = LOCK, patience: float = 600.0) -> t.Iterator[None]:
    """Hold the host's lock of converges, waiting up to patience seconds; the kernel frees it when the holder dies.

    It stands in /run, where only root can make files: in /run/lock anybody could take the name first.
    """
    try:
        with _files.exclusive(path, patience):
            yield
    except _files.Busy:
        raise Invalid(
            f"another converge has held {path} for {patience:.0f} s [wait for it to end, or see who: fuser -v {path}]"
        ) from None


@contextlib.contextmanager
def shadow_lock(path: str = "/etc/.pwd.lock") -> t.Iterator[None]:
    """Hold the lock of the tools of shadow, as lckpwdf(3) does, while a file of theirs is rewritten."""
    with _files.trusted_directory(os.path.dirname(path)) as parent:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.basename(path), flags, 0o600, dir_fd=parent)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def allocate(
    names: t.Sequence[str],
    pool: Pool,
    ledger: Ledger,
    ids: t.Collection[int],
    spans: t.Collection[Span],
    in_use: t.Callable[[int], bool] = lambda _number: False,
) -> dict[str, Ids]:
    """Return new ids for the names, out of free space only.

    ids are the uids and gids of the host's accounts and groups, spans the subordinate ranges of its accounts; in_use is
    asked about each candidate uid (for accounts that are in no file). Raises Invalid when the pool is used up.
    """
    if not names:
        return {}
    given = list(ledger.all_ids())
    single = {*ids, *(entry.uid for entry in given)}
    foreign = sorted({*spans, *(entry.span for entry in given)})
    pool_itself = (pool.uid_first, pool.uid_last + 1)
    uids = (
        uid
        for start, end in gaps(foreign, *pool_itself)
        for uid in range(start, end)
        if uid not in single and not in_use(uid)
    )
    taken = sorted({*foreign, pool_itself, *((number, number + 1) for number in single)})
    firsts = (
        first
        for start, end in gaps(taken, pool.subid_first, _END)
        for first in range(start, end - pool.subid_count + 1, pool.subid_count)
    )
    allocated = {}
    for name in names:
        uid, first = next(uids, None), next(firsts, None)
        if uid is None:
            raise Invalid(
                f"uid-exhausted: no uid of {pool.uid_first} to {pool.uid_last} is left for slot '{name}';"
                " those of removed slots are not given again [raise uid_last]"
            )
        if first is None:
            raise Invalid(
                f"subid-exhausted: no {pool.subid_count} free subordinate ids in a row are left for slot '{name}'"
                f" from {pool.subid_first} to {_END - 1} [lower subid_first]"
            )
        allocated[name] = Ids(uid, first, pool.subid_count)
    return allocated


def gaps(taken: t.Iterable[Span], start: int, end: int) -> t.Iterator[Span]:
    """Yield the free spans between start and end, given the taken ones sorted by their first id (they may overlap)."""
    for first, after in taken:
        if first >= end:
            break
        if first > start:
            yield start, first
        start = max(start, after)
    if start < end:
        yield start, end


def _ids(entry: t.Mapping[str, t.Any]) -> Ids:
    numbers = [entry[key] for key in ("uid", "subid_first", "subid_count")]
    if not all(isinstance(number, int) and not isinstance(number, bool) and 0 < number < _END for number in numbers):
        raise ValueError(numbers)
    return Ids(*numbers)
