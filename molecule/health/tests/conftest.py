# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does with health, as functions of a host, and the slots that are made ill."""

from __future__ import annotations

import json
import pathlib
import tarfile
import typing as t

import operators
import pytest
import testinfra.host
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _health, _layout
from operators import Json

Bad = dict[tuple[str, str], str]

COLLECTION = pathlib.Path(_layout.__file__).parents[2]
CONVERGE = COLLECTION / "molecule/health/converge.yml"
SLOTCTL = "/opt/confined-slots/current/bin/slotctl"
OPTIONS = "/run/health-of-the-tests.json"
VARIABLES: Json = yaml.safe_load(CONVERGE.read_text("utf-8"))[0]["vars"]
PROFILE: Json = {
    "name": "fake",
    "profile_version": 1,
    "summary": "A CLI for tests",
    "install": {"kind": "npm", "packages": [{"name": "fake", "version": "1.0.0"}]},
    "executable": "bin/fake",
    "reasons": {"tree": "the program"},
    "state": [{"path": ".fake", "holds": ["login"]}],
    "renames": [".fake/login.json"],
    "capabilities": {"use_fake": {"words": "Use Fake", "why": "for tests", "required": True}},
}


class Operator(operators.Operator):
    """The operator of a host of which slots are made ill."""

    def slots(self, **changed: Json) -> list[Json]:
        """Return the scenario's slots with the fake CLI in the patient's; those that are named with other keys."""
        own: Json = {"patient": {"provider": "fake", "capabilities": ["use_fake"]}}
        return [slot | own.get(slot["name"], {}) | changed.get(slot["name"], {}) for slot in VARIABLES["slots"]]

    def policy(self, slots: list[Json]) -> Json:
        """Compile policies as the role does."""
        return self.kept("policy", slots=slots, profiles=profiles())

    def options(self, slots: list[Json] | None = None, **changed: t.Any) -> None:
        """Write what health compares with: these slots (by default the scenario's), and other limits."""
        given = {"declared": [slot | {"credential": None} for slot in slots or self.slots()], **changed}
        self.do(f"umask 077; cat > {OPTIONS} <<'END'\n{json.dumps(given)}\nEND")

    def health(self, words: str = "", before: str = "") -> Json:
        """Return the report of slotctl; before: what is done in the mount namespace in which it looks."""
        looks = f"{SLOTCTL} health --json --options {OPTIONS} {words}"
        done = self.host.run("unshare --mount sh -c %s", f"set -e\n{before}\nexec {looks}")
        assert done.rc in (0, 1), done.stderr
        return _health.check_report(json.loads(done.stdout))


def bad_of(found: Json) -> Bad:
    """Return what is not ok in a report, by slot ("" for the host) and check."""
    return {(slot, each["check"]): each["state"] for slot, each in _health.every(found) if each["state"] != "ok"}


def state_of(found: Json, slot: str, check: str) -> str:
    """Return the state of one check, "" if it did not apply."""
    return {(name, each["check"]): str(each["state"]) for name, each in _health.every(found)}.get((slot, check), "")


def profiles() -> list[Json]:
    """Return the profiles of the collection, and the fake CLI's."""
    own = [yaml.safe_load(path.read_text()) for path in sorted((COLLECTION / "profiles").glob("*.yml"))]
    return [*own, PROFILE]


@pytest.fixture(scope="module")
def operator(host: testinfra.host.Host, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return the operator of a host on which all is well: the patient has a CLI with a login, signed is approved."""
    operator = Operator.of(host)
    source = tmp_path_factory.mktemp("fake")
    (source / "tree/bin").mkdir(parents=True)
    (source / "tree/bin/fake").write_text("#!/bin/sh\nexit 3\n")
    (source / "tree/bin/fake").chmod(0o755)
    with tarfile.open(source / "fake.tar", "w") as tar:
        tar.add(source / "tree", ".")
    install = {"name": "fake", "source": "archive", "archive": str(source / "fake.tar")}
    operator.kept("providers", providers=[install], profiles=profiles())
    slots = operator.slots()
    operator.kept("credentials", slots=slots, profiles=profiles())
    fingerprint = operator.policy(slots)["fingerprints"]["signed"]
    approval = {"by": "alice", "on": "2026-11-29", "fingerprint": fingerprint}
    operator.policy(operator.slots(signed={"approval": approval}))
    operator.kept("permissions", slots=slots)
    operator.options()
    return operator
