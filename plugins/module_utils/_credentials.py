# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slots' credential files: one variable each, read by PID 1 as EnvironmentFile= and by no process of a slot."""

from __future__ import annotations

import dataclasses
import os
import re
import typing as t

from . import _files, _layout
from ._declarations import Invalid, Slot
from ._manifest import EXPIRES, vouched
from ._steps import Step

if t.TYPE_CHECKING:
    from ._profiles import Profile

FILE = _files.Owned(0, 0, 0o600)
DIRECTORY = _files.Owned(0, 0, 0o700)

_QUOTED = re.compile(r'["\\`$]')


@dataclasses.dataclass(frozen=True)
class Found:
    """What the host has at the place of a credential; the content is in no representation of it."""

    owned: _files.Owned | None
    content: bytes | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True)
class Change:
    """A step and what it writes, None where it takes away or mends; the content is in no representation of it."""

    step: Step
    content: bytes | None = dataclasses.field(default=None, repr=False)


def as_content(name: str, value: str, expires: str | None = None) -> bytes:
    """Return the file's content: a comment with the digest of the rest, one with the day of its end, and the line.

    systemd takes a backslash off before these four characters, expands nothing, and passes over comments.
    """
    escaped = _QUOTED.sub(r"\\\g<0>", value)
    line = f'{name}="{escaped}"\n'.encode("ascii")
    day = EXPIRES + expires.encode("ascii") + b"\n" if expires else b""
    return vouched(day + line)


def find(slots: t.Sequence[Slot]) -> dict[str, Found]:
    """Return what the host has for the declared slots: their directories and every file in them, by path."""
    found = {_layout.CREDENTIALS: Found(_files.owned(_layout.CREDENTIALS))}
    if found[_layout.CREDENTIALS].owned is None:
        return found
    for slot in slots:
        directory = _directory(slot.name)
        found[directory] = Found(_files.owned(directory))
        if found[directory].owned is None:
            continue
        for name in _files.names(directory):
            path = f"{directory}/{name}"
            found[path] = Found(_files.owned(path), _files.read(path, 1 << 20))
    return found


def check_shared(slots: t.Sequence[Slot], profiles: t.Mapping[str, Profile]) -> None:
    """Refuse one value for two slots where their CLI renews it: each would spend the other's."""
    first: dict[str, str] = {}
    for slot in slots:
        known = profiles[slot.provider].credentials if slot.provider in profiles else ()
        renewed = {each.name for each in known if each.refreshable}
        if slot.credential is None or slot.credential.value is None or slot.credential.name not in renewed:
            continue
        other = first.setdefault(slot.credential.value, slot.name)
        if other != slot.name:
            raise Invalid(
                f"slots '{other}' and '{slot.name}': credential-shared: both have the same {slot.credential.name},"
                f" which {slot.provider} renews, so each would log the other out [log each in with slotctl login, or"
                " give each a credential of its own]"
            )


def changes(slots: t.Sequence[Slot], found: t.Mapping[str, Found]) -> t.Iterator[Change]:
    """Yield what gives each slot its declared credential and no other; Invalid if a declared one has no value."""
    absent = Found(None)
    if any(slot.credential for slot in slots):
        yield from _kept_directory(_layout.CREDENTIALS, found)
    for slot in slots:
        directory = _directory(slot.name)
        kept = None
        if slot.credential is not None:
            if slot.credential.value is None:
                raise Invalid(f"slot '{slot.name}': credential.value is missing [give it from a vault]")
            kept = _layout.credential(slot.name, slot.provider)
            yield from _kept_directory(directory, found)
            content = as_content(slot.credential.name, slot.credential.value, slot.credential.expires)
            have = found.get(kept, absent)
            if have.owned is None:
                yield Change(Step(kept, "write credential", None, f"present {FILE}"), content)
            elif have.content != content:
                yield Change(
                    Step(kept, "replace credential", f"present {have.owned}", f"another, present {FILE}"), content
                )
            elif have.owned != FILE:
                yield Change(Step(kept, "mend owner and mode", str(have.owned), str(FILE)), content)
        for path in sorted(found):
            if path.startswith(f"{directory}/") and path != kept:
                yield Change(Step(path, "remove credential", f"present {found[path].owned}"))
        if kept is None and found.get(directory, absent).owned is not None:
            yield Change(Step(directory, "remove directory", str(found[directory].owned)))


def apply(planned: t.Iterable[Change]) -> None:
    """Make the changes, each in one rename or unlink."""
    for change in planned:
        path = change.step.subject
        if change.content is not None:
            _files.write(path, change.content, FILE)
        elif change.step.action == "remove credential":
            _files.remove(path)
        elif change.step.action == "remove directory":
            with _files.trusted_directory(_layout.CREDENTIALS) as parent:
                os.rmdir(os.path.basename(path), dir_fd=parent)
        else:
            _files.ensure_directory(path, DIRECTORY)


def _kept_directory(path: str, found: t.Mapping[str, Found]) -> t.Iterator[Change]:
    have = found[path].owned if path in found else None
    if have != DIRECTORY:
        yield Change(Step(path, "keep directory", str(have) if have else None, str(DIRECTORY)))


def _directory(slot: str) -> str:
    return f"{_layout.CREDENTIALS}/{slot}"
