# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a converge costs: 1, 10 and 100 slots, first and again; and the same state by looped builtin tasks."""

from __future__ import annotations

import pathlib
import typing as t

from figures import Failed, Ratio, Results, Series, text
from host import HERE, Host, Played

SITE = "confined.slots.site"
COUNTS = (1, 10, 100)
LOOPED = (1, 5)


def declared(count: int) -> dict[str, t.Any]:
    """Return the variables that declare so many slots."""
    return {"slots": [{"name": f"bench{number:03}"} for number in range(count)]}


def converge(host: Host, rounds: int, work: pathlib.Path) -> Results:
    """Converge a host without slots with each number of them, twice; then make a few by looped tasks."""
    first = {count: Series(f"converge of {count} slots, first") for count in COUNTS}
    again = {count: Series(f"converge of {count} slots, nothing to change") for count in COUNTS}
    first_modules = {count: Series(f"  own modules' tasks alone, {count} slots, first") for count in COUNTS}
    modules = {count: Series(f"  own modules' tasks alone, {count} slots, nothing to change") for count in COUNTS}
    looped = {count: Series(f"looped ansible.builtin tasks, {count} slots, first") for count in LOOPED}
    actions: dict[int, dict[str, Series]] = {count: {} for count in COUNTS}
    for _unused in range(rounds):
        for count in COUNTS:
            host.forget_slots()
            played = host.play(SITE, declared(count), work)
            first[count].seconds.append(played.seconds)
            first_modules[count].seconds.append(played.modules)
            played = host.play(SITE, declared(count), work)
            if played.changed:
                # The release changes with the checkout: nobody may edit that while the bench runs.
                raise Failed(f"the second converge of {count} slots changed something: {', '.join(played.changed)}")
            again[count].seconds.append(played.seconds)
            modules[count].seconds.append(played.modules)
            gather(actions[count], played)
        for count in LOOPED:
            host.forget_slots()
            looped[count].seconds.append(host.play(str(HERE / "looped.yml"), {"count": count}, work).seconds)
    few, many = COUNTS[0], COUNTS[-1]
    straight = extrapolated(looped, many)
    series = [*first.values(), *first_modules.values(), *again.values(), *modules.values(), *looped.values(), straight]
    ratios = [
        Ratio(f"converge of {many} slots / of {few}, nothing to change", again[many], again[few], 1.5),
        Ratio(f"looped ansible.builtin tasks / first converge, {many} slots", straight, first[many], 20, at_least=True),
    ]
    return Results(series, ratios, [dearest(actions)])


def extrapolated(looped: dict[int, Series], count: int) -> Series:
    """Return what so many slots would take by loops: a straight line through what was measured."""
    few, more = LOOPED
    pairs = zip(looped[few].seconds, looped[more].seconds, strict=True)
    seconds = [one + (count - few) * (several - one) / (more - few) for one, several in pairs]
    return Series(f"looped ansible.builtin tasks, {count} slots, extrapolated from {few} and {more}", seconds)


def gather(series: dict[str, Series], played: Played) -> None:
    """Add the seconds of each action."""
    for action, seconds in played.actions.items():
        series.setdefault(action, Series(action)).seconds.append(seconds)


def dearest(actions: dict[int, dict[str, Series]]) -> str:
    """Return a paragraph that says where the time of a converge without changes goes, dearest first."""
    lines = [f"medians by action, nothing to change, {' / '.join(map(str, COUNTS))} slots:"]
    for action, series in sorted(actions[COUNTS[-1]].items(), key=lambda item: -item[1].median):
        figures = [text(actions[count][action].median) if action in actions[count] else "-" for count in COUNTS]
        lines.append(f"  {action}: {' / '.join(figures)}  ({len(series.seconds)} rounds)")
    return "\n".join(lines)
