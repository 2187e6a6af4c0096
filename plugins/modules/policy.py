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
extends_documentation_fragment:
  - confined.slots.slots
attributes:
  check_mode:
    support: full
    description: Predicts every change without making it.
  diff_mode:
    support: full
    description: Shows the policy as people read it. It holds no secret.
  idempotent:
    support: full
    description: A second run changes nothing.
  platform:
    support: full
    platforms: posix
    description: Linux with systemd.
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
steps:
  description: What was done, or in check mode would be.
  returned: success
  type: list
  elements: dict
  sample: [{"subject": "coder", "action": "compile"}]
"""

import pwd
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _layout
from ..module_utils._declarations import Invalid, Slot, parse, slots_argument
from ..module_utils._files import Owned, UnsafePath, ensure_directory, owned, read, write
from ..module_utils._host import UNKNOWN, Account, survey
from ..module_utils._policy import RESOLVER, SYSTEM_FILES, Policy, compile_policy
from ..module_utils._providers import on_host
from ..module_utils._steps import Step, as_result

File = tuple[str, bytes, Owned]


def compile_all(slots: t.Sequence[Slot], profiles: list[dict[str, t.Any]], *, predict: bool) -> list[Policy]:
    """Return every slot's policy; Invalid if one cannot be."""
    host = survey(slots, [path for path, _unused in (*SYSTEM_FILES, RESOLVER)])
    providers = {name: on_host(name, profiles, predict=predict) for name in {slot.provider for slot in slots}}
    return [compile_policy(slot, account_of(slot), providers[slot.provider], host) for slot in slots]


def account_of(slot: Slot) -> Account:
    """Return the numbers of the slot's account, UNKNOWN while there is none (a check run before the first converge)."""
    try:
        entry = pwd.getpwnam(_layout.account(slot.name))
    except KeyError:
        return UNKNOWN
    return Account(entry.pw_uid, entry.pw_gid)


def files_of(policy: Policy) -> list[File]:
    """Return path, content and owner of each file of the policy; the plan comes last, since it is what counts."""
    name = policy.slot.name
    readable = Owned(0, policy.account.gid, 0o640)
    return [
        (f"{_layout.UNITS}/{_layout.slice_unit(name)}", policy.slice_text().encode(), Owned(0, 0, 0o644)),
        (f"{_layout.policy(name)}/policy.json", policy.as_text().encode(), readable),
        (_layout.plan(name), policy.plan(), readable),
    ]


def plan(policies: t.Sequence[Policy]) -> tuple[list[tuple[Step, File]], list[str]]:
    """Return each file that is not as it has to be, and where somebody else could redirect root."""
    changes: list[tuple[Step, File]] = []
    unsafe: list[str] = []
    for policy in policies:
        try:
            for path, content, wanted in files_of(policy):
                found = read(path)
                if found != content:
                    step = Step(path, "compile", as_text(path, found), as_text(path, content))
                    changes.append((step, (path, content, wanted)))
                elif owned(path) != wanted:
                    changes.append((Step(path, "give", str(owned(path)), str(wanted)), (path, content, wanted)))
        except UnsafePath as error:
            unsafe.append(str(error))
    return changes, unsafe


def apply(changes: t.Sequence[tuple[Step, File]]) -> list[str]:
    """Write the files; return where somebody else could redirect root, which keeps no other slot from its policy."""
    unsafe = []
    for _step, (path, content, wanted) in changes:
        try:
            if path.startswith(_layout.SLOTS_D):
                ensure_directory(path.rpartition("/")[0], Owned(0, wanted.gid, 0o750))
            write(path, content, wanted)
        except UnsafePath as error:
            unsafe.append(str(error))
    return unsafe


def as_text(path: str, content: bytes | None) -> str | None:
    """Return what a diff shows of a file: a plan is for the launcher, people read the policy."""
    if content is None:
        return None
    return "(compiled from policy.json)" if path.endswith("/plan") else content.decode(errors="replace")


def main() -> None:
    """Compile, compare, write, say."""
    module = AnsibleModule(
        argument_spec={
            "slots": slots_argument(),
            "profiles": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        policies = compile_all(parse(module.params["slots"]), module.params["profiles"], predict=module.check_mode)
        if not module.check_mode:
            missing = [policy.slot.name for policy in policies if policy.account == UNKNOWN]
            if missing:
                module.fail_json(
                    msg=f"no account yet for {', '.join(missing)} [run the role confined.slots.accounts first]"
                )
        changes, unsafe = plan(policies)
        if not module.check_mode:
            unsafe += apply(changes)
            if any(path.startswith(_layout.UNITS) for _step, (path, _content, _owned) in changes):
                module.run_command(["systemctl", "daemon-reload"], check_rc=True)
    except (Invalid, UnsafePath) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        cure = "mend it and converge again; the old plans are in force"
        module.fail_json(msg=f"{error.filename or _layout.ETC}: {error.strerror} [{cure}]")
    if unsafe:
        module.fail_json(msg=f"{'; '.join(unsafe)} [give them to root; the other slots were converged]")
    fingerprints = {policy.slot.name: policy.fingerprint() for policy in policies}
    module.exit_json(fingerprints=fingerprints, **as_result([step for step, _unused in changes]))


if __name__ == "__main__":
    main()
