# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Provider profiles: what they may say, and what is refused with the value and the cure."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _capabilities, _profiles
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid
from ansible_collections.confined.slots.plugins.module_utils._profile_schema import PROFILE

OWN = pathlib.Path(_profiles.__file__).parents[2] / "profiles"
FAKE: dict[str, t.Any] = {
    "name": "fake",
    "profile_version": 1,
    "summary": "A CLI for tests",
    "install": {"kind": "npm", "packages": [{"name": "@scope/fake-{npm}", "version": "1.2.3"}]},
    "executable": "node_modules/fake-{machine}/bin/fake",
    "reasons": {"tree": "the program"},
}
KIND = ("kind", "version", "packages")
STATE = {"path": ".fake", "holds": ["login", "history"]}
KEY = {"name": "FAKE_API_KEY", "by": "environment"}
FILE = {"target": "/etc/fake/settings.json", "content": {"sandbox": False}, "reason": "the slot is the sandbox"}
ASK = {"words": "Use it", "why": "for tests"}
CERTIFIED = {"status": "certified", "evidence": "evidence/fake-1.json", "cli_version": "1.2.3", "sha256": "a" * 64}
FULL: dict[str, t.Any] = {
    **FAKE,
    "arguments": ["--quiet"],
    "passed": ["LANG"],
    "denied": ["IS_SANDBOX"],
    "environment": {"FAKE_HOME": "{home}/.fake", "A": "1"},
    "state": [STATE],
    "renames": [".fake/auth.json"],
    "transcript": ".fake/*/{session}.jsonl",
    "headless": ["-p", "--", "{prompt}"],
    "resume": ["--resume", "{session}"],
    "resume_headless": ["--resume", "{session}", "-p", "--", "{prompt}"],
    "login": ["login"],
    "login_expiry": {
        "file": ".fake/auth.json",
        "at": ["oauth", "expires"],
        "unit": "seconds",
        "renewed_by": ["oauth", "r"],
    },
    "credentials": [KEY, {"name": "FAKE_TOKEN", "by": "descriptor", "variable": "FAKE_TOKEN_FD", "refreshable": True}],
    "conflicts": ["FAKE_API_KEY", "FAKE_TOKEN"],
    "managed": [FILE],
    "inner_sandbox": {"setting": "disabled", "how": "the managed settings", "reason": "the slot is the sandbox"},
    "daemons": [{"name": "faked", "socket": "/tmp/faked", "stopped_by": "a /tmp of its own", "reason": "runs outside"}],
    "network": ["api.example.org:443"],
    "capabilities": {
        "use_fake": {**ASK, "required": True},
        "use_fake_login": {**ASK, "state": [".fake"], "credentials": ["FAKE_TOKEN"], "hosts": ["api.example.org:443"]},
    },
    "certification": CERTIFIED,
}


def fake(**changes: t.Any) -> _profiles.Profile:
    """Return the profile of a fake CLI with changes."""
    return _profiles.parse([{**FAKE, **changes}])["fake"]


def of_the_collection() -> dict[str, _profiles.Profile]:
    """Return the profiles of the collection."""
    return _profiles.parse([yaml.safe_load(path.read_text()) for path in OWN.glob("*.yml")])


@pytest.mark.parametrize("path", sorted(OWN.glob("*.yml")), ids=lambda path: path.stem)
def test_a_profile_of_the_collection_is_valid_and_named_as_its_file(path: pathlib.Path) -> None:
    profile = _profiles.parse([yaml.safe_load(path.read_text())])[path.stem]
    for machine in _profiles.MACHINES:
        text = repr(profile.of_machine(machine))
        assert "{npm}" not in text and "{machine}" not in text


def test_the_collection_has_a_profile_of_each_provider_and_one_of_cursor_that_is_not_certified() -> None:
    own = of_the_collection()
    assert set(own) == {"claude_code", "codex", "cursor", "pi", "shell"}
    assert own["cursor"].certification.status == "documented"
    assert "not certified" in (own["cursor"].certification.note or "").lower()


