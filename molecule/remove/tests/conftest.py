# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does, as functions of a host."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import typing as t

import operators
import pytest
import testinfra.host


@dataclasses.dataclass(frozen=True)
class Operator(operators.Operator):
    """The operator of a host to which tests add slots."""

    added: set[str] = dataclasses.field(default_factory=set)

    def slots(self, *added: dict[str, t.Any]) -> list[dict[str, t.Any]]:
        """Return the slots that the inventory declares for the host, and more."""
        declared: list[dict[str, t.Any]] = self.variables()["slots"]
        return [*declared, *added]

    def converge(self, *added: dict[str, t.Any]) -> str:
        """Converge what belongs to slots, with more of them than the inventory declares."""
        self.added.update(slot["name"] for slot in added)
        return self.play("confined.slots.site", "--tags", "accounts,policy,permissions", slots=self.slots(*added))

    def ledger(self) -> dict[str, t.Any]:
        """Return the host's ledger."""
        ledger: dict[str, t.Any] = json.loads(self.do("cat /etc/confined-slots/ledger.json"))
        return ledger


@pytest.fixture(scope="module")
def operator(host: testinfra.host.Host) -> collections.abc.Iterator[Operator]:
    """Return the operator of the host; what the tests added is taken away again."""
    operator = Operator.of(host)
    yield operator
    declared = {slot["name"] for slot in operator.slots()}
    left = sorted(set(operator.ledger()["slots"]) - declared)
    if left:
        operator.kept("removal", names=left, workspaces="delete")
    if operator.added:
        operator.converge()
