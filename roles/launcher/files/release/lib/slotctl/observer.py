# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who looks on at a session: strace, outside of it and as root, on a process that waits until it is looked at.

The slot has no part in it: it can neither reach strace nor what that writes. No filter of system calls makes it
faster, since that would need no_new_privs, which keeps AppArmor from changing profiles on the way to the CLI.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import time
import typing as t

from confined_slots import _discovery, _layout, _sessions
from confined_slots._files import Owned, ensure_directory, write
from confined_slots._host import Budget, Source, described, kind_of
from confined_slots._manifest import sha256
from confined_slots._refusals import Refusal, printable

from . import unit

if t.TYPE_CHECKING:
    from .slots import Slot

STRACE = "/usr/bin/strace"
PRLIMIT = "/usr/bin/prlimit"
# The first process of the session stops itself; strace is on it by the time it goes on, as the launcher.
HELD = 'kill -STOP $$; exec "$@"'
PRIVATE, SECRET = Owned(0, 0, 0o700), Owned(0, 0, 0o600)
MOST_TRACE = 128 << 20
FREE_BYTES = 2 * MOST_TRACE
KEPT = 10
ATTACH_SECONDS = 60.0
END_SECONDS = 60.0
MOST_SAID = 2000
# What a look at the host may come to, for all that a session was refused: the session chose the paths, and may have
# filled directories and laid links where they lead. about.json is read again with a limit of 16 MiB.
MOST_ENTRIES = 1_000_000
MOST_SECONDS = 60.0
MOST_EVIDENCE = 12 << 20
BEYOND = (
    f"to look for all that the CLI was refused would have taken more than {MOST_ENTRIES} entries, {MOST_SECONDS:.0f} s "
    f"or {MOST_EVIDENCE >> 20} MiB of evidence, so that only a part was looked for"
)


