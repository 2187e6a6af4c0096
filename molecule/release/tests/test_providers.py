# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""LR-01, LR-06: a slot executes the provider that was installed for it, or nothing."""

from __future__ import annotations

import collections.abc
import json
import pathlib
import shlex
import typing as t

import pytest

from .conftest import OPT, fake_provider, profiles

if t.TYPE_CHECKING:
    from .conftest import Operator

testinfra_hosts = ["ansible://slot_hosts"]

TREE = f"{OPT}/providers/fake/1.0.0"
RUN = f"{OPT}/current/bin/slotctl run --json coder"


def keep(operator: Operator, *, check: bool = False, **declared: t.Any) -> dict[str, t.Any]:
    """Keep the fake provider."""
    return operator.module("providers", check=check, providers=[declared], profiles=profiles())


def compile_for(operator: Operator, provider: str) -> dict[str, t.Any]:
    """Compile the policies, the slot coder with another provider."""
    slots = [slot | {"provider": provider} if slot["name"] == "coder" else slot for slot in operator.slots()]
    compiled = operator.module("policy", slots=slots, profiles=profiles())
    if not compiled["failed"]:
        assert not operator.module("permissions", slots=slots)["failed"], "the private HOME of the provider"
    return compiled


@pytest.fixture(name="fake")
def installed_fake(operator: Operator, tmp_path: pathlib.Path) -> collections.abc.Iterator[dict[str, str]]:
    """Have the fake provider installed, and the slot coder use it."""
    declared = fake_provider("one", tmp_path)
    assert not keep(operator, **declared)["failed"]
    assert not compile_for(operator, "fake")["failed"]
    yield declared
    assert not compile_for(operator, "shell")["failed"]
    operator.do(f"rm -rf {OPT}/providers/fake {OPT}/providers.json /var/lib/confined-slots/slots/coder/homes/fake")


def test_a_provider_is_laid_root_owned_and_runs_in_a_session(operator: Operator, fake: dict[str, str]) -> None:
    assert operator.do(RUN) == "one from-the-tree"
    assert operator.do(f"find {OPT}/providers ! -type l ! \\( -user root -perm -444 ! -perm /222 \\) ! -type d") == ""
    assert operator.do(f"find {OPT}/providers -type d ! -perm 0755") == ""
    again = keep(operator, **fake)
    assert again["changed"] is False
    assert again["providers"]["fake"]["tree"] == operator.do(f"sha256sum {TREE}/MANIFEST.json").split()[0]


@pytest.mark.parametrize("path", ["bin/fake", "MANIFEST.json"])
def test_a_changed_program_is_not_executed_and_a_converge_replaces_it(
    operator: Operator, fake: dict[str, str], path: str
) -> None:
    operator.do(f"echo '# evil' >> {TREE}/{path}")
    refused = operator.host.run(RUN)
    assert refused.rc == 125 and '"provider-changed"' in refused.stdout + refused.stderr
    assert "one" not in refused.stdout
    failed = compile_for(operator, "fake")
    assert "provider-changed" in failed["msg"], "a changed program must not be compiled in"
    assert [step["action"] for step in keep(operator, **fake)["steps"]] == ["replace"]
    assert compile_for(operator, "fake")["changed"]
    assert operator.do(RUN) == "one from-the-tree"


@pytest.mark.parametrize(
    "tamper",
    ["echo WORD=evil > lib/words", "touch lib/extra", "rm lib/words", "chmod 0777 bin", "ln -sf /bin/sh run"],
)
def test_any_drift_of_the_tree_is_replaced_by_a_converge(operator: Operator, fake: dict[str, str], tamper: str) -> None:
    operator.do(f"cd {TREE} && {tamper}")
    predicted = keep(operator, check=True, **fake)
    done = keep(operator, **fake)
    assert [step["action"] for step in done["steps"]] == ["replace"] == [step["action"] for step in predicted["steps"]]
    assert not compile_for(operator, "fake")["failed"]
    assert operator.do(RUN) == "one from-the-tree"


def test_a_new_version_is_used_once_the_policy_is_compiled_and_the_old_one_stays_while_it_is_needed(
    operator: Operator, fake: dict[str, str], tmp_path: pathlib.Path
) -> None:
    newer = fake_provider("two", tmp_path) | {"version": "1.1.0"}
    assert keep(operator, **newer)["changed"]
    assert operator.do(RUN) == "one from-the-tree"
    newest = fake_provider("three", tmp_path) | {"version": "1.2.0"}
    keep(operator, **newest)
    assert operator.do(f"ls {OPT}/providers/fake").split() == ["1.0.0", "1.1.0", "1.2.0"], "a plan needs 1.0.0"
    assert compile_for(operator, "fake")["changed"]
    assert operator.do(RUN) == "three from-the-tree"
    assert [step["action"] for step in keep(operator, **newest)["steps"]] == ["prune"]
    assert operator.do(f"ls {OPT}/providers/fake").split() == ["1.1.0", "1.2.0"]


def test_a_tree_with_another_digest_than_pinned_is_not_installed(
    operator: Operator, fake: dict[str, str], tmp_path: pathlib.Path
) -> None:
    refused = keep(operator, **fake_provider("two", tmp_path), tree="0" * 64)
    assert "not the pinned" in refused["msg"]
    assert operator.do(RUN) == "one from-the-tree"


@pytest.mark.parametrize("version", ["^1.0", "latest", "1.x"])
def test_anything_but_an_exact_version_is_refused(operator: Operator, version: str) -> None:
    refused = keep(operator, name="fake", version=version)
    assert "it can be one exact version" in json.dumps(refused)


def test_a_slots_own_copy_of_a_program_is_not_executed(operator: Operator, fake: dict[str, str]) -> None:
    """LR-06: what a CLI put into its HOME to update itself is not what the next session starts."""
    home = "/var/lib/confined-slots/slots/coder/homes/fake"
    program = f"{home}/.local/bin/fake"
    update = f"mkdir -p {home}/.local/bin; printf '#!/bin/sh\\necho evil' > {program}; chmod 755 {program}"
    operator.do(f"su -s /bin/sh slot-coder -c {shlex.quote(update)}")
    assert operator.do(RUN) == "one from-the-tree"
