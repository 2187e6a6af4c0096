# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a session of a slot would start: every check, each with what it found or with the refusal that is ahead."""

from __future__ import annotations

import json
import os
import typing as t

from confined_slots import _layout
from confined_slots._files import UnsafePath, read
from confined_slots._launch import check_enabled, check_identity, check_mounts
from confined_slots._manifest import verify_release
from confined_slots._plan import values
from confined_slots._refusals import Refusal

from . import checks
from .slots import CONVERGE, Slot, current_release

Check = tuple[str, t.Callable[[Slot], str]]


def outcomes(slot: Slot, more: t.Sequence[Check] = ()) -> list[dict[str, str]]:
    """Return every check with "" or its refusal's code, and what it found or what is wrong."""
    return [{"check": check, **_outcome(look, slot)} for check, look in (*CHECKS, *more)]


def _outcome(look: t.Callable[[Slot], str], slot: Slot) -> dict[str, str]:
    try:
        return {"refusal": "", "what": look(slot)}
    except Refusal as refusal:
        return {"refusal": refusal.code, "what": f"{refusal.what} [{refusal.cure}]"}


def _release(slot: Slot) -> str:
    release = current_release()
    return f"{os.path.basename(release)}, {len(verify_release(release))} files as listed"


def copy(slot: Slot) -> str:
    """The copy for people grants nothing, but somebody who reads a changed one is misled."""
    path = f"{_layout.policy(slot.name)}/policy.json"
    try:
        data = read(path)
        same = data is not None and json.loads(data) == slot.base
    except (UnsafePath, ValueError) as error:
        raise Refusal("policy-tampered", f"{path}: {error}", CONVERGE) from None
    if not same:
        raise Refusal("policy-tampered", f"{path} is not what the plan holds", CONVERGE)
    return path


def _enabled(slot: Slot) -> str:
    check_enabled(slot.records)
    return ""


def _identity(slot: Slot) -> str:
    check_identity(slot.records)
    provider = slot.policy["provider"]
    return f"{provider['name']} {provider['version']}"


def _binds(slot: Slot) -> str:
    paths = [path for _unused, path in values(slot.records, "workspace")]
    for path in paths:
        check_mounts(slot.records, path)
    return f"{len(values(slot.records, 'bind'))} binds, {len(paths)} workspaces"


def _walls(slot: Slot) -> str:
    """Return what the kernel holds the slot's sessions by beside namespaces, and what this one has not."""
    has = {"AppArmor": bool(values(slot.records, "label")), "Landlock's scope": bool(values(slot.records, "landlock"))}
    there = ["seccomp", *(name for name, found in has.items() if found)]
    return "; no ".join([", ".join(there), *(name for name, found in has.items() if not found)])


CHECKS: tuple[Check, ...] = (
    ("release", _release),
    ("enabled", _enabled),
    ("account", checks.account),
    ("approval", checks.approval),
    ("network", checks.network),
    ("docker", checks.docker),
    ("provider", _identity),
    ("binds", _binds),
    ("walls", _walls),
    ("credential", checks.credential),
    ("policy.json", copy),
)
