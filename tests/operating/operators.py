# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does with one host: modules, playbooks and commands, as functions."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import tempfile
import typing as t

import programs
import testinfra.host
from confined_slots import _landlock

Json = dict[str, t.Any]

# Shell that succeeds where the kernel has Landlock's scope.
SCOPED = (
    'python3 -c "import ctypes, sys;'
    f' sys.exit(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < {_landlock.SCOPE_ABI})"'
)


@dataclasses.dataclass(frozen=True)
class Operator:
    """One host, and the inventory by which Ansible reaches it."""

    host: testinfra.host.Host
    inventory: str

    @classmethod
    def of(cls, host: testinfra.host.Host) -> t.Self:
        """Return the operator of a host of this run of pytest."""
        return cls(host, str(pathlib.Path(host.backend.ansible_inventory).resolve()))

    @property
    def name(self) -> str:
        """The host's name in the inventory."""
        return str(self.host.backend.host)

    def variables(self) -> Json:
        """Return what the inventory says of the host."""
        variables: Json = self.host.ansible.get_variables()
        return variables

    def any_module(self, name: str, *, check: bool = False, **arguments: t.Any) -> Json:
        """Run any module and return its result, failed or not; `failed` says which."""
        with tempfile.TemporaryDirectory() as tree:
            given = ("--args", json.dumps(arguments)) if arguments else ()
            words = ("--inventory", self.inventory, "--tree", tree, *(["--check"] if check else []), *given)
            done = programs.run("ansible", self.name, "--module-name", name, *words)
            try:
                result: Json = json.loads(pathlib.Path(tree, self.name).read_text("utf-8"))
            except FileNotFoundError:
                raise AssertionError(done.stdout + done.stderr) from None
        # the result itself no longer says so
        return result | {"failed": done.returncode != 0}

    def module(self, name: str, *, check: bool = False, **arguments: t.Any) -> Json:
        """Run one of the collection's modules and return its result, failed or not; `failed` says which."""
        return self.any_module(f"confined.slots.{name}", check=check, **arguments)

    def kept(self, name: str, *, check: bool = False, **arguments: t.Any) -> Json:
        """Run one of the collection's modules and return its result; AssertionError if it fails."""
        result = self.module(name, check=check, **arguments)
        assert not result["failed"], result.get("msg", result)
        return result

    def command(self, playbook: str, *words: str, **extra: t.Any) -> list[str]:
        """Return the command that plays a playbook on this host, with extra variables."""
        chosen = ("--inventory", self.inventory, "--limit", self.name, "--extra-vars", json.dumps(extra))
        return ["ansible-playbook", *chosen, *words, playbook]

    def played(self, playbook: str, *words: str, **extra: t.Any) -> subprocess.CompletedProcess[str]:
        """Play a playbook and return how that ended."""
        return programs.run(*self.command(playbook, *words, **extra))

    def play(self, playbook: str, *words: str, **extra: t.Any) -> str:
        """Play a playbook and return what it printed; AssertionError if it fails."""
        done = self.played(playbook, *words, **extra)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def send(self, source: str | pathlib.Path, target: str) -> None:
        """Copy a file of the control node to the host."""
        result = self.any_module("ansible.builtin.copy", src=str(source), dest=target, mode="0600")
        assert not result["failed"], result

    def do(self, script: str) -> str:
        """Run a shell script as root and return what it prints, stripped; AssertionError if it fails."""
        return str(self.host.run_expect([0], script).stdout).strip()

    def says(self, script: str) -> bool:
        """Return whether a shell script succeeds."""
        return bool(self.host.run(script).succeeded)
