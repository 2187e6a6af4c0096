# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""CR-05, PL-09: a credential file, an approval or whatever else is missing is named before a session starts."""

from __future__ import annotations

import os
import pathlib
import typing as t

import pytest
from confined_slots import _layout
from confined_slots._credentials import as_content
from confined_slots._refusals import Refusal
from slotctl import checks, preflight, slots
from slotctl.words import started

from .test_slots import POLICY

RECORDS: list[tuple[str, ...]] = [("ids", "1", "1"), ("fingerprint", "sha256:0")]


def slot(*records: tuple[str, ...], **changed: t.Any) -> slots.Slot:
    """Return a slot with these records in its plan."""
    return slots.Slot("a", "/plan", [*RECORDS, *records], {**POLICY, **changed})


KEY = slot(("credential", "KEY", ""))
GOOD = as_content("KEY", "sk-SECRET")


@pytest.fixture
def path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return the place of the slot's credential, where there is a good one."""
    if os.geteuid() != 0:
        pytest.skip("root is missing: files of root's cannot be made")
    monkeypatch.setattr(_layout, "CREDENTIALS", str(tmp_path))
    (tmp_path / "a").mkdir()
    path = tmp_path / "a/shell.env"
    path.write_bytes(GOOD)
    path.chmod(0o600)
    return path


def refused(code: str, look: t.Callable[[slots.Slot], str] = checks.credential, of: slots.Slot = KEY) -> str:
    """Return what is refused with this code."""
    with pytest.raises(Refusal) as caught:
        look(of)
    assert caught.value.code == code
    assert "SECRET" not in str(caught.value) + caught.value.as_json()
    return caught.value.what


def test_a_good_credential_passes_and_none_is_looked_for_where_none_is_declared(path: pathlib.Path) -> None:
    assert checks.credential(KEY) == str(path)
    path.unlink()
    assert checks.credential(slot()) == "none declared"


def test_every_changed_byte_of_a_credential_is_noticed(path: pathlib.Path) -> None:
    for position in range(len(GOOD)):
        path.write_bytes(GOOD[:position] + bytes([GOOD[position] ^ 1]) + GOOD[position + 1 :])
        refused("credential-malformed")


def test_the_day_on_which_a_credential_ends_is_read_and_vouched_for(path: pathlib.Path) -> None:
    assert checks.credential_end(KEY) == ""
    content = as_content("KEY", "sk-SECRET", "2027-03-31")
    path.write_bytes(content)
    assert (checks.credential(KEY), checks.credential_end(KEY)) == (str(path), "2027-03-31")
    path.write_bytes(content.replace(b"2027", b"2037"))
    refused("credential-malformed")
    assert checks.credential_end(slot()) == ""


def test_a_credential_that_nothing_vouches_for_is_refused(path: pathlib.Path) -> None:
    path.write_bytes(b'KEY="sk-SECRET"\n')
    assert "has not the bytes that were declared" in refused("credential-malformed")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(b"", "credential-missing", id="empty"),
        pytest.param(b'KEY="sk-SECRET"', "credential-malformed", id="no-LF"),
        pytest.param(b'KEY="sk-SECRET"\n\n', "credential-malformed", id="two-LFs"),
        pytest.param(b'KEY="sk-SEC\nRET"\n', "credential-malformed", id="inner-break"),
        pytest.param(b'\xef\xbb\xbfKEY="sk-SECRET"\n', "credential-malformed", id="BOM"),
        pytest.param(b'export KEY="sk-SECRET"\n', "credential-malformed", id="export"),
        pytest.param(b'KEY="sk-SECRET"\nOTHER_KEY="sk-SECRET"\n', "credential-malformed", id="second-variable"),
        pytest.param(b'OTHER_KEY="sk-SECRET"\n', "credential-malformed", id="another-variable"),
        pytest.param(b'KEY_TOO="sk-SECRET"\n', "credential-malformed", id="longer-name"),
        pytest.param(b"sk-SECRET\n", "credential-malformed", id="no-name"),
        pytest.param(b"\0" * 64, "credential-malformed", id="NULs"),
        pytest.param(b'KEY="' + b"x" * (1 << 17) + b'"\n', "credential-malformed", id="128-KiB"),
    ],
)
def test_cr_05_anything_else_than_one_line_with_the_name_is_refused(
    path: pathlib.Path, content: bytes, code: str
) -> None:
    path.write_bytes(content)
    assert str(path) in refused(code)


