# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leave the secrets of slots out, for tasks that need none of them."""

from __future__ import annotations

import datetime
import typing as t
from collections.abc import Mapping

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: without_secrets
short_description: Leave the secrets of slots out
version_added: 0.1.0
author: confined.slots contributors (@confined-slots)
description:
  - Returns the slots without C(console_password), C(console_password_hash) and the C(value) of their C(credential),
    so that a task that needs no secret is given none.
  - The name of a credential stays, since a policy lists it.
  - YAML takes the key C(on) of an approval for a truth and its value for a date; here they become words again.
positional: keep
options:
  _input:
    description: The declared slots.
    type: list
    elements: dict
    required: true
  keep:
    description: The one secret that the task does need.
    type: str
    choices: [credential, console_password_hash]
"""

EXAMPLES = r"""
- name: Compile what each slot may see and use
  confined.slots.policy:
    slots: "{{ slots | confined.slots.without_secrets }}"

- name: Keep one credential file for each slot that declares one
  confined.slots.credentials:
    slots: "{{ slots | confined.slots.without_secrets(keep='credential') }}"
"""

RETURN = r"""
_value:
  description: The slots without secrets other than the one that was asked for.
  type: list
  elements: dict
"""

KEEP = ("credential", "console_password_hash")


def without_secrets(slots: list[t.Any], keep: str | None = None) -> list[t.Any]:
    """Return the slots without secrets, but for the one to keep; what is no mapping is left to the module to refuse."""
    if keep is not None and keep not in KEEP:
        raise AnsibleFilterError(f"without_secrets: keep is {keep!r}; it can be {' or '.join(KEEP)}")
    return [_reduced(slot, keep) if isinstance(slot, Mapping) else slot for slot in slots]


def _reduced(slot: Mapping[str, t.Any], keep: str | None) -> dict[str, t.Any]:
    dropped = {"console_password", "console_password_hash"} - {keep}
    reduced = {key: slot[key] for key in slot if key not in dropped}
    credential = reduced.get("credential")
    if keep != "credential" and isinstance(credential, Mapping):
        reduced["credential"] = {key: credential[key] for key in credential if key != "value"}
    credential = reduced.get("credential")
    if isinstance(credential, Mapping):
        reduced["credential"] = {key: _as_word(credential[key]) for key in credential}
    approval = reduced.get("approval")
    if isinstance(approval, Mapping):
        reduced["approval"] = {"on" if key is True else key: _as_word(approval[key]) for key in approval}
    return reduced


def _as_word(value: t.Any) -> t.Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


class FilterModule:
    """The filter, as Ansible finds it."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Return the filter by its name."""
        return {"without_secrets": without_secrets}
