# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""No composition of default mode, capabilities and a workspace's restriction gives more than the slot has."""

from __future__ import annotations

import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _layout, _plan, _policy
from ansible_collections.confined.slots.plugins.module_utils._declarations import MODES, Invalid
from ansible_collections.confined.slots.plugins.module_utils._mounts import Mount

from .compiling import PROFILE, SITE, compiled

KEYS = sorted({*PROFILE["capabilities"], *SITE})
BINDS = [
    {"source": "/srv/reference", "reason": "the team's reference code"},
    {"source": "/srv/data", "mode": "rw", "reason": "results"},
]
TARGETS = [bind["source"] for bind in BINDS]
RESTRICTIONS = st.fixed_dictionaries(
    {"name": st.just("tight")},
    optional={
        "read_only": st.booleans(),
        "network": st.just("none"),
        "credential": st.just(False),
        "without_capabilities": st.lists(st.sampled_from(KEYS), unique=True),
        "without_binds": st.lists(st.sampled_from(TARGETS), unique=True),
    },
)
SLOTS = st.fixed_dictionaries(
    {
        "workspaces": RESTRICTIONS.map(lambda tight: ["main", tight]),
        "network": st.sampled_from(["none", "host"]),
        "binds": st.lists(st.sampled_from(BINDS), unique_by=lambda bind: bind["source"]),
    },
    optional={
        "capabilities": st.lists(st.sampled_from(KEYS), unique=True),
        "credential": st.sampled_from([{"name": "FAKE_API_KEY"}, {"name": "FAKE_TOKEN"}]),
    },
)


def seen(policy: _policy.Policy) -> set[Mount]:
    """Return the mounts that show something of the host, the workspace left out: which one it is differs."""
    return {mount for mount in policy.mounts if mount.kind == "bind"}


def writable(policy: _policy.Policy) -> set[str]:
    """Return the sources that a session can write, the workspace by its own word."""
    return {mount.source or mount.kind for mount in policy.mounts if mount.mode == "rw"}


def excess(base: _policy.Policy, narrow: _policy.Policy) -> list[str]:
    """Return in words what the narrower policy has that the slot's own has not."""
    more: list[tuple[str, set[t.Any], set[t.Any]]] = [
        ("sees", seen(narrow), seen(base)),
        ("writes", writable(narrow), writable(base)),
        ("variables", set(narrow.environment), set(base.environment)),
        ("passes", set(narrow.passed), set(base.passed)),
        ("capabilities", set(narrow.capabilities), set(base.capabilities)),
        ("files", {m for m in narrow.mounts if m.kind == "data"}, {m for m in base.mounts if m.kind == "data"}),
    ]
    found = [f"{word}: {some - others}" for word, some, others in more if some - others]
    hides = {m for m in base.mounts if m.kind in ("mask", "hold", "seal")} - set(narrow.mounts)
    found += [f"hides no more: {hides}"] if hides else []
    found += ["network"] if (base.slot.network, narrow.slot.network) == ("none", "host") else []
    found += ["flags"] if not set(base.flags) <= set(narrow.flags) else []
    found += ["credential"] if narrow.slot.credential not in (None, base.slot.credential) else []
    found += ["resources"] if narrow.slot.resources != base.slot.resources else []
    return found


def both(mode: str, declared: dict[str, t.Any]) -> tuple[_policy.Policy, _policy.Policy] | None:
    """Return the policies of a slot and of its narrower workspace, None if the declaration is refused."""
    try:
        found = compiled(mode, **declared)
    except Invalid:
        return None
    return (found[0], found[1]) if len(found) == 2 else None


@hypothesis.given(st.sampled_from(MODES), SLOTS)
@hypothesis.settings(max_examples=300)
def test_pl_02_a_restriction_never_gives_a_workspace_more_than_its_slot_has(
    mode: str, declared: dict[str, t.Any]
) -> None:
    if policies := both(mode, declared):
        base, narrow = policies
        assert (excess(base, narrow), narrow.approved) == ([], base.approved)