def test_cr_05_a_second_variable_is_refused_by_its_name(path: pathlib.Path) -> None:
    path.write_bytes(b'KEY="sk-SECRET"\nANTHROPIC_API_KEY="sk-SECRET"\n')
    assert "that sets KEY; it has 2 and sets ANTHROPIC_API_KEY, KEY" in refused("credential-malformed")


@pytest.mark.parametrize("byte", [b"\0", b"\r", b" ", b"\x7f", b"\xff", "\u00e4".encode()], ids=repr)
def test_cr_05_a_byte_that_no_token_has_is_refused_by_its_offset(path: pathlib.Path, byte: bytes) -> None:
    path.write_bytes(b'KEY="sk-SEC' + byte + b'RET"\n')
    assert refused("credential-malformed") == f"{path} has a byte at offset 11 that is no printable ASCII"


@pytest.mark.parametrize(
    "piece", ["RET", "SECRET==", 'SECRET="', "SECRET_A=", "s=ecret", "=SECRET", "\x1b[31mSECRET=x"]
)
def test_cr_05_no_piece_of_a_wrapped_token_is_taken_for_a_name(path: pathlib.Path, piece: str) -> None:
    path.write_bytes(b'KEY="sk-SEC\n' + piece.encode() + b"\n")
    assert refused("credential-malformed").endswith("and sets KEY")


@pytest.mark.parametrize("how", ["mode", "group", "owner", "link", "pipe", "directory", "gone", "setuid"])
def test_a_credential_that_others_could_have_put_there_is_none(path: pathlib.Path, how: str) -> None:
    if how in ("mode", "group", "setuid"):
        path.chmod({"mode": 0o644, "group": 0o660, "setuid": 0o4600}[how])
    elif how == "owner":
        os.chown(path, 64000, 0)
    else:
        path.rename(path.with_name("real"))
        if how == "link":
            path.symlink_to("real")
        elif how == "pipe":
            os.mkfifo(path, 0o600)
        elif how == "directory":
            path.mkdir(0o600)
    assert str(path) in refused("credential-missing")


def test_an_approval_is_asked_for_only_where_the_plan_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks._approvals, "read", lambda name: None)
    assert checks.approval(slot()) == "none needed"
    assert "nobody has approved" in refused("approval-missing", checks.approval, slot(("approved", "sha256:0")))


def test_pl_09_everything_that_is_missing_is_in_one_message() -> None:
    checked = [
        {"check": "approval", "refusal": "approval-missing", "what": "nobody"},
        {"check": "release", "refusal": "", "what": "fine"},
        {"check": "credential", "refusal": "credential-missing", "what": "empty"},
    ]
    found = preflight.missing({"slot": "a", "checks": checked})
    assert found is not None and found.code == "approval-missing"
    assert found.what == "preflight failed: approval-missing: nobody; credential-missing: empty"
    assert preflight.missing({"slot": "a", "checks": checked[1:2]}) is None


def test_cr_08_a_file_system_with_little_room_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    assert preflight._space(str(tmp_path)).endswith("MiB free")
    monkeypatch.setattr(preflight, "FREE_BYTES", 1 << 62)
    assert "has room for" in refused("space-low", lambda _slot: preflight._space(str(tmp_path)))


def test_a_cli_that_cannot_run_without_a_person_is_said_before_it_is_scheduled() -> None:
    def headless(of: slots.Slot) -> str:
        return preflight._headless(of, started("", []))

    assert headless(slot())
    provider = {key: word for key, word in POLICY["provider"].items() if key != "headless"}
    assert "has no command line to run without a person" in refused("policy-invalid", headless, slot(provider=provider))
