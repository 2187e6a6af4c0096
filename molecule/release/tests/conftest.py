# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator does with releases and providers, as functions of a host."""

from __future__ import annotations

import collections.abc
import os
import pathlib
import shlex
import tarfile
import tempfile
import typing as t

import operators
import pytest
import testinfra.host
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _archive, _manifest, _release

COLLECTION = pathlib.Path(_release.__file__).parents[2]
IMAGE = COLLECTION / "roles/launcher/files/release"
OPT = "/opt/confined-slots"
SESSION = f"{OPT}/current/bin/slotctl run coder -- -c 'echo it works'"


class Operator(operators.Operator):
    """The operator of a host of which releases and providers are changed."""

    def release(self, version: str | None = None, **options: t.Any) -> dict[str, t.Any]:
        """Keep a release (by default the collection's own) and return the result; AssertionError if that fails."""
        return self.kept("release", **({"version": version} if version else {}), **options)

    def python(self, program: str, *words: str) -> str:
        """Run a Python program on the host with the collection's own core and return what it prints."""
        head = f"import sys; sys.path.insert(0, {self.core()!r})\n"
        return self.do(f"/usr/bin/python3 -IB -c {shlex.quote(head + program)} {shlex.join(words)}")

    def core(self) -> str:
        """Return the directory on the host with a copy of the core, which no test touches."""
        return "/root/confined-slots-core"

    def current(self) -> str:
        """Return the name of the current release, once a session of it has worked."""
        assert self.do(SESSION) == "it works"
        return os.path.basename(self.do(f"readlink -f {OPT}/current"))

    def names(self) -> set[str]:
        """Return what stands among the releases, hidden or not."""
        return set(self.do(f"ls -A {OPT}/releases").split())

    def slots(self) -> list[dict[str, t.Any]]:
        """Return the slots that the inventory declares for the host."""
        declared: list[dict[str, t.Any]] = self.variables()["slots"]
        return declared


def packed_release(version: str, directory: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Return the archive of the collection's release under a version, and its source."""
    tree = _archive.collect(str(IMAGE), image=True)
    manifest = _release.source_manifest(tree.listed, version)
    path = directory / f"release-{version}.tar.gz"
    with path.open("wb") as out:
        _archive.pack(tree, manifest, out)
    return path, _manifest.sha256(manifest)


def fake_provider(text: str, directory: pathlib.Path) -> dict[str, str]:
    """Return the declaration of a provider that prints the text, from a local archive."""
    source = directory / text
    (source / "bin").mkdir(parents=True)
    (source / "bin/fake").write_text(f"#!/bin/sh\n. ${{0%/*}}/lib/words\necho {text} $WORD\n")
    (source / "bin/fake").chmod(0o755)
    (source / "lib").mkdir()
    (source / "lib/words").write_text("WORD=from-the-tree\n")
    (source / "run").symlink_to("bin/fake")
    with tarfile.open(directory / f"{text}.tar", "w") as tar:
        tar.add(source, ".")
    return {"name": "fake", "source": "archive", "archive": str(directory / f"{text}.tar")}


def profiles() -> list[dict[str, t.Any]]:
    """Return the profiles of the collection, and one of a fake provider."""
    fake = {
        "name": "fake",
        "profile_version": 1,
        "summary": "A CLI for tests",
        "install": {"kind": "npm", "packages": [{"name": "fake", "version": "1.0.0"}]},
        "executable": "run",
        "identity": "tree",
        "reasons": {"tree": "the program"},
    }
    return [yaml.safe_load(path.read_text()) for path in sorted((COLLECTION / "profiles").glob("*.yml"))] + [fake]


@pytest.fixture(scope="module")
def operator(host: testinfra.host.Host) -> collections.abc.Iterator[Operator]:
    """Return the operator of the host; the collection's own release is current again afterwards."""
    operator = Operator.of(host)
    with tempfile.TemporaryDirectory() as directory:
        core = pathlib.Path(directory) / "core.tar"
        with tarfile.open(core, "w") as tar:
            for module in sorted(pathlib.Path(_release.__file__).parent.glob("*.py")):
                tar.add(module, f"confined_slots/{module.name}")
        operator.do(f"mkdir -p {operator.core()}")
        operator.send(core, f"{operator.core()}/core.tar")
    operator.do(f"cd {operator.core()} && tar xf core.tar")
    yield operator
    operator.play("confined.slots.site")
    operator.do(f"rm -rf {operator.core()} {OPT}/releases/.tampered-*")


@pytest.fixture(autouse=True)
def own_release(operator: Operator) -> None:
    """Begin each test with the collection's own release."""
    operator.release()
