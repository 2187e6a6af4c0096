# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on the host and takes the times of single commands: a name a line in, JSON with seconds a line out.

python3 SCRIPT SLOT root: `slotctl`. python3 SCRIPT SLOT slot: as the slot's account `launcher`, `bwrap`, `python`.
"""

from __future__ import annotations

import json
import os
import sys
import time

CURRENT = "/opt/confined-slots/current"
sys.path.insert(0, f"{CURRENT}/lib")

from confined_slots import _layout  # noqa: E402  (the release's library is not on Python's own path)
from confined_slots._files import Owned, ensure_directory, write  # noqa: E402
from confined_slots._launch import bwrap_options, read_plan, seals  # noqa: E402
from confined_slots._plan import dump, values  # noqa: E402

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
CLI = "/usr/bin/echo"  # says something at once: the moment at which the CLI runs


class Command:
    """A command line, and the open files that it reads from their start in every run."""

    def __init__(self, argv: list[str], files: tuple[int, ...] = ()) -> None:
        self.argv, self.files = argv, files

    def run(self) -> dict[str, float]:
        """Return the seconds until the first output (or its end) and until the exit, and the exit status."""
        for file in self.files:
            os.lseek(file, 0, os.SEEK_SET)
        reader, writer = os.pipe()
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, writer, 1)]
        start = time.perf_counter()
        child = os.posix_spawn(self.argv[0], self.argv, ENVIRONMENT, file_actions=actions)
        os.close(writer)
        os.read(reader, 1)
        output = time.perf_counter() - start
        _unused, status = os.waitpid(child, 0)
        exited = time.perf_counter() - start
        os.close(reader)
        return {"output": output, "exit": exited, "status": os.waitstatus_to_exitcode(status)}


def as_root(slot: str) -> dict[str, Command]:
    """Return what is timed as root."""
    return {"slotctl": Command([f"{CURRENT}/bin/slotctl", "run", slot, "--", "-c", "true"])}


def as_slot(slot: str) -> dict[str, Command]:
    """Return what is timed as the slot, and become the slot.

    The plan is the slot's own with another command. Session files are made as `slotctl run` makes them.
    """
    release = os.path.realpath(CURRENT)
    records = [record for record in read_plan(_layout.plan(slot)) if record[0] != "command"]
    ((uid, gid),) = values(records, "ids")
    workspace, directory = values(records, "workspace")[0]
    session = f"bench-{os.getpid()}"
    base = _layout.run_directory(slot, session)
    ensure_directory(os.path.dirname(base), Owned(0, 0, 0o711))
    ensure_directory(base, Owned(int(uid), int(gid), 0o700))
    write(f"{base}.plan", dump([("command", CLI), *records]), Owned(0, int(gid), 0o640))
    write(f"{base}.args", b"", Owned(0, int(gid), 0o640))
    write(f"{base}.status", b"", Owned(0, int(gid), 0o620))
    options = bwrap_options(records, directory, session, ENVIRONMENT)
    files = []
    for content, target in values(records, "data"):
        files.append(os.memfd_create("bench", 0))
        os.write(files[-1], os.fsencode(content))
        options += ["--perms", "0444", "--ro-bind-data", str(files[-1]), target]
    os.setgroups([])
    os.setresgid(int(gid), int(gid), int(gid))
    os.setresuid(int(uid), int(uid), int(uid))
    return {
        "launcher": Command([f"{release}/bin/slot-launcher", f"{base}.plan", workspace, session]),
        "bwrap": Command([f"{release}/bin/bwrap", *options, *seals(records), "--", CLI], tuple(files)),
        "python": Command(["/usr/bin/python3", "-IS", "-c", "pass"]),
    }


def main() -> None:
    """Answer until the input ends."""
    slot, account = sys.argv[1:]
    commands = as_slot(slot) if account == "slot" else as_root(slot)
    for line in sys.stdin:
        print(json.dumps(commands[line.strip()].run()), flush=True)


if __name__ == "__main__":
    main()
