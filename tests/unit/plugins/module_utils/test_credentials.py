# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Credential files hold what systemd reads back, and nothing of them is shown."""

from __future__ import annotations

import datetime

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _credentials, _layout, _profiles, _steps
from ansible_collections.confined.slots.plugins.module_utils._credentials import DIRECTORY, FILE, Change, Found
from ansible_collections.confined.slots.plugins.module_utils._declarations import Credential, Invalid, Slot, parse
from ansible_collections.confined.slots.plugins.module_utils._files import Owned
from hypothesis import given
from hypothesis import strategies as st

VALUE = "sk-SECRET$HOME\"'\\`#;%"
SLOT = Slot("a", provider="pi", credential=Credential("API_KEY", VALUE))
PATH = _layout.credential("a", "pi")
HOME = f"{_layout.CREDENTIALS}/a"
DIRECTORIES = {_layout.CREDENTIALS: Found(DIRECTORY), HOME: Found(DIRECTORY)}

values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)


def planned(found: dict[str, Found], *slots: Slot) -> list[Change]:
    return list(_credentials.changes(slots, found))


def as_systemd_reads(line: bytes) -> tuple[str, str]:
    """Return name and value as parse_env_file() of systemd finds them in a line with double quotes."""
    *comments, line = line.splitlines(keepends=True)
    assert comments and all(comment.startswith(b"# ") for comment in comments), "systemd passes over comments"
    name, rest = line.decode("ascii").split("=", 1)
    assert rest[0] == '"' and rest.endswith('"\n')
    value, characters = "", iter(rest[1:-2])
    for character in characters:
        assert character != '"', "an unescaped quote ends the value"
        if character == "\\":
            following = next(characters)
            value += following if following in '"\\`$' else "\\" + following
        else:
            value += character
    return name, value


@given(values)
def test_every_value_that_may_be_declared_is_read_back_by_systemd(value: str) -> None:
    assert as_systemd_reads(_credentials.as_content("API_KEY", value)) == ("API_KEY", value)


@given(st.dates(min_value=datetime.date(1970, 1, 1)).map(datetime.date.isoformat))
def test_the_day_of_its_end_is_no_part_of_the_value(day: str) -> None:
    assert as_systemd_reads(_credentials.as_content("API_KEY", VALUE, day)) == ("API_KEY", VALUE)
    assert day.encode() in _credentials.as_content("API_KEY", VALUE, day)


def test_a_declared_credential_is_written_for_root_alone() -> None:
    changes = planned({_layout.CREDENTIALS: Found(None)}, SLOT)
    assert [(change.step.subject, change.step.action) for change in changes] == [
        (_layout.CREDENTIALS, "keep directory"),
        (HOME, "keep directory"),
        (PATH, "write credential"),
    ]
    assert (str(DIRECTORY), str(FILE)) == ("0:0 0700", "0:0 0600")


def test_a_second_converge_has_nothing_to_do() -> None:
    content = _credentials.as_content("API_KEY", VALUE)
    assert planned({**DIRECTORIES, PATH: Found(FILE, content)}, SLOT) == []


@pytest.mark.parametrize(
    ("have", "action"),
    [
        pytest.param(Found(FILE, b'API_KEY="old"\n'), "replace credential", id="another value"),
        pytest.param(
            Found(Owned(0, 0, 0o644), _credentials.as_content("API_KEY", VALUE)), "mend owner and mode", id="mode"
        ),
    ],
)
def test_a_credential_that_differs_is_written_anew(have: Found, action: str) -> None:
    (change,) = planned({**DIRECTORIES, PATH: have}, SLOT)
    assert (change.step.action, change.content) == (action, _credentials.as_content("API_KEY", VALUE))


def test_files_of_other_providers_and_of_killed_converges_go() -> None:
    content = _credentials.as_content("API_KEY", VALUE)
    found = {
        **DIRECTORIES,
        PATH: Found(FILE, content),
        f"{HOME}/codex.env": Found(FILE, b""),
        f"{HOME}/.pi.env.0a": Found(FILE, b""),
    }
    assert [change.step.subject for change in planned(found, SLOT)] == [f"{HOME}/.pi.env.0a", f"{HOME}/codex.env"]


def test_a_credential_that_is_declared_no_more_goes_with_its_directory() -> None:
    changes = planned({**DIRECTORIES, PATH: Found(FILE, b"x")}, Slot("a", provider="pi"))
    assert [(change.step.subject, change.step.action) for change in changes] == [
        (PATH, "remove credential"),
        (HOME, "remove directory"),
    ]


def test_where_nothing_is_declared_nothing_is_made() -> None:
    assert planned({_layout.CREDENTIALS: Found(None)}, Slot("a")) == []


