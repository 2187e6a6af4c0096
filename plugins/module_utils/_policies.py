# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host keeps of its slots' policies: which files, which of them are not as they have to be, their writing."""

from __future__ import annotations

import dataclasses
import json
import pwd
import typing as t

from . import _capabilities, _compatibility, _layout, _strict
from ._approvals import Approval, check
from ._approvals import read as read_approval
from ._declarations import Invalid, Slot, check_mode_name
from ._files import Owned, UnsafePath, ensure_directory, look, names, owned, read, write
from ._host import UNKNOWN, Account, survey
from ._policy import Policy, compile_all
from ._providers import on_host
from ._refusals import Refusal
from ._steps import Step

File = tuple[str, bytes, Owned]
Kept = tuple[str, t.Optional[bytes], Owned]  # noqa: UP045  (None: a directory)


def compiled(
    slots: t.Sequence[Slot],
    profiles: t.Sequence[t.Mapping[str, t.Any]],
    capabilities: t.Mapping[str, t.Any],
    default_mode: str,
    *,
    predict: bool,
) -> list[list[Policy]]:
    """Return for each slot its policy and those of its narrower workspaces; Invalid if one cannot be.

    profiles and capabilities are as the role has them; predict: providers may be still to come.
    """
    site = _capabilities.parse(capabilities)
    slots = [dataclasses.replace(slot, mode=slot.mode or kept_mode(slot, default_mode)) for slot in slots]
    host = survey(
        slots,
        [path for path, _unused in (*_strict.SYSTEM_FILES, _strict.RESOLVER)],
        binds=[bind for capability in site.values() for bind in capability.binds],
        masks=_compatibility.candidates(slots),
        at_home=_compatibility.MASKED_AT_HOME,
    )
    providers = {name: on_host(name, profiles, predict=predict) for name in {slot.provider for slot in slots}}
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
