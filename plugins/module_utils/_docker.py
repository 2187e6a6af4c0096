# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rootless Docker daemon for each slot that asks for one: a system unit whose mount view PID 1 builds.

Whoever reaches the daemon's socket has all that the daemon has, so the wall is around the daemon: an empty root, in it
the distribution's programs, the slot's workspaces and the daemon's own data. What a container does to the daemon, to
its options or to its files changes nothing of that view, nor of the slice that its limits are on.
"""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import time
import typing as t

from . import _apparmor, _files, _layout, _userns
from ._accounts import remove_tree
from ._as_slot import as_slot
from ._declarations import Invalid, Slot, calendar
from ._files import Owned
from ._host import Account
from ._ledger import Span
from ._programs import ask, run
from ._steps import Step
from ._units import UNIT, Change, File, show, states
from ._units import apply as apply_units

TEMPLATE = f"{_layout.UNITS}/{_layout.docker_unit('')}"
PRUNE_TIMER = f"{_layout.UNITS}/{_layout.prune_unit('')}"
PRUNE_SERVICE = PRUNE_TIMER.replace(".timer", ".service")
SCRIPT = "/usr/share/docker.io/contrib/dockerd-rootless.sh"
# What the daemon and its clients consist of, with the package of Debian that brings each.
PROGRAMS = (
    ("/usr/sbin/dockerd", "docker.io"),
    (SCRIPT, "docker.io"),
    ("/usr/bin/docker", "docker-cli, or docker.io on Debian 12"),
    ("/usr/bin/newuidmap", "uidmap"),
    ("/usr/bin/rootlesskit", "rootlesskit"),
    ("/usr/bin/slirp4netns", "slirp4netns"),
)
# The units with which the distribution's packages start a daemon of root's as soon as they are installed.
ROOTFUL = ("containerd.service", "docker.socket", "docker.service")
UNIT_DIRECTORIES = (_layout.UNITS, "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
HOLD = "confined-slots-hold.conf"
PING_SECONDS = 5.0
MOST_ANSWER = 4096

_DROP_IN = re.compile(r"confined-slots-docker@.+\.service\.d\Z")

_SYSTEM = """\
BindReadOnlyPaths=/usr -/bin -/sbin -/lib -/lib32 -/lib64 -/libx32
BindReadOnlyPaths=-/etc/alternatives -/etc/ca-certificates -/etc/ld.so.cache -/etc/ld.so.conf -/etc/ld.so.conf.d
BindReadOnlyPaths=-/etc/localtime -/etc/login.defs -/etc/protocols -/etc/services -/etc/ssl/certs -/etc/ssl/openssl.cnf
"""

# Not to be added: NoNewPrivileges, PrivateUsers, CapabilityBoundingSet, and what systemd 252 makes seccomp filters of
# (PrivateDevices, ProtectClock, ProtectKernelModules, RestrictRealtime, RestrictSUIDSGID) break newuidmap;
# ProtectKernelTunables, ProtectKernelLogs and ProtectHostname break the /proc and /sys of containers; Delegate would
# give the slot control groups to write in.
_DAEMON = f"""\
# Made by confined.slots
[Unit]
Description=Docker daemon of slot %i
Wants=network-online.target
After=network-online.target
StartLimitBurst=3
StartLimitIntervalSec=60s

[Service]
Type=exec
# a slot that could talk to PID 1 could put off the end of its own unit
NotifyAccess=none
User=slot-%i
Group=slot-%i
UMask=0077
WorkingDirectory=/
RuntimeDirectory=confined-slots-docker/%i
RuntimeDirectoryMode=0700
# sessions hold the directory while the daemon is started anew
RuntimeDirectoryPreserve=yes
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin
Environment=HOME={_layout.docker_data("%i")} XDG_RUNTIME_DIR=/tmp
# not pasta: with it containers on the daemon's network reach the host's loopback
Environment=DOCKERD_ROOTLESS_ROOTLESSKIT_NET=slirp4netns DOCKERD_ROOTLESS_ROOTLESSKIT_MTU=65520
# the first is the default of Docker's script; the second is not to become one: the daemon's network would be the host's
Environment=DOCKERD_ROOTLESS_ROOTLESSKIT_DISABLE_HOST_LOOPBACK=true DOCKERD_ROOTLESS_ROOTLESSKIT_DETACH_NETNS=false
# a container that is root in the daemon's namespaces has the slot's uid: without this it could signal sessions
Environment=DOCKERD_ROOTLESS_ROOTLESSKIT_FLAGS=--pidns
ExecStart={SCRIPT} --host=unix://{_layout.docker_socket("%i")} --data-root={_layout.docker_data("%i")}/data \\
    --exec-root=/run/docker --pidfile=/run/docker.pid --config-file= --ip=127.0.0.1 --log-level=warn \\
    --log-driver=json-file --log-opt=max-size=10m --log-opt=max-file=3
