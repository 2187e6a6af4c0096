# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An approval is of one policy of one slot; whatever changed since is named, with how to approve it."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _approvals, _host, _layout, _plan
from ansible_collections.confined.slots.plugins.module_utils._refusals import Refusal

from .compiling import PROFILE, TREE, as_read, compiled, provider

EVIDENCE = {"source": "inventory"}
JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["key", "kind", "name"]), inner),
    max_leaves=6,
)


def policy(**declared: t.Any) -> dict[str, t.Any]:
    """Return the policy of a slot in verified mode as slotctl has it."""
    return as_read(compiled("verified", **declared)[0])


def given(of: dict[str, t.Any]) -> _approvals.Approval:
    """Return an approval of a policy."""
    return _approvals.Approval("alice", "2026-11-29", of, EVIDENCE)


GOOD = given(policy()).as_bytes()


def refusal(now: dict[str, t.Any], approval: _approvals.Approval | None) -> Refusal:
    """Return the refusal that a policy meets with this approval."""
    with pytest.raises(Refusal) as caught:
        _approvals.check(now, approval)
    assert caught.value.cure == "read 'slotctl policy coder', then 'slotctl approve coder'"
    return caught.value


def test_an_approval_comes_back_as_it_was_given() -> None:
    found = _approvals.of_bytes(GOOD)
    assert (found.by, found.on, found.policy, found.evidence) == ("alice", "2026-11-29", policy(), EVIDENCE)
    assert _approvals.check(policy(), found) == "alice on 2026-11-29"


def test_without_an_approval_the_refusal_says_how_to_get_one() -> None:
    found = refusal(policy(), None)
    assert (found.code, found.what) == ("approval-missing", "nobody has approved the policy of slot coder")


@hypothesis.given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_pl_03_a_changed_byte_of_an_approval_is_noticed(position: int, change: int) -> None:
    with pytest.raises(ValueError):
        _approvals.of_bytes(GOOD[:position] + bytes([GOOD[position] ^ change]) + GOOD[position + 1 :])


def forged(**changed: t.Any) -> bytes:
    """Return an approval with a right hash whose records are not those of a person's."""
    about = {"policy": policy(), "evidence": EVIDENCE, **changed.pop("inside", {})}
    words = {
        "slot": "coder",
        "fingerprint": policy()["fingerprint"],
        "by": "mallory",
        "on": "2026-11-29",
        "about": changed.pop("about", json.dumps(about)),
        **changed,
    }
    return _plan.dump([(key, value) for key, value in words.items() if value is not None], _plan.APPROVAL)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"slot": "other"}, id="slot"),
        pytest.param({"fingerprint": "sha256:0"}, id="fingerprint"),
        pytest.param({"by": None}, id="nobody"),
        pytest.param({"about": "[]"}, id="list"),
        pytest.param({"about": "no JSON"}, id="no JSON"),
        pytest.param({"about": "[" * 3000}, id="deep"),
        pytest.param({"inside": {"policy": None}}, id="no policy"),
        pytest.param({"inside": {"evidence": []}}, id="no evidence"),
    ],
)
def test_pl_03_what_contradicts_itself_is_no_approval(changed: dict[str, t.Any]) -> None:
    _approvals.of_bytes(forged())
    with pytest.raises(ValueError):
        _approvals.of_bytes(forged(**changed))


def test_pl_03_an_approval_of_another_slot_approves_nothing() -> None:
    other = {**policy(), "slot": "other"}
    assert refusal(policy(), given(other)).code == "approval-missing"


def test_pl_03_an_older_approval_is_not_good_again_for_a_newer_policy() -> None:
    assert refusal(policy(network="host"), given(policy())).code == "approval-missing"
    _approvals.check(policy(), given(policy()))


