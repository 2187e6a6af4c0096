#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile every slot's effective policy and launch plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: policy
short_description: Compile the effective policy and launch plan of every slot
version_added: 0.1.0
description:
  - Resolves what each declared slot may see and use on this host, and writes it root-owned for the launcher to obey.
  - Every mount is data with a source, a target, a mode and a reason; one without a reason does not compile.
  - A slot whose policy cannot be compiled fails the task; nothing is written then, and every plan stays as it was.
  - Where others than root could redirect the way to a slot's files the task fails too, with the path, once the other
    slots are converged.
  - Slots that are on the host and not in the list are left as they are;
    the playbook C(confined.slots.remove_slot) removes one.
options:
  profiles:
    description:
      - Contracts of the providers, as the lookup P(confined.slots.profiles#lookup) gives them.
    type: list
    elements: dict
    required: true
  capabilities:
    description:
      - Capabilities of the site's own by key, as docs/capabilities.md says; slots name them too.
    type: dict
    default: {}
  default_mode:
    description: The mode of slots that are new on the host and declare none. Slots that are there keep theirs.
    type: str
    choices: [compatibility, isolated, verified]
    default: isolated
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    description: Shows the policy as people read it. It holds no secret.
author:
  - confined.slots contributors (@confined-slots)
"""

EXAMPLES = r"""
- name: Keep the policies
  confined.slots.policy:
    slots:
      - name: coder
        workspaces: [main, review]
    profiles: "{{ lookup('confined.slots.profiles') }}"
"""

RETURN = r"""
fingerprints:
  description: The fingerprint of each slot's effective policy.
  returned: success
  type: dict
  sample: {"coder": "sha256:0f1e…"}
capabilities:
  description: What each slot may do, in words.
  returned: success
  type: dict
  sample: {"coder": ["Use Codex CLI"]}
steps:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: dict
  sample: [{"subject": "coder", "action": "compile"}]
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _layout, _policies
from ..module_utils._declarations import MODES, Invalid, parse, slots_argument
from ..module_utils._files import UnsafePath, remove
from ..module_utils._host import UNKNOWN
from ..module_utils._steps import Step, as_result


def main() -> None:
    """Compile, compare, write, say."""
    module = AnsibleModule(
        argument_spec={
            "slots": slots_argument(),
            "profiles": {"type": "list", "elements": "dict", "required": True},
            "capabilities": {"type": "dict", "default": {}},
            "default_mode": {"type": "str", "choices": list(MODES), "default": "isolated"},
        },
        supports_check_mode=True,
    )
    try:
        of_slots = _policies.compiled(
            parse(module.params["slots"]),
            *(module.params[name] for name in ("profiles", "capabilities", "default_mode")),
            predict=module.check_mode,
        )
        policies = [policy for each in of_slots for policy in each]
        if not module.check_mode:
            missing = [policy.slot.name for policy in policies if policy.account == UNKNOWN]
            if missing:
                module.fail_json(
                    msg=f"no account yet for {', '.join(missing)} [run the role confined.slots.accounts first]"
                )
        changes, unsafe = _policies.plan(policies)
        gone = [path for each in of_slots for path in _policies.stale(each)]
        if not module.check_mode:
            unsafe += _policies.apply(changes)
            for path in gone:
                remove(path)
            if any(path.startswith(_layout.UNITS) for _step, (path, _content, _owned) in changes):
                module.run_command(["systemctl", "daemon-reload"], check_rc=True)
    except (Invalid, UnsafePath) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        cure = "mend it and converge again; the old plans are in force"
        module.fail_json(msg=f"{error.filename or _layout.ETC}: {error.strerror} [{cure}]")
    if unsafe:
        module.fail_json(msg=f"{'; '.join(unsafe)} [give them to root; the other slots were converged]")
    for each in of_slots:
        if words := _policies.unapproved(each[0]):
            module.warn(words)
    module.exit_json(
        fingerprints={each[0].slot.name: each[0].fingerprint() for each in of_slots},
        capabilities={each[0].slot.name: [one.words for one in each[0].capabilities] for each in of_slots},
        **as_result([*(step for step, _unused in changes), *(Step(path, "remove") for path in gone)]),
    )


if __name__ == "__main__":
    main()
