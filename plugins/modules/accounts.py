#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the Unix accounts of all slots of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: accounts
short_description: Keep the Unix accounts of all slots
description:
  - Gives every slot an account C(slot-NAME) with a primary group of its own and no other, a locked password, a home
    that only it can enter, and a range of subordinate uids and gids that overlaps nobody's.
  - Takes all slots of a host in one call.
  - Remembers in C(/etc/confined-slots/ledger.json) every id it ever gave, before the account is made, and gives none
    a second time. A slot that was removed and is declared again gets new ids.
  - An account, group or range that is not the ledger's is never changed. Where one is in a slot's way, the module says
    so and changes nothing.
version_added: 0.1.0
author: confined.slots contributors (@confined-slots)
options:
  uid_first:
    description: First uid (and gid) that a new slot may get.
    type: int
    default: 20000
  uid_last:
    description: Last uid (and gid) that a new slot may get.
    type: int
    default: 29999
  subid_first:
    description: First subordinate id that a new slot may get.
    type: int
    default: 200000000
  subid_count:
    description:
      - How many subordinate ids a new slot gets.
      - A slot that has a range keeps it.
    type: int
    default: 65536
  shell:
    description: Login shell of the accounts, for operators; a session of the slot does not use it.
    type: path
    default: /bin/bash
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    support: full
  diff_mode:
    description: Shows each change; of a password only whether there is one.
    support: full
  platform:
    details: Needs the tools of shadow (C(useradd), C(usermod)) and systemd's directories.
notes:
  - Converges of one host wait for each other by means of a lock on C(/run/confined-slots.lock).
seealso:
  - module: confined.slots.removal
"""

EXAMPLES = r"""
- name: Keep the slot accounts
  confined.slots.accounts:
    slots:
      - name: coder
        provider: claude_code
      - name: reviewer
        provider: codex
"""

RETURN = r"""
accounts:
  description: The ids of each declared slot; in check mode those that it would get.
  returned: success
  type: dict
  sample:
    coder:
      uid: 20000
      gid: 20000
      subid_first: 200000000
      subid_count: 65536
steps:
  description: What was changed, or would be in check mode, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - subject: slot-coder
      action: create account
"""

import grp
import os
import pwd
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _accounts, _apparmor_profiles, _ledger, _steps
from ..module_utils._declarations import Invalid, parse, slots_argument
from ..module_utils._files import UnsafePath
from ..module_utils._programs import Failed


def is_in_use(number: int) -> bool:
    """Say whether any source of names, a directory server too, knows an account or a group by the number."""
    for known in (pwd.getpwuid, grp.getgrgid):
        try:
            known(number)
        except KeyError:
            continue
        return True
    return False


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slots": slots_argument(),
            "uid_first": {"type": "int", "default": 20000},
            "uid_last": {"type": "int", "default": 29999},
            "subid_first": {"type": "int", "default": 200_000_000},
            "subid_count": {"type": "int", "default": 65536},
            "shell": {"type": "path", "default": "/bin/bash"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**converge(module.params, module.check_mode))
    except (Invalid, UnsafePath, Failed) as refused:
        module.fail_json(msg=str(refused))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'the accounts'}: {error.strerror} [converge again once mended]")


def converge(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Make the accounts as declared and return the module's result."""
    slots = parse(params["slots"])
    pool = _ledger.Pool(*(params[key] for key in ("uid_first", "uid_last", "subid_first", "subid_count")))
    shell = params["shell"]
    to_come = check_mode and shell == _apparmor_profiles.SHELL  # the role installs it before
    if not to_come and not os.access(shell, os.X_OK):
        raise Invalid(f"shell is '{shell}', which is no program of this host [choose one of /etc/shells]")
    with _ledger.exclusive():
        found = _accounts.find(slots)
        ledger = _accounts.with_ids(slots, found, pool, is_in_use)
        _accounts.check(ledger, slots, found)
        changes = list(_accounts.changes(slots, found, ledger, shell))
        if changes and not check_mode:
            _accounts.apply(changes, slots, ledger)
            _accounts.verify(slots, ledger, shell)
    given = {slot.name: ledger.slots[slot.name].ids for slot in slots}
    return {
        **_steps.as_result([change.step for change in changes]),
        "accounts": {
            name: {"uid": ids.uid, "gid": ids.uid, "subid_first": ids.subid_first, "subid_count": ids.subid_count}
            for name, ids in given.items()
        },
    }


if __name__ == "__main__":
    main()
