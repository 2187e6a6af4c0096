# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks that need no secret are given none."""

from __future__ import annotations

import typing as t

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.confined.slots.plugins.filter import without_secrets as filters
from ansible_collections.confined.slots.plugins.filter.without_secrets import without_secrets

SLOT = {
    "name": "a",
    "workspaces": ["main"],
    "console_password": "SECRET1",
    "console_password_hash": "SECRET2",
    "credential": {"name": "API_KEY", "value": "SECRET3"},
}


def test_no_secret_is_left_and_the_credentials_name_is() -> None:
    assert without_secrets([SLOT]) == [{"name": "a", "workspaces": ["main"], "credential": {"name": "API_KEY"}}]


@pytest.mark.parametrize(("keep", "left"), [("credential", "SECRET3"), ("console_password_hash", "SECRET2")])
def test_only_the_secret_that_is_asked_for_is_kept(keep: str, left: str) -> None:
    text = repr(without_secrets([SLOT], keep=keep))
    assert left in text and text.count("SECRET") == 1


def test_the_declaration_itself_is_not_changed() -> None:
    before = repr(SLOT)
    without_secrets([SLOT])
    assert repr(SLOT) == before


@pytest.mark.parametrize("slots", [[], ["x"], [{"name": "a", "credential": None}], [{}]])
def test_what_is_no_slot_is_left_to_the_module(slots: list[t.Any]) -> None:
    assert without_secrets(slots) == slots


def test_the_day_of_an_approval_is_a_word_again_that_yaml_takes_for_a_truth_and_a_date() -> None:
    approval = yaml.safe_load("{by: alice, on: 2026-11-29, fingerprint: 'sha256:0'}")
    assert True in approval
    assert without_secrets([{"name": "a", "approval": approval}])[0]["approval"] == {
        "by": "alice",
        "on": "2026-11-29",
        "fingerprint": "sha256:0",
    }


def test_a_secret_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="keep is 'console_password'; it can be credential or"):
        without_secrets([SLOT], keep="console_password")


def test_the_filter_is_found_by_its_name() -> None:
    assert filters.FilterModule().filters() == {"without_secrets": without_secrets}
