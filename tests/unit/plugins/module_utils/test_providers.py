# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Providers on a host: laid, chosen, replaced when they drift, pruned when nobody needs them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.module_utils import _archive, _manifest, _profiles, _providers
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid
from ansible_collections.confined.slots.plugins.module_utils._providers import ProviderError, Wanted

from .crashes import Breaker
from .test_profiles import FAKE

SHELL = {
    "name": "shell",
    "profile_version": 1,
    "summary": "bash",
    "install": {"kind": "builtin"},
    "executable": "/usr/bin/bash",
}
SCRIPTED = {
    **FAKE,
    "install": {
        "kind": "npm",
        "packages": [{"name": "fake", "version": "1.0.0"}, {"name": "node", "version": "22.0.0"}],
    },
    "identity": "tree",
    "interpreter": "bin/node",
    "executable": "lib/fake.js",
    "arguments": ["--quiet"],
    "environment": {"FAKE_OFFLINE": "1"},
    "passed": ["LANG"],
    "path": ["bin"],
}
GIVEN = {**FAKE, "name": "given", "install": {"kind": "archive", "version": "2026.01.28-fd13201"}}
PROFILES = _profiles.parse([SHELL, SCRIPTED, GIVEN])


class Host:
    """A host in a directory."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.root = directory / "opt"
        (self.root / "providers").mkdir(parents=True)
        self.slots_d = directory / "slots.d"
        self._directory = directory

    def archive(self, wanted: Wanted, text: str = "x", **files: bytes) -> tuple[str, str]:
        """Return the archive of a tree with the text, and its digest."""
        top = self._directory / f"tree-{wanted.version}-{text}"
        path = self._directory / f"archive-{wanted.version}-{text}"
        for name, content in ({"bin/node": b"#!/bin/sh\n", "lib/fake.js": text.encode()} | files).items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_bytes(content)
            (top / name).chmod(0o755 if name.startswith("bin/") else 0o644)
        tree = _archive.collect(str(top))
        manifest = _archive.dumps(tree.listed, {"origin": wanted.origin, "version": wanted.version})
        with path.open("wb") as out:
            _archive.pack(tree, manifest, out)
        return str(path), _manifest.sha256(manifest)

    def converge(self, wanted: Wanted, text: str = "x", keep: int = 1) -> list[str]:
        """Keep one provider, as the module does; return the actions taken."""
        root = str(self.root)
        for leftover in self.leftovers(wanted):
            _providers.remove(leftover)
        record = _providers.records(root).get(wanted.name)
        found = _providers.find(wanted, record, root)
        unused = _providers.unused(wanted.name, root, str(self.slots_d))
        steps = _providers.plan(wanted, found, record, keep, unused)
        with contextlib.ExitStack() as stack:
            laid = None
            if any(step.action in ("install", "replace") for step in steps):
                archive, digest = self.archive(wanted, text)
                directory = stack.enter_context(_providers.incoming(f"{root}/providers"))
                _providers.lay(archive, digest, wanted, directory)
                laid = (directory, digest)
            _providers.apply(steps, wanted, laid, root)
        return [step.action for step in steps]

    def leftovers(self, wanted: Wanted) -> list[str]:
        """Return what killed runs have left."""
        return _providers.leftovers([wanted], str(self.root), str(self.slots_d))

    def text(self, version: str = "1.0.0") -> str:
        """Return the text of an installed version, which is whole."""
        tree = _providers.records(str(self.root))["fake"].trees[version][0]
        _manifest.verify_tree(f"{self.root}/providers/fake/{version}", tree)
        return (self.root / "providers/fake" / version / "lib/fake.js").read_text()


@pytest.fixture(name="host")
def made_host(tmp_path: pathlib.Path) -> Host:
    """Return a host without providers."""
    return Host(tmp_path)


def wanted_of(version: str = "1.0.0", **changes: t.Any) -> Wanted:
    """Return the fake provider as wanted."""
    entries = _providers.parse([{"name": "fake", "version": version, **changes}], [], PROFILES)
    return _providers.wanted_of(entries, PROFILES)[0]


def test_a_provider_is_installed_chosen_and_then_left_alone(host: Host) -> None:
    assert host.converge(wanted_of()) == ["install", "choose"]
    assert host.converge(wanted_of()) == []
    assert host.text() == "x"
    (tree,) = json.loads((host.root / "providers.json").read_text())["fake"]["trees"].values()
    assert tree["digest"] == _manifest.sha256((host.root / "providers/fake/1.0.0/MANIFEST.json").read_bytes())


@pytest.mark.parametrize("path", ["bin/node", "lib/fake.js", "MANIFEST.json"])
@pytest.mark.parametrize(
    "tamper",
    [
        pytest.param(lambda file: file.write_bytes(b"evil"), id="content"),
        pytest.param(lambda file: file.chmod(0o777), id="mode"),
        pytest.param(lambda file: file.unlink(), id="removed"),
        pytest.param(lambda file: file.with_name("extra").write_bytes(b""), id="a file added"),
    ],
)
def test_a_tree_that_has_drifted_is_replaced(host: Host, path: str, tamper: t.Callable[[pathlib.Path], object]) -> None:
    host.converge(wanted_of())
    tamper(host.root / "providers/fake/1.0.0" / path)
    assert host.converge(wanted_of()) == ["replace"]
    assert host.text() == "x" and host.converge(wanted_of()) == []


def test_a_tree_from_another_source_is_replaced(host: Host) -> None:
    host.converge(wanted_of())
    other = wanted_of(source="archive", archive="/srv/fake.tar", sha256="a" * 64)
    assert host.converge(other, "y") == ["replace"]
    assert host.text() == "y"


def test_a_new_version_stands_beside_the_old_which_goes_when_nobody_needs_it(host: Host) -> None:
    host.converge(wanted_of("1.0.0"))
    assert host.converge(wanted_of("1.1.0")) == ["install", "choose"]
    assert host.text("1.0.0") == host.text("1.1.0") == "x"
    plan = host.slots_d / "coder/plan"
    plan.parent.mkdir(parents=True)
    plan.write_bytes(b"bind\0ro\0" + os.fsencode(f"{host.root}/providers/fake/1.0.0/bin/node") + b"\0")
    assert host.converge(wanted_of("1.2.0")) == ["install", "choose"]
    plan.write_bytes(b"bind\0ro\0" + os.fsencode(f"{host.root}/providers/fake/1.0.01/bin/node") + b"\0")
    assert host.converge(wanted_of("1.2.0")) == ["prune"]
    assert sorted(path.name for path in (host.root / "providers/fake").iterdir()) == ["1.1.0", "1.2.0"]


def test_going_back_to_a_version_that_is_still_there_only_chooses_it(host: Host) -> None:
    host.converge(wanted_of("1.0.0"))
    host.converge(wanted_of("1.1.0"))
    assert host.converge(wanted_of("1.0.0")) == ["choose"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"executable": "bin/missing"}, "bin/missing", id="no executable"),
        pytest.param({"interpreter": None}, "not executable", id="not executable"),
        pytest.param({"interpreter": "lib/fake.js"}, "not executable", id="an interpreter that is none"),
    ],
)
def test_a_tree_without_the_profiles_programs_is_not_installed(host: Host, change: dict[str, t.Any], said: str) -> None:
    wanted = wanted_of()
    wanted = dataclasses.replace(wanted, profile=dataclasses.replace(wanted.profile, **change))
    with pytest.raises(ProviderError, match=said):
        host.converge(wanted)
    assert _providers.records(str(host.root)) == {} and host.leftovers(wanted) == []


def test_an_archive_from_elsewhere_than_wanted_is_not_installed(host: Host, tmp_path: pathlib.Path) -> None:
    archive, digest = host.archive(wanted_of("1.0.0"))
    (tmp_path / "new").mkdir()
    with pytest.raises(ProviderError, match=r"fake@1\.0\.0"):
        _providers.lay(archive, digest, wanted_of("1.1.0"), str(tmp_path / "new"))


@pytest.mark.parametrize("how", ["killed", "full"])
def test_wherever_an_upgrade_ends_the_record_names_a_whole_tree(
    host: Host, monkeypatch: pytest.MonkeyPatch, how: t.Literal["killed", "full"]
) -> None:
    breaker = Breaker(monkeypatch)
    packed = {version: host.archive(wanted_of(version)) for version in ("1.0.0", "1.1.0", "1.2.0")}
    monkeypatch.setattr(host, "archive", lambda wanted, _text: packed[wanted.version])
    for limit in range(500):
        for version in ("1.0.0", "1.1.0", "1.0.0"):  # so that 1.2.0 is pruned
            host.converge(wanted_of(version), keep=1)
        host.converge(wanted_of("1.1.0"), keep=1)
        upgraded = False
        with breaker.after(limit, how):
            host.converge(wanted_of("1.2.0"), keep=1)
            upgraded = True
        chosen = _providers.records(str(host.root))["fake"].chosen
        assert chosen in ("1.1.0", "1.2.0") and host.text(chosen) == "x", limit
        host.converge(wanted_of("1.1.0"), keep=1)
        assert host.text("1.1.0") == "x" and host.leftovers(wanted_of("1.1.0")) == [], limit
        if upgraded:
            break
    assert 20 < limit < 500


def test_the_compiler_gets_command_identities_and_tree(host: Host) -> None:
    host.converge(wanted_of())
    provider = _providers.on_host("fake", [SHELL, SCRIPTED], str(host.root))
    top = f"{host.root}/providers/fake/1.0.0"
    assert provider.command == (f"{top}/bin/node", f"{top}/lib/fake.js", "--quiet")
    assert [identity.path for identity in provider.identities] == [
        f"{top}/bin/node",
        f"{top}/lib/fake.js",
        f"{top}/MANIFEST.json",
    ]
    for identity in provider.identities:
        assert identity.digest == _manifest.sha256(pathlib.Path(identity.path).read_bytes()) and identity.stamp
    assert provider.trees == ((top, "the program"),)
    assert (provider.profile.environment, provider.profile.passed) == ((("FAKE_OFFLINE", "1"),), ("LANG",))
    assert provider.path == (f"{top}/bin",)
    assert (provider.name, provider.version, provider.profile.profile_version) == ("fake", "1.0.0", 1)


def test_the_shell_is_the_distributions() -> None:
    provider = _providers.on_host("shell", [SHELL])
    assert provider.command == ("/usr/bin/bash",) and provider.trees == ()
    assert [(identity.path, identity.digest) for identity in provider.identities] == [("/usr/bin/bash", "distribution")]


def test_a_tampered_executable_is_not_compiled_into_a_plan(host: Host) -> None:
    host.converge(wanted_of())
    (host.root / "providers/fake/1.0.0/lib/fake.js").write_bytes(b"evil")
    with pytest.raises(Invalid, match="provider-changed"):
        _providers.on_host("fake", [SHELL, SCRIPTED], str(host.root))


def test_a_provider_that_is_not_there_is_refused_and_in_a_check_run_predicted(host: Host) -> None:
    with pytest.raises(Invalid, match="is not installed on this host"):
        _providers.on_host("fake", [SHELL, SCRIPTED], str(host.root))
    predicted = _providers.on_host("fake", [SHELL, SCRIPTED], str(host.root), predict=True)
    assert {identity.digest for identity in predicted.identities} == {"unknown"}
    with pytest.raises(Invalid, match="it can be fake, shell"):
        _providers.on_host("other", [SHELL, SCRIPTED], str(host.root), predict=True)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        pytest.param({"name": "other"}, "providers[0].name is 'other'", id="unknown"),
        pytest.param({"name": "fake", "version": "^1.0"}, "'^1.0'; it can be one exact version", id="range"),
        pytest.param({"name": "fake", "version": "latest"}, "'latest'; it can be one exact version", id="tag"),
        pytest.param({"name": "fake", "version": "../1.0"}, "one exact version", id="a way out"),
        pytest.param({"name": "fake", "source": "builtin"}, "source is 'builtin'", id="a source that it has not"),
        pytest.param({"name": "shell", "source": "npm"}, "source is 'npm'", id="a source for the shell"),
        pytest.param({"name": "given"}, "no registry has given [give an archive of it]", id="no archive of it"),
        pytest.param({"name": "given", "source": "npm"}, "it can be archive", id="a registry that has it not"),
        pytest.param({"name": "shell", "version": "5.2"}, "leave it out", id="a version for the shell"),
        pytest.param({"name": "fake", "source": "archive"}, "must go together", id="no archive"),
        pytest.param({"name": "fake", "archive": "/x"}, "must go together", id="an archive and npm"),
        pytest.param({"name": "fake", "tree": "abc"}, "tree is 'abc'", id="a digest that is none"),
    ],
)
def test_a_provider_that_cannot_be_is_refused_by_its_value(entry: dict[str, t.Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        _providers.parse([entry], [], PROFILES)
    assert said in str(caught.value)


def test_a_provider_that_is_on_no_registry_comes_from_the_operators_archive() -> None:
    (entry,) = _providers.parse([{"name": "given", "archive": "/srv/given.tar.gz", "sha256": "a" * 64}], [], PROFILES)
    assert (entry["source"], entry["version"]) == ("archive", "2026.01.28-fd13201")
    assert _providers.wanted_of([entry], PROFILES)[0].origin == f"archive sha256:{'a' * 64}"


def test_a_provider_named_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="twice"):
        _providers.parse([{"name": "fake"}, {"name": "fake"}], [], PROFILES)


def test_what_slots_use_is_wanted_as_pinned_unless_it_is_declared_otherwise() -> None:
    entries = _providers.parse([{"name": "fake", "version": "2.0.0"}], ["shell", "fake", "shell"], PROFILES)
    assert [(entry["name"], entry["version"]) for entry in entries] == [("fake", "2.0.0"), ("shell", "distribution")]
    assert _providers.packages_of(entries[0], PROFILES["fake"]) == ["fake@2.0.0", "node@22.0.0"]
    again = _providers.parse(entries, [], PROFILES)
    assert again == entries, "the module takes what the action plugin made of it"


def test_a_shell_that_others_can_write_is_refused(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "bash"
    program.write_bytes(b"")
    program.chmod(0o757)
    (profile,) = _profiles.parse([{**SHELL, "executable": str(program)}]).values()
    assert "written by others" in (_providers.find(Wanted(profile, "distribution", "builtin"), None).fault or "")
    program.unlink()
    assert "missing" in (_providers.find(Wanted(profile, "distribution", "builtin"), None).fault or "")
