# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the account files say is understood, and the changes are those that are needed and no more."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _accounts, _layout, _programs
from ansible_collections.confined.slots.plugins.module_utils._accounts import Account, Change, Found, Group, Range
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid, Slot
from ansible_collections.confined.slots.plugins.module_utils._files import ROOT_DIRECTORY, Owned
from ansible_collections.confined.slots.plugins.module_utils._ledger import Ids, Pool
from hypothesis import given
from hypothesis import strategies as st

SHELL = "/bin/bash"
HASH = "$6$rounds=656000$abcdefghijklmnop$" + "x" * 86
ROOT = Account("root", True, 0, 0, "/root", SHELL)

fields = st.text(st.characters(blacklist_characters=":\n", blacklist_categories=("Cs",)), max_size=8)
lines = st.lists(st.lists(fields, min_size=1, max_size=8).map(":".join) | st.binary(max_size=20).map(repr), max_size=10)


def converged(*slots: Slot, start: Found | None = None) -> Found:
    """Return a host on which the slots' accounts are as they should be."""
    before = start or Found(accounts=(ROOT,), passwords={"root": "*"}, groups=(Group("root", 0, ()),))
    ledger = _accounts.with_ids(slots, before, Pool())
    ids = {slot.name: ledger.slots[slot.name].ids for slot in slots}
    lines_of = tuple(Range(f"slot-{name}", entry.span) for name, entry in ids.items())
    return dataclasses.replace(
        before,
        accounts=(
            *before.accounts,
            *(
                Account(f"slot-{name}", True, entry.uid, entry.uid, _layout.account_home(name), SHELL)
                for name, entry in ids.items()
            ),
        ),
        passwords={**before.passwords, **{f"slot-{slot.name}": slot.console_password_hash or "!" for slot in slots}},
        groups=(*before.groups, *(Group(f"slot-{name}", entry.uid, ()) for name, entry in ids.items())),
        subuids=(*(before.subuids or ()), *lines_of),
        subgids=(*(before.subgids or ()), *lines_of),
        ledger=ledger,
        directories={
            **{_layout.state(name): ROOT_DIRECTORY for name in ids},
            **{_layout.account_home(name): Owned(entry.uid, entry.uid, 0o700) for name, entry in ids.items()},
        },
    )


def planned(found: Found, *slots: Slot, shell: str = SHELL) -> list[Change]:
    ledger = _accounts.with_ids(slots, found, Pool())
    _accounts.check(ledger, slots, found)
    return list(_accounts.changes(slots, found, ledger, shell))


def with_account(found: Found, **changed: t.Any) -> Found:
    """Return the host with one field of the account slot-a changed."""
    accounts = tuple(
        dataclasses.replace(account, **changed) if account.name == "slot-a" else account for account in found.accounts
    )
    return dataclasses.replace(found, accounts=accounts)


def test_a_second_converge_has_nothing_to_do() -> None:
    slots = (Slot("a"), Slot("b-c", console_password_hash=HASH))
    assert planned(converged(*slots), *slots) == []


def test_the_ledger_is_written_before_the_first_account_is_made() -> None:
    actions = [(change.step.subject, change.step.action) for change in planned(Found(), Slot("a"), Slot("b"))]
    assert actions[0] == (_layout.LEDGER, "record")
    assert actions[1:] == [
        ("slot-a", "create account"),
        ("slot-a", "give subordinate uids and gids"),
        (_layout.state("a"), "make directory"),
        (_layout.account_home("a"), "make directory"),
        ("slot-b", "create account"),
        ("slot-b", "give subordinate uids and gids"),
        (_layout.state("b"), "make directory"),
        (_layout.account_home("b"), "make directory"),
    ]


def test_a_killed_converge_goes_on_with_the_ids_it_had_promised() -> None:
    slots = (Slot("a"), Slot("b"))
    whole = converged(*slots)
    killed = dataclasses.replace(whole, accounts=whole.accounts[:-1], groups=whole.groups, subuids=(), directories={})
    assert _accounts.with_ids(slots, killed, Pool()) == whole.ledger
    commands = [change.command for change in planned(killed, *slots) if change.command]
    assert commands[1][:6] == ("useradd", "--uid", "20001", "--gid", "slot-b", "--no-user-group")
    assert [command[0] for command in commands] == ["usermod", "useradd", "usermod"]