def test_another_executable_is_named_as_such() -> None:
    certified = provider(certification={**PROFILE["certification"], "sha256": "e" * 64})
    digest = (_host.Identity(f"{TREE}/bin/fake", "e" * 64, "2:2:2:2:2"),)
    found = refusal(policy(by=dataclasses.replace(certified, identities=digest)), given(policy()))
    assert (found.code, found.what) == (
        "provider-changed",
        "the provider fake 1.2.3 has other bytes since alice on 2026-11-29 approved the policy of slot coder",
    )


def test_another_version_is_named_with_the_one_before() -> None:
    certified = {**PROFILE["certification"], "cli_version": "2.0.0"}
    newer = {"packages": [{"name": "fake", "version": "2.0.0"}], "kind": "npm"}
    by = dataclasses.replace(provider(install=newer, certification=certified), version="2.0.0")
    found = refusal(policy(by=by), given(policy()))
    assert found.code == "provider-changed"
    assert "the provider fake 2.0.0 was fake 1.2.3 since alice" in found.what


def test_another_version_of_the_profile_is_named_with_the_one_before() -> None:
    found = refusal(policy(by=provider(profile_version=4)), given(policy()))
    assert found.code == "profile-changed"
    assert "the profile of fake has version 4, not 3" in found.what


def test_added_capabilities_are_named_in_their_words() -> None:
    before = policy(capabilities=["use_fake"])
    found = refusal(policy(capabilities=["use_fake", "export_reports", "use_git_identity"]), given(before))
    assert found.code == "capability-missing"
    assert "these were added: Export reports to Downloads; Use Git identity; since alice" in found.what


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"network": "host"}, 'network: "none" -> "host"'),
        ({"capabilities": ["use_fake"]}, "no longer bind"),
        ({"binds": [{"source": "/srv/data", "mode": "rw", "reason": "r"}]}, "new bind /srv/data"),
        ({"workspaces": ["main", "more"]}, "workspaces: "),
        ({"enabled": False}, "enabled: true -> false"),
    ],
    ids=["network", "less", "bind", "workspace", "disabled"],
)
def test_any_other_change_is_said_in_words(declared: dict[str, t.Any], said: str) -> None:
    found = refusal(policy(**declared), given(policy()))
    assert found.code == "approval-missing"
    assert said in found.what


@hypothesis.given(st.dictionaries(st.sampled_from(["mode", "provider", "capabilities", "mounts"]), JSON))
def test_an_approval_of_any_shape_ends_in_a_refusal(old: dict[str, t.Any]) -> None:
    written = given({**policy(), "fingerprint": "sha256:0", **old}).as_bytes()
    with pytest.raises((Refusal, ValueError)):
        _approvals.check(policy(), _approvals.of_bytes(written))


@pytest.fixture
def path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the place of the slot's approval, where there is one."""
    if os.geteuid() != 0:
        pytest.skip("root is missing: files of root's cannot be made")
    tmp_path.chmod(0o755)
    monkeypatch.setattr(_layout, "approval", lambda slot: str(tmp_path / "approval"))
    (tmp_path / "approval").write_bytes(GOOD)
    return tmp_path / "approval"


def test_what_stands_there_is_read_and_nothing_is_none(path: pathlib.Path) -> None:
    found = _approvals.read("coder")
    assert found is not None and found.by == "alice"
    path.unlink()
    assert _approvals.read("coder") is None


@pytest.mark.parametrize("how", ["writable", "owner", "link", "pipe", "empty", "plan"])
def test_pl_03_what_others_could_have_put_there_is_no_approval(path: pathlib.Path, how: str) -> None:
    if how == "writable":
        path.chmod(0o662)
    elif how == "owner":
        os.chown(path, 64000, 64000)
    elif how in ("link", "pipe"):
        path.rename(path.with_name("real"))
        path.symlink_to("real") if how == "link" else os.mkfifo(path)
    else:
        path.write_bytes(b"" if how == "empty" else compiled("verified")[0].plan())
    with pytest.raises(Refusal, match=r"approval-missing: .*is no approval: "):
        _approvals.read("coder")
