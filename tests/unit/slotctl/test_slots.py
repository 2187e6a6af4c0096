# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A policy that is not as it was compiled is that slot's refusal, and nobody else's."""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

import pytest
from confined_slots import _compatibility, _layout
from confined_slots._plan import ARITY, ONCE, dump
from confined_slots._refusals import Refusal
from slotctl import show, slots

POLICY: dict[str, t.Any] = {
    "slot": "a",
    "enabled": True,
    "mode": "isolated",
    "network": "none",
    "fingerprint": "sha256:0",
    "provider": {
        "name": "shell",
        "version": "1",
        "profile_version": 1,
        "certification": "builtin",
        "identity": [{"path": "/p", "digest": "0"}],
        "headless": ["-c", "{prompt}"],
    },
    "capabilities": [{"key": "use_shell", "words": "Use a shell", "why": "works"}],
    "workspaces": {"main": "/w"},
    "restrictions": {},
    "isolation": [{"flag": "--unshare-pid", "reason": "why"}],
    "mounts": [{"kind": "tmpfs", "target": "/tmp", "reason": "why", "size": 1 << 20}],
    "environment": {"set": {"HOME": "/h"}, "pass": ["LANG"], "credential": None},
    "resources": {"session_max": None},
}


@pytest.fixture(autouse=True)
def _host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layout, "SLOTS_D", str(tmp_path))
    monkeypatch.setattr(_layout, "RUN", str(tmp_path / "run"))


def compile_slot(name: str, policy: object) -> None:
    """Lay out a plan that holds this policy."""
    os.mkdir(_layout.policy(name), 0o755)
    write_plan(_layout.plan(name), name, policy)


def write_plan(path: str, name: str, policy: object) -> None:
    """Write a plan of a slot that holds this policy."""
    texts = {"slot": name, "policy": json.dumps(policy)}
    records = [(key, *(("1", "1") if key == "ids" else (texts.get(key, "x"),) * ARITY[key])) for key in ONCE]
    with open(path, "wb") as file:
        file.write(dump([*records, ("workspace", "main", "/w")]))
    os.chmod(path, 0o644)


def places(found: t.Any, way: tuple[str | int, ...] = ()) -> t.Iterator[tuple[str | int, ...]]:
    """Yield the way to everything in a policy that slotctl takes by its name."""
    keys = found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
    for key in keys:
        yield (*way, key)
        if key not in ("workspaces", "restrictions"):
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
    assert "tmpfs 1M" in show.show_details(show.policy("a"))


def test_a_policy_is_shown_in_words_and_its_paths_on_request() -> None:
    compile_slot("a", POLICY)
    words = show.show_policy(show.policy("a"))
    assert "Use a shell: works" in words and "shell 1, profile 1 (builtin)" in words
    assert "/p" not in words and "/p 0" in show.show_details(show.policy("a"))


@pytest.mark.parametrize("how", [show.show_policy, show.show_details], ids=["policy", "details"])
def test_compatibility_is_called_best_effort_wherever_the_mode_is_shown(
    how: t.Callable[[dict[str, t.Any]], str],
) -> None:
    note = _compatibility.NOTE
    compile_slot("a", {**POLICY, "mode": "compatibility", "note": note})
    assert f"compatibility ({note})" in how(show.policy("a"))
    assert f"compatibility ({note})" in show.show_list(show.listed())
    record = {"session": "s", "mode": "compatibility", "outcome": "ended"}
    assert "compatibility (best effort)" in show.show_sessions([record])


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


def test_a_narrower_workspace_is_loaded_with_the_policy_of_its_slot_beside_it() -> None:
    restrictions = {"tight": {"read_only": True}}
    base = {**POLICY, "workspaces": {"main": "/w", "tight": "/t"}, "restrictions": restrictions}
    compile_slot("a", base)
    with pytest.raises(Refusal, match="policy-missing"):
        slots.load("a", "tight")
    narrow = {**POLICY, "workspaces": {"tight": "/t"}, "restrictions": restrictions, "fingerprint": "sha256:1"}
    write_plan(_layout.plan("a", "tight"), "a", narrow)
    found = slots.load("a", "tight")
    assert (found.policy, found.base, found.path) == (narrow, base, _layout.plan("a", "tight"))
    assert slots.load("a", "main").policy == slots.load("a").policy == base


def test_a_workspace_that_is_not_there_is_refused_with_all_that_are() -> None:
    compile_slot("a", {**POLICY, "workspaces": {"main": "/w", "tight": "/t"}, "restrictions": {"tight": {}}})
    with pytest.raises(Refusal, match="workspace-unknown: slot a has no workspace 'tigth'; it has main, tight "):
        slots.load("a", "tigth")


def test_a_workspace_cannot_have_the_plan_of_another_slot() -> None:
    compile_slot("a", {**POLICY, "restrictions": {"main": {"read_only": True}}})
    write_plan(_layout.plan("a", "main"), "b", POLICY)
    with pytest.raises(Refusal, match="is the plan of slot 'b'"):
        slots.load("a", "main")
