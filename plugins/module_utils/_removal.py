# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take a slot off a host: what is left of it, and the steps, in an order in which nothing can come back.

Every step depends on what is found, so that a removal that was killed goes on where it stopped. The slot's program is
not trusted: it is shut out and ended before anything of it is read, links are followed nowhere, and its ids stay in the
ledger, so that whatever it left elsewhere on the host belongs to nobody after it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import time
import typing as t

from . import _accounts, _files, _layout, _ledger, _units
from ._accounts import remove_tree
from ._declarations import Invalid, Slot
from ._ledger import Ids, Ledger
from ._programs import ENVIRONMENT, Failed, ask, run
from ._refusals import printable
from ._steps import Step

ARCHIVED = _files.Owned(0, 0, 0o600)
LINGER = "/var/lib/systemd/linger"
CRONTABS, MAIL = "/var/spool/cron/crontabs", "/var/mail"
ARCHIVE_SECONDS = 3600
AT = ("/var/spool/cron/atjobs", "/var/spool/cron/atspool")


@dataclasses.dataclass(frozen=True)
class Found:
    """What is left of one slot; paths are those that exist, in the order in which they go."""

    name: str
    ids: Ids
    leaving: bool
    account: bool = False
    closed: bool = False
    group: bool = False
    schedule: tuple[str, ...] = ()
    switched: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    processes: tuple[tuple[int, str], ...] = ()
    unit_files: tuple[str, ...] = ()
    plan: bool = False
    workspaces: bool = False
    log: bool = False
    trees: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()


def archive_of(found: Found, what: str) -> str:
    """Return the path of the slot's archive of workspaces or logs; the uid, given only once, makes it unique."""
    return f"{_layout.ARCHIVE}/{found.name}-{found.ids.uid}-{what}.tar.gz"


def find(name: str, ledger: Ledger) -> Found | None:
    """Return what is left of a slot, None if it was removed before.

    Raises Invalid if the host never had it, or if ending it would hit somebody else.
    """
    if name not in ledger.slots:
        if any(name == gone for gone, _ids in ledger.retired):
            return None
        names = sorted(ledger.slots)
        known = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"
        raise Invalid(f"slot-unknown: no slot '{name}' is in {_layout.LEDGER}; there are: {known} [name one of them]")
    entry, slot = ledger.slots[name], Slot(name)
    ids, account = entry.ids, _layout.account(name)
    host = _accounts.find([slot])
    _accounts.check(ledger, [slot], host)
    _check_alone(name, ids, host)
    trees = (
        *(_layout.policy(name), f"{_layout.CREDENTIALS}/{name}", f"{_layout.RUN}/{name}"),
        *(_layout.docker_socket_directory(name), _layout.state(name), _layout.log(name), _layout.discoveries(name)),
    )
    mail = f"{MAIL}/{account}"
    unit_files = _unit_files(name)
    units = [os.path.basename(path) for path in unit_files]
    docker = [_layout.docker_unit(name), _layout.prune_unit(name)]
    found = Found(
        name=name,
        ids=ids,
        leaving=entry.leaving,
        account=account in host.account,
        closed=account in _closed_accounts(),
        group=account in host.group,
        schedule=(
            *(path for path in (f"{LINGER}/{account}", f"{CRONTABS}/{account}", mail) if os.path.lexists(path)),
            *_jobs(ids.uid),
        ),
        switched=tuple(_units.states([*(unit for unit in units if unit.endswith(".timer")), *docker])),
        units=_active_units(
            (_layout.slice_unit(name), f"user-{ids.uid}.slice", *(unit for unit in units if unit.endswith(".service")))
        ),
        processes=processes(ids),
        unit_files=unit_files,
        plan=os.path.lexists(_layout.plan(name)),
        workspaces=os.path.isdir(f"{_layout.state(name)}/workspaces"),
        log=os.path.isdir(_layout.log(name)),
        trees=tuple(tree for tree in trees if os.path.lexists(tree)),
        ranges=tuple(
            path
            for path, ranges in ((_accounts.SUBUID, host.subuids), (_accounts.SUBGID, host.subgids))
            if any(line.is_of(account, ids.uid) for line in ranges or ())
        ),
    )
    made = tuple(path for what in ("workspaces", "logs") if os.path.lexists(path := archive_of(found, what)))
    return dataclasses.replace(found, archives=made)


