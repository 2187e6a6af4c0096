# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's slots as they were compiled: which there are, and what their plans say."""

from __future__ import annotations

import json
import os

from confined_slots import _layout
from confined_slots._launch import read_plan, unknown_workspace
from confined_slots._manifest import Untrusted, open_trusted
from confined_slots._plan import Record, value
from confined_slots._refusals import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

CONVERGE = "converge the host with the playbook confined.slots.site"
MAYBE_TEXT = (str, type(None))
# what slotctl takes from a policy: types by key ("?": it may lack), a list holds any number of its one element
SHAPE = {
    "slot": str,
    "enabled": bool,
    "mode": str,
    "network": str,
    "forwards?": [int],
    "docker?": bool,
    "fingerprint": str,
    "provider": {
        "name": str,
        "version": str,
        "profile_version": int,
        "certification": str,
        "identity": [{"path": str, "digest": str}],
        "headless?": [str],
        "resume?": [str],
        "resume_headless?": [str],
        "login?": [str],
        "transcript?": [str],
        "renames?": [str],
        "login_expiry?": {"file": str, "at": [str], "unit": str, "renewed_by": [str]},
    },
    "capabilities": [{"key": str, "words": str, "why": str}],
    "workspaces": dict,
    "restrictions": dict,
    "isolation": [{"flag": str, "reason": str}],
    "mounts": [{"kind": str, "target": str, "reason": str, "source?": str, "mode?": str, "size?": int}],
    "environment": {"set": {"HOME": str}, "pass": [str], "credential": MAYBE_TEXT},
    "resources": {"session_max?": MAYBE_TEXT},
}


class Slot:
    """A slot's name, its plan's path and records, the ids of its account, and its policy as people read it."""

    def __init__(self, name: str, path: str, records: list[Record], policy: dict[str, t.Any]) -> None:
        self.name, self.path, self.records, self.policy = name, path, records, policy
        self.base = policy  # the slot's own, where this is that of a narrower workspace
        uid, gid = next(record[1:] for record in records if record[0] == "ids")
        self.uid, self.gid = int(uid), int(gid)


def known() -> list[str]:
    """Return the names of the slots that have a compiled policy on this host."""
    try:
        return sorted(name for name in os.listdir(_layout.SLOTS_D) if not name.startswith("."))
    except FileNotFoundError:
        return []


def check_known(name: str) -> None:
    """Refuse a name that is no slot's; whatever passes is safe in a path."""
    names = known()
    if name not in names:
        there = f"this host has {', '.join(names)}" if names else "this host has none yet"
        cure = "see 'slotctl list'" if names else CONVERGE
        raise Refusal("slot-unknown", f"there is no slot {name!r:.80}; {there}", cure)


def load(name: str, workspace: str | None = None) -> Slot:
    """Return a slot (as one of its workspaces sees it, if that is narrower; "" is none); Refusal if there is none.

    Refusal too if others than root could have written its plan.
    """
    check_known(name)
    slot = _load(name, _layout.plan(name))
    if workspace and workspace not in slot.policy["workspaces"]:
        raise unknown_workspace(name, workspace, slot.policy["workspaces"])
    chosen = workspace if workspace is not None else next(iter(slot.policy["workspaces"]))
    if chosen not in slot.policy["restrictions"]:
        return slot
    narrow = _load(name, _layout.plan(name, chosen))
    narrow.base = slot.policy
    return narrow


def _load(name: str, path: str) -> Slot:
    try:
        os.close(open_trusted(_layout.policy(name)))
    except Untrusted as error:
        raise Refusal("policy-tampered", str(error), CONVERGE) from None
    except OSError as error:
        raise Refusal("policy-missing", f"{_layout.policy(name)}: {error.strerror}", CONVERGE) from None
    records = read_plan(path)
    if value(records, "slot") != name:
        raise Refusal("policy-invalid", f"{path} is the plan of slot {value(records, 'slot')!r:.80}", CONVERGE)
    try:
        policy = json.loads(value(records, "policy"))
        check_shape(policy, SHAPE, "policy")
        if not policy["workspaces"]:
            raise ValueError("it has no workspace")
        return Slot(name, path, records, policy)
    except (ValueError, StopIteration, RecursionError) as error:
        raise Refusal("policy-invalid", f"{path} holds no policy that can be read: {error}", CONVERGE) from None


def check_shape(found: t.Any, shape: t.Any, where: str) -> None:
    """Raise ValueError, naming the place, unless what was read as JSON has the shape (see SHAPE)."""
    wanted = type(shape) if isinstance(shape, (dict, list)) else shape
    if not isinstance(found, wanted):
        raise ValueError(f"{where} is not as it was compiled")
    if isinstance(shape, list):
        for number, each in enumerate(found):
            check_shape(each, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            name = key.removesuffix("?")
            if name in found:
                check_shape(found[name], inner, f"{where}.{name}")
            elif name == key:
                raise ValueError(f"{where}.{name} is missing")


def current_release() -> str:
    """Return the real path of the active release; Refusal if `current` leads to none."""
    path = os.path.realpath(_layout.CURRENT)
    if os.path.dirname(path) != os.path.realpath(_layout.RELEASES) or not os.path.isdir(path):
        raise Refusal("launcher-tampered", f"{_layout.CURRENT} leads to no release", CONVERGE)
    return path
