# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Owners and modes: the wanted tree, and that root keeps its hands off what a slot may have laid out (ES-12, RD-08)."""

from __future__ import annotations

import os
import pathlib
import struct

import hypothesis
import hypothesis.strategies as st
import pytest
from ansible_collections.confined.slots.plugins.module_utils import _layout, _manifest, _permissions
from ansible_collections.confined.slots.plugins.module_utils._declarations import Slot
from ansible_collections.confined.slots.plugins.module_utils._files import Found, Owned, UnsafePath
from ansible_collections.confined.slots.plugins.module_utils._permissions import Account, Change, Contents, Node

CODER = Slot("coder", workspaces=("main", "review"))
OTHER = Slot("a-b", provider="codex")
ACCOUNTS = {"coder": Account(20000, 20000), "a-b": Account(20001, 20001)}
TREE = _permissions.wanted((CODER, OTHER), ACCOUNTS)
BY_PATH = {node.path: node for node in TREE}
PASSWD = b"root:x:0:0::/root:/bin/sh\nslot-coder:x:20000:20000::/h:/bin/sh\nslot-a-b:x:20001:20001::/h:/bin/sh\n"
GROUP = b"root:x:0:\ndocker:x:999:\nslot-coder:x:20000:\nslot-a-b:x:20001:\n"

slots = st.lists(
    st.builds(
        Slot,
        name=st.from_regex(r"[a-z][a-z0-9-]{0,22}", fullmatch=True),
        provider=st.from_regex(r"[a-z][a-z0-9_]{0,31}", fullmatch=True),
        workspaces=st.lists(
            st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True), min_size=1, unique=True
        ).map(tuple),
    ),
    unique_by=lambda slot: slot.name,
    max_size=5,
)
owners = st.builds(Owned, st.sampled_from((0, 20000, 20001, 65534)), st.integers(0, 70000), st.integers(0, 0o7777))
sights = st.none() | st.builds(
    Found, st.sampled_from(("directory", "file", "link", "other")), owners, st.integers(1, 3)
)


def accounts_of(declared: list[Slot]) -> dict[str, Account]:
    """Return an account for each slot, none like another."""
    return {slot.name: Account(20000 + number, 20000 + number) for number, slot in enumerate(declared)}


@hypothesis.given(slots)
def test_only_homes_and_workspaces_are_the_slots_and_nothing_is_open_to_others(declared: list[Slot]) -> None:
    for node in _permissions.wanted(declared, accounts_of(declared)):
        assert node.owned.mode & 0o022 == 0, node
        if node.owned.uid != 0:
            assert node.owned.mode == 0o700, node
            assert node.path.split("/")[6] in ("home", "homes", "kept", "workspaces"), node


@hypothesis.given(slots)
def test_nothing_is_kept_below_what_a_slot_can_write(declared: list[Slot]) -> None:
    nodes = _permissions.wanted(declared, accounts_of(declared))
    own = [node.path for node in nodes if node.owned.uid != 0]
    assert not [node.path for node in nodes for path in own if node.path.startswith(f"{path}/")]


@hypothesis.given(slots)
def test_parents_come_first_and_no_path_twice(declared: list[Slot]) -> None:
    paths = [node.path for node in _permissions.wanted(declared, accounts_of(declared))]
    assert len(paths) == len(set(paths))
    for number, path in enumerate(paths):
        assert os.path.dirname(path) not in paths[number:]


@hypothesis.given(slots, st.data())
def test_after_the_plan_there_is_nothing_left_to_plan(declared: list[Slot], data: st.DataObject) -> None:
    nodes = _permissions.wanted(declared, accounts_of(declared))
    found = [(node, data.draw(sights)) for node in nodes]
    changes, problems = _permissions.plan(found)
    done = {change.node.path: change for change in changes}
    again = [
        (node, Found("directory" if node.kind == "directory" else "file", node.owned) if node.path in done else sight)
        for node, sight in found
    ]
    assert _permissions.plan(again) == ([], problems)