def steps(found: Found, workspaces: str) -> t.Iterator[Step]:
    """Yield what takes the rest of the slot away; workspaces is archive or delete."""
    account = _layout.account(found.name)
    if not found.leaving:
        yield Step(_layout.LEDGER, "begin removal", found.name, f"{found.name}: being removed")
    if found.account and not found.closed:
        yield Step(account, "close account", "open", "expired")
    if found.plan:
        yield Step(_layout.plan(found.name), "remove file", "present")
    for path in found.schedule:
        yield Step(path, "remove file", "present")
    for unit in found.switched:
        yield Step(unit, "switch off", "on")
    if found.units or found.processes:
        running = [*found.units, *(f"process {pid} ({program})" for pid, program in found.processes)]
        yield Step(account, "end processes", "\n".join(running))
    for what, wanted in (("workspaces", found.workspaces and workspaces == "archive"), ("logs", found.log)):
        if wanted and archive_of(found, what) not in found.archives:
            yield Step(archive_of(found, what), f"archive {what}", after=str(ARCHIVED))
    for path in found.unit_files:
        yield Step(path, "remove unit", "present")
    for tree in found.trees:
        yield Step(tree, "remove tree", "present")
    for path in found.ranges:
        yield Step(path, "take ranges back", f"{account}: {found.ids.span[0]}-{found.ids.span[1] - 1}")
    if found.account:
        yield Step(account, "remove account", f"uid {found.ids.uid}")
    elif found.group:
        yield Step(account, "remove group", f"gid {found.ids.uid}")
    yield Step(_layout.LEDGER, "retire", f"{found.name}: being removed", f"uid {found.ids.uid} is not given again")


def apply(step: Step, found: Found, patience: float) -> None:
    """Make one step; Failed says what stands in its way, and that running again goes on from there."""
    account, subject = _layout.account(found.name), step.subject
    if step.action == "begin removal":
        _ledger.save(_ledger.load().leaving(found.name))
    elif step.action == "close account":
        run(("chage", "--expiredate", "0", account))
    elif step.action == "remove file":
        _remove_file(subject)
    elif step.action == "switch off":
        run(("systemctl", "disable", "--quiet", "--now", "--", subject))
    elif step.action == "end processes":
        _end(found, patience)
    elif step.action == "archive workspaces":
        _archive(subject, found.ids.uid, _layout.state(found.name), "workspaces")
    elif step.action == "archive logs":
        _archive(subject, 0, _layout.LOG, found.name)
    elif step.action == "remove unit":
        remove_tree(subject)
        run(("systemctl", "daemon-reload"))
        _units.forget([os.path.basename(subject)])
    elif step.action == "remove tree":
        remove_tree(subject)
    elif step.action == "take ranges back":
        _drop_ranges(subject, account, found.ids.uid)
    elif step.action == "remove account":
        run(("userdel", account))
        if account in _accounts.find([]).group:
            run(("groupdel", account))
    elif step.action == "remove group":
        run(("groupdel", account))
    else:
        _ledger.save(_ledger.load().without(found.name))


def processes(ids: Ids) -> tuple[tuple[int, str], ...]:
    """Return pid and program of every living process of the slot's uid or of one of its subordinate uids."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    programs = ((pid, _program_of(pid, ids)) for pid in pids)
    return tuple((pid, program) for pid, program in programs if program is not None)


def without_ranges(content: bytes, account: str, uid: int) -> bytes:
    """Return the lines of a subuid or subgid file that are not the account's, byte for byte."""
    owners = (account.encode(), str(uid).encode())
    return b"".join(line for line in re.split(rb"(?<=\n)", content) if line.split(b":")[0] not in owners)


def _check_alone(name: str, ids: Ids, host: _accounts.Found) -> None:
    """Raise Invalid if the slot's home is not the slot's alone, or if something of the host is mounted in its trees."""
    account, home, state = _layout.account(name), _layout.account_home(name), _layout.state(name)
    mine = host.account.get(account)
    if mine is not None and mine.home != home:
        raise Invalid(f"the home of '{account}' is {mine.home}, not {home} [converge the slot's account first]")
    owner = host.directories.get(home)
    if owner is not None and owner.uid != ids.uid:
        raise Invalid(
            f"{home} belongs to uid {owner.uid}, not to '{account}' ({ids.uid}); what is not the slot's is not removed"
            " [move it away, or give it back to the slot]"
        )
    for other in host.accounts:
        if other.name != account and f"{other.home}/".startswith(f"{state}/"):
            raise Invalid(f"{other.home} is the home of account '{other.name}' too [give that account another home]")
    for mounted in _mount_points():
        if any(mounted.startswith(f"{tree}/") for tree in (state, _layout.log(name), _layout.policy(name))):
            raise Invalid(f"{mounted} is a mount; what is mounted in a slot is not removed with it [umount {mounted}]")


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split(" ")[4] for line in file]
    return [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), point) for point in points]


def _closed_accounts() -> set[str]:
    """Return the accounts whose last day is over, as chage writes it: field 8 of shadow is 0."""
    lines = (_files.read(_accounts.SHADOW) or b"").decode("utf-8", "surrogateescape").split("\n")
    return {fields[0] for fields in (line.split(":") for line in lines) if len(fields) == 9 and fields[7] == "0"}


def _jobs(uid: int) -> list[str]:
    """Return the at jobs of a uid, and what they have printed so far."""
    jobs = []
    for directory in AT:
        if os.path.isdir(directory):
            with os.scandir(directory) as entries:
                jobs += [entry.path for entry in entries if entry.stat(follow_symlinks=False).st_uid == uid]
    return sorted(jobs)


