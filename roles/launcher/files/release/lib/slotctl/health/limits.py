# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits of a slot's slice, as systemd holds it to them and, while something runs in it, as the kernel has them."""

from __future__ import annotations

import os
import re
import typing as t

from confined_slots import _files, _layout
from confined_slots._declarations import size_in_bytes
from confined_slots._health import Outcome, critical, ok

from .context import CONVERGE, Check, Context

INFINITY = "infinity"
_SPAN = re.compile(r"([0-9]{1,12})(?:\.([0-9]{1,6}))?(us|ms|s|min|h|d)")
_MICROSECONDS = {"us": 1, "ms": 1000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


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
    bad = [f"{name}={shown.get(name)}" for name, number in wanted.items() if not _same(name, shown.get(name), number)]
    if bad:
        return critical(f"systemd holds {unit} to {', '.join(bad)}", expected, f"{CONVERGE}; systemctl cat {unit}")
    group = shown.get("ControlGroup", "")
    if group:
        differing = list(_in_kernel(f"{_layout.CGROUPS}{group}", wanted))
        if differing:
            return critical(f"in the kernel: {', '.join(differing)}", expected, f"systemctl cat {unit}")
    return ok("as declared", expected)


def expected_of(resources: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Return the limits as `systemctl show` words them, but for the form of the span of time."""
    memory, cpu, tasks = (resources.get(key) for key in ("memory_max", "cpu_quota", "tasks_max"))
    return {
        "MemoryMax": INFINITY if memory is None else str(size_in_bytes(str(memory))),
        "CPUQuotaPerSecUSec": INFINITY if cpu is None else f"{int(str(cpu).rstrip('%')) * 10}ms",
        "TasksMax": INFINITY if tasks is None else str(tasks),
    }


def _same(name: str, found: str | None, wanted: str) -> bool:
    if name == "CPUQuotaPerSecUSec" and found is not None and wanted != INFINITY:
        return microseconds_of(found) == microseconds_of(wanted)
    return found == wanted


def microseconds_of(text: str) -> int | None:
    """Return a span of time as systemd writes it, such as `1min 1.500000s`, in microseconds; None if it is none."""
    total = 0
    for word in text.split():
        found = _SPAN.fullmatch(word)
        if found is None:
            return None
        whole, fraction = int(found[1]), (found[2] or "").ljust(6, "0")
        total += whole * _MICROSECONDS[found[3]] + int(fraction) * _MICROSECONDS[found[3]] // 1_000_000
    return total if text else None


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
