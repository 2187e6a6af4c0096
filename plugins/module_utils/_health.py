# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Health: what a check says, the report that all of them make, and the report as monitoring reads it.

Names, states and the shape of the report are an interface that docs/monitoring.md describes; `SCHEMA` is its version.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ._refusals import printable

SCHEMA = 1
STATES = ("ok", "warn", "unknown", "critical")  # the worst last
# What fails a task: a check that could not run is as bad as one that found the worst.
FAILING = {"critical": ("critical", "unknown"), "warn": ("critical", "unknown", "warn"), "never": ()}
NAGIOS = {"ok": 0, "warn": 1, "critical": 2, "unknown": 3}
MOST_TEXT = 600
KEYS = ("schema", "host", "time", "seconds", "state", "counts", "checks", "slots", "not_applicable")
# What is taken from a report, which a host may have made up: types by key, float for a number from 0 on; a list holds
# any number of its one element.
CHECK = {"check": str, "state": str, "found": str, "expected": str, "cure": str, "milliseconds": float}
SHAPE = {
    "host": str,
    "time": float,
    "seconds": float,
    "checks": [CHECK],
    "slots": [{"slot": str, "about": dict, "checks": [CHECK]}],
    "not_applicable": [{"slot": str, "check": str, "why": str}],
}
# What a slot is, wherever its plan can be read: without a mode it could not.
ABOUT = {
    **dict.fromkeys(("mode", "note", "provider", "version", "certification", "network", "fingerprint"), str),
    **dict.fromkeys(("enabled", "docker"), bool),
    "capabilities": [{"words": str, "why": str}],
    "workspaces": [str],
    "mounts": [{"kind": str, "target": str, "mode": str, "reason": str}],
}
MOST_NUMBER = 1e12

Json = dict[str, t.Any]


class CouldNot(Exception):
    """A check that could not look; the message says why. Its state is `unknown`."""


class DoesNotApply(Exception):
    """A check that has nothing to look at on this host or in this slot; the message says why. It has no state."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a check says: a state, what was found, what was expected, and what mends it ("" if nothing has to be)."""

    state: str
    found: str
    expected: str = ""
    cure: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a state that there is not: a typing error must not pass for health."""
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is no state of a check")
        if self.state != "ok" and not self.found:
            raise ValueError("a check that complains must say what it found")


def ok(found: str, expected: str = "") -> Outcome:
    """Return that all is as expected."""
    return Outcome("ok", found, expected)


def warn(found: str, expected: str, cure: str) -> Outcome:
    """Return what somebody should see to, and what still holds."""
    return Outcome("warn", found, expected, cure)


def critical(found: str, expected: str, cure: str) -> Outcome:
    """Return what does not hold."""
    return Outcome("critical", found, expected, cure)


def unknown(found: str, cure: str = "") -> Outcome:
    """Return that the check could not run."""
    return Outcome("unknown", found, "the check runs", cure)


def worst(states: t.Iterable[str]) -> str:
    """Return the worst of the states; `unknown` if there is none, since nothing was looked at."""
    return max(states, key=STATES.index, default="unknown")


def as_json(check: str, outcome: Outcome, milliseconds: float) -> Json:
    """Return a check's part of the report: its texts on one line each, and not without end."""
    words = {key: _short(text) for key, text in dataclasses.asdict(outcome).items()}
    return {"check": check, **words, "milliseconds": round(milliseconds, 1)}


def report(
    host: str, when: float, seconds: float, checks: list[Json], slots: t.Sequence[Json], beside: t.Sequence[Json]
) -> Json:
    """Return the report of a host.

    checks are the host's; each of slots has `slot`, `about` and `checks`; beside are the checks that did not apply.
    """
    parts: list[Json] = [{**slot, "state": worst(each["state"] for each in slot["checks"])} for slot in slots]
    states = [each["state"] for each in (*checks, *(each for slot in parts for each in slot["checks"]))]
    return {
        "schema": SCHEMA,
        "host": host,
        "time": round(when, 3),
        "seconds": round(seconds, 3),
        "state": worst(states),
        "counts": {state: states.count(state) for state in STATES},
        "checks": checks,
        "slots": parts,
        "not_applicable": list(beside),
    }


