# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A certified profile is the one that its evidence is about, and the evidence says what it must."""

from __future__ import annotations

import copy
import json
import pathlib
import typing as t

import pytest
import yaml
from checks import ATTACKS, MODES, WORK, checks_of
from evidence import NotGreen, digest, evidence

PROFILES = pathlib.Path(__file__).resolve().parents[2] / "profiles"
ALL = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(PROFILES.glob("*.yml"))}
CERTIFIED = [name for name, profile in ALL.items() if profile["certification"]["status"] == "certified"]

Json = dict[str, t.Any]


def kept(name: str) -> Json:
    """Return a profile's evidence."""
    text = (PROFILES / ALL[name]["certification"]["evidence"]).read_text(encoding="utf-8")
    found: Json = json.loads(text)
    return found


def found(provider: str) -> list[Json]:
    """Return what a green run finds on a host."""
    checks = checks_of(provider, scoped=True)
    runs = {
        mode: {
            "first": {"finished": True, "status": 0, "credentials": [{}]},
            "left": ["1"] if mode == "unconfined" else [],
            "again": {"finished": True, "prior_results": 1},
            "outcomes": {check.id: "yes" if mode in check.works else "no" for check in checks},
        }
        for mode in MODES
    }
    identity = {"profile_version": ALL[provider]["profile_version"]}
    host = {"distribution": "debian 13", "landlock_scope": True}
    return [{"host": host, "providers": {provider: {"identity": identity, "modes": runs}}}]


def test_the_three_clis_that_the_endpoint_speaks_to_are_certified_and_no_other() -> None:
    assert CERTIFIED == ["claude_code", "codex", "pi"]


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_certified_profile_is_the_one_that_its_evidence_is_about(name: str) -> None:
    about, profile = kept(name), ALL[name]
    told = profile["certification"]
    assert told["evidence"] == f"evidence/{name}-{profile['profile_version']}.json"
    assert (about["provider"], about["profile_version"]) == (name, profile["profile_version"])
    assert (about["cli_version"], about["executable"]) == (told["cli_version"], told["sha256"])
    assert about["profile"] == digest(profile), "it has changed since [make certify]"
    known = {check.id for check in checks_of(name, scoped=True)}
    assert set(about["checks"]) == known, "the checks have changed [make certify]"


@pytest.mark.parametrize("name", CERTIFIED)
def test_what_a_strict_mode_lets_the_model_reach_is_explained_and_all_else_is_refused(name: str) -> None:
    about = kept(name)
    attacks = set(about["checks"]) - {check.id for check in WORK}
    for host in about["hosts"]:
        for mode in ("isolated", "verified"):
            told = host["modes"][mode]
            assert {check.id for check in WORK} <= set(told["did"])
            assert all(about["checks"][check].get("note") for check in attacks & set(told["did"]))
            assert told["conversation_went_on"] and told["logged_in"] and not told["processes_left"]
        assert len(set(host["modes"]["unconfined"]["did"]) & attacks) > len(ATTACKS) / 2


def test_each_check_has_an_id_of_its_own() -> None:
    for name in CERTIFIED:
        ids = [check.id for check in checks_of(name, scoped=False)]
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize("key", ["managed", "environment", "arguments", "install"])
def test_a_profile_that_runs_its_cli_otherwise_has_another_digest(key: str) -> None:
    assert digest({**ALL["codex"], key: "other"}) != digest(ALL["codex"])


def test_a_green_run_gives_evidence() -> None:
    told = evidence(ALL["pi"], found("pi"))["hosts"][0]["modes"]
    assert "unlisted-file" in told["isolated"]["did_not"] and "unlisted-file" in told["unconfined"]["did"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param(["isolated", "outcomes", "unlisted-file"], "yes", id="an attack that worked"),
        pytest.param(["unconfined", "outcomes", "unlisted-file"], "no", id="one that cannot fail"),
        pytest.param(["verified", "outcomes", "build"], "no", id="work that failed"),
        pytest.param(["verified", "outcomes", "build"], None, id="a check without an answer"),
        pytest.param(["isolated", "left"], ["1"], id="a process left behind"),
        pytest.param(["isolated", "again", "prior_results"], 0, id="a conversation begun anew"),
        pytest.param(["compatibility", "first", "finished"], False, id="a run that broke off"),
        pytest.param(["compatibility", "first", "credentials"], [], id="no login"),
    ],
)
def test_whatever_is_not_as_expected_gives_none(path: list[str], value: t.Any) -> None:
    runs = copy.deepcopy(found("pi"))
    place = runs[0]["providers"]["pi"]["modes"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(NotGreen, match=path[0]):
        evidence(ALL["pi"], runs)


def test_hosts_that_ran_different_clis_give_none() -> None:
    runs = [*found("pi"), *found("pi")]
    runs[1]["providers"]["pi"]["identity"]["cli_version"] = "9.9.9"
    with pytest.raises(NotGreen, match="same CLI"):
        evidence(ALL["pi"], runs)
