# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session costs: the launcher against bare bwrap, `slotctl run` against `docker run`."""

from __future__ import annotations

import subprocess
import time

from figures import Failed, Ratio, Results, interleave, said
from host import Host


def launcher(host: Host, slot: str, rounds: int) -> Results:
    """Compare, as the slot, the launcher with bwrap given the same mounts, both up to the CLI's first byte."""
    with host.timer(slot, "slot") as timer:
        series = interleave(
            {
                "slot-launcher to its CLI": lambda: timer.seconds("launcher", "output"),
                "bare bwrap to its CLI, same mounts": lambda: timer.seconds("bwrap", "output"),
                "python3 -IS -c pass": lambda: timer.seconds("python", "output"),
            },
            rounds,
        )
    ours, bare, _unused = series.values()
    return Results([*series.values()], [Ratio("slot-launcher to CLI / bare bwrap to CLI", ours, bare, 3.0)])


def session(host: Host, slot: str, rounds: int) -> Results:
    """Compare a whole session with a whole container of the host's own image, each with `true` for work."""
    image = said("docker", "inspect", "--format", "{{.Image}}", host.container)

    def docker() -> float:
        argv = ["docker", "run", "--rm", image, "true"]
        start = time.perf_counter()
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"docker run ended with {done.returncode}: {done.stderr[-2000:]}")
        return time.perf_counter() - start

    with host.timer(slot, "root") as timer:
        series = interleave(
            {
                "slotctl run of true": lambda: timer.seconds("slotctl", "exit"),
                "docker run --rm of true": docker,
            },
            rounds,
        )
    ours, theirs = series.values()
    return Results([ours, theirs], [Ratio("slotctl run / docker run", ours, theirs, 0.7)])
