# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be declared, and how the rest is refused."""

from __future__ import annotations

import datetime
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _declarations, _layout
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid, parse

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def test_a_name_is_enough() -> None:
    (slot,) = parse([{"name": "coder"}])
    assert (slot.provider, slot.mode, slot.workspaces, slot.network, slot.binds) == (
        "shell",
        None,
        ("main",),
        "none",
        (),
    )


@pytest.mark.parametrize(
    "name", ["", "Coder", "1a", "a" * 24, "a_b", "a/b", "../x", "a b", "a\n", "-a", "ä", "--bind", None, 7]
)
def test_bw_14_a_name_that_is_none_is_refused_with_the_rule(name: t.Any) -> None:
    with pytest.raises(Invalid, match=r"slots\[0\]\.name is .*lower-case letter"):
        parse([{"name": name}])


@pytest.mark.parametrize("workspace", ["", ".", "..", ".git", "a/b", "a b", "-x", "a\n", "x" * 65, "x*y", "\udcff"])
def test_bw_14_a_workspace_that_is_no_name_is_refused(workspace: str) -> None:
    with pytest.raises(Invalid, match="workspaces"):
        parse([{"name": "a", "workspaces": [workspace]}])


def test_an_empty_list_of_workspaces_is_refused_and_not_taken_for_the_default() -> None:
    with pytest.raises(Invalid, match="workspaces is empty"):
        parse([{"name": "a", "workspaces": []}])


def test_two_slots_of_one_name_are_refused() -> None:
    with pytest.raises(Invalid, match=r"slots\[1\]\.name is 'a', as is slots\[0\]"):
        parse([{"name": "a"}, {"name": "a"}])


@pytest.mark.parametrize("path", ["", "relative", "/a/../b", "/a//b", "/a/", "/./a", "/a\0b", None, 3])
def test_a_bind_takes_plain_absolute_paths(path: t.Any) -> None:
    with pytest.raises(Invalid, match="source"):
        parse([{"name": "a", "binds": [{"source": path, "reason": "r"}]}])


@pytest.mark.parametrize("path", ["/a b", "/x*y", "/--bind", "/line\nbreak", "/ünï", "/" + "x" * 4000, "/\udcff"])
def test_bw_14_a_bind_takes_any_character_that_a_path_can_hold(path: str) -> None:
    (slot,) = parse([{"name": "a", "binds": [{"source": path, "reason": "r"}]}])
    assert slot.binds[0].source == slot.binds[0].target == path


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_a_bind_without_a_reason_is_refused(reason: t.Any) -> None:
    with pytest.raises(Invalid, match="a bind without a reason does not compile"):
        parse([{"name": "a", "binds": [{"source": "/a", "reason": reason}]}])


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        pytest.param("tok en", 3, id="space"),
        pytest.param("tok\nen", 3, id="inner-break"),
        pytest.param("token\n\n", 5, id="two-breaks"),
        pytest.param("\ufefftoken", 0, id="byte-order-mark"),
        pytest.param("to\0ken", 2, id="nul"),
        pytest.param("export X=1", 6, id="shell-line"),
    ],
)
def test_cr_05_a_malformed_token_is_refused_by_offset_and_never_shown(value: str, offset: int) -> None:
    with pytest.raises(Invalid) as caught:
        parse([{"name": "a", "credential": {"name": "KEY", "value": value}}])
    assert f"offset {offset}" in str(caught.value)
    assert value not in str(caught.value)


@pytest.mark.parametrize("value", ["token", "token\n", "token\r\n"])
def test_cr_05_one_line_end_is_stripped(value: str) -> None:
    (slot,) = parse([{"name": "a", "credential": {"name": "KEY", "value": value}}])
    assert slot.credential is not None
    assert slot.credential.value == "token"
    assert "token" not in repr(slot)


@pytest.mark.parametrize(
    "resources",
    [
        {"memory_max": "8"},
        {"memory_max": "0G"},
        {"cpu_quota": "200"},
        {"tasks_max": 1},
        {"session_max": "8 h"},
        {"tmp_size": "big"},
        {"tasks_max": True},
    ],
    ids=str,
)
def test_a_limit_that_systemd_would_not_take_is_refused(resources: dict[str, t.Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(resources))):
        parse([{"name": "a", "resources": resources}])


