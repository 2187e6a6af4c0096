# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy that is not as it was compiled is that slot's refusal, and nobody else's."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

import pytest
from confined_slots import _layout
from confined_slots._plan import ARITY, ONCE, dump
from confined_slots._refusals import Refusal
from slotctl import show, slots

POLICY: dict[str, t.Any] = {
    "slot": "a",
    "enabled": True,
    "mode": "isolated",
    "network": "none",
    "fingerprint": "sha256:0",
    "provider": {"name": "shell", "version": "1", "profile_version": 1, "identity": [{"path": "/p", "digest": "0"}]},
    "workspaces": {"main": "/w"},
    "isolation": [{"flag": "--unshare-pid", "reason": "why"}],
    "mounts": [{"kind": "tmpfs", "target": "/tmp", "reason": "why", "size": 1 << 20}],
    "environment": {"set": {}, "pass": ["LANG"], "credential": None},
    "resources": {"session_max": None},
}


@pytest.fixture(autouse=True)
def _host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layout, "SLOTS_D", str(tmp_path))
    monkeypatch.setattr(_layout, "RUN", str(tmp_path / "run"))


def compile_slot(name: str, policy: object, workspaces: int = 1) -> None:
    """Lay out a plan that holds this policy."""
    texts = {"slot": name, "policy": json.dumps(policy)}
    records = [(key, *(("1", "1") if key == "ids" else (texts.get(key, "x"),) * ARITY[key])) for key in ONCE]
    os.mkdir(_layout.policy(name), 0o755)
    with open(_layout.plan(name), "wb") as file:
        file.write(dump([*records, *[("workspace", "main", "/w")] * workspaces]))
    os.chmod(_layout.plan(name), 0o644)


def places(found: t.Any, way: tuple[str | int, ...] = ()) -> t.Iterator[tuple[str | int, ...]]:
    """Yield the way to everything in a policy that slotctl takes by its name."""
    keys = found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
    for key in keys:
        yield (*way, key)
        if key not in ("workspaces", "set"):
            yield from places(found[key], (*way, key))


def changed(way: tuple[str | int, ...], value: object) -> t.Any:
    """Return the policy with another value at one place."""
    policy = json.loads(json.dumps(POLICY))
    inner = policy
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return policy


def test_a_policy_as_it_is_compiled_loads_and_is_shown() -> None:
    compile_slot("a", POLICY)
    assert slots.load("a").policy == POLICY
    assert "tmpfs 1M" in show.show_policy(show.policy("a"))


@pytest.mark.parametrize("way", list(places(POLICY)), ids=str)
def test_what_has_a_wrong_type_anywhere_is_a_refusal_and_others_are_listed(way: tuple[str | int, ...]) -> None:
    compile_slot("a", changed(way, 1.5))
    compile_slot("b", {**POLICY, "slot": "b"})
    with pytest.raises(Refusal, match=r"policy-invalid.*policy\."):
        slots.load("a")
    assert [(entry["slot"], entry.get("refusal")) for entry in show.listed()] == [("a", "policy-invalid"), ("b", None)]


@pytest.mark.parametrize("policy", [None, [], "x", {}, {**POLICY, "workspaces": {}}])
def test_what_is_no_policy_is_a_refusal(policy: object) -> None:
    compile_slot("a", policy)
    with pytest.raises(Refusal, match="policy-invalid"):
        slots.load("a")


def test_a_plan_without_workspace_is_a_refusal() -> None:
    compile_slot("a", POLICY, workspaces=0)
    with pytest.raises(Refusal, match="no workspace"):
        slots.load("a")
