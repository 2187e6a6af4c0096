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

import dataclasses
import json
import pwd
import typing as t

from ansible.module_utils.basic import AnsibleModule

from ..module_utils import _capabilities, _compatibility, _layout, _strict
from ..module_utils._approvals import Approval, check
from ..module_utils._approvals import read as read_approval
from ..module_utils._declarations import MODES, Invalid, Slot, check_mode_name, parse, slots_argument
from ..module_utils._files import Owned, UnsafePath, ensure_directory, look, names, owned, read, remove, write
from ..module_utils._host import UNKNOWN, Account, survey
from ..module_utils._policy import Policy, compile_all
from ..module_utils._providers import on_host
from ..module_utils._refusals import Refusal
from ..module_utils._steps import Step, as_result

File = tuple[str, bytes, Owned]
Kept = tuple[str, t.Optional[bytes], Owned]  # noqa: UP045  (None: a directory)


def compiled(slots: t.Sequence[Slot], params: dict[str, t.Any], *, predict: bool) -> list[list[Policy]]:
    """Return for each slot its policy and those of its narrower workspaces; Invalid if one cannot be."""
    site = _capabilities.parse(params["capabilities"])
    slots = [dataclasses.replace(slot, mode=slot.mode or kept_mode(slot, params["default_mode"])) for slot in slots]
    host = survey(
        slots,
        [path for path, _unused in (*_strict.SYSTEM_FILES, _strict.RESOLVER)],
        binds=[bind for capability in site.values() for bind in capability.binds],
        masks=_compatibility.candidates(slots),
        at_home=_compatibility.MASKED_AT_HOME,
    )
    providers = {name: on_host(name, params["profiles"], predict=predict) for name in {slot.provider for slot in slots}}
    return [compile_all(slot, account_of(slot), providers[slot.provider], host, site) for slot in slots]


def kept_mode(slot: Slot, default: str) -> str:
    """Return the mode that the slot has on this host, the default if there is no such slot yet.

    Invalid where that cannot be told: to take the default then could be a step back to a weaker mode.
    """
    path = f"{_layout.policy(slot.name)}/policy.json"
    text = read(path)
    if text is None and look(_layout.plan(slot.name)) is None:
        return default
    try:
        mode = json.loads(text or b"")["mode"]
    except (ValueError, KeyError, TypeError):
        why = f"{path} cannot be read, so nobody knows which mode the slot has"
        raise Invalid(f"slot '{slot.name}': {why} [declare its mode]") from None
    return check_mode_name(mode, f"slot '{slot.name}': mode")


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
    plan = (_layout.plan(name, policy.workspace), policy.plan(), readable)
    if policy.workspace:
        return [plan]
    return [
        (f"{_layout.UNITS}/{_layout.slice_unit(name)}", policy.slice_text().encode(), Owned(0, 0, 0o644)),
        (f"{_layout.policy(name)}/policy.json", policy.as_text().encode(), readable),
        *approval_of(policy),
        plan,
    ]


def approval_of(policy: Policy) -> t.Iterator[File]:
    """Yield the approval that the inventory gives, if it is one of this very policy."""
    declared = policy.slot.approval
    if policy.approved and declared and declared.fingerprint == policy.approved:
        words = {**policy.as_dict(), "fingerprint": policy.approved}
        content = Approval(declared.by, declared.on, words, {"source": "inventory"}).as_bytes()
        yield _layout.approval(policy.slot.name), content, Owned(0, policy.account.gid, 0o640)


def unapproved(policy: Policy) -> str | None:
    """Return what an operator has to know of a policy whose sessions would be refused, None if they would not."""
    declared = policy.slot.approval
    if not policy.approved or not policy.slot.enabled or (declared and declared.fingerprint == policy.approved):
        return None
    words = {**policy.as_dict(), "fingerprint": policy.approved}
    try:
        check(words, read_approval(policy.slot.name))
    except Refusal as refusal:
        named = f"; its approval in the inventory is of {declared.fingerprint}" if declared else ""
        now = "; the policy now is " + policy.approved if policy.account != UNKNOWN else ""
        return f"{refusal}{named}{now}"
    return None


def stale(policies: t.Sequence[Policy]) -> list[str]:
    """Return the plans of workspaces that are no longer narrower than their slot."""
    name = policies[0].slot.name
    wanted = {_layout.plan(name, policy.workspace) for policy in policies}
    found = names(_layout.policy(name)) if look(_layout.policy(name)) else []
    paths = [f"{_layout.policy(name)}/{each}" for each in found if each.startswith("plan-")]
    return [path for path in paths if path not in wanted]


def states(policy: Policy) -> t.Iterator[tuple[str, Owned]]:
    """Yield the directories of state that the policy binds and that root has to make; what is above them is root's."""
    prefix = _layout.approved_state(policy.slot.name, policy.provider.name, "")
    for mount in policy.mounts:
        if mount.source.startswith(prefix):
            yield mount.source, Owned(policy.account.uid, policy.account.gid, 0o700)


def plan(policies: t.Sequence[Policy]) -> tuple[list[tuple[Step, Kept]], list[str]]:
    """Return each file that is not as it has to be, and where somebody else could redirect root."""
    changes: list[tuple[Step, Kept]] = []
    unsafe: list[str] = []
    for policy in policies:
        try:
            for path, kept in states(policy):
                if owned(path) != kept:
                    changes.append((Step(path, "keep", str(owned(path) or ""), str(kept)), (path, None, kept)))
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


def apply(changes: t.Sequence[tuple[Step, Kept]]) -> list[str]:
    """Write the files; return where somebody else could redirect root, which keeps no other slot from its policy."""
    unsafe = []
    for _step, (path, content, wanted) in changes:
        try:
            if content is None:
                ensure_directory(path, wanted)
                continue
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
    compiled_or_signed = path.startswith(f"{_layout.SLOTS_D}/") and not path.endswith(".json")
    return "(made from policy.json)" if compiled_or_signed else content.decode(errors="replace")


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
        of_slots = compiled(parse(module.params["slots"]), module.params, predict=module.check_mode)
        policies = [policy for each in of_slots for policy in each]
        if not module.check_mode:
            missing = [policy.slot.name for policy in policies if policy.account == UNKNOWN]
            if missing:
                module.fail_json(
                    msg=f"no account yet for {', '.join(missing)} [run the role confined.slots.accounts first]"
                )
        changes, unsafe = plan(policies)
        gone = [path for each in of_slots for path in stale(each)]
        if not module.check_mode:
            unsafe += apply(changes)
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
        if words := unapproved(each[0]):
            module.warn(words)
    module.exit_json(
        fingerprints={each[0].slot.name: each[0].fingerprint() for each in of_slots},
        capabilities={each[0].slot.name: [one.words for one in each[0].capabilities] for each in of_slots},
        **as_result([*(step for step, _unused in changes), *(Step(path, "remove") for path in gone)]),
    )


if __name__ == "__main__":
    main()
