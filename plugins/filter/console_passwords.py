# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hash the console passwords of slots on the control node, so that none of them travels."""

from __future__ import annotations

import base64
import hashlib
import typing as t
from collections.abc import Mapping

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: console_passwords
short_description: Hash the console passwords of slots
version_added: 0.1.0
author: confined.slots contributors (@confined-slots)
description:
  - Replaces C(console_password) of each slot, plain text out of a vault, by C(console_password_hash).
  - The hash is sha512_crypt with 656000 rounds. Its salt is made of the host's and the slot's name, never of the
    password, so that a second converge has the same hash and changes nothing.
  - Slots without C(console_password) are returned as they are; only for the others passlib is needed.
positional: host
options:
  _input:
    description: The declared slots.
    type: list
    elements: dict
    required: true
  host:
    description: The host's name in the inventory; equal passwords have different hashes on different hosts.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Keep the slot accounts
  confined.slots.accounts:
    slots: "{{ slots | confined.slots.console_passwords(inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: The slots without a plain password.
  type: list
  elements: dict
"""

ROUNDS = 656_000


def console_passwords(slots: list[t.Any], host: str) -> list[t.Any]:
    """Return the slots with hashes in the place of passwords; AnsibleFilterError names the slot at fault."""
    return [
        _hashed(slot, host) if isinstance(slot, Mapping) and slot.get("console_password") is not None else slot
        for slot in slots
    ]


def salt(host: str, slot: str) -> str:
    """Return 16 characters for the salt, the same each time for a slot of a host."""
    digest = hashlib.sha256(f"confined.slots\0{host}\0{slot}".encode()).digest()
    return base64.b64encode(digest, b"./")[:16].decode("ascii")


def _hashed(slot: Mapping[str, t.Any], host: str) -> dict[str, t.Any]:
    name, password = slot.get("name"), slot["console_password"]
    if slot.get("console_password_hash") is not None:
        raise AnsibleFilterError(f"slot '{name}' has both console_password and console_password_hash [leave one out]")
    if not isinstance(password, str) or not password or any(character in password for character in "\0\r\n"):
        raise AnsibleFilterError(
            f"slot '{name}': console_password can be text on one line, not empty [quote it, take it from a vault]"
        )
    try:
        from passlib.hash import sha512_crypt
    except ImportError:
        raise AnsibleFilterError(
            f"slot '{name}' has a console_password, and passlib, which hashes it, is not installed on the control node"
            " [pip install passlib, or give console_password_hash]"
        ) from None
    hashed = sha512_crypt.using(salt=salt(host, str(name)), rounds=ROUNDS).hash(str(password))
    rest = {key: value for key, value in slot.items() if key != "console_password"}
    return {**rest, "console_password_hash": hashed}


class FilterModule:
    """The filter, as Ansible finds it."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        """Return the filter by its name."""
        return {"console_passwords": console_passwords}
