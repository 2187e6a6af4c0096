# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLI's arguments: made of its profile's command lines, once the slot is known."""

from __future__ import annotations

from confined_slots._refusals import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .run import Words
    from .slots import Slot


def started(prompt: str | None, rest: list[str]) -> Words:
    """Return what makes the arguments of `slotctl run`: those given, or those that have the CLI do one thing."""

    def words(slot: Slot) -> list[str]:
        if prompt is None:
            return rest
        return [word.replace("{prompt}", prompt) for word in _line(slot, "headless", "run without a person")] + rest

    return words


def login(rest: list[str]) -> Words:
    """Return what makes the arguments of `slotctl login`."""

    def words(slot: Slot) -> list[str]:
        line = _line(slot, "login", "log in; give it a credential")
        if slot.policy["network"] == "none":
            what = f"slot {slot.name} has no network, and a login needs one"
            raise Refusal("network-unavailable", what, "declare network: private and converge, or give a credential")
        return line + rest

    return words


def _line(slot: Slot, key: str, purpose: str) -> list[str]:
    line: list[str] = slot.policy["provider"].get(key) or []
    if not line:
        what = f"the profile of {slot.policy['provider']['name']} has no command line to {purpose}"
        raise Refusal("policy-invalid", what, "see docs/providers.md")
    return line
