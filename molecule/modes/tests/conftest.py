# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does with slots of different modes, as functions of a host."""

from __future__ import annotations

import collections.abc
import copy
import json
import pathlib
import shlex
import typing as t

import operators
import pytest
import testinfra.host
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _profiles

COLLECTION = pathlib.Path(_profiles.__file__).parents[2]
STATE = "/var/lib/confined-slots/slots"
SLOTS_D = "/etc/confined-slots/slots.d"
MODES = {"loose": "compatibility", "kept": "isolated", "strict": "verified"}

Slot = dict[str, t.Any]


class Operator(operators.Operator):
    """The operator of a host with slots of different modes."""

    def slots(self, **changed: dict[str, t.Any]) -> list[Slot]:
        """Return the slots of the scenario, those that are named with other keys; None takes a key away."""
        declared = copy.deepcopy(self.variables()["modes_slots"])
        for slot in declared:
            slot.setdefault("mode", MODES[slot["name"]])  # one that declares none would keep what a test has given it
            slot |= changed.get(slot["name"], {})
        return [{key: value for key, value in slot.items() if value is not None} for slot in declared]

    def policy(
        self, slots: list[Slot], *, check: bool = False, more: collections.abc.Sequence[t.Any] = (), **options: t.Any
    ) -> dict[str, t.Any]:
        """Compile policies as the role does, with more profiles than the collection's."""
        site = self.variables()["site_capabilities"]
        given = {"slots": slots, "profiles": [*profiles(), *more], "capabilities": site, **options}
        return self.kept("policy", check=check, **given)

    def session(self, slot: str, script: str, workspace: str = "main") -> t.Any:
        """Run a shell script in a session and return how that ended."""
        words = ["slotctl", "run", "--json", slot, "--workspace", workspace, "--", "-c", script]
        return self.host.run(f"{shlex.join(words)} < /dev/null")

    def said(self, slot: str, script: str, workspace: str = "main") -> str:
        """Run a shell script in a session and return what it prints; AssertionError if that fails."""
        done = self.session(slot, script, workspace)
        assert done.rc == 0, done.stdout + done.stderr
        return str(done.stdout).strip()

    def refusal(self, slot: str, workspace: str = "main", script: str = "true") -> dict[str, str]:
        """Return what a session is refused with."""
        done = self.session(slot, script, workspace)
        assert done.rc == 125, done.stdout + done.stderr
        found: dict[str, str] = json.loads(done.stderr.splitlines()[-1])
        return found

    def as_slot(self, slot: str, script: str) -> t.Any:
        """Run a script as the slot's account, outside of any session."""
        account = f"slot-{slot}"
        return self.host.run("setpriv --reuid=%s --regid=%s --clear-groups sh -c %s", account, account, script)

    def on_terminal(self, command: str, answer: str, prefix: str = "") -> t.Any:
        """Run a command on a terminal of its own, on which an answer is typed once it is asked for."""
        said, ended = "/run/said-on-terminal", "/run/ended-on-terminal"
        answering = f"""
        until grep -q 'type the slot' {said} || [ -e {ended} ]; do sleep 0.1; done; echo {shlex.quote(answer)}
        until [ -e {ended} ]; do sleep 0.1; done
        """
        run = f"{prefix} script --quiet --return --flush --command {shlex.quote(command)} {said}"
        return self.host.run(f"rm -f {ended}; > {said}; ({answering}) | ({run}; status=$?; > {ended}; exit $status)")

    def shown(self, slot: str) -> dict[str, t.Any]:
        """Return the slot's policy as slotctl shows it."""
        found: dict[str, t.Any] = json.loads(self.do(f"slotctl policy {slot} --json"))
        return found

    def approved(self, slots: list[Slot], slot: str = "strict", **options: t.Any) -> list[Slot]:
        """Return the slots with an approval of the policy that one of them has; it is compiled for that."""
        fingerprint = self.policy(slots, **options)["fingerprints"][slot]
        approval = {"by": "alice", "on": "2026-11-29", "fingerprint": fingerprint}
        return [each | ({"approval": approval} if each["name"] == slot else {}) for each in slots]

    def trusted(self) -> str:
        """Return names, owners, modes and hashes of all that decides what sessions may do."""
        directories = "/etc/confined-slots /opt/confined-slots /etc/sudoers.d /etc/systemd/system"
        listing = (
            f"find {directories} -printf '%p %u:%g %m %s %l\\n'; find {directories} -type f -exec sha256sum {{}} +"
        )
        return self.do(f"({listing}) | sort")


def profiles() -> list[dict[str, t.Any]]:
    """Return the profiles of the collection."""
    return [yaml.safe_load(path.read_text()) for path in sorted((COLLECTION / "profiles").glob("*.yml"))]


@pytest.fixture(scope="module")
def operator(host: testinfra.host.Host) -> collections.abc.Iterator[Operator]:
    """Return the operator of the host, whose slots are as the scenario declares them before and afterwards."""
    operator = Operator.of(host)
    operator.play(str(COLLECTION / "molecule/modes/converge.yml"), "--tags", "accounts,policy,permissions")
    operator.do(f"rm -f {SLOTS_D}/*/approval")
    operator.policy(operator.slots())
    yield operator
    operator.do(f"rm -f {SLOTS_D}/*/approval")
    operator.policy(operator.slots())
