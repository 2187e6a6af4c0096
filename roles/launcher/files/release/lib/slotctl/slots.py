# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's slots as they were compiled: which there are, and what their plans say."""

from __future__ import annotations

import json
import os

from confined_slots import _layout
from confined_slots._launch import read_plan
from confined_slots._manifest import Untrusted, open_trusted
from confined_slots._plan import Record, value
from confined_slots._refusals import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

CONVERGE = "converge the host with the playbook confined.slots.site"
NEEDED = {"enabled", "environment", "mode", "mounts", "network", "provider", "resources", "workspaces"}


class Slot:
    """A slot's name, the records of its plan, the ids of its account, and its policy as people read it."""

    def __init__(self, name: str, records: list[Record], policy: dict[str, t.Any]) -> None:
        self.name, self.records, self.policy = name, records, policy
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


def load(name: str) -> Slot:
    """Return a slot; Refusal if there is none, or if others than root could have written its plan."""
    check_known(name)
    path = _layout.plan(name)
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
        if not policy.keys() >= NEEDED:
            raise ValueError(f"it lacks {', '.join(sorted(NEEDED - policy.keys()))}")
        return Slot(name, records, policy)
    except (ValueError, TypeError, AttributeError, StopIteration) as error:
        raise Refusal("policy-invalid", f"{path} holds no policy that can be read: {error}", CONVERGE) from None


def current_release() -> str:
    """Return the real path of the active release; Refusal if `current` leads to none."""
    path = os.path.realpath(_layout.CURRENT)
    if os.path.dirname(path) != os.path.realpath(_layout.RELEASES) or not os.path.isdir(path):
        raise Refusal("launcher-tampered", f"{_layout.CURRENT} leads to no release", CONVERGE)
    return path
