# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl list`, `status`, `policy`, `binds` and `sessions`: what is declared, what is true, what ran."""

from __future__ import annotations

import json
import os
import typing as t

from confined_slots import _layout, _sessions
from confined_slots._files import UnsafePath, read
from confined_slots._launch import check_enabled, check_identity, check_mounts
from confined_slots._manifest import verify_release
from confined_slots._plan import value, values
from confined_slots._refusals import Refusal

from . import ended, run, unit
from .slots import CONVERGE, Slot, check_known, current_release, known, load
from .tables import pairs, table

Json = dict[str, t.Any]

LIMITS = ("MemoryMax", "CPUQuotaPerSecUSec", "TasksMax")


def listed() -> list[Json]:
    """Return each slot of the host in short; a broken one carries the refusal that its sessions would meet."""
    found = []
    for name in known():
        entry: Json = {"slot": name, "sessions": len(_sessions.live_sessions(name))}
        try:
            policy = load(name).policy
            entry |= {key: policy[key] for key in ("enabled", "mode", "network")}
            entry |= {"provider": policy["provider"]["name"], "workspaces": sorted(policy["workspaces"])}
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
        if "refusal" in entry:
            rows.append((entry["slot"], entry["refusal"], "-", "-", "-", str(entry["sessions"]), "-"))
        else:
            state = "ready" if entry["enabled"] else "disabled"
            short = (state, entry["mode"], entry["provider"], entry["network"], str(entry["sessions"]))
            rows.append((entry["slot"], *short, ", ".join(entry["workspaces"])))
    return table(("SLOT", "STATE", "MODE", "PROVIDER", "NETWORK", "SESSIONS", "WORKSPACES"), rows)


def status(name: str) -> Json:
    """Return what a session of the slot would find: each check with "" or its refusal, its limits, its sessions."""
    slot = load(name)
    checks = [{"check": check, **_outcome(look, slot)} for check, look in CHECKS]
    ended.sweep(name)
    records = _sessions.read_records(name)
    return {
        "slot": name,
        "ready": not any(check["refusal"] for check in checks),
        "checks": checks,
        "policy": value(slot.records, "fingerprint"),
        "limits": limits(name),
        "sessions": _sessions.live_sessions(name),
        "last": records[-1] if records else None,
    }


def show_status(found: Json) -> str:
    """Return a slot's status for people."""
    rows = [(check["check"], check["refusal"] or "ok", check["what"]) for check in found["checks"]]
    text = table(("CHECK", "RESULT", ""), rows)
    last = found["last"]
    lines = [("policy", found["policy"]), *((f"limit {name}", limit) for name, limit in found["limits"].items())]
    lines += [("running", f"{record.get('session')} in {record.get('workspace')}") for record in found["sessions"]]
    lines.append(
        ("last record", f"{last.get('session')} {last.get('event')} {last.get('outcome', '')}" if last else "none")
    )
    verdict = "ready" if found["ready"] else "NOT ready: 'slotctl run' would refuse"
    return f"slot {found['slot']} is {verdict}\n\n{text}\n{pairs(lines)}"


def limits(name: str) -> dict[str, str]:
    """Return the limits that systemd holds the slot's slice to."""
    return unit.show(_layout.slice_unit(name), LIMITS)


def policy(name: str) -> Json:
    """Return the slot's effective policy as it stands in its plan."""
    return load(name).policy


def show_policy(found: Json) -> str:
    """Return a policy for people."""
    provider, environment = found["provider"], found["environment"]
    identity = [f"{each['path']} {each['digest']}" for each in provider["identity"]]
    limited = [f"{key} {limit}" for key, limit in found["resources"].items() if limit is not None]
    rows = [
        ("slot", found["slot"] + ("" if found["enabled"] else " (disabled)")),
        ("mode", found["mode"]),
        ("network", found["network"]),
        ("provider", f"{provider['name']} {provider['version']}, profile {provider['profile_version']}"),
        *(("executable", each) for each in identity),
        *(("workspace", f"{workspace}: {path}") for workspace, path in found["workspaces"].items()),
        *(("isolation", f"{each['flag']}: {each['reason']}") for each in found["isolation"]),
        *(("sets", f"{variable}={text}") for variable, text in environment["set"].items()),
        ("passes", ", ".join(environment["pass"]) or "nothing of the caller's environment"),
        ("credential", environment["credential"] or "none"),
        ("resources", ", ".join(limited) or "no limits"),
        ("fingerprint", found["fingerprint"]),
    ]
    return f"{pairs(rows)}\n{show_binds(found)}"


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
        if "outcome" not in entry:
            entry["outcome"] = "running" if key in live else "lost"
    return list(reversed(found.values()))[:most]


def show_sessions(entries: list[Json]) -> str:
    """Return sessions as a table."""
    if not entries:
        return "no session is on record\n"
    return table(
        ("SESSION", "START", "WORKSPACE", "CALLER", "OUTCOME", "STATUS", "WHY"), [_row(each) for each in entries]
    )


def _row(entry: Json) -> tuple[str, ...]:
    why = _within(entry, "refusal", "code") or entry.get("reason", "")
    start, who = entry.get("start", entry.get("end", "")), _within(entry, "caller", "user")
    words = (entry.get("session") or "-", start, entry.get("workspace", ""), who, entry["outcome"])
    return tuple(str(word) for word in (*words, entry.get("exit_status", ""), why))


def _within(entry: Json, key: str, inner: str) -> t.Any:
    """Return what a record of whatever shape holds at key, inner."""
    found = entry.get(key)
    return found.get(inner, "") if isinstance(found, dict) else ""


def _outcome(look: t.Callable[[Slot], str], slot: Slot) -> dict[str, str]:
    try:
        return {"refusal": "", "what": look(slot)}
    except Refusal as refusal:
        return {"refusal": refusal.code, "what": f"{refusal.what} [{refusal.cure}]"}


def _release(slot: Slot) -> str:
    release = current_release()
    return f"{os.path.basename(release)}, {len(verify_release(release))} files as listed"


def _copy(slot: Slot) -> str:
    """The copy for people grants nothing, but somebody who reads a changed one is misled."""
    path = f"{_layout.policy(slot.name)}/policy.json"
    try:
        data = read(path)
        same = data is not None and json.loads(data) == slot.policy
    except (UnsafePath, ValueError) as error:
        raise Refusal("policy-tampered", f"{path}: {error}", CONVERGE) from None
    if not same:
        raise Refusal("policy-tampered", f"{path} is not what the plan holds", CONVERGE)
    return path


def _enabled(slot: Slot) -> str:
    check_enabled(slot.records)
    return ""


def _account(slot: Slot) -> str:
    run.check_account(slot)
    return f"{_layout.account(slot.name)} {slot.uid}:{slot.gid}"


def _credential(slot: Slot) -> str:
    run.check_credential(slot)
    return run.credential_file(slot) or "none declared"


def _identity(slot: Slot) -> str:
    check_identity(slot.records)
    provider = slot.policy["provider"]
    return f"{provider['name']} {provider['version']}"


def _binds(slot: Slot) -> str:
    paths = [path for _unused, path in values(slot.records, "workspace")]
    for path in paths:
        check_mounts(slot.records, path)
    return f"{len(values(slot.records, 'bind'))} binds, {len(paths)} workspaces"


CHECKS: tuple[tuple[str, t.Callable[[Slot], str]], ...] = (
    ("release", _release),
    ("enabled", _enabled),
    ("account", _account),
    ("provider", _identity),
    ("binds", _binds),
    ("credential", _credential),
    ("policy.json", _copy),
)
