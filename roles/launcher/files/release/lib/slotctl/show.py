# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl list`, `status`, `policy`, `binds` and `sessions`: what is declared, what is true, what ran."""

from __future__ import annotations

import subprocess
import typing as t

from confined_slots import _layout, _schedules, _sessions
from confined_slots._plan import value
from confined_slots._refusals import Refusal

from . import ended, readiness, scheduled, unit
from .checks import approval
from .slots import check_known, known, load
from .tables import pairs, table

Json = dict[str, t.Any]

NESTING = "Make a sandbox of its own: with /usr/bin/bwrap, whose payload may not make another"
DAEMON = "a daemon of its own, which sees the workspaces that are not narrower"
LIMITS = ("MemoryMax", "CPUQuotaPerSecUSec", "TasksMax")


def listed() -> list[Json]:
    """Return each slot of the host in short; a broken one carries the refusal that its sessions would meet."""
    found = []
    for name in known():
        entry: Json = {"slot": name, "sessions": len(_sessions.live_sessions(name))}
        try:
            slot = load(name)
            policy = slot.policy
            entry |= {key: policy[key] for key in ("enabled", "mode", "network")}
            entry |= {"note": policy["note"]} if policy.get("note") else {}
            entry |= {"provider": policy["provider"]["name"], "workspaces": sorted(slot.base["workspaces"])}
            if failing := failures(name):
                entry["failing"] = failing
            if policy["enabled"]:
                approval(slot)
        except Refusal as refusal:
            entry["refusal"] = refusal.code
        found.append(entry)
    return found


def show_list(entries: list[Json]) -> str:
    """Return the slots as a table."""
    if not entries:
        return "this host has no slots [declare some in the inventory and converge]\n"
    rows = []
    for entry in entries:
        if "mode" not in entry:
            rows.append((entry["slot"], entry["refusal"], "-", "-", "-", str(entry["sessions"]), "-"))
        else:
            state = entry.get("refusal") or ("ready" if entry["enabled"] else "disabled")
            short = (state, mode_of(entry), entry["provider"], entry["network"], str(entry["sessions"]))
            rows.append((entry["slot"], *short, ", ".join(entry["workspaces"])))
    told = "".join(
        f"slot {entry['slot']}: {line}\n" for entry in entries for line in failing_in_words(entry.get("failing", {}))
    )
    return table(("SLOT", "STATE", "MODE", "PROVIDER", "NETWORK", "SESSIONS", "WORKSPACES"), rows) + told


def failures(name: str) -> dict[str, int]:
    """Return how often each schedule of the slot has failed in a row, of those that have; Refusal as for records."""
    declared = scheduled.names(name)
    found = _schedules.failures_in_a_row(_sessions.read_history(name)) if declared else {}
    return {schedule: found[schedule] for schedule in declared if found.get(schedule)}


def failing_in_words(found: dict[str, int]) -> list[str]:
    """Return a line for each schedule that has failed."""
    times = {1: "failed the last time"}
    return [f"schedule {name}: {times.get(count, f'failed {count} times in a row')}" for name, count in found.items()]


def status(name: str) -> Json:
    """Return what a session of the slot would find: each check with "" or its refusal, its limits, its sessions."""
    slot = load(name)
    checks = readiness.outcomes(slot)
    ended.sweep(name)
    records = _sessions.read_records(name)
    return {
        "slot": name,
        "ready": not any(check["refusal"] for check in checks),
        "checks": checks,
        "policy": value(slot.records, "fingerprint"),
        "limits": limits(name),
        **({"docker": daemon(name)} if slot.base.get("docker") else {}),
        "sessions": _sessions.live_sessions(name),
        "last": records[-1] if records else None,
        "failing": failures(name),
    }


def show_status(found: Json) -> str:
    """Return a slot's status for people."""
    rows = [(check["check"], check["refusal"] or "ok", check["what"]) for check in found["checks"]]
    text = table(("CHECK", "RESULT", ""), rows)
    last = found["last"]
    lines = [("policy", found["policy"]), *((f"limit {name}", limit) for name, limit in found["limits"].items())]
    lines += [(f"docker {name}", word) for name, word in found.get("docker", {}).items()]
    lines += [("running", f"{record.get('session')} in {record.get('workspace')}") for record in found["sessions"]]
    lines += [("schedule", line.removeprefix("schedule ")) for line in failing_in_words(found["failing"])]
    lines.append(
        ("last record", f"{last.get('session') or '-'} {last.get('outcome') or last.get('event')}" if last else "none")
    )
    verdict = "ready" if found["ready"] else "NOT ready: 'slotctl run' would refuse"
    return f"slot {found['slot']} is {verdict}\n\n{text}\n{pairs(lines)}"


def limits(name: str) -> dict[str, str]:
    """Return the limits that systemd holds the slot's slice to."""
    return unit.show(_layout.slice_unit(name), LIMITS)


def daemon(name: str) -> dict[str, str]:
    """Return how the slot's Docker daemon is, and what it and its containers take, in bytes as systemd and du say."""
    found = unit.show(_layout.docker_unit(name), ("ActiveState", "UnitFileState", "MemoryCurrent", "TasksCurrent"))
    return {**found, "Data": _size(_layout.docker_data(name))}


def _size(directory: str) -> str:
    """Return how many bytes a tree takes, followed over no link; `unknown` if that takes too long to say."""
    words = ["du", "--summarize", "--block-size=1", "--one-file-system", "--", directory]
    try:
        done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=10)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return "unknown"
    return done.stdout.split("\t")[0] or "unknown"


