# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""PL-09: what a session without a person logs in with lasts until its end, or the session is refused."""

from __future__ import annotations

import json
import os
import pathlib
import types
import typing as t

import pytest
from confined_slots._refusals import Refusal
from hypothesis import given
from hypothesis import strategies as st
from slotctl import checks, expiry

HOME = "/inside/home"
NOON = 1_796_040_000.0  # 2026-11-30T12:00:00Z
KNOWN = {"file": ".cli/login.json", "at": ["oauth", "ends"], "unit": "milliseconds", "renewed_by": ["oauth", "refresh"]}


@pytest.fixture
def login(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the place of a login file; looked at without another account's child."""

    def as_slot(_uid: int, _gid: int, work: t.Callable[[], bytes], most: int) -> bytes:
        try:
            return work()[:most]
        except (ValueError, RecursionError, OverflowError):  # the child's end is all that its parent would see
            return b""

    monkeypatch.setattr(expiry, "as_slot", as_slot)
    monkeypatch.setattr(checks, "credential_file", lambda _slot: None)
    (tmp_path / ".cli").mkdir()
    return tmp_path / ".cli/login.json"


def slot(home: pathlib.Path, **provider: t.Any) -> t.Any:
    """Return a slot whose HOME is that."""
    policy = {
        "environment": {"set": {"HOME": HOME}},
        "mounts": [{"kind": "bind", "source": str(home), "target": HOME, "reason": "home"}],
        "provider": {"login_expiry": KNOWN, **provider},
    }
    return types.SimpleNamespace(name="coder", uid=0, gid=0, policy=policy, records=[])


def test_a_login_that_ends_before_the_session_does_is_refused(login: pathlib.Path) -> None:
    login.write_text(json.dumps({"oauth": {"ends": NOON * 1000}}))
    of = slot(login.parents[1])
    assert expiry.check(of, NOON - 1) == "the login ends 2026-11-30T12:00:00Z"
    with pytest.raises(Refusal, match=r"credential-expiring: the login ends .* needed until .*slotctl login coder"):
        expiry.check(of, NOON)


def test_a_login_that_renews_itself_has_no_end(login: pathlib.Path) -> None:
    login.write_text(json.dumps({"oauth": {"ends": 1000, "refresh": "token"}}))
    assert expiry.check(slot(login.parents[1]), NOON) == "no end is known"
    login.write_text(json.dumps({"oauth": {"ends": 1000, "refresh": ""}}))
    with pytest.raises(Refusal, match="credential-expiring"):
        expiry.check(slot(login.parents[1]), NOON)


def test_a_profile_without_a_word_on_it_and_a_home_that_does_not_stay_say_nothing(login: pathlib.Path) -> None:
    login.write_text(json.dumps({"oauth": {"ends": 1000}}))
    assert expiry.login_end(slot(login.parents[1], login_expiry=None)) is None
    gone = slot(login.parents[1])
    gone.policy["mounts"] = []
    assert expiry.login_end(gone) is None


@given(
    st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9), st.lists, max_leaves=4)
)
def test_whatever_a_login_file_says_is_a_time_or_nothing(value: t.Any) -> None:
    found = {"oauth": {"ends": value}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expiry, "as_slot", lambda _uid, _gid, work, most: _worked(work)[:most])
        patch.setattr(expiry, "place", lambda _policy, _path: "/login")
        patch.setattr(expiry.kept, "read", lambda _path: json.dumps(found).encode())
        end = expiry.login_end(slot(pathlib.Path("/")))
    assert end is None or 0 < end < expiry.LATEST


def _worked(work: t.Callable[[], bytes]) -> bytes:
    try:
        return work()
    except (ValueError, OverflowError):
        return b""


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b"null", b'{"oauth": 1}', b"[" * 9999, b"x" * (1 << 19)]
)
def test_a_file_that_is_no_login_says_nothing(login: pathlib.Path, content: bytes) -> None:
    login.write_bytes(content)
    assert expiry.login_end(slot(login.parents[1])) is None


def test_no_link_is_followed_to_a_login(login: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps({"oauth": {"ends": 1000}}))
    os.symlink(tmp_path / "elsewhere", login)
    assert expiry.login_end(slot(tmp_path)) is None


def test_a_declared_day_ends_with_its_beginning_and_comes_before_any_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "credential_end", lambda _slot: "2026-11-30")
    monkeypatch.setattr(expiry, "login_end", lambda _slot: None)
    of = slot(pathlib.Path("/"))
    assert expiry.check(of, NOON - 43201) == "the credential ends 2026-11-30T00:00:00Z"
    with pytest.raises(Refusal, match=r"credential-expiring: the credential ends .*declare a new credential"):
        expiry.check(of, NOON - 43200)
    monkeypatch.setattr(checks, "credential_end", lambda _slot: "no day")
    with pytest.raises(Refusal, match="credential-expiring"):
        expiry.check(of, NOON)
