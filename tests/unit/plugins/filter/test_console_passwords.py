# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Console passwords become hashes that a second converge makes again."""

from __future__ import annotations

import sys
import typing as t

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.confined.slots.plugins.filter import console_passwords as console
from ansible_collections.confined.slots.plugins.module_utils._declarations import parse
from passlib.hash import sha512_crypt


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the fewest rounds that there can be: the number matters to a thief, not to these tests."""
    monkeypatch.setattr(console, "ROUNDS", 1000)


def test_a_password_becomes_a_hash_that_matches_it_and_that_a_declaration_takes() -> None:
    slots = console.console_passwords([{"name": "a", "console_password": "pässword"}, {"name": "b"}], "host")
    assert slots[1] == {"name": "b"} and set(slots[0]) == {"name", "console_password_hash"}
    assert sha512_crypt.verify("pässword", slots[0]["console_password_hash"])
    assert parse(slots)[0].console_password_hash == slots[0]["console_password_hash"]


def test_the_rounds_are_those_that_are_documented() -> None:
    assert "656000" in console.DOCUMENTATION


def test_the_same_slot_gets_the_same_hash_again() -> None:
    slots = [{"name": "a", "console_password": "x"}]
    assert console.console_passwords(slots, "host") == console.console_passwords(slots, "host")


def test_hosts_slots_and_passwords_make_different_hashes_and_no_password_makes_a_salt() -> None:
    hashes = [
        console.console_passwords([{"name": name, "console_password": password}], host)[0]["console_password_hash"]
        for name, password, host in [("a", "x", "h"), ("b", "x", "h"), ("a", "x", "i"), ("a", "y", "h")]
    ]
    assert len(set(hashes)) == 4
    assert hashes[0].split("$")[3] == hashes[3].split("$")[3] == console.salt("h", "a")
    assert console.salt("ha", "b") != console.salt("h", "ab")


@pytest.mark.parametrize("password", ["", 1234, "two\nlines", "nul\0", ["x"]])
def test_what_cannot_be_a_password_is_refused_without_showing_it(password: t.Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"slot 'a': console_password can be text on one line") as refused:
        console.console_passwords([{"name": "a", "console_password": password}], "host")
    assert "1234" not in str(refused.value) and "lines" not in str(refused.value)


def test_a_password_and_a_hash_together_are_refused() -> None:
    with pytest.raises(AnsibleFilterError, match=r"slot 'a' has both"):
        console.console_passwords([{"name": "a", "console_password": "x", "console_password_hash": "y"}], "host")


def test_an_06_without_passlib_slots_without_passwords_still_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "passlib.hash", None)
    assert console.console_passwords([{"name": "a"}], "host") == [{"name": "a"}]
    with pytest.raises(AnsibleFilterError, match=r"passlib, which hashes it, is not installed .*\[pip install passlib"):
        console.console_passwords([{"name": "a", "console_password": "x"}], "host")


def test_the_filter_is_found_by_its_name() -> None:
    assert console.FilterModule().filters() == {"console_passwords": console.console_passwords}