def test_a_credential_without_a_value_is_refused_by_the_slots_name() -> None:
    with pytest.raises(Invalid, match=r"slot 'a': credential.value is missing \[give it from a vault\]"):
        planned(dict(DIRECTORIES), Slot("a", credential=Credential("API_KEY")))


def test_an_03_no_value_nor_its_length_is_in_what_is_shown() -> None:
    shown = []
    for value in ("SECRET", "SECRET" * 50):
        slot = Slot("a", provider="pi", credential=Credential("API_KEY", value))
        changes = planned({**DIRECTORIES, PATH: Found(FILE, b'API_KEY="OLDSECRET"\n')}, slot)
        shown.append(repr(_steps.as_result([change.step for change in changes])))
        assert "SECRET" not in shown[-1] + repr(changes) + repr(slot)
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    "end", [pytest.param("\n", id="LF"), pytest.param("\r\n", id="CRLF"), pytest.param("", id="none")]
)
def test_cr_05_one_line_break_at_the_end_of_a_token_is_dropped(end: str) -> None:
    (slot,) = parse([{"name": "a", "credential": {"name": "API_KEY", "value": "sk-token" + end}}])
    assert slot.credential is not None and slot.credential.value == "sk-token"


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        pytest.param("sk-SECRET\n\n", 9, id="two LFs"),
        pytest.param("sk-SEC\nRET", 6, id="a break inside"),
        pytest.param("\ufeffsk-SECRET", 0, id="byte-order mark"),
        pytest.param("sk-SECRET ", 9, id="a space at the end"),
        pytest.param("sk-SECRET\0", 9, id="NUL"),
        pytest.param("export X=sk-SECRET", 6, id="a line of shell"),
        pytest.param("x" * 65536 + "\u00e4", 65536, id="64 KiB"),
    ],
)
def test_cr_05_anything_else_is_refused_with_its_offset_and_without_the_token(value: str, offset: int) -> None:
    with pytest.raises(Invalid, match=rf"slot 'a': credential.value has a character at offset {offset} ") as refused:
        parse([{"name": "a", "credential": {"name": "API_KEY", "value": value}}])
    assert "SECRET" not in str(refused.value)


def two(value: str, other: str, provider: str = "pi") -> list[Slot]:
    """Return two slots, each with a credential."""
    credentials = (Credential("API_KEY", value), Credential("API_KEY", other))
    return [Slot(name, provider=provider, credential=each) for name, each in zip("ab", credentials, strict=True)]


def profiles(*, refreshable: bool) -> dict[str, _profiles.Profile]:
    """Return the profile of a CLI that renews its credential, or does not."""
    known = _profiles.KnownCredential("API_KEY", "environment", refreshable=refreshable)
    return {"pi": _profiles.Profile("pi", 1, "", "builtin", "distribution", (), "/bin/pi", credentials=(known,))}


def test_cr_01_a_login_that_is_renewed_belongs_to_one_slot() -> None:
    with pytest.raises(Invalid, match=r"slots 'a' and 'b': credential-shared: .*API_KEY.*\[log each in") as refused:
        _credentials.check_shared(two("sk-SECRET", "sk-SECRET"), profiles(refreshable=True))
    assert "SECRET" not in str(refused.value)
    _credentials.check_shared(two("sk-SECRET", "sk-OTHER"), profiles(refreshable=True))


def test_cr_01_a_token_that_is_not_renewed_may_be_shared() -> None:
    _credentials.check_shared(two("sk-SECRET", "sk-SECRET"), profiles(refreshable=False))
    _credentials.check_shared(two("sk-SECRET", "sk-SECRET", "unheard_of"), profiles(refreshable=True))
    _credentials.check_shared(
        [Slot("a"), Slot("b", provider="pi", credential=Credential("API_KEY"))], profiles(refreshable=True)
    )


@pytest.mark.parametrize(
    "login",
    [
        pytest.param('{"tokens":{"id_token":"x","refresh_token":"sk-SECRET"}}', id="codex"),
        pytest.param('{\n  "claudeAiOauth": {\n "accessToken": "x", "refreshToken": "sk-SECRET"}}\n', id="claude"),
        pytest.param('\ufeff {"refresh_token": "sk-SECRET"}', id="byte-order mark"),
    ],
)
def test_cr_02_a_login_file_cannot_be_a_credential_and_the_ways_that_work_are_named(login: str) -> None:
    with pytest.raises(
        Invalid, match=r"credential-not-seedable: .*\[log in on the host .*token or an API key\]"
    ) as refused:
        parse([{"name": "a", "credential": {"name": "API_KEY", "value": login}}])
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize("value", [pytest.param("", id="nothing"), pytest.param("\n", id="a line break")])
def test_cr_05_an_empty_token_is_refused_as_missing(value: str) -> None:
    with pytest.raises(Invalid, match=r"slot 'a': credential.value is empty"):
        parse([{"name": "a", "credential": {"name": "API_KEY", "value": value}}])
