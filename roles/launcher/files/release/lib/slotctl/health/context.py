# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the checks are given: the options, what was asked of the host once for all slots, and one slot with its policy.

A check takes a Context and returns an Outcome. It may raise a Refusal, which is `critical`; CouldNot, which is
`unknown`, as is every other exception; and DoesNotApply.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import typing as t

from confined_slots import _accounts, _layout
from confined_slots._declarations import Slot as Declared
from confined_slots._health import CouldNot, Outcome, ok
from confined_slots._ledger import Ids
from confined_slots._programs import Failed, ask
from confined_slots._refusals import Refusal, printable

from .. import slots, unit

if t.TYPE_CHECKING:
    from .confinement import Live

CONVERGE = slots.CONVERGE
TOOL_SECONDS = 10.0
SHARING = frozenset({"sandbox", "marker", "view", "apparmor-attached"})
SHOWN = (
    *("ActiveState", "UnitFileState", "Result", "MainPID", "NeedDaemonReload", "ControlGroup"),
    *("MemoryMax", "CPUQuotaPerSecUSec", "TasksMax"),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is compared with, and from where on something is too much.

    source is the digest of the controller's part of the release ("" where nothing is pinned); declared has the slots
    as the inventory has them, by name, None where no inventory was given.
    """

    source: str = ""
    declared: t.Mapping[str, Declared] | None = None
    credential_days: int = 365
    state_bytes: int = 10 << 30
    free_bytes: int = 1 << 30
    free_percent: int = 5
    rotation_days: int = 8


@dataclasses.dataclass(frozen=True)
class Host:
    """What was asked once, before any check ran; units is None, for the reason in trouble, if systemd did not say.

    listeners: abstract sockets of this host, before the probes put up theirs; None where they cannot be told.
    """

    options: Options
    slots: tuple[str, ...]
    listeners: t.Sequence[str] | None = ()
    units: t.Mapping[str, t.Mapping[str, str]] | None = None
    trouble: str = ""

    def unit(self, name: str) -> t.Mapping[str, str]:
        """Return what systemd says of a unit; CouldNot if it said nothing."""
        if self.units is None:
            raise CouldNot(self.trouble)
        if name not in self.units:
            raise CouldNot(f"systemd said nothing of {name}")
        return self.units[name]

    @functools.cached_property
    def accounts(self) -> _accounts.Found:
        """The host's files of accounts, and the ledger."""
        return _accounts.find([])


class Context:
    """What one check is about: the host, and in a check of slots the slot's name."""

    def __init__(self, host: Host, name: str = "") -> None:
        self.host, self.name = host, name
        self.options = host.options
        self.gave_no_result: set[str] = set()  # checks whose process was ended

    @functools.cached_property
    def slot(self) -> slots.Slot:
        """The slot as it was compiled; CouldNot if that cannot be read, which is the check `policy`'s to judge."""
        try:
            return slots.load(self.name)
        except Refusal as refusal:
            raise CouldNot(f"its plan cannot be read ({refusal.code}): see the check policy") from None

    @property
    def policy(self) -> dict[str, t.Any]:
        """The slot's policy."""
        return self.slot.policy

    @property
    def account(self) -> str:
        """The name of the slot's account."""
        return _layout.account(self.name)

    @property
    def provider(self) -> str:
        """The name of the slot's provider."""
        return str(self.policy["provider"]["name"])

    @functools.cached_property
    def ids(self) -> Ids:
        """The ids that the ledger gives the slot; CouldNot without."""
        entry = self.host.accounts.ledger.slots.get(self.name)
        if entry is None:
            raise CouldNot(f"{_layout.LEDGER} has no slot {self.name}")
        return entry.ids

    @property
    def declared(self) -> Declared | None:
        """The slot as the inventory declares it, None where that is not known."""
        return (self.options.declared or {}).get(self.name)

    @functools.cached_property
    def kept(self) -> Declared:
        """The slot as far as roles keep its directories: name, provider, workspaces, docker."""
        docker = bool(self.slot.base.get("docker"))
        return Declared(self.name, provider=self.provider, workspaces=tuple(self.policy["workspaces"]), docker=docker)

    @functools.cached_property
    def live(self) -> Live:
        """What a process in the slot's sandbox found, now; it is started once for all checks that ask.

        CouldNot if the check that asked first was ended: another would hang as well.
        """
        if self.gave_no_result & SHARING:
            raise CouldNot("the process in the sandbox gave no result: see the check sandbox")
        from .confinement import live

        return live(self.slot)


Look = t.Callable[[Context], Outcome]


@dataclasses.dataclass(frozen=True)
class Check:
    """One check: its id, what it is about in words, how it looks, and how many seconds it may take."""

    id: str
    about: str
    look: Look
    seconds: float = 12.0


def refusing(look: t.Callable[[slots.Slot], str], expected: str) -> Look:
    """Return the check that a session's start makes too: what it refuses is critical."""
    return lambda context: ok(look(context.slot), expected)


def said(*words: str, seconds: float = TOOL_SECONDS, given: str = "") -> str:
    """Return what a tool of the host prints; CouldNot if it is missing, fails, or does not end in time."""
    try:
        done = ask(words, given, seconds=seconds)
    except Failed as failure:
        raise CouldNot(printable(str(failure))) from None
    if done.status:
        raise CouldNot(f"{os.path.basename(words[0])} ended with {done.status}: {printable(done.why[-200:])}")
    return done.out


def units_of(names: t.Sequence[str]) -> dict[str, dict[str, str]]:
    """Return what systemd says of units, asked once; CouldNot if it does not say."""
    if not names:
        return {}
    found = {}
    for block in said(unit.SYSTEMCTL, "show", f"--property=Id,{','.join(SHOWN)}", "--", *names).split("\n\n"):
        lines = dict(line.split("=", 1) for line in block.split("\n") if "=" in line)
        if "Id" in lines:
            found[lines["Id"]] = lines
    return found