@pytest.mark.parametrize("name", sorted(path.stem for path in OWN.glob("*.yml")))
def test_capabilities_cover_all_that_a_profile_of_the_collection_names(name: str) -> None:
    """What none of them grants, no session of verified mode could be allowed."""
    profile = of_the_collection()[name]
    granted = profile.capabilities
    assert [each.required for each in granted].count(True) == 1
    assert {path for each in granted for path in each.state} == {each.path for each in profile.state}
    assert {host for each in granted for host in each.hosts} == set(profile.network)
    assert {name for each in granted for name in each.credentials} == {each.name for each in profile.credentials}


@pytest.mark.parametrize("name", sorted(path.stem for path in OWN.glob("*.yml")))
def test_a_prompt_or_session_that_looks_like_an_option_is_none(name: str) -> None:
    profile = of_the_collection()[name]
    for words in (profile.headless, profile.resume_headless):
        for index, word in enumerate(words):
            if word == "{prompt}":
                assert "--" in words[:index] or words[index - 1] in ("-c", "--resume"), words


def test_cr_03_what_a_cli_replaces_by_rename_lies_in_a_directory_that_it_keeps() -> None:
    """A file that is bound by itself cannot be renamed over."""
    own = of_the_collection()
    for name, login in (("claude_code", ".claude/.credentials.json"), ("codex", ".codex/auth.json")):
        assert login in own[name].renames
    assert dict(own["claude_code"].environment)["CLAUDE_CONFIG_DIR"] == "{home}/" + own["claude_code"].state[0].path


