# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's side of the providers: fetched once, packed the same, nothing executed."""

from __future__ import annotations

import os
import pathlib
import shutil
import tarfile
import typing as t

import pytest
from ansible_collections.confined.slots.plugins.action import providers as action
from ansible_collections.confined.slots.plugins.module_utils import _archive, _profiles, _providers
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid

PROFILE: dict[str, t.Any] = {
    "name": "fake",
    "profile_version": 1,
    "summary": "A CLI for tests",
    "install": {"kind": "npm", "packages": [{"name": "is-odd", "version": "3.0.1"}]},
    "executable": "node_modules/is-odd/index.js",
    "reasons": {"tree": "the program"},
}


@pytest.fixture(name="cache", autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Return a cache directory of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "confined-slots"


def wanted_of(**declared: t.Any) -> tuple[dict[str, t.Any], _providers.Wanted]:
    """Return the entry and what is wanted of one provider on an x86_64 host."""
    profiles = _profiles.parse([PROFILE])
    (entry,) = _providers.parse([{"name": "fake", **declared}], [], profiles)
    if entry["source"] == "archive":
        entry["sha256"] = action.checked_digest(entry)
    return entry, _providers.wanted_of([entry], profiles, "x86_64")[0]


def local_archive(tmp_path: pathlib.Path, text: str = "x") -> str:
    """Return the path of an archive such as a site would make."""
    source = tmp_path / "source"
    (source / "node_modules/is-odd").mkdir(parents=True, exist_ok=True)
    (source / "node_modules/is-odd/index.js").write_text(text)
    with tarfile.open(tmp_path / "fake.tar.gz", "w:gz") as tar:
        tar.add(source, ".")
    return str(tmp_path / "fake.tar.gz")


def test_a_local_archive_is_packed_once_and_then_taken_from_the_cache(
    tmp_path: pathlib.Path, cache: pathlib.Path
) -> None:
    entry, wanted = wanted_of(source="archive", archive=local_archive(tmp_path))
    path = action.archive_of(entry, wanted, "x86_64")
    os.unlink(entry["archive"])
    assert action.archive_of(entry, wanted, "x86_64") == path
    assert sorted(os.listdir(cache)) == sorted([os.path.basename(path), "lock"])
    (tmp_path / "out").mkdir()
    header, listed = _archive.unpack(path, _archive.digest_told(path), str(tmp_path / "out"))
    assert set(listed) == {"node_modules/is-odd/index.js"}
    assert header == {"machine": "x86_64", "name": "fake", "origin": wanted.origin, "version": "3.0.1"}


def test_a_local_archive_with_another_digest_than_declared_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Invalid, match="has SHA-256"):
        wanted_of(source="archive", archive=local_archive(tmp_path), sha256="a" * 64)


def test_a_changed_archive_is_packed_anew(tmp_path: pathlib.Path) -> None:
    first = action.archive_of(*wanted_of(source="archive", archive=local_archive(tmp_path)), "x86_64")
    second = action.archive_of(*wanted_of(source="archive", archive=local_archive(tmp_path, "y")), "x86_64")
    assert first != second


def npm_that(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, script: str) -> pathlib.Path:
    """Put a stand-in for npm on the path; return the file that it writes its arguments to."""
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin/npm"
    npm.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n{script}\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path / "arguments"


def test_npm_is_asked_for_exact_versions_and_runs_nothing_that_it_fetched(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "mkdir -p node_modules/is-odd; echo x > node_modules/is-odd/index.js"
    arguments = npm_that(tmp_path, monkeypatch, script)
    entry, wanted = wanted_of(version="3.0.0")
    path = action.archive_of(entry, wanted, "aarch64")
    words = arguments.read_text().splitlines()
    assert words[0] == "install" and words[-2:] == ["--", "is-odd@3.0.0"]
    assert {"--ignore-scripts", "--omit=dev", "--os=linux", "--cpu=arm64"} <= set(words)
    assert "-aarch64-" in path


def test_an_npm_that_fails_leaves_nothing_and_says_why(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path
) -> None:
    npm_that(tmp_path, monkeypatch, "echo 'no matching version' >&2; exit 1")
    with pytest.raises(Invalid, match=r"cannot fetch is-odd@3\.0\.1: no matching version"):
        action.archive_of(*wanted_of(), "x86_64")
    assert os.listdir(cache) == ["lock"]


def test_a_control_node_without_npm_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Invalid, match="install it, or give the provider's archive"):
        action.archive_of(*wanted_of(), "x86_64")


def test_a_tree_with_a_link_out_of_it_is_not_packed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm_that(tmp_path, monkeypatch, "ln -s /etc node_modules")
    with pytest.raises(_archive.Untrusted, match="leads out"):
        action.archive_of(*wanted_of(), "x86_64")


@pytest.mark.skipif(
    not os.environ.get("CONFINED_SLOTS_NPM") or shutil.which("npm") is None,
    reason="asks npm's registry: set CONFINED_SLOTS_NPM=1 on a machine with npm",
)
def test_a_small_package_is_really_fetched_from_npm(tmp_path: pathlib.Path) -> None:
    path = action.archive_of(*wanted_of(), "x86_64")
    (tmp_path / "out").mkdir()
    _unused, listed = _archive.unpack(path, _archive.digest_told(path), str(tmp_path / "out"))
    assert "node_modules/is-odd/index.js" in listed
