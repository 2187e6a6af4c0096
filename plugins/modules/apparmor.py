#!/usr/bin/python
# Copyright: confined.slots contributors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep the AppArmor profiles of launcher, slotctl and sandboxes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apparmor
short_description: Keep the AppArmor profiles of slot-launcher, slotctl and the sandboxes
version_added: 0.1.0
description:
  - Loads profiles under which slot-launcher's sandbox may make a user namespace, and what runs inside of it may neither
    make one nor mount nor use a capability. They attach to the paths of releases, which only root can write.
  - Parses them before anything is installed, and believes only what the kernel says is loaded.
  - Fails with C(apparmor-conflict), and changes nothing, if a foreign profile attaches to one of these paths or has one
    of these names; with C(apparmor-abi-unsupported) if this host's parser does not take them.
  - Reads the host's settings about user namespaces and fails, naming the setting, if slots could not run under them. It
    changes none of them.
  - Where the kernel runs without AppArmor nothing is done, which is said in RV(reason).
options:
  enabled:
    description:
      - Whether the profiles are to be there. V(false) unloads and removes them, unless processes run under them.
    type: bool
    default: true
  required:
    description: Whether a kernel without AppArmor is a failure.
    type: bool
    default: false
  confine_slots:
    description:
      - Whether the user managers of the slots' accounts, should anything start one, run in a profile that refuses user
        namespaces.
    type: bool
    default: false
extends_documentation_fragment:
  - confined.slots.attributes
  - confined.slots.slots
attributes:
  check_mode:
    description: Parses the profiles and predicts every change; nothing is loaded.
    support: full
  diff_mode:
    description: Shows the profiles.
    support: full
author:
  - confined.slots contributors (@confined-slots)
seealso:
  - module: confined.slots.apparmor_proof
"""

EXAMPLES = r"""
- name: Keep the profiles
  confined.slots.apparmor:
    slots: "{{ slots | confined.slots.without_secrets }}"
"""

RETURN = r"""
reason:
  description: Why there are no profiles, or what they cannot do on this host; empty if nothing is missing.
  returned: success
  type: str
  sample: "this kernel runs without AppArmor: sessions are held by the other walls alone"
steps:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: dict
  sample: [{"subject": "AppArmor profiles", "action": "load"}]
"""

import pwd
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _apparmor as core
from ..module_utils import _layout, _userns
from ..module_utils._declarations import Invalid, parse, slots_argument
from ..module_utils._files import UnsafePath
from ..module_utils._programs import Failed
from ..module_utils._steps import as_result


def converge(params: dict[str, t.Any], check_mode: bool) -> dict[str, t.Any]:
    """Keep the profiles; return the module's result."""
    slots, found = parse(params["slots"]), core.find()
    wanted, digest = None, ""
    if params["enabled"] and found.kernel:
        refuse(core.conflicts(found, core.own_paths()), "apparmor-conflict", "remove or rename the foreign profile")
        wanted = core.text(found)
        digest = core.compiled(wanted)
    if params["enabled"] and params["required"] and not found.kernel:
        raise core.ApparmorError(f"{core.NO_APPARMOR} [boot a kernel with it, or set apparmor_required: false]")
    refuse(_userns.obstacles(_userns.read(), profiles=wanted is not None), "sandbox-unavailable", "")
    steps = core.plan(wanted, digest, found)
    uids = [uid for slot in slots if (uid := uid_of(slot.name)) is not None]
    steps += core.plan_managers(uids if params["confine_slots"] and wanted else [], core.find_managers())
    if not check_mode:
        core.apply(steps)
        left = core.plan(wanted, digest, core.find()) if steps else []
        if left:
            what = ", ".join(f"{step.subject} ({step.action})" for step in left)
            raise core.ApparmorError(f"AppArmor did not take it: still to do is {what} [see 'journalctl -k']")
    return {"reason": reason(params, found), **as_result(steps)}


def reason(params: dict[str, t.Any], found: core.Found) -> str:
    """Return in words what of the wall is missing, "" if nothing is."""
    if not found.kernel:
        return core.NO_APPARMOR
    if not params["enabled"]:
        return "apparmor_enabled is false: sessions are held by the other walls alone"
    return "" if found.namespaces and core.mediates_namespaces(found) else core.NO_NAMESPACES


def refuse(words: list[str], code: str, cure: str) -> None:
    """Fail with what stands in the way, if anything does."""
    if words:
        raise core.ApparmorError(f"{code}: {'; '.join(words)}{f' [{cure}]' if cure else ''}")


def uid_of(slot: str) -> int | None:
    """Return the number of a slot's account; None while there is none."""
    try:
        return pwd.getpwnam(_layout.account(slot)).pw_uid
    except KeyError:
        return None


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slots": slots_argument(),
            "enabled": {"type": "bool", "default": True},
            "required": {"type": "bool", "default": False},
            "confine_slots": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    try:
        result = converge(module.params, module.check_mode)
    except (Invalid, UnsafePath, Failed) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or 'AppArmor'}: {error.strerror} [mend it and converge again]")
    if result["reason"] and module.params["enabled"]:
        module.warn(result["reason"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
