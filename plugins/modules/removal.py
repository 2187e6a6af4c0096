#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove slots from a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: removal
short_description: Remove slots from a host
description:
  - Closes the slot's account and takes its plan away, so that nothing starts any more; removes its crontab, at jobs,
    mail, lingering and schedules; stops its units and kills every process of its uid and subordinate uids; archives its
    workspaces and logs; then removes its units, policy, credentials, homes and workspaces, its ranges of subordinate
    ids, its account and its group.
  - The uid and the ranges stay in the ledger and are never given again. A slot that is declared anew under the same
    name gets others and inherits nothing.
  - Each step is made only if something is left to do, so that a removal that was interrupted is finished by running it
    again.
  - Refuses, before it changes anything, if the slot's home does not belong to the slot or is the home of another
    account, if another account shares one of its ids, or if something is mounted in it.
version_added: 0.1.0
author: confined.slots contributors (@confined-slots)
options:
  names:
    description:
      - The slots to remove.
      - One that was removed before changes nothing; one that the host never had is an error.
    type: list
    elements: str
    required: true
  workspaces:
    description:
      - What becomes of the workspaces.
      - V(archive) packs them into C(/var/lib/confined-slots/archive/NAME-UID-workspaces.tar.gz), which only root reads.
      - V(delete) deletes them. Logs are archived beside in any case.
    type: str
    choices: [archive, delete]
    default: archive
  patience:
    description: How many seconds the slot's processes have to end after they were killed.
    type: int
    default: 10
extends_documentation_fragment:
  - confined.slots.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    description: Shows each step.
    support: full
  platform:
    details: Needs systemd, the tools of shadow, C(setpriv) and GNU tar.
notes:
  - Fails with C(slot-busy), naming the processes, if some cannot be killed in time. Nothing of the slot has been
    removed then but what could start more of them.
seealso:
  - module: confined.slots.accounts
"""

EXAMPLES = r"""
- name: Remove a slot, keep an archive of its workspaces
  confined.slots.removal:
    names: [coder]

- name: Remove two slots with all their work
  confined.slots.removal:
    names: [coder, reviewer]
    workspaces: delete
"""

RETURN = r"""
archives:
  description: The archives of the removed slots; in check mode those that would be made.
  returned: success
  type: list
  elements: str
  sample: [/var/lib/confined-slots/archive/coder-20000-workspaces.tar.gz]
steps:
  description: What was changed, or would be in check mode, in order.
  returned: success
  type: list
  elements: dict
  sample:
    - subject: slot-coder
      action: end processes
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _ledger, _removal, _steps
from ..module_utils._declarations import Invalid
from ..module_utils._files import UnsafePath
from ..module_utils._programs import Failed
from ..module_utils._steps import Step


def converge(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Remove the slots and return the module's result."""
    steps: list[Step] = []
    with _ledger.exclusive():
        ledger = _ledger.load()
        leaving = [found for found in (_removal.find(name, ledger) for name in dict.fromkeys(params["names"])) if found]
        for found in leaving:
            for step in _removal.steps(found, params["workspaces"]):
                if not check_mode:
                    _removal.apply(step, found, params["patience"])
                steps.append(step)
    archives = {path for found in leaving for path in found.archives}
    archives |= {step.subject for step in steps if step.action.startswith("archive ")}
    return {**_steps.as_result(steps), "archives": sorted(archives)}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "names": {"type": "list", "elements": "str", "required": True},
            "workspaces": {"type": "str", "choices": ["archive", "delete"], "default": "archive"},
            "patience": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**converge(module.params, module.check_mode))
    except (Invalid, UnsafePath, Failed) as refused:
        module.fail_json(msg=str(refused))
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename or 'the slot'}: {error.strerror} [mend that, then run the removal again]"
        )


if __name__ == "__main__":
    main()
