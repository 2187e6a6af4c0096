#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove by sessions that AppArmor holds launcher, sandbox and payload."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apparmor_proof
short_description: Prove by behaviour that AppArmor holds launcher, sandbox and payload
version_added: 0.1.0
description:
  - Starts a session of one enabled slot of each kind (with O(slots[].nested_sandbox) and without it), with the probes
    of C(slotctl selftest) in the place of its CLI. The launcher refuses to run in another profile than its own. The
    probes look at the labels of sandbox and payload and try to make a user namespace.
  - Tries the same in the profile that holds what runs as a slot's account in another way.
  - Fails if anything is not as it must be. Where AppArmor is not in force nothing is started.
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    description: Changes nothing, so it starts the same sessions; where the host is not yet converged it proves nothing.
    support: full
  diff_mode:
    description: Nothing is changed, so there is nothing to show.
    support: none
author:
  - confined.slots contributors (@confined-slots)
seealso:
  - module: confined.slots.apparmor
"""

EXAMPLES = r"""
- name: Prove by sessions that AppArmor holds them
  confined.slots.apparmor_proof:
    slots: "{{ slots | confined.slots.without_secrets }}"
"""

RETURN = r"""
proved:
  description: What was shown, by slot.
  returned: success
  type: dict
  sample: {"coder": ["label", "nested-namespaces"]}
"""

import json
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _apparmor, _apparmor_profiles, _layout
from ..module_utils._declarations import Invalid, Slot, parse, slots_argument
from ..module_utils._programs import Failed, ask

UNSHARE = "/usr/bin/unshare"
ROWS = ("label", "nested-namespaces")


def chosen(slots: t.Iterable[Slot]) -> list[Slot]:
    """Return the first enabled slot of each kind."""
    first: dict[bool, Slot] = {}
    for slot in slots:
        if slot.enabled:
            first.setdefault(slot.nested_sandbox, slot)
    return list(first.values())


def prove(slot: str) -> list[str]:
    """Return which rows of the slot's self-test speak of AppArmor; ApparmorError unless all of its rows hold."""
    asked = [f"{_layout.CURRENT}/bin/slotctl", "selftest", slot, "--no-mutations", "--json"]
    out, error = said(asked)
    try:
        rows = json.loads(out)
        names = {row["name"] for row in rows}
        shown = [name for name in ROWS if name in names]
        failed = [f"{row['name']} ({row['found']})" for row in rows if not row["ok"]]
    except (ValueError, KeyError, TypeError):
        raise _apparmor.ApparmorError(f"slot {slot}: no session was seen: {error} [{' '.join(asked[:3])}]") from None
    if failed or "label" not in shown:
        what = ", ".join(failed) or "its plan does not ask for the launcher's profile"
        raise _apparmor.ApparmorError(f"slot {slot}: AppArmor does not hold its sessions: {what} [converge again]")
    return shown


def prove_account(slot: str) -> None:
    """Raise ApparmorError if the profile ACCOUNT lets a slot's account make a user namespace."""
    words = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--property=User={_layout.account(slot)}"]
    words += [f"--property=AppArmorProfile={_apparmor_profiles.ACCOUNT}", "--", UNSHARE, "--user", "/usr/bin/true"]
    _unused, error = said(words)
    if "Permission denied" not in error:
        what = error or "a user namespace was made"
        raise _apparmor.ApparmorError(
            f"{_apparmor_profiles.ACCOUNT} does not hold slot {slot}: {what} [converge again]"
        )


def said(words: list[str]) -> tuple[str, str]:
    """Return what a program says on its two outputs, or why there is nothing."""
    try:
        done = ask(words)
    except Failed as failure:
        return "", str(failure)
    return done.out, done.why[-500:] if done.error else ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"slots": slots_argument()}, supports_check_mode=True)
    proved: dict[str, list[str]] = {}
    try:
        slots, found = parse(module.params["slots"]), _apparmor.find()
        if found.loaded:
            proved = {slot.name: prove(slot.name) for slot in chosen(slots)}
            if proved and found.namespaces and _apparmor.mediates_namespaces(found):
                prove_account(next(iter(proved)))
    except (Invalid, _apparmor.ApparmorError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, proved=proved)


if __name__ == "__main__":
    main()