Restart=on-failure
RestartSec=5
TimeoutStopSec=30
KillMode=mixed
# a container that runs out of memory does not take the others with it
OOMPolicy=continue
LimitCORE=0
LimitNOFILE=1048576
KeyringMode=private
PrivateIPC=yes
PrivateTmp=yes
# brings /proc, /sys and the host's /dev; asked for by name, systemd 257 adds the sockets of the host's log
ProtectProc=invisible
MountAPIVFS=no
TemporaryFileSystem=/:ro
# the host's have sessions' terminals, and what other programs share
TemporaryFileSystem=/dev/pts:ro /dev/shm:mode=1777,size=64m
DevicePolicy=closed
DeviceAllow=/dev/net/tun rw
{_SYSTEM}BindReadOnlyPaths=-/etc/resolv.conf
BindPaths={_layout.docker_data("%i")} {_layout.docker_socket_directory("%i")}

[Install]
WantedBy=multi-user.target
"""

_PRUNE = f"""\
# Made by confined.slots
[Unit]
Description=Drop what the Docker daemon of slot %i does not use
After={_layout.docker_unit("%i")}

[Service]
Type=oneshot
User=slot-%i
Group=slot-%i
WorkingDirectory=/
ExecStart=/usr/bin/docker --host unix://{_layout.docker_socket("%i")} system prune --force --filter until={{until}}
TimeoutStartSec=1h
MemoryMax=512M
TasksMax=64
NoNewPrivileges=yes
PrivateDevices=yes
PrivateNetwork=yes
PrivateTmp=yes
ProtectProc=invisible
MountAPIVFS=yes
TemporaryFileSystem=/:ro
{_SYSTEM}BindReadOnlyPaths={_layout.docker_socket_directory("%i")}
"""

_CLOCK = """\
# Made by confined.slots
[Unit]
Description=Drop what the Docker daemon of slot %i does not use

[Timer]
OnCalendar={calendar}
RandomizedDelaySec=10min
Persistent=true

