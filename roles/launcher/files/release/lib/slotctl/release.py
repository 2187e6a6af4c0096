# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl release`: which releases stand here, whether they are intact, and the way back to the previous one."""

from __future__ import annotations

import dataclasses
import typing as t

from confined_slots import _release
from confined_slots._refusals import Refusal

from .tables import table

ReleaseError = _release.ReleaseError


def listed() -> list[dict[str, t.Any]]:
    """Return the releases, each verified, the newest activation first."""
    return [dataclasses.asdict(release) for release in _release.list_releases()]


def show(releases: list[dict[str, t.Any]]) -> str:
    """Return the releases as a table."""
    rows = []
    for each in releases:
        words = [word for word in ("active", "withdrawn") if each[word]]
        rows.append(
            (each["name"], ", ".join(words) or "kept", f"tampered: {each['fault']}" if each["fault"] else "intact")
        )
    return table(("RELEASE", "STATE", "FILES"), rows) if rows else "no release is installed [converge the host]\n"


def verified(name: str | None) -> dict[str, t.Any]:
    """Return the release's digests, once every file is what its manifest lists; Refusal names the first that is not."""
    return {"release": name or "the active one", "files": _release.verify_release(name)}


def rolled_back(name: str | None) -> list[dict[str, t.Any]]:
    """Make the previous release (or the named one) current; return the steps taken."""
    return [dataclasses.asdict(step) for step in _release.rollback(name)]


__all__ = ["Refusal", "ReleaseError", "listed", "rolled_back", "show", "verified"]