@hypothesis.given(slots, st.data())
def test_no_change_is_planned_at_or_below_a_problem(declared: list[Slot], data: st.DataObject) -> None:
    nodes = _permissions.wanted(declared, accounts_of(declared))
    found = [(node, data.draw(sights)) for node in nodes]
    bad = [node.path for node, sight in found if _permissions.fault(node, sight) is not None]
    changes, problems = _permissions.plan(found)
    for change in changes:
        assert not [path for path in bad if f"{change.node.path}/".startswith(f"{path}/")]
    assert bool(problems) == bool(bad)


@pytest.mark.parametrize(
    ("path", "sight", "says"),
    [
        pytest.param(
            _layout.workspace("coder", "main"), Found("link", Owned(20000, 20000, 0o777)), "a link", id="link"
        ),
        pytest.param(_layout.state("coder"), Found("file", Owned(0, 0, 0o644)), "a file", id="file for a directory"),
        pytest.param(
            _layout.account_home("coder"), Found("directory", Owned(20001, 0, 0o700)), "20001", id="another slot's"
        ),
        pytest.param(
            _layout.log("coder") + "/sessions.jsonl", Found("file", Owned(0, 0, 0o600), 2), "2 names", id="hard link"
        ),
        pytest.param(
            _layout.log("coder") + "/sessions.jsonl", Found("file", Owned(20000, 0, 0o600)), "20000", id="planted"
        ),
        pytest.param(
            _layout.log("coder") + "/sessions.jsonl", Found("other", Owned(0, 0, 0o600)), "no file", id="pipe"
        ),
        pytest.param(_layout.LEDGER, Found("file", Owned(0, 0, 0o666)), "written by others", id="obeyed and open"),
        pytest.param(_layout.SLOTS, UnsafePath("/var/lib is a link"), "/var/lib", id="way"),
    ],
)
def test_es12_what_a_slot_may_have_laid_out_is_named_and_left_alone(
    path: str, sight: Found | UnsafePath, says: str
) -> None:
    changes, problems = _permissions.plan([(BY_PATH[path], sight)])
    assert changes == []
    assert [problem.code for problem in problems] == ["unsafe-path"]
    assert says in str(problems[0])


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param(_layout.state("coder"), Owned(65534, 0, 0o777), id="directory of root's"),
        pytest.param(_layout.account_home("coder"), Owned(0, 0, 0o777), id="home made by root"),
        pytest.param(_layout.account_home("coder"), Owned(20000, 0, 0o4755), id="setuid bit and group of a home"),
        pytest.param(_layout.log("coder"), Owned(0, 20000, 0o770), id="log directory open to its group"),
    ],
)
def test_drift_of_a_directory_is_repaired(path: str, found: Owned) -> None:
    changes, problems = _permissions.plan([(BY_PATH[path], Found("directory", found))])
    assert problems == []
    assert [change.step().action for change in changes] == ["repair"]
    assert changes[0].step().before == f"{found.uid}:{found.gid} {found.mode:04o}"


def test_a_record_open_to_others_is_closed_again_since_nobody_obeys_it() -> None:
    node = BY_PATH[_layout.log("coder") + "/sessions.jsonl"]
    changes, problems = _permissions.plan([(node, Found("file", Owned(0, 0, 0o666)))])
    assert (len(changes), problems) == (1, [])


def test_one_slots_problem_does_not_keep_the_others_from_converging() -> None:
    bad = _layout.state("coder")
    changes, problems = _permissions.plan(
        [(node, Found("link", Owned(20000, 20000, 0o777)) if node.path == bad else None) for node in TREE]
    )
    made = {change.node.path for change in changes}
    assert len(problems) == 1
    assert {node.path for node in TREE if node.made and not f"{node.path}/".startswith(f"{bad}/")} == made