def test_no_profile_goes_on_with_whatever_came_last() -> None:
    for profile in of_the_collection().values():
        words = {*profile.headless, *profile.resume, *profile.resume_headless}
        assert not words & {"--continue", "--last", "latest"}


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
        pytest.param({"name": "Fake"}, "profiles[0]: name is 'Fake'; it can be a-z", id="name"),
        pytest.param({"name": "../x"}, "name is", id="name with a way out"),
        pytest.param({"profile_version": 0}, "profile_version is 0; it must be at least 1", id="number"),
        pytest.param({"profile_version": True}, "profile_version is True", id="a word for a number"),
        pytest.param({"profile_version": 1.0}, "profile_version is 1.0", id="a fraction"),
        pytest.param({"summary": "two\nlines"}, "summary is", id="two lines"),
        pytest.param({"summary": "line\n"}, "summary is", id="a line break at the end"),
        pytest.param({"summary": "right \u202e left"}, "summary is", id="text that turns round"),
        pytest.param({"summary": "half a \ud83d"}, "summary is", id="half a character"),
        pytest.param({"surprise": 1}, "profile 'fake' has 'surprise'; it can have arguments, ", id="an unknown key"),
        pytest.param({"install": None}, "install is None; it must be a mapping", id="no install"),
        pytest.param({"install": {}}, "install has no kind", id="no kind"),
        pytest.param({"install": {"kind": "curl"}}, "kind is 'curl'; it can be builtin or npm or archive", id="kind"),
        pytest.param({"install": {"kind": "npm", "packages": []}}, "must have packages and no", id="no packages"),
        pytest.param({"install": {"kind": "archive"}}, "must have a version and no packages", id="no version"),
        pytest.param({"install": {"kind": "builtin", "version": "1.0"}}, "must have neither", id="a builtin version"),
        pytest.param({"executable": "/bin/sh"}, "executable is '/bin/sh'; it must be a plain relative", id="absolute"),
        pytest.param({"executable": "a/../../sh"}, "without '.', '..' or '//'", id="a way out"),
        pytest.param({"executable": "a/{arch}/sh"}, "executable is", id="a placeholder that there is not"),
        pytest.param({"executable": ""}, "executable is ''", id="empty"),
        pytest.param({"interpreter": "../node"}, "interpreter is '../node'", id="interpreter"),
        pytest.param({"path": ["/bin"]}, "path is '/bin'; it must be a plain relative path", id="path"),
        pytest.param({"identity": "distribution"}, "identity is 'distribution'; for kind npm it can be", id="identity"),
        pytest.param({"state": [".fake"]}, "state[0] is '.fake'; it must be a mapping", id="state"),
        pytest.param({"state": [{"path": "/etc", "holds": []}]}, "state[0].path is '/etc'", id="state elsewhere"),
        pytest.param({"state": [{"path": ".f", "holds": ["x"]}]}, "state[0].holds[0] is 'x'", id="state of what"),
        pytest.param({"state": [STATE, {"path": ".fake/a", "holds": []}]}, "state has '.fake/a'", id="state in state"),
        pytest.param({"state": [STATE, {**STATE, "holds": []}]}, "state has '.fake'", id="state twice"),
        pytest.param({"state": [STATE, STATE]}, "twice; it can have it once", id="state the same twice"),
        pytest.param(
            {"login_expiry": {"file": ".other/auth.json", "at": ["end"], "unit": "seconds"}},
            "login_expiry has '.other/auth.json', which is in no directory of state",
            id="a login outside",
        ),
        pytest.param({"renames": [".fake.json"]}, "renames has '.fake.json', which is in no", id="renamed outside"),
        pytest.param({"environment": {"lower": "x"}}, "environment is 'lower'", id="variable"),
        pytest.param({"environment": {"A": 1}}, "environment.A is 1", id="a number for a text"),
        pytest.param({"environment": {"A": "x\ny"}}, "environment.A is", id="a line break in a value"),
        pytest.param({"environment": {"HOME": "/x"}}, "environment has HOME, which each session", id="HOME"),
        pytest.param({"environment": {"LD_PRELOAD": "/x"}}, "LD_PRELOAD, which is denied", id="denied to all"),
        pytest.param({"denied": ["A"], "passed": ["A"]}, "passed has A, which is denied", id="denied to it"),
        pytest.param({"passed": ["LD PRELOAD"]}, "passed[0] is 'LD PRELOAD'", id="passed"),
        pytest.param({"network": ["example.org"]}, "network[0] is 'example.org'; it can be HOST:PORT", id="no port"),
        pytest.param({"arguments": "-c"}, "arguments is '-c'; it must be a list", id="a text for a list"),
        pytest.param({"headless": ["-p"]}, "headless must have {prompt} once", id="no prompt"),
        pytest.param({"headless": ["--run={prompt}"]}, "headless must have {prompt} once", id="prompt in a word"),
        pytest.param({"resume": ["{session}", "{prompt}"]}, "resume must have {session} once", id="a prompt too many"),
        pytest.param({"resume_headless": ["{session}"]}, "{prompt} and {session} once each", id="a prompt too few"),
        pytest.param({"credentials": [KEY, {**KEY, "refreshable": True}]}, "names one twice", id="credential twice"),
        pytest.param({"credentials": [{**KEY, "by": "file"}]}, "by is 'file'", id="credential by what"),
        pytest.param({"credentials": [{**KEY, "by": "descriptor"}]}, "a variable goes with", id="no variable"),
        pytest.param({"credentials": [{**KEY, "variable": "FD"}]}, "a variable goes with", id="a variable too many"),
        pytest.param({"credentials": [{**KEY, "name": "PATH"}]}, "credentials has PATH", id="credential PATH"),
        pytest.param({"conflicts": ["OTHER"]}, "conflicts has 'OTHER'; it can have nothing", id="unknown conflict"),
        pytest.param({"managed": [{**FILE, "target": "/etc/../x"}]}, "managed[0].target is", id="managed elsewhere"),
        pytest.param({"managed": [{**FILE, "target": "/usr/x"}]}, "managed[0].target is", id="managed in /usr"),
        pytest.param({"managed": [{**FILE, "content": "\0"}]}, "managed[0].content is", id="managed NUL"),
        pytest.param({"managed": [{**FILE, "content": {"a": datetime.date.min}}]}, "cannot be JSON", id="no JSON"),
        pytest.param({"managed": [{**FILE, "content": {"a": float("nan")}}]}, "cannot be JSON", id="no number"),
        pytest.param({"inner_sandbox": {"setting": False, "reason": "x"}}, "setting is False", id="off without quotes"),
        pytest.param({"inner_sandbox": {"setting": "allowed", "reason": "x"}}, "must say how", id="no how"),
        pytest.param({"inner_sandbox": {"setting": "none", "reason": "x", "how": "y"}}, "must say how", id="how none"),
        pytest.param({"capabilities": {"use_it": {"words": "Use it"}}}, "use_it has no why", id="capability"),
        pytest.param({"capabilities": {"Use it": ASK}}, "capabilities is 'Use it'", id="capability's key"),
        pytest.param({"capabilities": {"a": {**ASK, "state": [".x"]}}}, "a.state has '.x'", id="capability's state"),
        pytest.param({"capabilities": {"a": {**ASK, "hosts": ["a:1"]}}}, "a.hosts has 'a:1'", id="capability's hosts"),
        pytest.param({"capabilities": {"a": {**ASK, "credentials": ["A"]}}}, "has 'A'", id="capability's credentials"),
        pytest.param({"certification": {"status": "sure"}}, "status is 'sure'", id="status"),
        pytest.param({"certification": {"status": "builtin"}}, "for kind npm it cannot be", id="npm and builtin"),
        pytest.param({"certification": {**CERTIFIED, "evidence": "../x.json"}}, "evidence is '../x", id="evidence"),
        pytest.param({"certification": {"status": "certified"}}, "needs evidence and sha256", id="no evidence"),
        pytest.param({"certification": {**CERTIFIED, "cli_version": "2.0.0"}}, "pins 1.2.3", id="of another version"),
        pytest.param({"reasons": {}}, "reasons has no tree", id="no reason"),
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
    with pytest.raises(Invalid, match="it can be one exact version"):
        _profiles.exact_version(version, "version")