def policy(name: str) -> Json:
    """Return the slot's effective policy as it stands in its plan."""
    return load(name).policy


def show_policy(found: Json) -> str:
    """Return a policy in words."""
    environment = found["environment"]
    limited = [f"{key} {limit}" for key, limit in found["resources"].items() if limit is not None]
    rows = [
        ("slot", found["slot"] + ("" if found["enabled"] else " (disabled)")),
        ("mode", mode_of(found)),
        ("provider", provider_of(found)),
        *(("may", f"{each['words']}: {each['why']}") for each in found["capabilities"]),
        ("network", _network_of(found)),
        *([("may", NESTING)] if found.get("nested_sandbox") else []),
        *([("docker", DAEMON)] if found.get("docker") else []),
        *(("workspace", f"{workspace}{_less(found, workspace)}") for workspace in found["workspaces"]),
        ("credential", environment["credential"] or "none"),
        ("resources", ", ".join(limited) or "no limits"),
        ("fingerprint", found["fingerprint"]),
    ]
    return f"{pairs(rows)}\nPaths, programs and variables: slotctl policy {found['slot']} --details\n"


def show_details(found: Json) -> str:
    """Return a policy with every path, program and variable."""
    provider, environment = found["provider"], found["environment"]
    rows = [
        *(("executable", f"{each['path']} {each['digest']}") for each in provider["identity"]),
        *(("workspace", f"{workspace}: {path}") for workspace, path in found["workspaces"].items()),
        *(("isolation", f"{each['flag']}: {each['reason']}") for each in found["isolation"]),
        *(("sets", f"{variable}={text}") for variable, text in environment["set"].items()),
        ("passes", ", ".join(environment["pass"]) or "nothing of the caller's environment"),
    ]
    return f"{show_policy(found)}\n{pairs(rows)}\n{show_binds(found)}"


def mode_of(found: Json) -> str:
    """Return a policy's mode, with what is to be said wherever it is shown."""
    return f"{found['mode']} ({found['note']})" if found.get("note") else str(found["mode"])


def provider_of(found: Json) -> str:
    """Return a policy's provider in words."""
    provider = found["provider"]
    words = f"{provider['name']} {provider['version']}, profile {provider['profile_version']}"
    return f"{words} ({provider['certification']})"


def _network_of(found: Json) -> str:
    words = {
        "none": "none",
        "private": "the internet, from a network of its own; not this host's loopback and sockets",
        "host": "the host's, with its loopback; before Linux 6.12 its abstract sockets too",
    }[found["network"]]
    ports = ", ".join(str(port) for port in found.get("forwards", ()))
    return f"{words}, but for port {ports}" if ports else words


def _less(found: Json, workspace: str) -> str:
    rule = found["restrictions"].get(workspace)
    if not rule:
        return ""
    words = {"read_only": "read-only", "offline": "no network", "without_credential": "no credential"}
    less = [text for key, text in words.items() if rule.get(key)]
    less += [f"not {each}" for key in ("without_capabilities", "without_binds") for each in rule.get(key, ())]
    return f" ({', '.join(less)})"


def show_binds(found: Json) -> str:
    """Return everything that the slot's sessions see, with reasons, as a table."""
    rows: list[tuple[str, ...]] = []
    for mount in found["mounts"]:
        source = mount.get("source", "")
        where = f"{mount['target']} <- {source}" if source not in ("", mount["target"]) else mount["target"]
        size = f" {mount['size'] >> 20}M" if mount.get("size") else ""
        rows.append((mount["kind"] + size, mount.get("mode", ""), where, mount["reason"]))
    return table(("KIND", "MODE", "PATH INSIDE", "REASON"), rows)


def sessions(name: str, most: int) -> list[Json]:
    """Return the slot's newest sessions, the newest first, start and end records joined."""
    check_known(name)
    ended.sweep(name)
    live = {str(record.get("session")) for record in _sessions.live_sessions(name)}
    found: dict[str, Json] = {}
    for number, record in enumerate(_sessions.read_records(name)):
        key = str(record.get("session") or f"refused {number}")
        found[key] = {**found.get(key, {}), **record}
    for key, entry in found.items():
        if entry.get("event") == "approved":
            entry |= {"outcome": "approved", "start": entry.get("time", "")}
        if "outcome" not in entry:
            entry["outcome"] = "running" if key in live else "lost"
    return list(reversed(found.values()))[:most]


def show_sessions(entries: list[Json]) -> str:
    """Return sessions as a table."""
    if not entries:
        return "no session is on record\n"
    return table(
        ("SESSION", "START", "MODE", "WORKSPACE", "CALLER", "OUTCOME", "STATUS", "WHY"),
        [_row(each) for each in entries],
    )


def _row(entry: Json) -> tuple[str, ...]:
    why = _within(entry, "refusal", "code") or entry.get("reason", "")
    start, who = entry.get("start", entry.get("end", "")), _within(entry, "caller", "user")
    who = f"schedule {entry['schedule']}" if "schedule" in entry else who
    mode = entry.get("mode", "")
    mode = f"{mode} (best effort)" if mode == "compatibility" else mode
    words = (entry.get("session") or "-", start, mode, entry.get("workspace", ""), who, entry["outcome"])
    return tuple(str(word) for word in (*words, entry.get("exit_status", ""), why))


def _within(entry: Json, key: str, inner: str) -> t.Any:
    """Return what a record of whatever shape holds at key, inner."""
    found = entry.get(key)
    return found.get(inner, "") if isinstance(found, dict) else ""