def test_rd_01_ranges_are_given_on_their_own_whatever_useradd_does() -> None:
    commands = {change.step.action: change.command for change in planned(Found(), Slot("a"))}
    assert "SUB_UID_COUNT=0" in (commands["create account"] or ()) and "SUB_GID_COUNT=0" in (
        commands["create account"] or ()
    )
    assert commands["give subordinate uids and gids"] == (
        *("usermod", "--add-subuids", "200000000-200065535", "--add-subgids", "200000000-200065535", "slot-a"),
    )


def test_rd_01_an_account_whose_ranges_are_gone_gets_the_same_ones_back() -> None:
    found = dataclasses.replace(converged(Slot("a")), subgids=())
    (change,) = planned(found, Slot("a"))
    assert change.command == ("usermod", "--add-subgids", "200000000-200065535", "slot-a")


def test_files_of_ranges_that_are_missing_are_made_first() -> None:
    steps = [change.step for change in planned(Found(subuids=None, subgids=None), Slot("a"))]
    assert [(step.subject, step.action) for step in steps[1:3]] == [
        ("/etc/subuid", "create"),
        ("/etc/subgid", "create"),
    ]


@pytest.mark.parametrize(
    ("changed", "command"),
    [
        pytest.param({"shell": "/bin/sh"}, ("usermod", "--shell", SHELL, "slot-a"), id="shell"),
        pytest.param({"home": "/root"}, ("usermod", "--home", _layout.account_home("a"), "slot-a"), id="home"),
        pytest.param({"gid": 100}, ("usermod", "--gid", "20000", "slot-a"), id="primary group"),
    ],
)
def test_a_field_that_drifted_is_set_back_alone(changed: dict[str, t.Any], command: tuple[str, ...]) -> None:
    (change,) = planned(with_account(converged(Slot("a")), **changed), Slot("a"))
    assert change.command == command


def test_a_slot_is_taken_out_of_every_other_group_and_others_out_of_its_own() -> None:
    found = converged(Slot("a"))
    groups = (
        Group("docker", 998, ("alice", "slot-a")),
        Group("adm", 4, ("slot-a",)),
        Group("slot-a", 20000, ("alice",)),
    )
    commands = [change.command for change in planned(dataclasses.replace(found, groups=groups), Slot("a"))]
    assert commands == [
        ("gpasswd", "--delete", "slot-a", "docker"),
        ("gpasswd", "--delete", "slot-a", "adm"),
        ("gpasswd", "--delete", "alice", "slot-a"),
    ]


@pytest.mark.parametrize(
    ("password", "declared", "before", "after"),
    [
        pytest.param("", None, "no password needed", "locked", id="an empty one"),
        pytest.param(HASH, None, "a password is set", "locked", id="one that is declared no more"),
        pytest.param("!", HASH, "locked", "a password is set", id="one that is declared now"),
        pytest.param(HASH[:-1] + "y", HASH, "a password is set", "a password is set", id="another"),
    ],
)
def test_passwords_are_set_without_being_shown(password: str, declared: str | None, before: str, after: str) -> None:
    found = dataclasses.replace(converged(Slot("a")), passwords={"slot-a": password})
    (change,) = planned(found, Slot("a", console_password_hash=declared))
    assert (change.command, change.step.before, change.step.after) == (None, before, after)
    assert HASH not in repr(change) and (not password or password == "!" or password not in repr(found))


def test_an_03_a_hash_is_on_no_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[tuple[str, ...], str]] = []
    monkeypatch.setattr(_accounts, "run", lambda command, text="": ran.append((tuple(command), text)))
    slot = Slot("a", console_password_hash=HASH)
    found = dataclasses.replace(converged(slot), passwords={"slot-a": "!"})
    _accounts.apply(planned(found, slot), [slot], found.ledger)
    assert ran == [(("chpasswd", "--encrypted"), f"slot-a:{HASH}\n")]


