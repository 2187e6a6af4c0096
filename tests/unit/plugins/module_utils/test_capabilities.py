# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Capabilities: a site's own, those of profiles, and what is chosen of them."""

from __future__ import annotations

import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _capabilities, _policy, _profiles
from ansible_collections.confined.slots.plugins.module_utils._declarations import ExtraBind, Invalid

from .test_policy import compiled
from .test_profiles import FULL

SITE: dict[str, t.Any] = {
    "use_git_identity": {
        "words": "Use Git identity",
        "why": "Commits bear the team's name.",
        "variables": {"GIT_AUTHOR_NAME": "Robot", "GIT_AUTHOR_EMAIL": "robot@example.org"},
    },
    "export_reports": {
        "words": "Export reports to Downloads",
        "why": "People read them there.",
        "binds": [
            {"source": "/srv/downloads", "mode": "rw", "reason": "reports land here"},
            {"source": "/srv/a b", "target": "/srv/c", "reason": "a template"},
        ],
        "hosts": ["reports.example.org:443"],
    },
}
PROFILE = _profiles.parse([FULL])["fake"]


def site(**changes: t.Any) -> dict[str, _capabilities.Capability]:
    """Return the site's capabilities, one of them changed."""
    return _capabilities.parse({**SITE, "changed": {"words": "Do it", "why": "for tests", **changes}})


def test_a_site_maps_words_to_paths_variables_and_hosts() -> None:
    parsed = _capabilities.parse(SITE)
    assert parsed["use_git_identity"].variables == (
        ("GIT_AUTHOR_EMAIL", "robot@example.org"),
        ("GIT_AUTHOR_NAME", "Robot"),
    )
    assert parsed["export_reports"].binds == (
        ExtraBind("/srv/downloads", "/srv/downloads", "rw", "reports land here"),
        ExtraBind("/srv/a b", "/srv/c", "ro", "a template"),
    )
    assert parsed["export_reports"].hosts == ("reports.example.org:443",)


def test_a_slot_can_be_allowed_what_its_profile_and_its_site_name() -> None:
    known = _capabilities.merge(_capabilities.parse(SITE), PROFILE)
    assert set(known) == {"use_fake", "use_fake_login", "use_git_identity", "export_reports"}
    keys = ["use_git_identity", "use_fake", "use_fake"]
    assert [each.words for each in _capabilities.chosen(keys, known, "slot 'a'")] == ["Use it", "Use Git identity"]


def test_an_unknown_capability_is_refused_with_those_there_are() -> None:
    known = _capabilities.merge({}, PROFILE)
    with pytest.raises(Invalid, match="slot 'a': capabilities has 'other'; it can have use_fake, use_fake_login"):
        _capabilities.chosen(["use_fake", "other"], known, "slot 'a'")


def test_a_site_cannot_give_other_meaning_to_the_words_of_a_profile() -> None:
    with pytest.raises(Invalid, match="'use_fake' is one of the profile 'fake' too"):
        _capabilities.merge(_capabilities.parse({"use_fake": SITE["export_reports"]}), PROFILE)


def test_two_that_set_a_variable_differently_cannot_both_be_chosen() -> None:
    known = site(variables={"GIT_AUTHOR_NAME": "Other"})
    with pytest.raises(Invalid, match="changed and use_git_identity set GIT_AUTHOR_NAME differently"):
        _capabilities.chosen(["use_git_identity", "changed"], known, "slot 'a'")
    known = site(variables={"GIT_AUTHOR_NAME": "Robot"})
    assert len(_capabilities.chosen(["use_git_identity", "changed"], known, "slot 'a'")) == 2


def test_a_variable_that_the_profile_denies_is_refused() -> None:
    with pytest.raises(Invalid, match="capability 'changed' has IS_SANDBOX, which is denied"):
        _capabilities.merge(site(variables={"IS_SANDBOX": "1"}), PROFILE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"words": ""}, "changed.words is ''", id="no words"),
        pytest.param({"why": None}, "changed.why is None", id="no why"),
        pytest.param({"state": [".ssh"]}, "changed has 'state'; it can have binds, ", id="state is a profile's"),
        pytest.param({"binds": [{"source": "/srv/x"}]}, "binds[0] has no reason", id="no reason"),
        pytest.param({"binds": [{"source": "/srv/../x", "reason": "x"}]}, "source is '/srv/../x'", id="a way out"),
        pytest.param({"binds": [{"source": "srv", "reason": "x"}]}, "source is 'srv'", id="relative"),
        pytest.param({"binds": [{"source": "/x", "reason": "x", "mode": "rwx"}]}, "mode is 'rwx'", id="mode"),
        pytest.param({"variables": {"A": "x\0"}}, "variables.A is", id="NUL"),
        pytest.param({"variables": {"LD_PRELOAD": "x"}}, "LD_PRELOAD, which is denied", id="denied"),
        pytest.param({"variables": {"PATH": "/srv/bin"}}, "PATH, which each session gets", id="the compiler's"),
        pytest.param({"hosts": ["*"]}, "hosts[0] is '*'", id="all hosts"),
    ],
)
def test_what_cannot_be_is_refused_by_its_value(changes: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        site(**changes)
    assert said in str(caught.value) and str(caught.value).endswith("]")


def test_capabilities_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(Invalid, match=r"the site's capabilities is \[\]; it must be a mapping"):
        _capabilities.parse(t.cast(t.Any, []))


def test_nobody_sets_what_the_compiler_sets() -> None:
    names = {name for name, _unused in compiled().environment}
    assert names == {*_capabilities.OWN, "LANG"}
    assert not set(_capabilities.DENIED) & {*names, *_policy.PASSED}