def failed(host: str, when: float, why: str) -> Json:
    """Return the report of a host that could not be looked at, or whose check run did not end."""
    return report(host, when, 0.0, [as_json("health", unknown(why, "run 'slotctl health' there"), 0.0)], [], [])


def fleet(results: t.Mapping[str, t.Any], when: float) -> Json:
    """Return the report of several hosts: results has what the module said of each, by the name in the inventory.

    A host that said nothing, or was not reached, is `unknown` like one whose checks did not run.
    """
    hosts = [_of_host(name, results[name], when) for name in sorted(results)]
    counts = {state: sum(host["counts"][state] for host in hosts) for state in STATES}
    return {
        "schema": SCHEMA,
        "time": round(when, 3),
        "state": worst(host["state"] for host in hosts),
        "counts": counts,
        "hosts": hosts,
    }


def _of_host(name: str, result: t.Any, when: float) -> Json:
    try:
        found = check_report(result)
    except ValueError as error:
        said = result if isinstance(result, dict) else {}
        reached = "it was not reached" if said.get("unreachable") else "it gave no report"
        message = said.get("msg")
        return failed(name, when, f"{reached}: {message if message and isinstance(message, str) else error}")
    return {**found, "host": name}


def every(found: Json) -> list[tuple[str, Json]]:
    """Return every check of a report with its slot, "" for the host."""
    own = [("", each) for each in found["checks"]]
    return own + [(slot["slot"], each) for slot in found["slots"] for each in slot["checks"]]


def complaints(found: Json) -> list[tuple[str, Json]]:
    """Return what is not ok, the worst first, each with its slot."""
    bad = [(slot, each) for slot, each in every(found) if each["state"] != "ok"]
    return sorted(bad, key=lambda one: -STATES.index(one[1]["state"]))


def summary(found: Json) -> str:
    """Return a report in one line: the state, how many slots there are, and what is wrong first."""
    bad = complaints(found)
    words = [f"{slot or found['host']}/{each['check']} {each['state']}: {each['found']}" for slot, each in bad[:3]]
    more = f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
    fine = f"{found['counts']['ok']} checks are ok" if found["counts"]["ok"] else "no check had anything to look at"
    said = "; ".join(words) or fine
    return f"{found['state'].upper()} - {len(found['slots'])} slots: {said}{more}"


def nagios(found: Json) -> tuple[int, str]:
    """Return the exit status and the one line of a Nagios plugin; a | would end the text there, so none is in it."""
    counts = " ".join(f"{state}={found['counts'][state]}" for state in STATES)
    numbers = f"{counts} slots={len(found['slots'])} time={found['seconds']:.3f}s"
    return NAGIOS[found["state"]], f"SLOTS {summary(found).replace('|', '/')} | {numbers}"


def check_report(found: t.Any) -> Json:
    """Return found as a report, its states and counts made anew of its checks.

    ValueError, naming the place, if it is none: silence is no health, and a host that lies must not speak for others.
    """
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"it is no report of schema {SCHEMA}")
    if missing := set(KEYS) - set(found):
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    _check_shape(found, SHAPE, "it")
    slots = [{**slot, "about": _about(slot["about"])} for slot in found["slots"]]
    checks = every(found)
    if not checks and not found["not_applicable"]:
        raise ValueError("it has no check at all")
    # as they stand in labels; "" is the host
    names = [printable(slot["slot"]) for slot in slots]
    if "" in names or len(set(names)) < len(names):
        raise ValueError("a slot has no name, or one that another has")
    if len({(printable(slot), printable(each["check"])) for slot, each in checks}) < len(checks):
        raise ValueError("it has a check twice")
    if unheard := [each["check"] for _slot, each in checks if each["state"] not in STATES]:
        raise ValueError(f"a check has no state: {unheard[0]:.80}")
    made = report(found["host"], found["time"], found["seconds"], found["checks"], slots, found["not_applicable"])
    if found["state"] != made["state"]:
        raise ValueError("its state is not the worst of its checks")
    return made


