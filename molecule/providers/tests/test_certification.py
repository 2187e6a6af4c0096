# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certification: the model's shell of each real CLI gets what its mode lets it, and unconfined it gets the rest."""

from __future__ import annotations

import collections.abc
import hashlib
import typing as t

import pytest
from checks import MODES

from .conftest import CLIS

if t.TYPE_CHECKING:
    from .conftest import Certification

testinfra_hosts = ["ansible://slot_hosts"]

STRICT = ("isolated", "verified")
of_each_cli = pytest.mark.parametrize("provider", CLIS)


@pytest.fixture(scope="module", autouse=True)
def recorded(certification: Certification) -> collections.abc.Iterator[None]:
    """Write down what was found once all is done."""
    yield
    certification.record()


@of_each_cli
@pytest.mark.parametrize("mode", MODES)
def test_bw_02_the_models_shell_gets_what_its_mode_lets_it_and_no_more(
    certification: Certification, provider: str, mode: str
) -> None:
    run = certification.run(provider, mode)
    wanted = {check.id: "yes" if mode in check.works else "no" for check in certification.checks(provider)}
    differ = {name: f"{run['outcomes'][name]}, not {wanted[name]}" for name in wanted}
    assert {name: words for name, words in differ.items() if run["outcomes"][name] != wanted[name]} == {}, run["first"][
        "said"
    ]
    assert run["first"]["finished"] and run["first"]["status"] == 0, run["first"]["said"]


@of_each_cli
@pytest.mark.parametrize("mode", MODES)
def test_what_it_leaves_behind_is_gone_with_the_session(certification: Certification, provider: str, mode: str) -> None:
    assert bool(certification.run(provider, mode)["left"]) is (mode == "unconfined")


@of_each_cli
@pytest.mark.parametrize("mode", MODES)
def test_it_logs_in_with_the_slots_credential(certification: Certification, provider: str, mode: str) -> None:
    digest = hashlib.sha256(CLIS[provider].secret.encode()).hexdigest()[:16]
    assert {each["sha256"] for each in certification.run(provider, mode)["first"]["credentials"]} == {digest}


@of_each_cli
@pytest.mark.parametrize("mode", MODES[:3])
def test_its_conversation_is_on_record_and_goes_on(certification: Certification, provider: str, mode: str) -> None:
    run = certification.run(provider, mode)
    (conversation,) = run["session"]["conversations"]
    assert (run["session"]["mode"], len(conversation)) == (mode, 36)
    assert run["again"]["finished"] and run["again"]["status"] == 0, run["again"]["said"]
    assert run["again"]["prior_results"] > len(certification.checks(provider))


@pytest.mark.parametrize("mode", STRICT)
def test_codex_with_the_model_that_has_another_tool_is_confined_alike(certification: Certification, mode: str) -> None:
    words = ["exec", "--model", "gpt-5-codex", "--skip-git-repo-check", "--json", "go"]
    default = certification.run("codex", mode)
    other = certification.trial("codex", mode, certification.checks("codex"), words)
    tools = [{each.get("shell") for each in run["first"]["requests"]} for run in (default, other)]
    assert tools[0].isdisjoint(tools[1] - {None}), tools
    assert other["outcomes"] == default["outcomes"]
