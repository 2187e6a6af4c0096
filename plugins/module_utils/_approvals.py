# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Approvals: a person's word for one policy of one slot, with what that policy was, so that a change can be named.

The file is root's and readable by the slot's group, since the launcher compares it. It names the slot and the policy's
fingerprint: kept for another slot, or from before a change, it approves nothing.
"""

from __future__ import annotations

import json

from . import _layout
from ._manifest import Untrusted, read_checked
from ._plan import APPROVAL, BadPlan, dump, load, value
from ._refusals import Refusal, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

    Json = dict[str, t.Any]


class Approval:
    """Who approved a policy, when (YYYY-MM-DD), the policy as it was, and what shows that a person did."""

    def __init__(self, by: str, on: str, policy: Json, evidence: Json) -> None:
        self.by, self.on, self.policy, self.evidence = by, on, policy, evidence

    def as_bytes(self) -> bytes:
        """Return the file's content."""
        about = json.dumps({"policy": self.policy, "evidence": self.evidence}, sort_keys=True)
        return dump(
            [
                ("slot", self.policy["slot"]),
                ("fingerprint", self.policy["fingerprint"]),
                ("by", self.by),
                ("on", self.on),
                ("about", about),
            ],
            APPROVAL,
        )


def of_bytes(data: bytes) -> Approval:
    """Return an approval; BadPlan if the bytes are none, ValueError if what it is about cannot be read."""
    records = load(data, APPROVAL)
    try:
        about = json.loads(value(records, "about"))
    except RecursionError:
        about = None
    if (
        not isinstance(about, dict)
        or not _is_policy(about.get("policy"))
        or not isinstance(about.get("evidence"), dict)
    ):
        raise ValueError("it does not say what was approved")
    named = (value(records, "slot"), value(records, "fingerprint"))
    if named != (about["policy"].get("slot"), about["policy"].get("fingerprint")):
        raise ValueError("it names another policy than it holds")
    return Approval(value(records, "by"), value(records, "on"), about["policy"], about["evidence"])


def _is_policy(found: t.Any) -> bool:
    """Return whether what was read has the shape that a comparison goes by."""
    if not isinstance(found, dict) or not isinstance(found.get("provider"), dict):
        return False
    lists = [found.get("capabilities"), found.get("mounts")]
    return all(isinstance(each, list) and all(isinstance(one, dict) for one in each) for each in lists)


def read(slot: str) -> Approval | None:
    """Return the slot's approval, None if there is none; Refusal `approval-missing` if what stands there is none."""
    path = _layout.approval(slot)
    try:
        return of_bytes(read_checked(path))
    except FileNotFoundError:
        return None
    except (Untrusted, BadPlan, ValueError) as error:
        raise Refusal("approval-missing", f"{path} is no approval: {error}", cure(slot)) from None


def check(policy: Json, approval: Approval | None) -> str:
    """Return who approved the policy and when; Refusal says what has changed since somebody did."""
    slot = policy["slot"]
    if approval is None:
        raise Refusal("approval-missing", f"nobody has approved the policy of slot {slot}", cure(slot))
    who = f"{approval.by} on {approval.on}"
    if (approval.policy["slot"], approval.policy["fingerprint"]) == (slot, policy["fingerprint"]):
        return who
    code, what = changed(approval.policy, policy)
    raise Refusal(code, f"{what} since {who} approved the policy of slot {slot}", cure(slot))


def changed(old: Json, new: Json) -> tuple[str, str]:
    """Return the refusal's code for a change from one policy to another, and in words what it is."""
    before, after = old["provider"], new["provider"]
    if any(before.get(key) != after[key] for key in ("name", "version", "identity")):
        same = (before.get("name"), before.get("version")) == (after["name"], after["version"])
        words = "has other bytes" if same else f"was {before.get('name')} {before.get('version')}"
        return "provider-changed", f"the provider {after['name']} {after['version']} {words}"
    if before.get("profile_version") != after["profile_version"]:
        words = f"has version {after['profile_version']}, not {before.get('profile_version')}"
        return "profile-changed", f"the profile of {after['name']} {words}"
    had = {str(each.get("key")) for each in old["capabilities"]}
    added = [each["words"] for each in new["capabilities"] if each["key"] not in had]
    if added:
        return "capability-missing", f"these were added: {'; '.join(added)};"
    return "approval-missing", f"{'; '.join(differences(old, new)) or 'something'} changed"


def differences(old: Json, new: Json) -> list[str]:
    """Return in words, the first few, where two policies differ."""
    found = []
    for key in sorted({*old, *new} - {"fingerprint", "mounts"}):
        if old.get(key) != new.get(key):
            found.append(printable(f"{key}: {json.dumps(old.get(key))[:80]} -> {json.dumps(new.get(key))[:80]}"))
    before, after = ({json.dumps(each, sort_keys=True): each for each in policy["mounts"]} for policy in (old, new))
    for word, some, others in (("no longer", before, after), ("new", after, before)):
        gone = [each for text, each in some.items() if text not in others]
        found += [printable(f"{word} {each.get('kind')} {each.get('target')}") for each in gone]
    return found[:6]


def cure(slot: str) -> str:
    """Return the command that mends it."""
    return f"read 'slotctl policy {slot}', then 'slotctl approve {slot}'"