def _about(found: Json) -> Json:
    """Return what is said of a slot, and nothing more than that; ValueError if it is not well-formed."""
    shape: Json = ABOUT if "mode" in found else {"refusal": str} if found else {}
    _check_shape(found, shape, "what it says about a slot")
    return {key: found[key] for key in shape}


def _check_shape(found: t.Any, shape: t.Any, where: str) -> None:
    """Raise ValueError, naming the place, unless what was read as JSON has the shape (see SHAPE)."""
    if shape is float:
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found <= MOST_NUMBER:
            raise ValueError(f"{where} is no number from 0 on")
    elif not isinstance(found, type(shape) if isinstance(shape, (dict, list)) else shape):
        raise ValueError(f"{where} is not what it is to be")
    elif isinstance(found, str):
        found.encode()  # half a character breaks the file in which it is to stand
    elif isinstance(shape, list):
        for number, each in enumerate(found):
            _check_shape(each, shape[0], f"{where}[{number}]")
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            if key not in found:
                raise ValueError(f"{where}.{key} is missing")
            _check_shape(found[key], inner, f"{where}.{key}")


# --- Prometheus -------------------------------------------------------------------------------------------------------

PREFIX = "confined_slots_health"
METRICS = {
    "check_state": "State of a check: 0 ok, 1 warn, 2 critical, 3 unknown.",
    "check_seconds": "How long a check took.",
    "slot_info": "A slot of this host, with its mode and provider.",
    "state": "The worst state of this host: 0 ok, 1 warn, 2 critical, 3 unknown.",
    "run_seconds": "How long the last run took.",
    "timestamp_seconds": "When the last run that got to its end began.",
    "schema_version": "Version of these metrics and of the JSON beside them.",
}


def prometheus(found: Json) -> str:
    """Return a report as a textfile of the Prometheus node exporter; a report of many hosts is made host by host."""
    return "".join(_metrics([found], with_host=False))


def prometheus_of(reports: t.Sequence[Json]) -> str:
    """Return the reports of several hosts as one text, with the label `host` (`instance` belongs to the scraper)."""
    return "".join(_metrics(reports, with_host=True))


def _metrics(reports: t.Sequence[Json], *, with_host: bool) -> t.Iterator[str]:
    rows: dict[str, list[tuple[Json, float]]] = {name: [] for name in METRICS}
    for found in reports:
        host: Json = {"host": found["host"]} if with_host else {}
        for slot in found["slots"]:
            about = {key: slot["about"].get(key, "") for key in ("mode", "provider")}
            rows["slot_info"].append(({**host, "slot": slot["slot"], **about}, 1))
        for slot_name, each in every(found):
            labels = {**host, "check": each["check"], "slot": slot_name}
            rows["check_state"].append((labels, NAGIOS[each["state"]]))
            rows["check_seconds"].append((labels, round(each["milliseconds"] / 1000, 4)))
        rows["state"].append((host, NAGIOS[found["state"]]))
        rows["run_seconds"].append((host, found["seconds"]))
        rows["timestamp_seconds"].append((host, found["time"]))
        rows["schema_version"].append((host, found["schema"]))
    for name, words in METRICS.items():
        if rows[name]:
            yield f"# HELP {PREFIX}_{name} {words}\n# TYPE {PREFIX}_{name} gauge\n"
        for labels, number in rows[name]:
            pairs = ",".join(f'{key}="{_label(str(text))}"' for key, text in labels.items())
            yield f"{PREFIX}_{name}{{{pairs}}} {number}\n" if pairs else f"{PREFIX}_{name} {number}\n"


def _label(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _short(text: str) -> str:
    words = printable(text)
    return words if len(words) <= MOST_TEXT else f"{words[: MOST_TEXT - 1]}…"


# --- changes ----------------------------------------------------------------------------------------------------------


def changes(before: Json | None, after: Json) -> list[tuple[str, Json, str]]:
    """Return each check whose state is not what it was: slot, the check now, the state before ("" if it is new).

    A check that is new and ok is no change worth a word.
    """
    old = {(slot, each["check"]): each["state"] for slot, each in every(before)} if before else {}
    found = [(slot, each, old.get((slot, each["check"]), "")) for slot, each in every(after)]
    return [one for one in found if one[1]["state"] != (one[2] or "ok")]
