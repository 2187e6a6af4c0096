# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What health costs: 100 slots with real probes, a slot; and the report of 1, 100 and 2,000 slots."""

from __future__ import annotations

import json
import pathlib
import sys
import time
import typing as t

from converge import SITE, declared
from figures import Failed, Ratio, Results, Series
from host import Host

COUNT = 100
TARGET = 0.1  # seconds a slot
REPORTS = (1, 100, 2000)
COLLECTIONS = pathlib.Path(__file__).resolve().parents[2] / "build" / "collections"


def health(host: Host, rounds: int, work: pathlib.Path) -> Results:
    """Look at a host with many slots, every probe included; then make reports of its slots, however many."""
    host.forget_slots()
    host.play(SITE, declared(COUNT), work)
    whole = Series(f"slotctl health, {COUNT} slots with real probes, each")
    target = Series("what it should take, each")
    found: dict[str, t.Any] = {}
    for _unused in range(rounds + 1):
        found = json.loads(host.run("slotctl health --json || true"))
        if found["counts"]["unknown"] or found["counts"]["critical"]:
            raise Failed(f"the host of the bench is not well: {found['counts']}")
        whole.seconds.append(found["seconds"] / COUNT)
        target.seconds.append(TARGET)
    del whole.seconds[0], target.seconds[0]  # once for the caches
    ratio = Ratio(f"slotctl health, a slot of {COUNT} / {TARGET} s", whole, target, 1.0)
    series, sizes = reports(found["slots"], found, rounds)
    return Results([whole, *series], [ratio], [slowest(found), f"the report of {REPORTS[-1]} slots has {sizes} KiB"])


def reports(slots: list[t.Any], found: dict[str, t.Any], rounds: int) -> tuple[list[Series], int]:
    """Return how long the texts of a fleet's report take for so many slots, and the size of the largest page in KiB."""
    sys.path.insert(0, str(COLLECTIONS))
    from ansible_collections.confined.slots.plugins.filter.fleet import fleet

    series = []
    size = 0
    for count in REPORTS:
        one = Series(f"the fleet's report of {count} slots")
        hosts = {
            f"host-{number:02}": {**found, "slots": slots[: min(count, len(slots))]}
            for number in range(max(1, count // len(slots)))
        }
        for _unused in range(rounds):
            start = time.perf_counter()
            size = len(fleet(hosts)["files"]["health.html"]) >> 10
            one.seconds.append(time.perf_counter() - start)
        series.append(one)
    return series, size


def slowest(found: dict[str, t.Any]) -> str:
    """Return a paragraph that says which checks of slots take longest, summed over all slots that ran side by side."""
    sums: dict[str, float] = {}
    for slot in found["slots"]:
        for check in slot["checks"]:
            sums[check["check"]] = sums.get(check["check"], 0.0) + check["milliseconds"]
    first = sorted(sums.items(), key=lambda item: -item[1])[:5]
    words = ", ".join(f"{name} {total / COUNT:.0f} ms" for name, total in first)
    return f"slowest checks of a slot, several slots side by side: {words}"