def _active_units(units: tuple[str, ...]) -> tuple[str, ...]:
    states = ask(("systemctl", "is-active", "--", *units)).out.split()
    return tuple(
        unit for unit, state in zip(units, states, strict=False) if state not in ("inactive", "failed", "unknown")
    )


def _unit_files(name: str) -> tuple[str, ...]:
    """Return the unit files of the slot; a dash in its name is escaped in theirs, so that none is of another slot."""
    stem = f"confined-slots-{_layout.escaped(name)}"
    return tuple(
        f"{_layout.UNITS}/{file}"
        for file in sorted(os.listdir(_layout.UNITS))
        if file.startswith((f"{stem}.", f"{stem}-", f"{_layout.docker_unit(name)}."))
    )


def _program_of(pid: int, ids: Ids) -> str | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    except (FileNotFoundError, ProcessLookupError):
        return None
    first, after = ids.span
    owners = [int(uid) for uid in fields["Uid"].split()]
    if fields["State"][0] in "ZX" or not any(uid == ids.uid or first <= uid < after for uid in owners):
        return None
    return printable(fields["Name"])  # a program names itself


def _end(found: Found, patience: float) -> None:
    """End every process of the slot, within patience seconds after its units have stopped."""
    if found.units:
        run(("systemctl", "stop", "--", *found.units))
    deadline = time.monotonic() + patience
    while left := processes(found.ids):
        if time.monotonic() > deadline:
            listed = ", ".join(f"{pid} ({program})" for pid, program in left[:10])
            raise Failed(
                f"slot-busy: {len(left)} processes of slot '{found.name}' have not ended in {patience:.0f} s"
                f" of SIGKILL: {listed} [see what they wait for (ps -o pid,stat,wchan), then run the removal again]"
            )
        _kill_all(found.ids.uid)
        for pid, _program in left:
            _kill(pid, found.ids)
        time.sleep(0.05)


def _kill_all(uid: int) -> None:
    """Kill at once what the uid may signal: one by one, a program that forks faster than we read would get away."""
    if uid < 1000:
        raise ValueError(uid)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _kill(pid: int, ids: Ids) -> None:
    """Kill one process, once sure through a descriptor that the pid is still the slot's."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if _program_of(pid, ids) is not None:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _archive(path: str, uid: int, parent: str, name: str) -> None:
    """Pack parent/name into path, which appears whole or not at all.

    tar reads as the slot, with the one capability that opens files of the slot's subordinate ids, and writes to a
    descriptor that root opened.
    """
    _files.ensure_directory(_layout.ARCHIVE, _files.Owned(0, 0, 0o700))
    partial = f".{os.path.basename(path)}.partial"
    reader = (
        *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"),
        *(f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")),
    )
    tar = (
        *("tar", "--create", "--gzip", "--file=-", "--sparse", "--numeric-owner", "--one-file-system"),
        *(f"--directory={parent}", "--", name),
    )
    with _files.trusted_directory(_layout.ARCHIVE) as directory:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o600, dir_fd=directory)
        try:
            _files.give(descriptor, ARCHIVED)
            packed = subprocess.run(
                (*reader, *tar),
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.PIPE,
                env=ENVIRONMENT,
                check=False,
                timeout=ARCHIVE_SECONDS,
            )
            os.fsync(descriptor)
        except subprocess.TimeoutExpired:
            os.unlink(partial, dir_fd=directory)
            raise Failed(
                f"{parent}/{name} could not be archived in {ARCHIVE_SECONDS} s, so nothing of it was removed"
                " [see what is so large there; workspaces=delete removes workspaces without an archive]"
            ) from None
        finally:
            os.close(descriptor)
        if packed.returncode != 0:
            os.unlink(partial, dir_fd=directory)
            said = " ".join(packed.stderr.decode("utf-8", "replace").split())[-500:]
            raise Failed(
                f"{parent}/{name} could not be archived, so nothing of it was removed: {said}"
                " [mend that, then run the removal again]"
            )
        os.rename(partial, os.path.basename(path), src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)


def _remove_file(path: str) -> None:
    """Remove a directory's entry, whatever it is; the directory itself stands where only root can replace it."""
    with _files.trusted_directory(os.path.dirname(os.path.dirname(path))) as grandparent:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        parent = os.open(os.path.basename(os.path.dirname(path)), flags, dir_fd=grandparent)
    try:
        os.unlink(os.path.basename(path), dir_fd=parent)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)


def _drop_ranges(path: str, account: str, uid: int) -> None:
    """Rewrite subuid or subgid without the account's lines, under the lock that shadow's tools take (lckpwdf)."""
    with _ledger.shadow_lock():
        content, owner = _files.read(path), _files.owned(path)
        if content is not None and owner is not None:
            _files.write(path, without_ranges(content, account, uid), owner)
