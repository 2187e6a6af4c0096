# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provider profiles: what they may say, and what is refused with the value and the cure."""

from __future__ import annotations

import pathlib
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _profiles
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid

OWN = pathlib.Path(_profiles.__file__).parents[2] / "profiles"
FAKE: dict[str, t.Any] = {
    "name": "fake",
    "profile_version": 1,
    "summary": "A CLI for tests",
    "install": {"kind": "npm", "packages": [{"name": "@scope/fake-{npm}", "version": "1.2.3"}]},
    "executable": "node_modules/fake-{machine}/bin/fake",
    "reasons": {"tree": "the program"},
}


def fake(**changes: t.Any) -> _profiles.Profile:
    """Return the profile of a fake CLI with changes."""
    return _profiles.parse([{**FAKE, **changes}])["fake"]


@pytest.mark.parametrize("path", sorted(OWN.glob("*.yml")), ids=lambda path: path.stem)
def test_a_profile_of_the_collection_is_valid_and_named_as_its_file(path: pathlib.Path) -> None:
    profile = _profiles.parse([yaml.safe_load(path.read_text())])[path.stem]
    for machine in _profiles.MACHINES:
        text = repr(profile.of_machine(machine))
        assert "{npm}" not in text and "{machine}" not in text


def test_the_collection_has_the_shell_pi_and_codex() -> None:
    assert {path.stem for path in OWN.glob("*.yml")} >= {"shell", "pi", "codex"}


def test_paths_and_packages_are_those_of_the_hosts_machine() -> None:
    profile = fake().of_machine("aarch64")
    assert profile.packages == (("@scope/fake-arm64", "1.2.3"),)
    assert profile.executable == "node_modules/fake-aarch64/bin/fake"
    assert fake().version == "1.2.3"


def test_a_machine_without_a_build_is_refused() -> None:
    with pytest.raises(Invalid, match="no build for riscv64"):
        fake().of_machine("riscv64")
    plain = fake(executable="bin/fake", install={"kind": "npm", "packages": [{"name": "fake", "version": "1.0.0"}]})
    assert plain.of_machine("riscv64") == plain


def test_a_later_profile_of_a_name_takes_the_place_of_an_earlier() -> None:
    profiles = _profiles.parse([FAKE, {**FAKE, "summary": "the site's own"}])
    assert profiles["fake"].summary == "the site's own"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"name": "Fake"}, "name is 'Fake'", id="name"),
        pytest.param({"name": "../x"}, "name is", id="name with a way out"),
        pytest.param({"profile_version": 0}, "profile_version is 0", id="number"),
        pytest.param({"profile_version": True}, "profile_version is True", id="a word for a number"),
        pytest.param({"summary": "two\nlines"}, "summary is", id="two lines"),
        pytest.param({"surprise": 1}, "has 'surprise'", id="an unknown key"),
        pytest.param({"install": None}, "install.kind is None", id="no install"),
        pytest.param({"install": {"kind": "curl"}}, "install.kind is 'curl'", id="kind"),
        pytest.param({"install": {"kind": "npm", "packages": []}}, "must list packages", id="no packages"),
        pytest.param({"executable": "/bin/sh"}, "plain relative path", id="absolute"),
        pytest.param({"executable": "a/../../sh"}, "plain relative path", id="a way out"),
        pytest.param({"executable": ""}, "executable is ''", id="empty"),
        pytest.param({"interpreter": "../node"}, "interpreter is '../node'", id="interpreter"),
        pytest.param({"identity": "distribution"}, "identity is 'distribution'", id="identity"),
        pytest.param({"state": ["/etc"]}, "state is '/etc'", id="state"),
        pytest.param({"environment": {"lower": "x"}}, "environment is 'lower'", id="variable"),
        pytest.param({"environment": {"A": 1}}, "environment.A is 1", id="a number for a text"),
        pytest.param({"environment": {"A": "x\ny"}}, "environment.A is", id="a line break in a value"),
        pytest.param({"passed": ["LD PRELOAD"]}, "passed is 'LD PRELOAD'", id="passed"),
        pytest.param({"network": ["example.org"]}, "network is 'example.org'", id="no port"),
        pytest.param({"arguments": "-c"}, "arguments is '-c'", id="a text for a list"),
        pytest.param({"reasons": {}}, "reasons must say", id="no reason"),
        pytest.param({"reasons": {"tree": ""}}, "reasons.tree is ''", id="an empty reason"),
    ],
)
def test_a_profile_that_cannot_be_is_refused_by_its_value(changes: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        fake(**changes)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "version",
    [
        "^1.0",
        "~1.2.3",
        "latest",
        "1.x",
        "*",
        "",
        ">=1.0.0",
        "1.0.0 || 2",
        "1",
        "v1.0.0",
        "1.0.0/../..",
        1.0,
        None,
        "1.0.0\n",
    ],
)
def test_anything_but_an_exact_version_is_refused(version: object) -> None:
    with pytest.raises(Invalid, match="one exact version"):
        _profiles.exact_version(version, "version")


@pytest.mark.parametrize("version", ["1.2.3", "0.171.0", "1.0.0-beta.1", "2026.01.28-fd13201", "1.2"])
def test_an_exact_version_is_taken(version: str) -> None:
    assert _profiles.exact_version(version, "version") == version


@pytest.mark.parametrize("name", ["--registry=x", "../x", "http://x", "a b", "@a", "a@1.0", "git+ssh", "", "A", "a/b"])
def test_what_npm_could_take_for_something_else_is_no_package(name: str) -> None:
    with pytest.raises(Invalid, match="npm package's name"):
        _profiles.package_name(name, "name")


def test_an_unknown_provider_is_refused_with_those_there_are() -> None:
    with pytest.raises(Invalid, match="it can be fake"):
        _profiles.named("other", _profiles.parse([FAKE]), "slot 'a': provider")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@hypothesis.given(
    st.sampled_from([*FAKE, "interpreter", "arguments", "state", "environment", "passed", "path"]), json_values
)
def test_any_value_is_taken_or_refused_and_nothing_else_happens(key: str, value: object) -> None:
    try:
        _profiles.parse([{**FAKE, key: value}])
    except Invalid as error:
        assert str(error).isprintable()
