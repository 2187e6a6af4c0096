#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the slots' rootless Docker daemons."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker
short_description: Keep a rootless Docker daemon for each slot that asks for one
version_added: 0.1.0
description:
  - Keeps a system service for each slot with O(slots[].docker), whose mount view has the slot's workspaces, the
    daemon's data and the distribution's programs, and nothing else of the host; waits until each daemon answers.
  - A daemon whose view changed (a workspace was added, say) is started anew, which ends its containers; those with a
    restart policy come back.
  - The daemon of a slot that is not enabled, or that no longer has O(slots[].docker), is stopped and does not start at
    the next boot.
  - Daemons of slots that are on the host and not in the list are left as they are, and so are rootful ones.
options:
  state:
    description:
      - V(held) is for before the packages are installed. It keeps the rootful daemon that they would start from
        starting, where the host has none yet.
      - V(present) leaves such a daemon switched off, and keeps the slots' own.
    type: str
    choices: [held, present]
    default: present
  prune_calendar:
    description: When to drop what no container uses, a calendar of systemd's such as V(Sun 04:00); empty for never.
    type: str
    default: ""
  prune_until:
    description: How old it must be, such as V(168h).
    type: str
    default: 168h
  withdrawn_data:
    description: What becomes of the images, containers and volumes of a slot that no longer has a daemon.
    type: str
    choices: [keep, delete]
    default: keep
  patience:
    description: For how many seconds the daemons may take to answer.
    type: int
    default: 180
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    description: Predicts every change. Whether the daemons would answer is not known then.
    support: full
  diff_mode:
    description: Shows each file and each unit.
    support: full
author:
  - confined.slots contributors (@confined-slots)
seealso:
  - module: confined.slots.policy
"""

EXAMPLES = r"""
- name: Keep the slots' Docker daemons
  confined.slots.docker:
    slots:
      - name: coder
        network: private
        docker: true
"""

RETURN = r"""
steps:
  description: What was done, or in check mode would be.
  returned: always
  type: list
  elements: dict
  sample: [{"subject": "confined-slots-docker@coder.service", "action": "switch on"}]
"""

import pwd
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _docker, _layout, _ledger
from ..module_utils._declarations import Invalid, Slot, parse, slots_argument
from ..module_utils._files import UnsafePath, names
from ..module_utils._host import UNKNOWN, Account
from ..module_utils._ledger import Span
from ..module_utils._programs import Failed
from ..module_utils._steps import as_result
from ..module_utils._units import Change


def hold(slots: t.Sequence[Slot], check_mode: bool) -> list[Change]:
    """Hold back what the packages would start; return the changes."""
    if not any(slot.docker for slot in slots):
        return []
    changes = list(_docker.held({*_docker.present_units(), *holds()}))
    if not check_mode:
        _docker.apply(changes, _docker.Found({}, {}, {}))
    return changes


def holds() -> dict[str, bool]:
    """Return the units that are held back, with whether the file that does it is the only one in its directory."""
    there = [unit for unit in _docker.ROOTFUL if f"{unit}.d" in names(_layout.UNITS)]
    files = {unit: names(f"{_layout.UNITS}/{unit}.d") for unit in there}
    return {unit: files[unit] == [_docker.HOLD] for unit in there if _docker.HOLD in files[unit]}


def converge(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Keep the daemons and return the module's result; Failed if one does not answer."""
    slots = parse(params["slots"])
    prune = _docker.Prune(params["prune_calendar"], params["prune_until"])
    _docker.check_prune(prune)
    with _ledger.exclusive():
        if params["state"] == "held":
            return as_result([change.step for change in hold(slots, check_mode)])
        running = [slot for slot in slots if _docker.wants(slot)]
        lacking = _docker.lacks() if running and not check_mode else []
        if lacking:
            raise Failed(f"docker-unavailable: {'; '.join(lacking)}")
        accounts = {slot.name: numbers_of(slot, predict=check_mode) for slot in slots if slot.docker}
        found = _docker.find(slots)
        changes = [
            *_docker.released(holds(), _docker.present_units()),
            *_docker.plan(slots, accounts, found, prune, delete=params["withdrawn_data"] == "delete"),
        ]
        starting = list(_docker.to_start(slots, found, changes, prune))
        if not check_mode:
            _docker.apply(changes, found)
            _docker.start(starting)
            silent = _docker.silent({slot.name: accounts[slot.name][0] for slot in running}, params["patience"])
            if silent:
                units = ", ".join(_layout.docker_unit(name) for name in silent)
                raise Failed(
                    f"docker-unavailable: after {params['patience']} s no answer from {units}"
                    f" [journalctl -b -u {_layout.docker_unit(silent[0])}]"
                )
    return as_result([change.step for change in (*changes, *starting)])


def numbers_of(slot: Slot, *, predict: bool) -> tuple[Account, Span]:
    """Return a slot's account and subordinate ids; UNKNOWN's while there is none (a check run before the first)."""
    entry = _ledger.load().slots.get(slot.name)
    try:
        account = pwd.getpwnam(_layout.account(slot.name))
    except KeyError:
        account = None
    if entry is not None and account is not None:
        return Account(account.pw_uid, account.pw_gid), entry.ids.span
    if not predict:
        raise Invalid(f"no account yet for {slot.name} [run the role confined.slots.accounts first]")
    return UNKNOWN, (UNKNOWN.uid, UNKNOWN.uid)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slots": slots_argument(),
            "state": {"type": "str", "choices": ["held", "present"], "default": "present"},
            "prune_calendar": {"type": "str", "default": ""},
            "prune_until": {"type": "str", "default": "168h"},
            "withdrawn_data": {"type": "str", "choices": ["keep", "delete"], "default": "keep"},
            "patience": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**converge(module.params, module.check_mode))
    except (Invalid, UnsafePath, Failed) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'the daemons'}: {error.strerror} [mend it and converge again]")


if __name__ == "__main__":
    main()
