# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was measured, and the table that says it: seconds inside, a unit with each figure in the text."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import platform
import statistics
import subprocess
import typing as t


class Failed(Exception):
    """A measurement that could not be taken; the message is for people."""


@dataclasses.dataclass
class Series:
    """Runs of one thing, in seconds, in the order they were taken."""

    what: str
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        """Return the middle one, in seconds."""
        return statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """Return the fastest one, in seconds: what the work costs when nothing else is in the way."""
        return min(self.seconds)

    def row(self) -> list[str]:
        """Return the cells of the table of measurements."""
        return [self.what, text(self.median), text(self.least), text(max(self.seconds)), str(len(self.seconds))]


@dataclasses.dataclass(frozen=True)
class Ratio:
    """One series against another taken side by side, and what it should reach: for people, never a failure."""

    what: str
    upper: Series
    lower: Series
    target: float
    at_least: bool = False

    def row(self) -> list[str]:
        """Return the cells of the table of ratios."""
        medians, minima = self.upper.median / self.lower.median, self.upper.least / self.lower.least
        reached = medians >= self.target if self.at_least else medians <= self.target
        bound = "at least" if self.at_least else "at most"
        verdict = "reached" if reached else "missed"
        return [self.what, f"{medians:.2f} x", f"{minima:.2f} x", f"{bound} {self.target} x", verdict]


@dataclasses.dataclass
class Results:
    """Everything one part of the bench found out."""

    series: list[Series]
    ratios: list[Ratio]
    remarks: list[str] = dataclasses.field(default_factory=list)


def text(seconds: float) -> str:
    """Return a duration with its unit."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def interleave(runs: t.Mapping[str, t.Callable[[], float]], rounds: int) -> dict[str, Series]:
    """Return a series for each run, taken in turns so that whatever else the machine does meets all of them alike."""
    series = {what: Series(what) for what in runs}
    for run in runs.values():
        run()  # once for the caches, not counted
    for _unused in range(rounds):
        for what, run in runs.items():
            series[what].seconds.append(run())
    return series


def report(parts: t.Sequence[Results], hosts: str, loads: t.Sequence[float]) -> str:
    """Return the whole report; `loads` are the machine's load averages before and after."""
    ratios = [ratio.row() for part in parts for ratio in part.ratios]
    series = [one.row() for part in parts for one in part.series]
    lines = [
        *table(["ratio", "of medians", "of minima", "target", ""], ratios),
        "",
        *table(["what", "median", "least", "most", "runs"], series),
        "",
        *(remark for part in parts for remark in part.remarks),
        "",
        f"machine: {machine()}; load {', then '.join(f'{load:.1f}' for load in loads)}",
        f"host: {hosts}",
    ]
    return "\n".join(lines) + "\n"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a table with aligned columns."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    cells = [head, ["-" * width for width in widths], *rows]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def machine() -> str:
    """Return in words what took the measurements."""
    facts = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in facts if line.startswith("model name")), platform.machine())
    docker = said("docker", "version", "--format", "{{.Server.Version}}")
    ansible = said("ansible", "--version").splitlines()[0]
    return f"{os.cpu_count()} x {cpu}, Linux {platform.release()}, docker {docker}, {ansible}"


def said(*argv: str) -> str:
    """Return a command's output; Failed with its last words if it does not end with 0."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise Failed(f"{' '.join(argv[:3])} … ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()