def test_ids_that_are_not_given_out_yet_are_shown_as_such() -> None:
    node = next(node for node in _permissions.wanted((CODER,), {}) if node.path == _layout.account_home("coder"))
    assert Change(node, None).step().after == "?:? 0700"


def test_accounts_are_read_from_the_files() -> None:
    assert _permissions.read_accounts(PASSWD, GROUP, (CODER, OTHER)) == (ACCOUNTS, [])


@pytest.mark.parametrize(
    ("passwd", "group", "code"),
    [
        pytest.param(PASSWD.replace(b"slot-coder", b"coder"), GROUP, "account-missing", id="missing"),
        pytest.param(PASSWD.replace(b"20000:20000", b"0:20000"), GROUP, "account-unsafe", id="root"),
        pytest.param(PASSWD.replace(b"20000:20000", b"20001:20000"), GROUP, "account-unsafe", id="shared uid"),
        pytest.param(PASSWD.replace(b"20000:20000", b"20000:999"), GROUP, "account-unsafe", id="another group"),
        pytest.param(PASSWD, GROUP.replace(b"999:", b"999:me,slot-coder"), "rootful-docker-reachable", id="RD-08"),
        pytest.param(PASSWD, GROUP + b"adm:x:4:slot-coder\n", "account-unsafe", id="supplementary group"),
    ],
)
def test_rd08_an_account_that_is_not_alone_with_its_ids_is_a_problem(passwd: bytes, group: bytes, code: str) -> None:
    _unused, problems = _permissions.read_accounts(passwd, group, (CODER,))
    assert [problem.code for problem in problems] == [code]
    assert "slot-coder" in str(problems[0])


