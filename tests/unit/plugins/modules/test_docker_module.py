# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module docker does around its core: nothing by halves, and nothing where no slot asks for it."""

from __future__ import annotations

import contextlib
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _docker, _ledger
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid
from ansible_collections.confined.slots.plugins.module_utils._docker import Found
from ansible_collections.confined.slots.plugins.module_utils._host import Account
from ansible_collections.confined.slots.plugins.module_utils._programs import Failed
from ansible_collections.confined.slots.plugins.modules import docker

SLOTS = [{"name": "coder", "network": "private", "docker": True}]
PARAMS = {"prune_calendar": "", "prune_until": "168h", "state": "present", "withdrawn_data": "keep", "patience": 0}


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for a host that has nothing yet, and return what is done to it."""
    did: list[str] = []
    monkeypatch.setattr(_ledger, "exclusive", contextlib.nullcontext)
    monkeypatch.setattr(_docker, "find", lambda _slots: Found({}, {}, {}))
    monkeypatch.setattr(_docker, "lacks", list)
    monkeypatch.setattr(_docker, "present_units", set)
    monkeypatch.setattr(_docker, "apply", lambda _changes, _found: did.append("apply"))
    monkeypatch.setattr(_docker, "start", lambda _changes: did.append("start"))
    monkeypatch.setattr(_docker, "silent", lambda _accounts, _seconds: [])
    monkeypatch.setattr(docker, "holds", dict)
    monkeypatch.setattr(docker, "numbers_of", lambda _slot, predict: (Account(20000, 20000), (1000000, 1065536)))
    return did


def converge(*, check: bool = False, **more: t.Any) -> dict[str, t.Any]:
    return docker.converge({"slots": SLOTS, **PARAMS, **more}, check)


def test_check_mode_predicts_the_steps_and_makes_none(done: list[str]) -> None:
    predicted = converge(check=True)
    assert done == []
    assert predicted == converge()
    assert done == ["apply", "start"]


def test_a_daemon_that_does_not_answer_fails_the_converge_by_its_name(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_docker, "silent", lambda accounts, _seconds: sorted(accounts))
    with pytest.raises(Failed, match=r"docker-unavailable: .* no answer from confined-slots-docker@coder\.service"):
        converge()


def test_a_host_that_lacks_a_package_is_refused_before_anything_is_done(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_docker, "lacks", lambda: ["/usr/bin/rootlesskit is not there"])
    with pytest.raises(Failed, match="docker-unavailable: /usr/bin/rootlesskit is not there"):
        converge()
    assert done == []


def test_nothing_is_held_back_where_no_slot_has_docker(done: list[str]) -> None:
    assert converge(state="held", slots=[{"name": "coder"}])["changed"] is False
    held = converge(state="held")["steps"]
    written = [step["subject"] for step in held if step["action"] == "write"]
    assert written == [_docker.hold(unit) for unit in _docker.ROOTFUL]


def test_a_prune_time_that_cannot_be_is_refused_before_anything_is_done(done: list[str]) -> None:
    with pytest.raises(Invalid, match="prune_until is 'soon'"):
        converge(prune_until="soon")
    assert done == []
