#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep owners and modes of everything that confined.slots has on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: permissions
short_description: Keep owners and modes of everything that confined.slots has on a host
version_added: 0.1.0
author:
  - confined.slots contributors (@confined-slots)
description:
  - Creates the directories of releases, configuration, workspaces, homes, run directories and records for all slots in
    one call, and repairs their owner, group and mode where they have drifted.
  - Walks by directory descriptors and follows no link. Below a directory that a slot can write, nothing is looked at or
    changed; such a directory itself is kept.
  - A link where a directory or file should be, a file with several names, a slot's directory that belongs to another
    account, or a file that root obeys and that others could write is an C(unsafe-path). It and what is below it stays
    as it is, everything else converges, and the module then fails and names them all.
  - Fails with C(rootful-docker-reachable) when a slot's account is in a group that opens the rootful Docker socket, or
    can open the socket by its mode or an ACL.
options:
  repair_only:
    description:
      - Only repair what exists, for a start before other roles look at it. Nothing is created, slots without an account
        are left out, and problems are warnings.
    type: bool
    default: false
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    support: full
    details:
      - Accounts that the accounts role would still make show as V(?) in the diff.
      - What an earlier role of the site would mend is a warning, not a failure.
  diff_mode:
    support: full
seealso:
  - module: ansible.builtin.file
"""

EXAMPLES = r"""
- name: Keep owners and modes
  confined.slots.permissions:
    slots:
      - name: coder
        workspaces: [main, review]
"""

RETURN = r"""
steps:
  description: What was done, or would be done in check mode, in order.
  returned: always
  type: list
  elements: dict
  contains:
    subject:
      description: The path.
      type: str
    action:
      description: V(create) or V(repair).
      type: str
  sample: [{"subject": "/var/log/confined-slots/coder", "action": "repair"}]
problems:
  description: What a person has to put right.
  returned: failure
  type: list
  elements: str
  sample: ["unsafe-path: /var/log/confined-slots/coder/sessions.jsonl is a link; it must be a file […]"]
"""

import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _ledger
from ..module_utils import _permissions as core
from ..module_utils._declarations import Invalid, Slot, parse, slots_argument
from ..module_utils._files import UnsafePath, read
from ..module_utils._steps import as_result


def main() -> None:
    """Find, plan, apply, say."""
    module = AnsibleModule(
        argument_spec={"slots": slots_argument(), "repair_only": {"type": "bool", "default": False}},
        supports_check_mode=True,
    )
    repair_only: bool = module.params["repair_only"]
    try:
        slots = parse(module.params["slots"])
    except Invalid as error:
        module.fail_json(msg=str(error))
    changes, problems = look_at(slots, predict=module.check_mode and not repair_only)
    if repair_only:
        changes = [change for change in changes if change.before is not None]
    if repair_only or module.check_mode:  # the accounts role is still to come, or would have made them
        problems = [problem for problem in problems if problem.code != "account-missing"]
    if not module.check_mode:
        changes, failures = carry_out(changes)
        problems += failures
    mild = [problem for problem in problems if repair_only or (module.check_mode and problem.mended)]
    for problem in mild:
        module.warn(str(problem))
    grave = [str(problem) for problem in problems if problem not in mild]
    result = as_result([change.step() for change in changes])
    if grave:
        module.fail_json(msg="; ".join(grave), problems=grave, **result)
    module.exit_json(**result)


def look_at(slots: t.Sequence[Slot], *, predict: bool) -> tuple[list[core.Change], list[core.Problem]]:
    """Return what has to be done and what stands in the way; slots without an account count only when predicting."""
    accounts, account_problems = core.read_accounts(read("/etc/passwd") or b"", read("/etc/group") or b"", slots)
    ready = [slot for slot in slots if predict or slot.name in accounts]
    changes, problems = core.plan(core.find(core.wanted(ready, accounts, spans())))
    return changes, account_problems + core.docker_problems(accounts) + problems


def spans() -> dict[str, tuple[int, int]]:
    """Return the slots' subordinate ids; of none where the ledger cannot be read, which is a problem of its own."""
    try:
        return {name: entry.ids.span for name, entry in _ledger.load().slots.items()}
    except (Invalid, UnsafePath):
        return {}


def carry_out(changes: t.Sequence[core.Change]) -> tuple[list[core.Change], list[core.Problem]]:
    """Return the changes made and the problems met; a change below one that failed is left out."""
    done: list[core.Change] = []
    failures: list[core.Problem] = []
    failed: list[str] = []
    for change in changes:
        path = change.node.path
        if any(path.startswith(f"{above}/") for above in failed):
            continue
        try:
            core.apply(change)
            done.append(change)
        except UnsafePath as error:
            failures.append(core.unsafe(str(error)))
            failed.append(path)
        except OSError as error:
            failures.append(core.Problem("not-possible", f"{path}: {error.strerror}", "mend it and converge again"))
            failed.append(path)
    return done, failures


if __name__ == "__main__":
    main()