def acl(*entries: tuple[int, int, int]) -> bytes:
    """Return an ACL as the kernel gives it: tag, permissions, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@pytest.mark.parametrize(
    ("owned", "acl", "reachable"),
    [
        pytest.param(Owned(0, 999, 0o660), b"", False, id="as Docker makes it"),
        pytest.param(Owned(0, 999, 0o666), b"", True, id="open to all"),
        pytest.param(Owned(0, 20000, 0o660), b"", True, id="the slot's group"),
        pytest.param(Owned(0, 20000, 0o606), b"", False, id="the slot's group has less than others"),
        pytest.param(Owned(20000, 0, 0o600), b"", True, id="the slot's own"),
        pytest.param(Owned(0, 999, 0o660), acl((2, 6, 20000), (4, 6, 0), (16, 6, 0)), True, id="named user"),
        pytest.param(Owned(0, 999, 0o640), acl((2, 6, 20000), (4, 6, 0), (16, 4, 0)), False, id="named user, masked"),
        pytest.param(Owned(0, 999, 0o660), acl((2, 6, 20001), (4, 6, 0), (16, 6, 0)), False, id="another's name"),
        pytest.param(Owned(0, 999, 0o660), acl((4, 6, 0), (8, 6, 20000), (16, 6, 0)), True, id="named group"),
        pytest.param(Owned(0, 999, 0o660), b"short", False, id="no ACL at all"),
    ],
)
def test_rd08_who_can_open_a_socket_follows_from_mode_and_acl(owned: Owned, acl: bytes, reachable: bool) -> None:
    assert _permissions.may_write(Account(20000, 20000), owned, acl) is reachable


@pytest.fixture
def root_side(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a directory that is root's alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root: what is tested is whom root trusts")
    tmp_path.chmod(0o755)
    return tmp_path


ROOTS = Owned(0, 0, 0o750)


def test_a_tree_is_made_and_then_left_as_it_is(root_side: pathlib.Path) -> None:
    nodes = [
        Node(f"{root_side}/d", ROOTS, contents=Contents("record", Owned(0, 0, 0o640))),
        Node(f"{root_side}/d/e", ROOTS),
        Node(f"{root_side}/d/sessions.jsonl", Owned(0, 0, 0o640), "record"),
    ]
    changes, problems = _permissions.plan(_permissions.find(nodes))
    assert (len(changes), problems) == (3, [])
    for change in changes:
        _permissions.apply(change)
    assert (root_side / "d/sessions.jsonl").stat().st_mode & 0o7777 == 0o640
    assert _permissions.plan(_permissions.find(nodes)) == ([], [])


def test_es12_a_link_planted_between_look_and_change_is_not_followed(root_side: pathlib.Path) -> None:
    target = root_side / "target"
    target.mkdir(mode=0o700)
    (root_side / "d").symlink_to(target)
    for before in (None, Owned(0, 0, 0o777)):
        with pytest.raises((UnsafePath, NotADirectoryError)):
            _permissions.apply(Change(Node(f"{root_side}/d", Owned(0, 0, 0o755)), before))
    assert target.stat().st_mode & 0o7777 == 0o700


def test_es12_a_link_on_the_way_is_not_followed(root_side: pathlib.Path) -> None:
    (root_side / "real").mkdir(mode=0o755)
    (root_side / "way").symlink_to("real")
    node = Node(f"{root_side}/way/new", ROOTS)
    _unused, problems = _permissions.plan(_permissions.find([node]))
    assert f"{root_side}/way" in str(problems[0])
    with pytest.raises(UnsafePath):
        _permissions.apply(Change(node, None))
    assert list((root_side / "real").iterdir()) == []


def test_contents_are_kept_at_every_depth_and_half_written_files_are_left(root_side: pathlib.Path) -> None:
    (root_side / "d/etc").mkdir(parents=True)
    for name in ("d/plan", "d/etc/hosts", "d/.plan.0123"):
        (root_side / name).write_text("x")
        (root_side / name).chmod(0o600)
    node = Node(f"{root_side}/d", ROOTS, contents=Contents("input", Owned(0, 0, 0o640)))
    paths = [node.path for node, _unused in _permissions.find([node])]
    assert paths == [f"{root_side}/d", f"{root_side}/d/etc", f"{root_side}/d/etc/hosts", f"{root_side}/d/plan"]


def test_a_tree_too_deep_is_a_problem_and_no_recursion(root_side: pathlib.Path) -> None:
    deep = root_side / "d"
    deep.joinpath(*"abcdefghijkl").mkdir(parents=True)
    node = Node(str(deep), ROOTS, contents=Contents("input", Owned(0, 0, 0o640)))
    _unused, problems = _permissions.plan(_permissions.find([node]))
    assert "is a directory; it must be a file" in str(problems[0])


def test_the_log_directory_of_the_system_may_belong_to_a_group() -> None:
    shared = os.stat_result((0o040775, 1, 1, 2, 0, 104, 0, 0, 0, 0))
    _manifest.check_directory(shared, "/var/log", on_the_way=True)
    for path in ("/var/lib", "/var/log/confined-slots"):
        with pytest.raises(_manifest.Untrusted):
            _manifest.check_directory(shared, path, on_the_way=True)


@pytest.mark.parametrize(
    ("uid", "kept"),
    [
        pytest.param(20000, True, id="the slot"),
        pytest.param(0, True, id="root"),
        pytest.param(300000, True, id="the first id of its containers"),
        pytest.param(365535, True, id="the last"),
        pytest.param(365536, False, id="the next slot's"),
        pytest.param(1000, False, id="a person"),
    ],
)
def test_a_workspace_that_a_container_gave_to_itself_is_given_back_and_stops_no_converge(uid: int, kept: bool) -> None:
    node = Node("/x", Owned(20000, 20000, 0o700), span=(300000, 365536))
    found = _permissions.Found("directory", Owned(uid, uid, 0o700), 2)
    assert (_permissions.fault(node, found) is None) is kept
    assert (_permissions.fault(Node("/x", node.owned), found) is None) is (uid in (0, 20000))