class Observer:
    """Traces one session into a directory of root's: `trace` as strace writes it, `about.json` of what it is about."""

    def __init__(self) -> None:
        self.slot: Slot
        self.about: dict[str, t.Any] = {}
        self.directory = ""
        self.tracer = 0
        self.errors = os.memfd_create("confined-slots", os.MFD_CLOEXEC)  # room for these there is on a full disk too
        self.fault = ""

    def begin(self, slot: Slot, release: str, start: dict[str, t.Any]) -> None:
        """Make room for the evidence; Refusal if there is none, or no strace."""
        check()
        self.slot, self.directory = slot, _layout.discovery(slot.name, start["session"])
        try:
            ensure_directory(_layout.DISCOVERIES, PRIVATE)
            ensure_directory(_layout.discoveries(slot.name), PRIVATE)
            prune(slot.name)
            ensure_directory(self.directory, PRIVATE)
            room = os.statvfs(self.directory)
            if room.f_bavail * room.f_frsize < FREE_BYTES:
                what = f"{self.directory} has room for {room.f_bavail * room.f_frsize >> 20} MiB"
                raise Refusal(
                    "space-low", f"{what}; a trace may need {FREE_BYTES >> 20}", "make room on its file system"
                )
            self.about = {
                **{key: start[key] for key in ("slot", "session", "workspace", "start", "caller")},
                "launcher": f"{release}/bin/slot-launcher",
                "policy": _as_seen(slot.policy, start),
            }
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(f"{self.directory}/trace", flags, 0o600))
            self._keep()
        except OSError as error:
            raise Refusal("space-low", f"{self.directory}: {error.strerror}", "make room on its file system") from None

    def held(self, words: list[str]) -> list[str]:
        """Return the command line that waits for the tracer, and then is words."""
        return [unit.SHELL, "-c", HELD.replace("$", "$$"), "sh", *words]

    def attach(self, client: int) -> bool:
        """Put strace on the session's first process and let that go on; return whether it is traced.

        client is the systemd-run that waits for the session: with its end there is nothing to trace.
        """
        held = self._first(client)
        if not held:
            self.fault = "the session ended before it could be traced"
            return False
        self.tracer = self._start(held)
        deadline = time.monotonic() + ATTACH_SECONDS
        while _traced_by(held) != self.tracer:
            if time.monotonic() > deadline or os.waitid(os.P_PID, self.tracer, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self.fault = "strace could not attach itself"
                return False
            time.sleep(0.01)
        os.kill(held, signal.SIGCONT)
        return True

    def finish(self) -> None:
        """Put down how the tracer ended, once the session has, and what stands outside; nothing if there is no room."""
        status = self._ended()
        said = printable(os.pread(self.errors, MOST_SAID, 0).decode("utf-8", "replace").strip())
        with open(f"{self.directory}/trace", "rb") as file:
            data = file.read()
        self.about |= {"end": _sessions.now(), "tracer": {"status": status, "said": said, "fault": self.fault}}
        self.about |= {"trace": sha256(data), "host": {}}
        trace = _discovery.read_trace(data, self.about["launcher"])
        paths = _discovery.refused(trace, self.about["policy"])
        self.about["host"], self.about["beyond"] = outside(paths, self.slot.uid, self.slot.gid)
        with contextlib.suppress(OSError):
            self._keep()

    def _keep(self) -> None:
        write(f"{self.directory}/about.json", (json.dumps(self.about, indent=1) + "\n").encode("ascii"), SECRET)

    def _first(self, client: int) -> int:
        """Return the session's first process, once it waits; 0 if it does not come to that."""
        name = _layout.session_unit(self.slot.name, self.about["session"])
        deadline = time.monotonic() + ATTACH_SECONDS
        while time.monotonic() < deadline:
            process = int(unit.show(name, ["MainPID"]).get("MainPID") or 0)
            if process and _state(process) == "T":
                return process
            if os.waitid(os.P_PID, client, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return 0
            time.sleep(0.02)
        return 0

    def _start(self, process: int) -> int:
        words = [
            *(PRLIMIT, f"--fsize={MOST_TRACE}", "--core=0", STRACE),
            # every process, no text of any call but names, all of it in hexadecimal, directories by name
            *("-f", "-s", "0", "-xx", "-y", "--quiet=attach,personality"),
            # nothing that is typed on the terminal ends it
            *("--interruptible=never_tstp", "-e", f"trace={','.join(f'?{name}' for name in _discovery.TRACED)}"),
            *("-o", f"{self.directory}/trace", "-p", str(process)),
        ]
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        try:
            return unit.spawn(words, (null, null, self.errors))
        finally:
            os.close(null)

    def _ended(self) -> int:
        """Return the tracer's exit status once it has ended; whatever it traced has by now."""
        if not self.tracer:
            return -1
        child = os.pidfd_open(self.tracer)
        if not select.select([child], [], [], END_SECONDS)[0]:
            os.kill(self.tracer, signal.SIGKILL)
        os.close(child)
        return os.waitstatus_to_exitcode(os.waitpid(self.tracer, 0)[1])


def check() -> None:
    """Refuse where there is no strace."""
    if not os.access(STRACE, os.X_OK):
        raise Refusal(
            "discovery-incomplete", f"{STRACE} is not there, which traces a session", "install the package strace"
        )


def names(slot: str) -> list[str]:
    """Return the sessions of which the slot's discoveries are kept, the oldest first."""
    try:
        return sorted(name for name in os.listdir(_layout.discoveries(slot)) if _sessions.is_session(name))
    except FileNotFoundError:
        return []


def prune(slot: str) -> None:
    """Take the oldest discoveries away, so that there are at most KEPT with the one that begins."""
    for name in names(slot)[: 1 - KEPT]:
        shutil.rmtree(_layout.discovery(slot, name))


def outside(paths: t.Iterable[str], uid: int, gid: int) -> tuple[dict[str, t.Any], str]:
    """Return, as the candidate wants it, what those of the paths lead to that are there, and why that is not all."""
    budget = Budget(MOST_ENTRIES, time.monotonic() + MOST_SECONDS)
    host: dict[str, t.Any] = {}
    known: dict[str, t.Any] = {}
    size = 0
    for path in paths:
        found = None
        if budget.take():
            with contextlib.suppress(OSError, ValueError):  # it is not there, or went away meanwhile
                found = _forbidden(path) if _discovery.is_forbidden(path) else _led_to(path, uid, gid, budget, known)
        if found is not None:
            size += len(json.dumps({path: found}, indent=3))
            if size <= MOST_EVIDENCE:
                host[path] = found
        if budget.spent or size > MOST_EVIDENCE:
            return host, BEYOND
    return host, ""


def _forbidden(path: str) -> dict[str, t.Any]:
    """Return that a path is there which nobody may have, wherever it leads: it is not followed, nor looked into."""
    return {"source": dataclasses.asdict(Source(path, kind_of(os.lstat(path)), path)), "shut": False}


def _led_to(path: str, uid: int, gid: int, budget: Budget, known: dict[str, t.Any]) -> t.Any:
    """Return what a path leads to; root only looks, and opens no file.

    The kernel follows the links, 40 at most: os.path.realpath() knows no end of them.
    """
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        real, status = os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not os.path.samestat(os.lstat(real), status):  # a link of /proc led to what has no name here
        return None
    if real not in known:
        source = described(real, real, status, None if _discovery.is_forbidden(real) else budget)
        readable = 0o400 if status.st_uid == uid else 0o040 if status.st_gid == gid else 0o004
        known[real] = {"source": dataclasses.asdict(source), "shut": not status.st_mode & readable}
    return known[real]


def _as_seen(policy: dict[str, t.Any], start: dict[str, t.Any]) -> dict[str, t.Any]:
    """Return the policy with the paths of this session in the place of those that each session has its own of."""
    own = {
        "workspace": policy["workspaces"][start["workspace"]],
        "run": _layout.run_directory(start["slot"], start["session"]),
    }
    mounts = [mount | {"target": own.get(mount["kind"], mount["target"])} for mount in policy["mounts"]]
    return {**policy, "mounts": mounts}


def _state(process: int) -> str:
    """Return the kernel's letter for what a process does, "" if it has gone."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _traced_by(process: int) -> int:
    try:
        with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("TracerPid:")), 0)
    except OSError:
        return 0
