# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does with schedules, as functions of a host."""

from __future__ import annotations

import collections.abc
import json
import pathlib
import shlex
import typing as t

import operators
import pytest
import testinfra.host
import yaml
from operators import Json

CONVERGE = pathlib.Path(__file__).resolve().parents[1] / "converge.yml"
(NIGHT_SHIFT,) = yaml.safe_load(CONVERGE.read_text("utf-8"))[0]["vars"]["slots"]
WORKSPACES = "/var/lib/confined-slots/slots/{}/workspaces"


class Operator(operators.Operator):
    """The operator of a host with the slot night-shift."""

    @property
    def slot(self) -> Json:
        """Return the slot night-shift as converge.yml declares it."""
        return dict(NIGHT_SHIFT)

    @property
    def schedules(self) -> dict[str, Json]:
        """Return its schedules by name."""
        return {each["name"]: each for each in NIGHT_SHIFT["schedules"]}

    def unit(self, schedule: str, slot: str = "night-shift") -> str:
        """Return a schedule's unit as a word of a shell, without its suffix."""
        escaped = slot.replace("-", r"\x2d")
        return f"'confined-slots-{escaped}-schedule-{schedule}'"

    def keep(self, *schedules: Json, check: bool = False, **more: t.Any) -> Json:
        """Keep these schedules of the slot night-shift and no other."""
        return self.module("schedule", check=check, slots=[NIGHT_SHIFT | more | {"schedules": list(schedules)}])

    def site(self, *slots: Json, tags: str = "policy,schedule") -> tuple[bool, str]:
        """Converge these slots, of which the accounts are there; return whether that succeeded, and what was said."""
        done = self.played("confined.slots.site", "--tags", tags, slots=slots)
        return done.returncode == 0, " ".join((done.stdout + done.stderr).split())

    def start(self, slot: str, schedule: str) -> tuple[str, str]:
        """Start a schedule's service and wait for its end; return its state, and what it said to the journal."""
        name = self.unit(schedule, slot)
        since = self.do("sleep 1; date '+%Y-%m-%d %H:%M:%S'")
        self.host.run(f"systemctl start {name}.service")
        shown = f"journalctl --no-pager -o cat --since={shlex.quote(since)} -u {name}.service"
        said = self.do(f"journalctl --sync; {shown}")
        return self.do(f"systemctl is-failed {name}.service || true"), said

    def on(self, slot: str, schedule: str) -> bool:
        """Return whether a schedule's timer is enabled and active."""
        name = f"{self.unit(schedule, slot)}.timer"
        return self.says(f"systemctl is-enabled --quiet {name} && systemctl is-active --quiet {name}")

    def records(self, slot: str) -> list[Json]:
        """Return the slot's records, the oldest first."""
        text = self.do(f"cat /var/log/confined-slots/{slot}/sessions.jsonl")
        return [json.loads(line) for line in text.splitlines()]

    def file(self, slot: str, name: str) -> bytes:
        """Return the bytes of a file among the slot's workspaces."""
        return bytes(self.host.file(f"{WORKSPACES.format(slot)}/{name}").content)


@pytest.fixture(scope="module")
def operator(host: testinfra.host.Host) -> Operator:
    """Return the operator of the host."""
    return Operator.of(host)


@pytest.fixture(autouse=True)
def declared(operator: Operator) -> collections.abc.Iterator[None]:
    """Put the declared schedules back after each test."""
    yield
    operator.kept("schedule", slots=[NIGHT_SHIFT])
