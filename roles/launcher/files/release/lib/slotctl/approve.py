# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl approve`: a person reads a slot's policy and approves it, for verified mode."""

from __future__ import annotations

import os
import pwd
import sys
import termios
import time
import typing as t

from confined_slots import _approvals, _layout, _sessions
from confined_slots._files import Owned, write
from confined_slots._plan import value, values
from confined_slots._refusals import Refusal

from . import run, show
from .slots import load
from .tables import say


def asked(text: str, terminal: int = 0) -> str:
    """Return the answer of the person on the terminal, "" if they hang up.

    What was typed before they could read is dropped: a session that has just ended can have made a terminal type.
    """
    termios.tcflush(terminal, termios.TCIFLUSH)
    try:
        return input(text)
    except EOFError:
        return ""


def approve(name: str, ask: t.Callable[[str], str] = asked) -> dict[str, t.Any]:
    """Ask the person on the terminal to approve the slot's policy, and keep the approval; Refusal if nobody may."""
    slot = load(name, "")
    if not values(slot.records, "approved"):
        raise Refusal("approval-missing", f"slot {name} is not in verified mode", "it needs no approval")
    person = who(name)
    policy = {**slot.base, "fingerprint": value(slot.records, "approved")}
    old = _approvals.read(name)
    sys.stdout.write(show.show_policy(policy))
    for line in _approvals.differences(old.policy, policy) if old else ():
        sys.stdout.write(f"since {old.by if old else ''} approved it: {line}\n")
    sys.stdout.flush()
    if ask(f"To approve this as {person['user']}, type the slot's name: ").strip() != name:
        raise Refusal("approval-missing", "nothing was approved", f"slotctl approve {name}")
    if load(name, "").records != slot.records:
        raise Refusal("approval-missing", "the policy was compiled anew meanwhile", f"slotctl approve {name}")
    evidence = {"source": "slotctl approve", "terminal": os.ttyname(0), "time": _sessions.now(), **person}
    given = _approvals.Approval(person["user"], time.strftime("%Y-%m-%d", time.gmtime()), policy, evidence)
    write(_layout.approval(name), given.as_bytes(), Owned(0, slot.gid, 0o640))
    record = {"event": "approved", "slot": name, "session": "", "policy": policy["fingerprint"], **evidence}
    try:
        _sessions.append(name, slot.gid, record)
    except Refusal as refusal:
        say(f"slotctl: approved, but not on record: {refusal}")
    return {"slot": name, "by": given.by, "on": given.on, "fingerprint": policy["fingerprint"]}


def who(name: str) -> dict[str, t.Any]:
    """Return the person who asks, by the kernel's word where it has one; Refusal unless it is one on a terminal."""
    cure = f"run 'sudo slotctl approve {name}' on a terminal, or give approval: in the inventory"
    if not (os.isatty(0) and os.isatty(1)):
        raise Refusal("approval-missing", "only a person on a terminal can approve", cure)
    caller = run.caller()
    uid = caller.get("login_uid", caller["uid"])
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise Refusal("approval-missing", f"uid {uid} has no account", cure) from None
    with open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        in_a_slot = "confined-slots" in file.read()
    if in_a_slot or any(account.startswith("slot-") for account in (entry.pw_name, caller["user"])):
        raise Refusal("approval-missing", "what runs in a slot cannot approve", cure)
    return {"user": entry.pw_name, "uid": uid, "caller": caller}
