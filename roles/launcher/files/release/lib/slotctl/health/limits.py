# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of a slot's slice, as systemd holds it to them and, while something runs in it, as the kernel has them."""

from __future__ import annotations

import os
import typing as t

from confined_slots import _files, _layout
from confined_slots._declarations import size_in_bytes
from confined_slots._health import Outcome, critical, ok

from .context import CONVERGE, Check, Context
from .host import CGROUPS

INFINITY = "infinity"


def limits(context: Context) -> Outcome:
    """Return whether the slice has the limits that the policy declares, in force and not only in its file."""
    unit = _layout.slice_unit(context.name)
    wanted = expected_of(context.slot.base["resources"])
    expected = ", ".join(f"{name}={number}" for name, number in wanted.items())
    if _files.look(f"{_layout.UNITS}/{unit}") is None:
        return critical(f"{_layout.UNITS}/{unit} is not there", expected, CONVERGE)
    shown = context.host.unit(unit)
    if shown.get("NeedDaemonReload") == "yes":
        return critical(f"{unit} was changed and systemd has not read it", expected, "systemctl daemon-reload")
    bad = [f"{name}={shown.get(name)}" for name, number in wanted.items() if shown.get(name) != number]
    if bad:
        return critical(f"systemd holds {unit} to {', '.join(bad)}", expected, f"{CONVERGE}; systemctl cat {unit}")
    group = shown.get("ControlGroup", "")
    if group:
        differing = list(_in_kernel(f"{CGROUPS}{group}", wanted))
        if differing:
            return critical(f"in the kernel: {', '.join(differing)}", expected, f"systemctl cat {unit}")
    return ok("as declared", expected)


def expected_of(resources: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Return the limits as `systemctl show` words them."""
    memory, cpu, tasks = (resources.get(key) for key in ("memory_max", "cpu_quota", "tasks_max"))
    return {
        "MemoryMax": INFINITY if memory is None else str(size_in_bytes(str(memory))),
        "CPUQuotaPerSecUSec": INFINITY if cpu is None else span(int(str(cpu).rstrip("%")) * 10_000),
        "TasksMax": INFINITY if tasks is None else str(tasks),
    }


def span(microseconds: int) -> str:
    """Return a span of time as systemd writes it: 1500000 is `1.5s`, 90000000 is `1min 30s`, 500000 is `500ms`."""
    words = []
    for unit, size in (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000)):
        if microseconds >= size:
            words.append(f"{microseconds // size}{unit}")
            microseconds %= size
    for unit, size in (("s", 1_000_000), ("ms", 1000), ("us", 1)):
        if microseconds >= size:
            whole, rest = divmod(microseconds, size)
            fraction = str(rest).rjust(len(str(size)) - 1, "0").rstrip("0") if rest else ""
            words.append(f"{whole}.{fraction}{unit}" if fraction else f"{whole}{unit}")
            break
    return " ".join(words) or "0"


def _in_kernel(group: str, wanted: t.Mapping[str, str]) -> t.Iterator[str]:
    """Yield what the kernel has otherwise; what it has no file for is the check control-groups' to say."""
    for name, file in (("MemoryMax", "memory.max"), ("TasksMax", "pids.max")):
        try:
            with open(f"{group}/{file}", encoding="ascii") as opened:
                found = opened.read(64).strip()
        except FileNotFoundError:
            continue
        number = wanted[name]
        page = os.sysconf("SC_PAGE_SIZE")
        same = found == "max" if number == INFINITY else found.isdigit() and abs(int(found) - int(number)) < page
        if not same:
            yield f"{file} is {found}"


SLOT = (Check("limits", "the slot's limits are in force", limits),)