@hypothesis.given(st.sampled_from(MODES), SLOTS)
def test_what_is_read_only_for_the_slot_is_never_writable_in_a_plan_of_it(
    mode: str, declared: dict[str, t.Any]
) -> None:
    policies = both(mode, declared)
    if policies is None:
        return
    base, narrow = (_plan.load(policy.plan()) for policy in policies)
    read_only = {record[2] for record in base if record[:2] == ("bind", "ro")}
    assert not read_only & {record[2] for record in narrow if record[:2] == ("bind", "rw")}
    tight = declared["workspaces"][1]
    assert (("bind-workspace", "ro") in narrow) is bool(tight.get("read_only"))
    assert _plan.values(narrow, "workspace") == [("tight", _layout.workspace("coder", "tight"))]
    assert ("workspace", "tight", _layout.workspace("coder", "tight")) not in base


@hypothesis.given(st.sampled_from(MODES), SLOTS, st.sampled_from(KEYS))
def test_a_capability_less_gives_nothing_more(mode: str, declared: dict[str, t.Any], key: str) -> None:
    """Written as a restriction or left out of the declaration, it comes to the same."""
    keys = declared.get("capabilities", list(PROFILE["capabilities"]))
    more = both(mode, {**declared, "capabilities": sorted({*keys, key})})
    less = both(mode, {**declared, "capabilities": sorted({*keys} - {key})})
    if more and less:
        assert excess(more[0], less[0]) == []


WIDER: dict[str, tuple[dict[str, t.Any], dict[str, t.Any]]] = {
    "sees": ({}, {"binds": BINDS[:1]}),
    "writes": ({"workspaces": ["main"]}, {"binds": BINDS[1:]}),
    "variables": ({"capabilities": ["use_fake"]}, {"capabilities": ["use_fake", "use_git_identity"]}),
    "network": ({}, {"network": "host"}),
    "credential": ({}, {"credential": {"name": "FAKE_API_KEY"}}),
    "resources": ({}, {"resources": {"tmp_size": "2G"}}),
}


@pytest.mark.parametrize("word", WIDER)
def test_a_policy_that_is_wider_would_have_been_noticed(word: str) -> None:
    some, more = WIDER[word]
    base, wider = compiled("isolated", **some)[0], compiled("isolated", **more)[0]
    assert any(found.startswith(word) for found in excess(base, wider))


@pytest.mark.parametrize("mode", MODES)
def test_each_restriction_takes_away_what_it_says(mode: str) -> None:
    tight = {
        "name": "tight",
        "read_only": True,
        "network": "none",
        "credential": False,
        "without_capabilities": ["export_reports", "use_git_identity"],
        "without_binds": ["/srv/data"],
    }
    base, narrow = compiled(
        mode,
        workspaces=["main", tight],
        network="host",
        credential={"name": "FAKE_API_KEY"},
        capabilities=KEYS,
        binds=BINDS,
    )
    assert {mount.source for mount in seen(base) - seen(narrow)} >= {"/srv/data", "/srv/downloads"}
    assert "workspace" in writable(base) and "workspace" not in writable(narrow)
    assert dict(base.environment)["GIT_AUTHOR_NAME"] == "Robot" and "GIT_AUTHOR_NAME" not in dict(narrow.environment)
    assert _policy.NO_NETWORK in narrow.flags and _policy.NO_NETWORK not in base.flags
    assert narrow.slot.credential is None and not _plan.values(_plan.load(narrow.plan()), "credential")


@pytest.mark.parametrize(
    ("tight", "said"),
    [
        (
            {"without_capabilities": ["use_nothing"]},
            "without_capabilities names 'use_nothing', .* it declares use_fake",
        ),
        ({"without_binds": ["/srv/other"]}, "without_binds names '/srv/other', .* it declares none"),
    ],
    ids=["capability", "bind"],
)
def test_what_is_taken_away_and_not_there_is_refused_by_name(tight: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid, match=f"slot 'coder': workspace 'tight': {said}"):
        compiled("isolated", capabilities=["use_fake"], workspaces=["main", {"name": "tight", **tight}])


def test_a_capability_that_is_needed_cannot_be_taken_from_a_workspace_in_verified_mode() -> None:
    tight = {"name": "tight", "without_capabilities": ["use_fake"]}
    with pytest.raises(Invalid, match="capability-missing"):
        compiled("verified", capabilities=["use_fake"], workspaces=["main", tight])


def test_a_slot_of_which_every_workspace_is_narrower_has_no_plan_that_is_not() -> None:
    policies = compiled("isolated", workspaces=[{"name": "tight", "network": "none"}], network="host")
    workspaces = [_plan.values(_plan.load(policy.plan()), "workspace") for policy in policies]
    assert workspaces == [[], [("tight", _layout.workspace("coder", "tight"))]]
