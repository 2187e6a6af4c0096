# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does, as functions of a host."""

from __future__ import annotations

import collections.abc
import dataclasses
import json
import pathlib
import subprocess
import typing as t

import pytest
import testinfra.host


@dataclasses.dataclass(frozen=True)
class Operator:
    """One host, and the inventory by which Ansible reaches it."""

    host: testinfra.host.Host
    inventory: str
    added: set[str] = dataclasses.field(default_factory=set)

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return str(self.host.backend.host)

    def command(self, playbook: str, *options: str, **extra: t.Any) -> list[str]:
        """Return the command that plays one of the collection's playbooks, or one of the test's own, on the host."""
        chosen = ("-i", self.inventory, "--limit", self.name, "-e", json.dumps(extra))
        return ["ansible-playbook", *chosen, *options, playbook]

    def play(self, playbook: str, *options: str, **extra: t.Any) -> str:
        """Play a playbook and return what it printed; AssertionError if it fails."""
        played = subprocess.run(self.command(playbook, *options, **extra), capture_output=True, text=True, check=False)
        assert played.returncode == 0, played.stdout + played.stderr
        return played.stdout

    def slots(self, *added: dict[str, t.Any]) -> list[dict[str, t.Any]]:
        """Return the slots that the inventory declares for the host, and more."""
        declared: list[dict[str, t.Any]] = self.host.ansible.get_variables()["slots"]
        return [*declared, *added]

    def converge(self, *added: dict[str, t.Any]) -> str:
        """Converge what belongs to slots, with more of them than the inventory declares."""
        self.added.update(slot["name"] for slot in added)
        return self.play("confined.slots.site", "--tags", "accounts,policy,permissions", slots=self.slots(*added))

    def module(self, name: str, *, check: bool = False, **arguments: t.Any) -> dict[str, t.Any]:
        """Run one module and return its result, failed or not."""
        try:
            result: dict[str, t.Any] = self.host.ansible(f"confined.slots.{name}", json.dumps(arguments), check=check)
        except self.host.ansible.AnsibleException as failure:
            result = failure.result
        # What testinfra reads a result from says only in its message that the module has failed.
        return result | {"failed": "steps" not in result}

    def do(self, script: str) -> str:
        """Run a shell script as root; AssertionError if it fails."""
        return str(self.host.run_expect([0], script).stdout)

    def says(self, script: str) -> bool:
        """Return whether a shell script succeeds."""
        return bool(self.host.run(script).succeeded)

    def ledger(self) -> dict[str, t.Any]:
        """Return the host's ledger."""
        ledger: dict[str, t.Any] = json.loads(self.do("cat /etc/confined-slots/ledger.json"))
        return ledger


@pytest.fixture(scope="module")
def operator(host: testinfra.host.Host, request: pytest.FixtureRequest) -> collections.abc.Iterator[Operator]:
    """Return the operator of the host; what the tests added is taken away again."""
    inventory = str(pathlib.Path(request.config.getoption("ansible_inventory")).resolve())
    operator = Operator(host, inventory)
    yield operator
    declared = {slot["name"] for slot in operator.slots()}
    left = sorted(set(operator.ledger()["slots"]) - declared)
    if left:
        assert not operator.module("removal", names=left, workspaces="delete")["failed"]
    if operator.added:
        operator.converge()
