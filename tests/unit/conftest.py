# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings that all unit tests share."""

from __future__ import annotations

import os
import pathlib
import sys

import hypothesis
import hypothesis.database
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# No deadline: a time limit for one example says more about the machine than about the code.
hypothesis.settings.register_profile(
    "confined.slots",
    deadline=None,
    database=hypothesis.database.DirectoryBasedExampleDatabase(ROOT / "build" / "hypothesis"),
    print_blob=True,
)
hypothesis.settings.load_profile("confined.slots")


def pytest_sessionstart() -> None:
    """Refuse to start where the collection cannot be imported under its own name; let child processes import it too."""
    if not (ROOT / "build" / "collections" / "ansible_collections" / "confined" / "slots" / "galaxy.yml").exists():
        raise pytest.UsageError("build/collections is missing [run 'make setup' once]")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.startswith(str(ROOT / "build")))