APPROVAL = {"by": "alice", "on": "2026-11-29", "fingerprint": "sha256:" + "0f" * 32}
NEW_KEYS: list[tuple[dict[str, t.Any], str]] = [
    ({"mode": "strict"}, "mode is 'strict'; it can be compatibility, isolated, verified"),
    ({"mode": ["isolated"]}, r"mode is \['isolated'\]; it can be"),
    ({"profile_version": 0}, "profile_version is 0; it must be a whole number from 1"),
    ({"profile_version": True}, "profile_version is True; it must be"),
    ({"profile_version": "2"}, "profile_version is '2'; it must be"),
    ({"capabilities": ["Use Codex CLI"]}, r"capabilities\[0\] is 'Use Codex CLI'; it can be a-z, 0-9 and _"),
    ({"capabilities": "use_shell"}, "capabilities is 'use_shell'; it must be a list"),
    ({"capabilities": ["a", "a"]}, r"capabilities names one twice: a, a \[name each once\]"),
    ({"capabilities": [None]}, r"capabilities\[0\] is None; it can be"),
    ({"masks": ["srv"]}, r"masks\[0\] is 'srv'; it must be an absolute path"),
    ({"masks": ["/srv/../etc"]}, r"masks\[0\] is '/srv/\.\./etc'; it must be in its plain form"),
    ({"masks": "/srv"}, "masks is '/srv'; it must be a list"),
    ({"approval": "alice"}, "approval is 'alice'; it must be a dict"),
    ({"approval": {**APPROVAL, "by": " "}}, "approval.by is ' '; it must name the person who approved"),
    ({"approval": {**APPROVAL, "by": "a\x1b[0m"}}, "approval.by is .*; it must name"),
    ({"approval": {**APPROVAL, "by": "a\nb"}}, "approval.by is .*; it must name"),
    ({"approval": {**APPROVAL, "on": "29.11.2026"}}, "approval.on is '29.11.2026'; it can be a day such as"),
    ({"approval": {**APPROVAL, "on": None}}, "approval.on is 'None'; it can be a day"),
    (
        {"approval": {**APPROVAL, "fingerprint": "sha256:0F"}},
        "approval.fingerprint is 'sha256:0F'; it can be sha256: and",
    ),
    ({"approval": {"by": "alice"}}, "approval.fingerprint is None"),
    ({"workspaces": [{}]}, r"workspaces\[0\] is None; it can be at most 64"),
    ({"workspaces": [["main"]]}, r"workspaces\[0\] is \['main'\]"),
    ({"workspaces": "main"}, "workspaces is 'main'; it must be a list"),
    ({"workspaces": ["a", {"name": "a", "read_only": True}]}, "workspaces names one twice: a, a"),
]
WIDER: list[tuple[dict[str, t.Any], str]] = [
    ({"network": "host"}, "network is 'host'; a workspace can only take it away: none"),
    ({"network": None}, "network is None; a workspace can only"),
    ({"credential": True}, r"credential is true; a workspace can only take it away: false \[leave it out\]"),
    ({"credential": {"name": "KEY"}}, "credential is {'name': 'KEY'}; it must be a bool"),
    ({"read_only": "no"}, "read_only is 'no'; it must be a bool"),
    ({"read_only": None}, "read_only is None; it must be a bool"),
    (
        {"capabilities": ["use_shell"]},
        r"has 'capabilities'; it can have name, .*without_binds \[it can only take away\]",
    ),
    ({"binds": []}, "has 'binds'; it can have"),
    ({"mode": "compatibility"}, "has 'mode'; it can have"),
    ({"provider": "shell"}, "has 'provider'; it can have"),
    ({"without_capabilities": "use_shell"}, "without_capabilities is 'use_shell'; it must be a list"),
    ({"without_capabilities": ["X"]}, r"without_capabilities\[0\] is 'X'; it can be"),
    ({"without_binds": ["data"]}, r"without_binds\[0\] is 'data'; it must be an absolute path"),
    ({1: 2}, "has '1'; it can have"),
]


@pytest.mark.parametrize(("declared", "said"), NEW_KEYS, ids=[str(declared)[:60] for declared, _unused in NEW_KEYS])
def test_a_bad_value_is_named_with_what_can_be(declared: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid, match=rf"slot 'a': {said}"):
        parse([{"name": "a", **declared}])


@pytest.mark.parametrize(("tight", "said"), WIDER, ids=[str(tight)[:60] for tight, _unused in WIDER])
def test_a_workspace_can_only_take_away(tight: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid, match=rf"slot 'a': workspace 'tight'[: ]*{said}"):
        parse([{"name": "a", "workspaces": ["main", {"name": "tight", **tight}]}])


def test_a_workspace_by_a_mapping_with_nothing_but_its_name_is_no_narrower_one() -> None:
    (slot,) = parse([{"name": "a", "workspaces": [{"name": "main"}, {"name": "tight", "read_only": False}]}])
    assert (slot.workspaces, set(slot.restrictions)) == (("main", "tight"), {"tight"})


def test_an_approval_is_taken_with_its_day_however_yaml_gives_it() -> None:
    for on in ("2026-11-29", datetime.date(2026, 11, 29)):
        (slot,) = parse([{"name": "a", "approval": {**APPROVAL, "on": on, "by": " alice "}}])
        assert slot.approval == _declarations.Approval("alice", "2026-11-29", APPROVAL["fingerprint"])


def test_no_capabilities_at_all_are_something_else_than_those_of_the_provider() -> None:
    slots = parse([{"name": "a"}, {"name": "b", "capabilities": []}])
    assert [slot.capabilities for slot in slots] == [None, ()]


@hypothesis.given(st.dictionaries(st.sampled_from(sorted(_declarations.slots_argument()["options"])), JSON))
def test_whatever_is_declared_ends_in_slots_or_in_a_message(entry: dict[str, t.Any]) -> None:
    try:
        (slot,) = parse([{"name": "a", **entry}])
    except Invalid:
        return
    assert slot.name


@hypothesis.given(st.sets(st.from_regex(r"[a-z][a-z0-9-]{0,22}", fullmatch=True), min_size=2))
def test_no_slot_lies_below_another_in_systemds_tree_of_slices(names: set[str]) -> None:
    """A plain dash in a slice's name is a level of the tree, and limits of the upper one hold for the lower."""
    stems = {_layout.slice_unit(name).removesuffix(".slice").removeprefix("confined-slots-") for name in names}
    assert len(stems) == len(names)
    assert not any("-" in stem for stem in stems)
