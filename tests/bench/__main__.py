# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure what docs/architecture.md promises, as ratios taken side by side on one machine; say, never judge.

python tests/bench --inventory build/bench/inventory.json --report build/results/bench.txt

The inventory's host is wiped of its slots. The exit status tells only whether everything could be measured.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile

from converge import SITE, converge, declared
from figures import Failed, Results, report
from health import health
from host import Host
from sessions import launcher, session

PARTS = ("launcher", "session", "health", "converge")


def measure(host: Host, parts: list[str], rounds: int) -> list[Results]:
    """Return the results of the parts; `rounds` is the number of converges, single sessions get more."""
    found = []
    with tempfile.TemporaryDirectory(prefix="confined-slots-bench.") as directory:
        work = pathlib.Path(directory)
        variables = declared(1)
        slot = variables["slots"][0]["name"]
        host.forget_slots()
        host.play(SITE, variables, work)
        if "launcher" in parts:
            found.append(launcher(host, slot, 20 * rounds))
        if "session" in parts:
            found.append(session(host, slot, 5 * rounds))
        if "health" in parts:
            found.append(health(host, rounds, work))
        if "converge" in parts:
            found.append(converge(host, rounds, work))
    return found


def main(argv: list[str]) -> int:
    """Run the bench and return the exit status."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure sessions and converges on a booted test host.")
    parser.add_argument("--inventory", required=True, type=pathlib.Path, help="as tests/hosts wrote it")
    parser.add_argument("--report", required=True, type=pathlib.Path, help="the file to write")
    parser.add_argument("--rounds", type=int, default=3, help="converges of each kind (default: 3)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="what to measure (default: all)")
    wanted = parser.parse_args(argv)
    loads = [os.getloadavg()[0]]
    try:
        host = Host.of(wanted.inventory.resolve())
        parts = measure(host, wanted.parts, wanted.rounds)
        loads.append(os.getloadavg()[0])
        facts = host.run("python3 -V; systemctl --version | head -n 1; bwrap --version").replace("\n", ", ")
        text = report(parts, f"{host.name}, a systemd container with {facts}", loads)
    except Failed as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    wanted.report.parent.mkdir(parents=True, exist_ok=True)
    wanted.report.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
