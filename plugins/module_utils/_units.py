# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of systemd that stand on a host: their files, and whether they are on."""

from __future__ import annotations

import dataclasses
import os
import typing as t

from . import _files, _layout
from ._files import Owned
from ._programs import Failed, ask, run
from ._steps import Step

STAMPS = "/var/lib/systemd/timers"
UNIT = Owned(0, 0, 0o644)


@dataclasses.dataclass(frozen=True)
class File:
    """What stands, or is to stand, at a path."""

    content: bytes
    owned: Owned


@dataclasses.dataclass(frozen=True)
class Change:
    """A step, and what it writes; None where it writes nothing."""

    step: Step
    file: File | None = None
    directory: Owned | None = None


def show(units: t.Sequence[str], properties: t.Sequence[str]) -> dict[str, dict[str, str]]:
    """Return properties of units as systemd has them, times in seconds of Unix after an @; of none if none is asked."""
    if not units:
        return {}
    asked = ["systemctl", "show", "--timestamp=unix", f"--property=Id,{','.join(properties)}", "--", *units]
    done = ask(asked)
    if done.status:
        raise Failed(f"systemd does not say how its units are: {done.why} [see 'systemctl status']")
    blocks = [dict(line.split("=", 1) for line in block.split("\n") if "=" in line) for block in done.out.split("\n\n")]
    return {block["Id"]: block for block in blocks if "Id" in block}


def states(units: t.Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the units that are not simply off, each with those of `enabled`, `active` and `stale` that hold."""
    found = {}
    for unit, lines in show(units, ("ActiveState", "UnitFileState", "NeedDaemonReload")).items():
        words = {
            "enabled": lines.get("UnitFileState") == "enabled",
            "active": lines.get("ActiveState") == "active",
            "stale": lines.get("NeedDaemonReload") == "yes",
        }
        if any(words.values()):
            found[unit] = frozenset(word for word, holds in words.items() if holds)
    return found


def reloads(changes: t.Sequence[Change], units: t.Mapping[str, frozenset[str]]) -> bool:
    """Return whether systemd has to read its unit files again."""
    return any(change.step.subject.startswith(f"{_layout.UNITS}/") for change in changes) or any(
        "stale" in words for words in units.values()
    )


def apply(changes: t.Sequence[Change], units: t.Mapping[str, frozenset[str]]) -> None:
    """Make the changes of `plan`, and have systemd read its unit files again if it has to."""
    off = [change.step.subject for change in changes if change.step.action == "switch off"]
    for word, verb in (("enabled", "disable"), ("active", "stop")):
        names = [name for name in off if word in units[name]]
        if names:
            run(("systemctl", verb, "--quiet", "--", *names))
    for change in changes:
        path = change.step.subject
        if change.file is not None:
            _files.write(path, change.file.content, change.file.owned)
        elif change.directory is not None:
            _files.ensure_directory(path, change.directory)
        elif change.step.action == "remove":
            _files.remove(path)
        elif change.step.action == "remove directory":
            with _files.trusted_directory(os.path.dirname(path)) as parent:
                os.rmdir(os.path.basename(path), dir_fd=parent)
    if reloads(changes, units):
        run(("systemctl", "daemon-reload"))
    forget([os.path.basename(change.step.subject) for change in changes if change.step.action == "remove"])


def forget(units: t.Iterable[str]) -> None:
    """Forget that units whose files are gone have failed, and when they last ran: a schedule of that name is anew."""
    for unit in units:
        if unit.endswith((".service", ".timer")):
            # fails for a unit that has not failed and that systemd has already forgotten
            ask(("systemctl", "reset-failed", "--", unit))
            _files.remove(f"{STAMPS}/stamp-{unit}")