[Install]
WantedBy=timers.target
"""


@dataclasses.dataclass(frozen=True)
class Prune:
    """When to drop what nothing uses ("" never; a calendar of systemd's), and how old it must be."""

    calendar: str = ""
    until: str = "168h"


@dataclasses.dataclass(frozen=True)
class Found:
    """What the host has.

    files by path; directories of generated files; the daemons and prune timers that are not simply off, each with those
    of `enabled`, `active`, `stale` and `outdated` (its files are newer than it) that hold; slots that have data; others
    tells whether slots that are not declared have daemons too.
    """

    files: t.Mapping[str, File]
    directories: t.Mapping[str, Owned]
    units: t.Mapping[str, frozenset[str]]
    data: frozenset[str] = frozenset()
    others: bool = False


def wants(slot: Slot) -> bool:
    """Return whether the slot's daemon is to run."""
    return slot.docker and slot.enabled


def open_workspaces(slot: Slot) -> list[str]:
    """Return the paths that the daemon sees: a workspace that is narrower than its slot must not be widened by it."""
    return [_layout.workspace(slot.name, name) for name in slot.workspaces if name not in slot.restrictions]


def drop_in(slot: str) -> str:
    """Return the file with what is the slot's own of its daemon's unit."""
    return f"{_layout.UNITS}/{_layout.docker_unit(slot)}.d/slot.conf"


def files_of(slot: Slot, account: Account, subids: Span) -> dict[str, File]:
    """Return the files of a slot's daemon by path."""
    name, etc = _layout.account(slot.name), _layout.docker_etc(slot.name)
    own = f"{name}:x:{account.uid}:{account.gid}::{_layout.docker_data(slot.name)}:/bin/sh\n"
    ranges = f"{name}:{subids[0]}:{subids[1] - subids[0]}\n"
    seen = {
        "group": f"root:x:0:\n{name}:x:{account.gid}:\nnogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        "passwd": f"root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n{own}",
        "subgid": ranges,
        "subuid": ranges,
    }
    lines = [
        *("# Made by confined.slots", "[Service]", f"Slice={_layout.slice_unit(slot.name)}"),
        *(f"BindReadOnlyPaths={etc}/{each}:/etc/{each}" for each in sorted(seen)),
        *(f"BindPaths={path}" for path in open_workspaces(slot)),
        # the host's own would name all other slots, and say how they are; a backslash is an escape in a unit
        f"BindReadOnlyPaths={_layout.CGROUPS}{_layout.slice_group(slot.name)}:{_layout.CGROUPS}".replace("\\", "\\\\"),
    ]
    readable = Owned(0, account.gid, 0o640)
    return {
        **{f"{etc}/{each}": File(text.encode(), readable) for each, text in seen.items()},
        drop_in(slot.name): File(("\n".join(lines) + "\n").encode(), UNIT),
    }


def shared_files(prune: Prune) -> dict[str, File]:
    """Return the files that all daemons share, by path."""
    found = {TEMPLATE: _DAEMON}
    if prune.calendar:
        found[PRUNE_SERVICE] = _PRUNE.replace("{until}", prune.until)
        found[PRUNE_TIMER] = _CLOCK.replace("{calendar}", prune.calendar)
    return {path: File(text.encode(), UNIT) for path, text in found.items()}


def find(slots: t.Sequence[Slot]) -> Found:
    """Return what the host has of the declared slots' daemons, and of what all daemons share."""
    files: dict[str, File] = {}
    directories: dict[str, Owned] = {}
    of: dict[str, list[str]] = {}
    shared = [TEMPLATE, PRUNE_TIMER, PRUNE_SERVICE]
    for slot in slots:
        etc, conf = _layout.docker_etc(slot.name), drop_in(slot.name)
        of[slot.name] = [conf, TEMPLATE]
        for directory in (etc, os.path.dirname(conf)):
            owner = _owned(directory)
            if owner is not None:
                directories[directory] = owner
        if etc in directories:
            of[slot.name] += [f"{etc}/{name}" for name in _files.names(etc)]
    for path in {*shared, *(path for paths in of.values() for path in paths)}:
        content, owner = _files.read(path), _files.owned(path)
        if content is not None and owner is not None:
            files[path] = File(content, owner)
    names = [unit(slot.name) for slot in slots for unit in (_layout.docker_unit, _layout.prune_unit)]
    units = states(names)
    started = show([name for name in names if "active" in units.get(name, ())], ("ActiveEnterTimestamp",))
    for slot in slots:
        name = _layout.docker_unit(slot.name)
        since = started.get(name, {}).get("ActiveEnterTimestamp", "")
        newest = max((int(os.stat(path).st_mtime) for path in of[slot.name] if path in files), default=0)
        if since.startswith("@") and newest > int(since[1:]):
            units[name] |= {"outdated"}
    data = frozenset(slot.name for slot in slots if _owned(_layout.docker_data(slot.name)) is not None)
    own = {os.path.basename(os.path.dirname(drop_in(slot.name))) for slot in slots}
    others = any(_DROP_IN.match(name) and name not in own for name in _files.names(_layout.UNITS))
    return Found(files, directories, units, data, others)


def _owned(path: str) -> Owned | None:
    found = _files.look(path)
    return found.owned if found is not None and found.kind == "directory" else None


def plan(
    slots: t.Sequence[Slot],
    accounts: t.Mapping[str, tuple[Account, Span]],
    found: Found,
    prune: Prune,
    *,
    delete: bool = False,
) -> t.Iterator[Change]:
    """Yield what leads to the declared daemons, but for the starting (`to_start`), in order.

    What is not to run is switched off, files go, files are written. accounts are the slots' numbers with their
    subordinate ids; delete removes the data of a daemon that is no longer declared.
    """
    on = {unit for slot in slots if wants(slot) for unit in units_of(slot, prune)}
    for unit in sorted(found.units):
        if unit not in on and found.units[unit] & {"enabled", "active"}:
            yield Change(Step(unit, "switch off", ", ".join(sorted(found.units[unit] & {"enabled", "active"}))))
    wanted = shared_files(prune) if found.others or any(slot.docker for slot in slots) else {}
    directories: dict[str, Owned] = {}
    for slot in slots:
        if slot.docker:
            account, subids = accounts[slot.name]
            wanted |= files_of(slot, account, subids)
            directories[_layout.docker_etc(slot.name)] = Owned(0, account.gid, 0o750)
            directories[os.path.dirname(drop_in(slot.name))] = _files.ROOT_DIRECTORY
    for path in sorted(set(found.files) - set(wanted)):
        yield Change(Step(path, "remove", found.files[path].content.decode(errors="replace")))
    for path in sorted(set(found.directories) - set(directories)):
        yield Change(Step(path, "remove directory", str(found.directories[path])))
    for slot in slots:
        if delete and not slot.docker and slot.name in found.data:
            yield Change(Step(_layout.docker_data(slot.name), "remove data", "present"))
    for path, owned in directories.items():
        if found.directories.get(path) != owned:
            yield Change(Step(path, "keep directory", str(found.directories.get(path) or ""), str(owned)), None, owned)
    for path, file in wanted.items():
        there = found.files.get(path)
        if there is None or there.content != file.content:
            before = there.content.decode(errors="replace") if there else None
            yield Change(Step(path, "write", before, file.content.decode()), file)
        elif there.owned != file.owned:
            yield Change(Step(path, "give", str(there.owned), str(file.owned)), file)


def units_of(slot: Slot, prune: Prune) -> list[str]:
    """Return the units that are to be on for a slot with a daemon."""
    return [_layout.docker_unit(slot.name), *([_layout.prune_unit(slot.name)] if prune.calendar else [])]


def to_start(slots: t.Sequence[Slot], found: Found, changes: t.Sequence[Change], prune: Prune) -> t.Iterator[Change]:
    """Yield the switching on of each unit that is off, and a restart of each daemon that runs with an older view."""
    written = {change.step.subject for change in changes if change.step.action == "write"}
    for slot in slots:
        for unit in units_of(slot, prune) if wants(slot) else ():
            have = found.units.get(unit, frozenset())
            if not {"enabled", "active"} <= have:
                before = ", ".join(sorted(have & {"enabled", "active"})) or "off"
                yield Change(Step(unit, "switch on", before, "active, enabled"))
            own = (TEMPLATE, drop_in(slot.name)) if unit == _layout.docker_unit(slot.name) else (PRUNE_TIMER,)
            changed = any(path in own or os.path.dirname(path) == _layout.docker_etc(slot.name) for path in written)
            if "active" in have and ("outdated" in have or changed):
                yield Change(Step(unit, "restart", "as it was declared before", "as it is declared"))


def apply(changes: t.Sequence[Change], found: Found) -> None:
    """Make the changes of `plan`, `held` or `released`, and have systemd read its unit files again if it has to."""
    for change in changes:
        if change.step.action == "leave off":
            run(("systemctl", "disable", "--quiet", "--", change.step.subject))
    apply_units(changes, found.units)
    for change in changes:
        if change.step.action == "remove data":
            remove_tree(change.step.subject)


def start(changes: t.Sequence[Change]) -> None:
    """Make the changes of `to_start`; systemd starts them side by side."""
    on = [change.step.subject for change in changes if change.step.action == "switch on"]
    again = [change.step.subject for change in changes if change.step.action == "restart"]
    if on or again:
        # an operator's start is not one too many, whatever there was before; fails for a unit that has not failed
        ask(("systemctl", "reset-failed", "--", *on, *again))
    if on:
        run(("systemctl", "enable", "--quiet", "--now", "--", *on))
    if again:
        run(("systemctl", "restart", "--", *again))


def silent(accounts: t.Mapping[str, Account], seconds: float) -> list[str]:
    """Return the slots whose daemon does not answer, after waiting for at most that long for all of them."""
    deadline, waiting = time.monotonic() + seconds, sorted(accounts)
    while True:
        waiting = [slot for slot in waiting if not answers(slot, accounts[slot])]
        if not waiting or time.monotonic() > deadline:
            return waiting
        time.sleep(0.5)


def lacks() -> list[str]:
    """Return what this host lacks for rootless daemons (`missing`)."""
    present = {path for path, _package in PROGRAMS if os.access(path, os.X_OK)}
    return missing(present, restricted=_userns.read().get(_userns.RESTRICTED) == 1, profiles=_apparmor.modes())


def present_units() -> set[str]:
    """Return those of ROOTFUL that this host has, and so may be in use."""
    return {unit for unit in ROOTFUL if any(os.path.lexists(f"{place}/{unit}") for place in UNIT_DIRECTORIES)}


def held(present: t.Container[str]) -> t.Iterator[Change]:
    """Yield what keeps a daemon of root's from starting that is not on the host yet; present are the units that are."""
    for unit in ROOTFUL:
        if unit not in present:
            text = "# Made by confined.slots: its package is being installed for rootless daemons\n"
            file = File(f"{text}[Unit]\nConditionPathExists=!/\n".encode(), UNIT)
            directory, owned = os.path.dirname(hold(unit)), _files.ROOT_DIRECTORY
            yield Change(Step(directory, "keep directory", after=str(owned)), None, owned)
            yield Change(Step(hold(unit), "write", None, file.content.decode()), file)


def released(holds: t.Mapping[str, bool], present: t.Container[str]) -> t.Iterator[Change]:
    """Yield what leaves a unit that was held switched off, and not held any more.

    holds has the units that are held, and whether the file that does it is the only one in its directory.
    """
    for unit in ROOTFUL:
        if unit in holds:
            if unit in present:
                yield Change(Step(unit, "leave off", "as its package installed it"))
            yield Change(Step(hold(unit), "remove", "present"))
            if holds[unit]:
                yield Change(Step(os.path.dirname(hold(unit)), "remove directory", "present"))


def hold(unit: str) -> str:
    """Return the file that holds a unit back."""
    return f"{_layout.UNITS}/{unit}.d/{HOLD}"


def missing(present: t.Container[str], *, restricted: bool, profiles: t.Container[str]) -> list[str]:
    """Return what a host lacks for rootless daemons, a sentence each with its cure.

    restricted and profiles are whether AppArmor restricts user namespaces, and the names of the loaded profiles.
    """
    found = [f"{path} is not there [install the package {name}]" for path, name in PROGRAMS if path not in present]
    if restricted and "rootlesskit" not in profiles:
        found.append(
            "rootlesskit-not-permitted: this kernel restricts user namespaces, and no AppArmor profile 'rootlesskit' is"
            " loaded [load the one of the package apparmor: apparmor_parser -r /etc/apparmor.d/rootlesskit]"
        )
    return found


def check_prune(prune: Prune) -> None:
    """Refuse times that systemd or Docker would not take; Invalid names the value."""
    if not re.match(r"([1-9][0-9]{0,5}[hm])\Z", prune.until):
        raise Invalid(f"prune_until is {prune.until!r:.80}; it can be a whole number with m or h, such as 168h")
    if prune.calendar:
        calendar(prune.calendar, "prune_calendar")


def answers(slot: str, account: Account) -> bool:
    """Return whether the slot's daemon answers; asked as the slot, since it may have put anything at the socket."""
    path = _layout.docker_socket(slot)
    return says_ok(as_slot(account.uid, account.gid, lambda: ping(path), MOST_ANSWER, 2 * PING_SECONDS))


def ping(path: str) -> bytes:
    """Return the first bytes of what a daemon answers to a ping; OSError if there is none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PING_SECONDS)
        connection.connect(path)
        connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        return connection.recv(MOST_ANSWER)


def says_ok(answer: bytes) -> bool:
    """Return whether an answer is that of a Docker daemon which is ready."""
    head, _unused, _body = answer.partition(b"\r\n\r\n")
    first, *fields = head.split(b"\r\n")
    return re.match(rb"HTTP/1\.[01] 200 ", first) is not None and any(
        field.lower().startswith(b"api-version:") for field in fields
    )
