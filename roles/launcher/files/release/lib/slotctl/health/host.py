# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What slots need of the host: its kernel's settings, control groups, tools. Conflicts are named, never changed."""

from __future__ import annotations

import errno
import os
import stat
import typing as t

from confined_slots import _accounts, _files, _layout, _permissions, _userns
from confined_slots._health import CouldNot, Outcome, critical, ok, warn

from ..slots import CONVERGE
from .apparmor import loaded
from .context import Check, Context

CONTROLLERS = ("cpu", "memory", "pids")
NEWIDMAP = {"/usr/bin/newuidmap": 7, "/usr/bin/newgidmap": 6}  # the capability that each needs: CAP_SETUID, CAP_SETGID


def sysctls(_context: Context) -> Outcome:
    """Return which settings of the kernel keep namespaces from being made."""
    found = _userns.read()
    if unread := sorted(set(_userns.MOST.values()) - set(found)):
        raise CouldNot(f"{_userns.SYS}/{unread[0]} cannot be read")
    expected = "no setting of the kernel keeps an account from making namespaces"
    bad = _userns.obstacles(found, profiles=bool(loaded()))
    if bad:
        cure = "see who sets it: grep -rs the name in /etc/sysctl.conf /etc/sysctl.d /usr/lib/sysctl.d"
        return critical("; ".join(bad), expected, cure)
    return ok(f"{len(found)} settings looked at", expected)


def control_groups(_context: Context) -> Outcome:
    """Return whether the kernel gives systemd the controllers with which the limits of slots are kept."""
    expected = f"control groups of version 2 with {', '.join(CONTROLLERS)}"
    try:
        with open(f"{_layout.CGROUPS}/cgroup.controllers", encoding="ascii") as file:
            there = file.read(4096).split()
    except OSError as error:
        return warn(f"{_layout.CGROUPS}/cgroup.controllers: {error.strerror}", expected, "boot with control groups v2")
    missing = [name for name in CONTROLLERS if name not in there]
    if missing:
        what = f"no controller for {', '.join(missing)}: such limits of slots are declared and not in force"
        return warn(what, expected, "boot with control groups v2, or let the container have them")
    return ok("all are there", expected)


def newidmap(_context: Context) -> Outcome:
    """Return whether newuidmap and newgidmap are root's and privileged, as rootless Docker needs them."""
    expected = "newuidmap and newgidmap are root's, with set-user-ID or the file capability"
    for path, capability in NEWIDMAP.items():
        why = _unprivileged(path, capability)
        if why:
            return warn(f"{path} {why}", expected, "reinstall the package uidmap")
    return ok("both are", expected)


def _unprivileged(path: str, capability: int) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            return f"is no program that only root can write ({_files.Found.of(found).owned})"
        if found.st_mode & stat.S_ISUID:
            return ""
        try:
            held = os.getxattr(descriptor, "security.capability")
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise
            held = b""
        # struct vfs_cap_data: magic and flags, then permitted and inheritable
        permitted = int.from_bytes(held[4:8], "little")
        return "" if permitted >> capability & 1 else "has neither set-user-ID nor the file capability"
    finally:
        os.close(descriptor)


def tree(_context: Context) -> Outcome:
    """Return whether the directories that all slots share are as they are to be, and all above them."""
    return judged(_permissions.wanted([], {}))


def judged(nodes: t.Iterable[_permissions.Node]) -> Outcome:
    """Return whether what stands at nodes has the owner and mode that the role permissions keeps."""
    expected = "owners and modes as docs/architecture.md says, and only root can redirect the way there"
    wanted = list(nodes)
    changes, problems = _permissions.plan(_permissions.find(wanted))
    if problems:
        return critical("; ".join(f"{each.code}: {each.what}" for each in problems), expected, problems[0].cure)
    steps = [change.step() for change in changes]
    bad = [f"{step.subject} is {step.before or 'missing'}, not {step.after}" for step in steps]
    if bad:
        return critical("; ".join(bad), expected, CONVERGE)
    return ok(f"{len(wanted)} paths", expected)


def slots(context: Context) -> Outcome:
    """Return whether the slots of this host are those of its ledger, and those that the inventory declares."""
    expected = "each slot has ids in the ledger and a policy, as declared"
    ledger = context.host.accounts.ledger.slots
    known, declared = set(context.host.slots), context.options.declared
    bad = [f"the removal of {name} has begun and not ended" for name, entry in sorted(ledger.items()) if entry.leaving]
    bad += [f"{name} has ids in {_layout.LEDGER} and no policy" for name in sorted(set(ledger) - known)]
    bad += [f"{name} has a policy and no ids in {_layout.LEDGER}" for name in sorted(known - set(ledger))]
    if declared is not None:
        bad += [f"{name} is declared and not on this host" for name in sorted(set(declared) - known)]
    if bad:
        return critical("; ".join(bad), expected, f"{CONVERGE}, or finish the removal with confined.slots.remove_slot")
    undeclared = sorted(known - set(declared)) if declared is not None else []
    if undeclared:
        what = f"not in the inventory: {', '.join(undeclared)}"
        return warn(what, expected, "declare it, or remove it with the playbook confined.slots.remove_slot")
    return ok(f"{len(known)} slots", expected)


def systemd(context: Context) -> Outcome:
    """Return whether systemd answers."""
    expected = "systemd answers"
    if context.host.units is None:
        raise CouldNot(context.host.trouble)
    return ok(f"it spoke of {len(context.host.units)} units", expected)


def passwords(_context: Context) -> Outcome:
    """Return whether the files of accounts are root's, and passwords where only root reads them."""
    expected = "/etc/passwd, group, subuid, subgid are root's; /etc/shadow is not for others"
    for path in (_accounts.PASSWD, _accounts.GROUP, _accounts.SUBUID, _accounts.SUBGID, _accounts.SHADOW):
        found = os.lstat(path)
        others = 0o026 if path == _accounts.SHADOW else 0o022
        if found.st_uid != 0 or not stat.S_ISREG(found.st_mode) or found.st_mode & others:
            cure = f"chown root {path}; chmod {'g-w,o=' if others & 0o004 else 'go-w'} {path}"
            return critical(f"{path} is {_files.Found.of(found).owned}", expected, cure)
    return ok("they are", expected)


HOST = (
    Check("slots", "the slots are those of the ledger and the inventory", slots),
    Check("systemd", "systemd answers", systemd),
    Check("sysctls", "the kernel lets namespaces be made", sysctls),
    Check("control-groups", "limits can be kept", control_groups),
    Check("newuidmap", "subordinate ids can be used", newidmap),
    Check("tree", "shared directories have their owners and modes", tree),
    Check("account-files", "the files of accounts are root's", passwords),
)