def test_an_account_that_the_ledger_does_not_know_is_left_alone() -> None:
    foreign = Account("slot-a", True, 1001, 1001, "/home/a", SHELL)
    with pytest.raises(Invalid, match=r"account 'slot-a' exists and is not in .*left alone \[.*userdel slot-a\]"):
        planned(Found(accounts=(foreign,)), Slot("a"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        pytest.param(Found(groups=(Group("slot-a", 7, ()),)), "groupdel slot-a", id="its group"),
        pytest.param(Found(subuids=(Range("slot-a", (1, 2)),)), "/etc/subuid has a line for 'slot-a'", id="a range"),
        pytest.param(Found(directories={_layout.state("a"): Owned(7, 7, 0o700)}), "inherits nothing", id="its tree"),
    ],
)
def test_what_stands_in_the_way_of_a_new_slot_is_named_and_left(found: Found, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        planned(found, Slot("a"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"uid": 1234}, "has uid 1234 and the ledger says 20000; a uid in use is never changed", id="uid"),
        pytest.param({"shadowed": False}, "run pwconv", id="password in passwd"),
    ],
)
def test_an_account_that_cannot_be_mended_safely_is_refused(changed: dict[str, t.Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        planned(with_account(converged(Slot("a")), **changed), Slot("a"))


@pytest.mark.parametrize(
    "intruder",
    [
        pytest.param({"accounts": (Account("bob", True, 20000, 7, "/home/bob", SHELL),)}, id="the same uid"),
        pytest.param({"accounts": (Account("bob", True, 7, 20000, "/home/bob", SHELL),)}, id="the same primary group"),
        pytest.param({"groups": (Group("bob", 20000, ()),)}, id="the same gid"),
    ],
)
def test_an_id_that_is_shared_is_refused_with_both_names(intruder: dict[str, t.Any]) -> None:
    found = converged(Slot("a"))
    changed = {key: (*getattr(found, key), *value) for key, value in intruder.items()}
    with pytest.raises(Invalid, match=r"'bob' has the .* 20000 of slot account 'slot-a'"):
        planned(dataclasses.replace(found, **changed), Slot("a"))


@pytest.mark.parametrize(
    "intruder",
    [
        pytest.param({"subuids": (Range("bob", (200_065_535, 200_065_536)),)}, id="the last id"),
        pytest.param({"subgids": (Range("bob", (199_999_000, 200_000_001)),)}, id="the first gid"),
        pytest.param({"subuids": (Range("1007", (100, 1 << 31)),)}, id="a line by number that holds all"),
        pytest.param({"subuids": (Range("bob", (19_000, 21_000)),)}, id="the slot's uid"),
        pytest.param({"accounts": (Account("bob", True, 200_000_005, 7, "/", SHELL),)}, id="an account within"),
        pytest.param({"groups": (Group("bob", 200_000_005, ()),)}, id="a group within"),
    ],
)
def test_rd_02_an_overlap_that_touches_a_slot_is_refused_with_both_names(intruder: dict[str, t.Any]) -> None:
    start = Found(accounts=(ROOT, Account("bob", True, 1007, 1007, "/home/bob", SHELL)), groups=(Group("root", 0, ()),))
    found = converged(Slot("a"), start=start)
    changed = {key: (*(value or ()), *intruder.get(key, ())) for key, value in vars(found).items() if key in intruder}
    with pytest.raises(Invalid, match=r"^subid-overlap: .*'slot-a'.*bob'|^subid-overlap: .*bob.*'slot-a'") as refused:
        planned(dataclasses.replace(found, **changed), Slot("a"))
    assert "never moved" in str(refused.value)


def test_rd_02_an_overlap_between_others_is_none_of_our_business() -> None:
    start = Found(subuids=(Range("alice", (100_000, 165_536)), Range("bob", (100_000, 165_536))), accounts=(ROOT,))
    assert planned(converged(Slot("a"), start=start), Slot("a")) == []


def test_rd_02_a_duplicate_line_of_the_slot_itself_does_no_harm() -> None:
    found = converged(Slot("a"))
    (line,) = found.subuids or ()
    again = dataclasses.replace(found, subuids=(line, line, Range("20000", line.span)))
    assert planned(again, Slot("a")) == []


def test_rd_02_a_range_besides_the_ledgers_is_named_and_not_taken_away() -> None:
    found = converged(Slot("a"))
    more = dataclasses.replace(found, subuids=(*(found.subuids or ()), Range("slot-a", (300_000_000, 300_000_010))))
    with pytest.raises(Invalid, match=r"gives 'slot-a' 300000000-300000009 besides"):
        planned(more, Slot("a"))


def test_rd_02_a_uid_that_a_line_names_by_number_is_not_given_to_a_slot() -> None:
    start = Found(subuids=(Range("20000", (500_000, 565_536)),))
    assert _accounts.with_ids([Slot("a")], start, Pool()).slots["a"].ids.uid == 20001


def test_a_slot_whose_removal_has_begun_is_not_made_anew() -> None:
    found = converged(Slot("a"))
    with pytest.raises(Invalid, match=r"slot 'a' is being removed \[finish it with"):
        planned(dataclasses.replace(found, ledger=found.ledger.leaving("a")), Slot("a"))


def test_rd_11_a_slot_declared_again_after_its_removal_gets_other_ids() -> None:
    old = converged(Slot("a")).ledger
    gone = Found(ledger=old.without("a"))
    new = _accounts.with_ids([Slot("a")], gone, Pool()).slots["a"].ids
    assert new == Ids(20001, 200_065_536, 65536)


def test_a_hundred_slots_are_compared_in_a_fraction_of_a_second(benchmark_seconds: t.Callable[[], float]) -> None:
    slots = [Slot(f"s{number}") for number in range(100)]
    found = converged(*slots)
    assert planned(found, *slots) == []
    assert benchmark_seconds() < 1.0


@pytest.fixture
def benchmark_seconds() -> t.Callable[[], float]:
    """Return a function that says how many seconds of processor time passed since the test began."""
    import time

    start = time.process_time()
    return lambda: time.process_time() - start


def test_files_are_understood_line_by_line() -> None:
    passwd = (
        b"root:x:0:0:root:/root:/bin/bash\n# note\n\n+nis::0:0:::\nbad:x:1\nb\xfcrgel::7:8::/h:/s\nx:x:-1:0::/:/s\n"
    )
    assert _accounts.parse_passwd(passwd) == (
        Account("root", True, 0, 0, "/root", "/bin/bash"),
        Account("b\udcfcrgel", False, 7, 8, "/h", "/s"),
    )
    assert _accounts.parse_group(b"adm:x:4:a,,b\nx:x:y:\n") == (Group("adm", 4, ("a", "b")),)
    assert _accounts.parse_shadow(b"a:!:1::::::\na:second:1::::::\nshort:x\n") == {"a": "!"}
    ranges = b"# by hand\na:100000:65536\n1000:1:1\na:100000:65536\nb:5:0\nc:-5:7\nd:1_0:7\ne: 1:7\nf:1:2:3\n"
    assert _accounts.parse_ranges(ranges) == (
        Range("a", (100_000, 165_536)),
        Range("1000", (1, 2)),
        Range("a", (100_000, 165_536)),
    )


@given(lines.map("\n".join))
def test_no_file_whatever_is_in_it_stops_the_parsers(text: str) -> None:
    data = text.encode("utf-8", "surrogateescape")
    _accounts.parse_passwd(data), _accounts.parse_group(data), _accounts.parse_shadow(data)
    assert all(entry.span[0] < entry.span[1] for entry in _accounts.parse_ranges(data))


claims = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 30), st.integers(1, 9)).map(lambda p: (p[0], p[0] + p[1])), st.just("c"), st.just("")
    ),
    max_size=8,
)


@given(claims, claims)
def test_the_sweep_finds_each_overlap_that_comparing_all_with_all_finds(
    mine: list[_accounts.Holding], others: list[_accounts.Holding]
) -> None:
    expected = sorted((a, b) for a in mine for b in others if a[0][0] < b[0][1] and b[0][0] < a[0][1])
    assert sorted(_accounts._overlaps(mine, others)) == expected


def test_a_tool_that_fails_is_quoted_on_one_line() -> None:
    with pytest.raises(_programs.Failed, match=r"^`sh -c echo no; echo way >&2; exit 3` ended with 3: way$"):
        _programs.run(("sh", "-c", "echo no; echo way >&2; exit 3"))


def test_an_07_tools_run_in_the_plain_locale_whatever_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "tr_TR.UTF-8")
    _programs.run(("sh", "-c", 'test "$LC_ALL" = C.UTF-8 && test -z "$LANG"'))
