# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's policies: modes that stay, approvals from the inventory, plans of workspaces that come and go."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _approvals, _layout, _policies, _policy
from ansible_collections.confined.slots.plugins.module_utils._declarations import MODES, Approval, Invalid, parse

from .compiling import compiled

VERIFIED = compiled("verified")[0]


@pytest.fixture(autouse=True)
def slots_d(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the directory of the slot's policy."""
    if os.geteuid() != 0:
        pytest.skip("root is missing: files of root's cannot be made")
    tmp_path.chmod(0o755)
    monkeypatch.setattr(_layout, "SLOTS_D", str(tmp_path))
    (tmp_path / "coder").mkdir(mode=0o755)
    # below pytest's sticky /tmp nothing is root's alone
    monkeypatch.setattr(
        _policies, "read", lambda path: pathlib.Path(path).read_bytes() if os.path.exists(path) else None
    )
    monkeypatch.setattr(_policies, "look", lambda path: os.path.lexists(path) or None)
    monkeypatch.setattr(_policies, "names", os.listdir)
    return tmp_path / "coder"


def kept(default: str = "isolated") -> str:
    """Return the mode that a slot which declares none gets."""
    (slot,) = parse([{"name": "coder"}])
    return _policies.kept_mode(slot, default)


@pytest.mark.parametrize("default", MODES)
def test_a_new_slot_gets_the_hosts_default(default: str) -> None:
    assert kept(default) == default


@pytest.mark.parametrize("default", MODES)
@pytest.mark.parametrize("mode", MODES)
def test_a_slot_that_is_there_keeps_its_mode_whatever_the_default_becomes(
    slots_d: pathlib.Path, mode: str, default: str
) -> None:
    (slots_d / "policy.json").write_text(compiled(mode)[0].as_text())
    assert kept(default) == mode


@pytest.mark.parametrize("mode", ["loose", 7, None, ["isolated"]], ids=str)
def test_a_mode_that_is_none_is_refused_and_falls_back_to_nothing(slots_d: pathlib.Path, mode: object) -> None:
    (slots_d / "policy.json").write_text(json.dumps({"mode": mode}))
    with pytest.raises(Invalid, match=r"slot 'coder': mode is .*; it can be compatibility, isolated, verified"):
        kept()


@pytest.mark.parametrize("text", [None, "", "no JSON", "[]", '"isolated"', "{}"])
def test_where_nobody_knows_the_mode_the_default_is_not_taken_for_it(slots_d: pathlib.Path, text: str | None) -> None:
    """It could be a weaker one, and a stricter mode never falls back."""
    (slots_d / "plan").touch()
    if text is not None:
        (slots_d / "policy.json").write_text(text)
    with pytest.raises(Invalid, match=r"nobody knows which mode the slot has \[declare its mode\]"):
        kept("compatibility")


def of_inventory(fingerprint: str) -> _policy.Policy:
    """Return the policy of a slot with an approval in the inventory."""
    approval = Approval("alice", "2026-11-29", fingerprint)
    return dataclasses.replace(VERIFIED, slot=dataclasses.replace(VERIFIED.slot, approval=approval))


def test_an_approval_in_the_inventory_is_kept_with_the_policy_it_is_of() -> None:
    policy = of_inventory(VERIFIED.fingerprint())
    assert policy.fingerprint() == VERIFIED.fingerprint(), "the approval is no part of what is approved"
    ((path, content, owned),) = _policies.approval_of(policy)
    found = _approvals.of_bytes(content)
    assert (path, str(owned)) == (_layout.approval("coder"), f"0:{policy.account.gid} 0640")
    assert (found.by, found.on, found.evidence) == ("alice", "2026-11-29", {"source": "inventory"})
    assert _approvals.check({**policy.as_dict(), "fingerprint": policy.approved}, found)
    assert _policies.unapproved(policy) is None


def test_an_approval_in_the_inventory_of_another_policy_is_not_kept_and_said() -> None:
    policy = of_inventory("sha256:" + "0" * 64)
    assert list(_policies.approval_of(policy)) == []
    words = _policies.unapproved(policy)
    assert words is not None and "its approval in the inventory is of sha256:0000" in words
    assert words.endswith(f"the policy now is {VERIFIED.fingerprint()}")


def test_what_needs_no_approval_takes_none_from_the_inventory() -> None:
    isolated = compiled("isolated")[0]
    approval = Approval("alice", "2026-11-29", isolated.fingerprint())
    policy = dataclasses.replace(isolated, slot=dataclasses.replace(isolated.slot, approval=approval))
    assert list(_policies.approval_of(policy)) == [] and _policies.unapproved(policy) is None


def test_the_plan_of_a_workspace_that_is_no_longer_narrower_goes(slots_d: pathlib.Path) -> None:
    for name in ("plan", "policy.json", "approval", "plan-tight", "plan-gone"):
        (slots_d / name).touch()
    tight: list[t.Any] = ["main", {"name": "tight", "read_only": True}]
    assert _policies.stale(compiled("isolated", workspaces=tight)) == [str(slots_d / "plan-gone")]
    assert sorted(_policies.stale(compiled("isolated"))) == [str(slots_d / "plan-gone"), str(slots_d / "plan-tight")]


def test_the_plan_is_written_last_and_a_diff_shows_no_approval() -> None:
    paths = [path for path, _content, _owned in _policies.files_of(of_inventory(VERIFIED.fingerprint()))]
    assert paths[-2:] == [_layout.approval("coder"), _layout.plan("coder")]
    assert _policies.as_text(_layout.approval("coder"), b"who and what") == "(made from policy.json)"