@pytest.mark.parametrize("version", ["1.2.3", "0.171.0", "1.0.0-beta.1", "2026.01.28-fd13201", "1.2"])
def test_an_exact_version_is_taken(version: str) -> None:
    assert _profiles.exact_version(version, "version") == version


@pytest.mark.parametrize("name", ["--registry=x", "../x", "http://x", "a b", "@a", "a@1.0", "git+ssh", "", "A", "a/b"])
def test_what_npm_could_take_for_something_else_is_no_package(name: str) -> None:
    with pytest.raises(Invalid, match="npm package's name"):
        fake(install={"kind": "npm", "packages": [{"name": name, "version": "1.0.0"}]})


def test_a_full_profile_is_read_as_it_is_written() -> None:
    profile = fake(**FULL)
    assert {field.name for field in dataclasses.fields(profile)} == {*PROFILE["properties"], *KIND} - {"install"}
    assert profile.state == (_profiles.State(".fake", ("login", "history")),)
    assert profile.denied == tuple(sorted({*_capabilities.DENIED, "IS_SANDBOX"}))
    assert profile.environment == (("A", "1"), ("FAKE_HOME", "{home}/.fake"))
    assert [each.by for each in profile.credentials] == ["environment", "descriptor"]
    (managed,) = profile.managed
    assert json.loads(managed.content) == {"sandbox": False} and managed.content.endswith("}\n")
    assert [(each.key, each.required, each.state) for each in profile.capabilities] == [
        ("use_fake", True, ()),
        ("use_fake_login", False, (".fake",)),
    ]
    assert hash(profile) == hash(fake(**FULL))


def test_a_plain_profile_needs_none_of_it() -> None:
    assert fake().certification.status == "none" and fake().inner_sandbox is None and fake().capabilities == ()


def test_a_provider_from_an_archive_says_which_version_it_is_about() -> None:
    assert fake(install={"kind": "archive", "version": "2026.01.28-fd13201"}).version == "2026.01.28-fd13201"


def test_an_unknown_provider_is_refused_with_those_there_are() -> None:
    with pytest.raises(Invalid, match="it can be fake"):
        _profiles.named("other", _profiles.parse([FAKE]), "slot 'a': provider")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@hypothesis.given(st.sampled_from(sorted(PROFILE["properties"])), json_values)
def test_any_value_is_taken_or_refused_and_nothing_else_happens(key: str, value: object) -> None:
    try:
        _profiles.parse([{**FULL, key: value}])
    except Invalid as error:
        assert str(error).isprintable()
