# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The slot's account: as ledger and plan have it, locked, in no other group, with subordinate ids of its own."""

from __future__ import annotations

import os

from confined_slots import _accounts, _files, _layout, _permissions
from confined_slots._health import DoesNotApply, Outcome, critical, ok, warn
from confined_slots._host import Account

from .. import checks
from ..slots import CONVERGE
from .context import Check, Context

LINGER = "/var/lib/systemd/linger"
MOST_NAMED = 5


def account(context: Context) -> Outcome:
    """Return whether the account has the ids, home, group and locked password that it was given."""
    found, name, ids = context.host.accounts, context.account, context.ids
    home = _layout.account_home(context.name)
    expected = f"{name} {ids.uid}:{ids.uid}, home {home}, password locked, in no other group"
    checks.account(context.slot)
    entry = found.account.get(name)
    if entry is None or name not in found.group:
        return critical(f"{name} is not in {_accounts.PASSWD} and {_accounts.GROUP}", expected, CONVERGE)
    bad = []
    if (entry.uid, entry.gid, found.group[name].gid) != (ids.uid, ids.uid, ids.uid):
        bad.append(f"it is {entry.uid}:{entry.gid}, its group {found.group[name].gid}")
    if entry.home != home:
        bad.append(f"its home is {entry.home}")
    members = [member for member in found.group[name].members if member != name]
    if members:
        bad.append(f"its group has {', '.join(members)} in it")
    twins = [other.name for other in found.accounts if other.uid == ids.uid and other.name != name]
    if twins:
        bad.append(f"{', '.join(twins)} has the same uid")
    shell = _files.look(os.path.realpath(entry.shell)) if entry.shell.startswith("/") else None
    if shell is None or shell.kind != "file" or shell.owned.uid != 0 or shell.owned.mode & 0o022:
        bad.append(f"its shell is {entry.shell}, which is no program of root's")
    if not entry.shadowed:
        bad.append(f"its password stands in {_accounts.PASSWD}")
    if bad:
        return critical("; ".join(bad), expected, CONVERGE)
    password = found.passwords.get(name)
    if not password:
        return critical("it needs no password", expected, CONVERGE)
    if not password.startswith(("!", "*")):
        return ok("as given, with a console password", expected)
    return ok("as given", expected)


def subordinate_ids(context: Context) -> Outcome:
    """Return whether the slot has its ranges, in both files, and nobody else has any of them."""
    found, name, ids = context.host.accounts, context.account, context.ids
    expected = f"{ids.subid_count} ids from {ids.subid_first} in both {_accounts.SUBUID} and {_accounts.SUBGID}, alone"
    for path, ranges in ((_accounts.SUBUID, found.subuids), (_accounts.SUBGID, found.subgids)):
        if not any(entry.is_of(name, ids.uid) and entry.span == ids.span for entry in ranges or ()):
            return critical(f"{path} does not give them to {name}", expected, CONVERGE)
    _accounts.check_ranges({name: ids}, found)
    if context.policy.get("docker") and ids.subid_count < 65536:
        return critical(f"{ids.subid_count} are too few for containers", expected, "raise accounts_subid_count")
    return ok("they are its own", expected)


def linger(context: Context) -> Outcome:
    """Return whether the account has no user manager, over whose bus a session would get out."""
    expected = "no lingering and no user manager: a reachable user bus is a way out"
    bad = []
    if os.path.lexists(f"{LINGER}/{context.account}"):
        bad.append(f"{LINGER}/{context.account} stands there")
    bus = f"/run/user/{context.ids.uid}"
    if os.path.lexists(bus):
        bad.append(f"{bus} stands there")
    if bad:
        cure = f"loginctl disable-linger {context.account}; loginctl terminate-user {context.account}"
        return critical("; ".join(bad), expected, cure)
    return ok("none", expected)


def docker_socket(context: Context) -> Outcome:
    """RD-08: whoever can open the rootful Docker socket is root."""
    if not os.path.lexists(_permissions.DOCKER_SOCKET):
        raise DoesNotApply(f"this host has no {_permissions.DOCKER_SOCKET}")
    expected = f"{context.account} cannot open {_permissions.DOCKER_SOCKET}"
    ids = context.ids
    for problem in _permissions.docker_problems({context.name: Account(ids.uid, ids.uid)}):
        return critical(f"{problem.code}: {problem.what}", expected, problem.cure)
    return ok("it cannot", expected)


def strays(context: Context) -> Outcome:
    """Return whether processes run as the slot outside of its slice, where neither limits nor `slotctl stop` reach."""
    expected = f"all of its processes are in {_layout.slice_unit(context.name)}"
    mine, (first, end) = f"0::{_layout.slice_group(context.name)}/", context.ids.span
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            owner = os.stat(f"/proc/{pid}").st_uid
            if owner != context.ids.uid and not first <= owner < end:
                continue
            with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
                group = next((line.rstrip("\n") for line in file if line.startswith("0::")), "")
            if not f"{group}/".startswith(mine):
                found.append(f"{pid} in {group[3:]}")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    if found:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        what = f"processes {', '.join(found[:MOST_NAMED])}{more}"
        return warn(what, expected, f"see what they are: ps -u {context.account}; end them, or run them by slotctl run")
    return ok("none outside", expected)


SLOT = (
    Check("account", "the account is as it was given", account),
    Check("subordinate-ids", "the subordinate ids are the slot's alone", subordinate_ids),
    Check("linger", "the account has no user manager", linger),
    Check("docker-socket", "the rootful Docker daemon is out of reach", docker_socket),
    Check("stray-processes", "nothing runs as the slot outside of its slice", strays),
)
