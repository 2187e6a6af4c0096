# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup of provider profiles."""

from __future__ import annotations

import pathlib

import pytest
from ansible.errors import AnsibleLookupError
from ansible_collections.confined.slots.plugins.lookup import profiles as lookup

SITE = """\
name: mine
profile_version: 1
summary: the site's own
install: {kind: npm, packages: [{name: mine, version: 1.0.0}]}
executable: bin/mine
reasons: {tree: the program}
"""


class Lookup(lookup.LookupModule):
    """The lookup with its one option set, which Ansible would read out of its documentation."""

    def __init__(self, site: str) -> None:
        self._site = site

    def set_options(self, **_options: object) -> None:
        """Leave the option as it is."""

    def get_option(self, option: str, hostvars: object = None) -> str:
        """Return the option."""
        assert option == "site"
        return self._site


def look(*terms: str, site: str = "") -> dict[str, str]:
    """Return the summaries of the profiles that the lookup gives, by name."""
    (profiles,) = Lookup(site).run(list(terms))
    return {profile["name"]: profile["summary"] for profile in profiles}


def test_all_profiles_of_the_collection_are_given() -> None:
    assert list(look()) == ["claude_code", "codex", "cursor", "pi", "shell"]
    assert list(look("shell")) == ["shell"]


def test_a_site_adds_profiles_and_replaces_those_of_a_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.yml").write_text(SITE)
    (tmp_path / "codex.yml").write_text(SITE.replace("name: mine\n", "name: codex\n"))
    (tmp_path / "notes.txt").write_text("no profile")
    found = look(site=str(tmp_path))
    assert list(found) == ["claude_code", "codex", "cursor", "mine", "pi", "shell"]
    assert found["codex"] == "the site's own"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        pytest.param(
            "mine.yml", SITE + "surprise: 1\n", "mine.yml: profile 'mine' has 'surprise'", id="an unknown key"
        ),
        pytest.param("other.yml", SITE, "name the file mine.yml", id="another's name"),
        pytest.param("mine.yml", "a: [", "is not YAML", id="no YAML"),
        pytest.param("mine.yml", "", "must be a mapping", id="empty"),
        pytest.param("mine.yml", "- a\n", "must be a mapping", id="a list"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_with_its_file(
    tmp_path: pathlib.Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AnsibleLookupError) as caught:
        look(site=str(tmp_path))
    assert said in str(caught.value)


def test_a_missing_directory_and_an_unknown_provider_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(AnsibleLookupError, match="No such file"):
        look(site=str(tmp_path / "missing"))
    with pytest.raises(AnsibleLookupError, match="it can be claude_code, codex, cursor, pi, shell"):
        look("claude")
