# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the launcher obeys: plan, fingerprint, approval, the provider's bytes, the credential, the login."""

from __future__ import annotations

import json
import os
import time
import typing as t

from confined_slots._as_slot import as_slot
from confined_slots._health import CouldNot, DoesNotApply, Outcome, critical, ok, warn
from confined_slots._launch import check_identity, check_mounts
from confined_slots._manifest import sha256
from confined_slots._mounts import Mount, as_record
from confined_slots._plan import Record, value, values
from confined_slots._refusals import printable

from .. import checks, kept, readiness, slots
from ..as_slot import open_directory, place
from .context import CONVERGE, Check, Context, refusing

DAY = 86400
MOST_ANSWER = 1 << 16
# Where updaters and package managers put programs, below HOME.
PROGRAMS_AT_HOME = (".local/bin", "bin", ".npm-global/bin", ".claude/local", ".codex/bin", ".cursor/bin", ".bun/bin")


def policy(context: Context) -> Outcome:
    """Return whether the slot's plans are root's, whole, and say what their fingerprints name."""
    slot = slots.load(context.name)
    expected = "plan and policy.json are root's and as they were compiled"
    found_plans = [slots.load(context.name, workspace) for workspace in slot.base["workspaces"]]
    plans = {each.path: each for each in (slot, *found_plans)}
    for each in plans.values():
        words = {key: item for key, item in each.policy.items() if key != "fingerprint"}
        found = "sha256:" + sha256(json.dumps(words, sort_keys=True).encode())
        if not found == each.policy["fingerprint"] == value(each.records, "fingerprint"):
            return critical(f"{each.path} names another policy than it holds", expected, CONVERGE)
    readiness.copy(slot)
    for key in ("enabled", "network"):
        if context.declared and getattr(context.declared, key) != slot.base[key]:
            what = f"{key} is {slot.base[key]}, and declared as {getattr(context.declared, key)}"
            return critical(what, expected, CONVERGE)
    return ok(f"{len(plans)} plans, {value(slot.records, 'fingerprint')[:19]}…", expected)


def explain(context: Context) -> Outcome:
    """MO-05: what `slotctl policy` shows is what the launcher obeys: no mount, flag or variable more or less."""
    expected = "the launch plan holds what the policy shows, in that order, and nothing else"
    for workspace in context.slot.base["workspaces"]:
        slot = slots.load(context.name, workspace)
        wanted, found = promised(slot), [record for record in slot.records if record[0] in SHOWN]
        if wanted == found:
            continue
        for words, some, others in (("holds", found, wanted), ("lacks", wanted, found)):
            for record in some:
                if record not in others:
                    what = f"the plan {words} {' '.join(record)[:200]!r}, which the policy {_BUT[words]}"
                    return critical(what, expected, CONVERGE)
        return critical("the plan has another order than the policy", expected, CONVERGE)
    return ok(f"{len(context.slot.records)} records", expected)


_BUT = {"holds": "does not show", "lacks": "shows"}
SHOWN = frozenset(
    {
        *("command", "flag", "network", "forward", "hostname", "bind", "bind-workspace", "run", "data", "symlink"),
        *("tmpfs", "mask", "hold", "proc", "dev", "seal", "set", "pass"),
    }
)


def promised(slot: slots.Slot) -> list[Record]:
    """Return the records of a plan that people are shown, made of the policy instead of taken from the plan."""
    policy = slot.policy
    stamps = {record[-1]: record[-2] for record in slot.records if record[0] in ("mask", "hold")}
    environment = policy["environment"]
    return [
        *(("command", word) for word in policy["provider"]["command"]),
        *(("flag", each["flag"]) for each in policy["isolation"]),
        *([("network", "private")] if policy["network"] == "private" else []),
        *(("forward", str(port)) for port in policy.get("forwards", ())),
        ("hostname", policy["slot"]),
        *(as_record(Mount(**each, stamp=stamps.get(each["target"], ""))) for each in policy["mounts"]),
        *(("set", name, text) for name, text in environment["set"].items()),
        *(("pass", name) for name in environment["pass"]),
    ]


def approval(context: Context) -> Outcome:
    """Return whether a person has approved the policy, where one has to."""
    if not values(context.slot.records, "approved"):
        raise DoesNotApply(f"{context.policy['mode']} mode needs no approval")
    return refusing(checks.approval, "a person has approved this very policy")(context)


def provider(context: Context) -> Outcome:
    """Return whether the provider's executables are those that were compiled; each byte is read, not only its stamp."""
    slot = context.slot
    unstamped = [(*record[:3], "") if record[0] == "identity" else record for record in slot.records]
    check_identity(unstamped)
    about = slot.policy["provider"]
    expected = "the executables are root's and have the bytes that were compiled"
    if context.declared and context.declared.provider != about["name"]:
        return critical(f"it is {about['name']}", f"the provider {context.declared.provider}", CONVERGE)
    return ok(f"{about['name']} {about['version']}, {about['certification']}", expected)


def foreign_programs(context: Context) -> Outcome:
    """LR-06: another copy of the CLI in HOME, as an updater leaves it, is never executed, and should not be there."""
    slot = context.slot
    names = {os.path.basename(word) for (word,) in values(slot.records, "command")[:2] if word.startswith("/")}
    names = {name.partition(".")[0] for name in names} | {context.provider.partition("_")[0]}
    paths = [path for path in (place(slot.policy, each) for each in PROGRAMS_AT_HOME) if path]
    if not paths:
        raise DoesNotApply("its HOME does not outlive a session")
    expected = f"no copy of the CLI in its HOME ({', '.join(sorted(names))})"
    wanted = [f"{path}/{name}" for path in paths for name in sorted(names)]
    answer = as_slot(slot.uid, slot.gid, lambda: json.dumps(["", *filter(_is_there, wanted)]).encode(), MOST_ANSWER)
    found = [str(path) for path in _answered(answer, "its HOME cannot be looked at")[1:]]
    if found:
        return warn(f"{', '.join(found)}; it is not what runs", expected, "remove it, and switch its updater off")
    return ok("none", expected)


def _is_there(path: str) -> bool:
    try:
        parent = open_directory(os.path.dirname(path))
    except OSError:
        return False
    try:
        os.stat(os.path.basename(path), dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(parent)
    return True


def _answered(answer: bytes, why: str) -> list[t.Any]:
    """Return the list that a child of the slot's gave; CouldNot if it gave none (it always has a first element)."""
    found = json.loads(answer) if answer else None
    if not isinstance(found, list) or not found:
        raise CouldNot(why)
    return found


def credential(context: Context) -> Outcome:
    """Return whether the declared credential is there, root's alone, whole, and not older than it should be."""
    slot = context.slot
    path = checks.credential_file(slot)
    expected = f"one line that sets the declared name, root 0600, younger than {context.options.credential_days} days"
    if path is None:
        raise DoesNotApply("no credential is declared")
    checks.credential(slot)
    days = int((time.time() - os.lstat(path).st_mtime) // DAY)
    if days > context.options.credential_days:
        return warn(f"it is {days} days old", expected, "make a new one, declare it and converge")
    return ok(f"{days} days old", expected)


def login(context: Context) -> Outcome:
    """CR-01: a login that a CLI has overwritten is well-formed and blank; it looks like one, and is none."""
    slot = context.slot
    files = kept.state_files(slot)
    if not files:
        raise DoesNotApply(f"{context.provider} keeps no login that is known here")
    expected = "no state file of the CLI is empty or blank"

    def work() -> bytes:
        return json.dumps(["", *(name for name, path in files.items() if blank(kept.read(path)))]).encode()

    answer = as_slot(slot.uid, slot.gid, work, MOST_ANSWER)
    found = [str(name).replace("%", "/") for name in _answered(answer, "its HOME cannot be looked at")[1:]]
    if found:
        cure = f"slotctl restore {context.name}, or slotctl login {context.name}"
        return warn(f"{printable(', '.join(found))} is blank", expected, cure)
    return ok(f"{len(files)} files looked at", expected)


def blank(data: bytes | None) -> bool:
    """Return whether a state file is there and holds nothing: no bytes, or JSON whose every value is empty."""
    if data is None:
        return False
    if not data.strip():
        return True
    try:
        return not _holds(json.loads(data))
    except (ValueError, RecursionError):  # another form, or cut short: not blank
        return False


def _holds(found: t.Any) -> bool:
    if isinstance(found, dict):
        return any(_holds(each) for each in found.values())
    if isinstance(found, list):
        return any(_holds(each) for each in found)
    return found not in (None, "", 0, False)


def binds(context: Context) -> Outcome:
    """Return whether what the policy binds is there, and cannot be replaced by the slot."""
    records = context.slot.records
    paths = [path for _unused, path in values(records, "workspace")]
    for path in paths:
        check_mounts(records, path)
    expected = "sources of binds are there, and the slot can put nothing in their place"
    return ok(f"{len(values(records, 'bind'))} binds, {len(paths)} workspaces", expected)


SLOT = (
    Check("policy", "the plan is as it was compiled", policy),
    Check("explain", "what is shown of the policy is what is obeyed", explain),
    Check("approval", "the policy is approved", approval),
    Check("provider", "the provider's executables are those compiled", provider, 20),
    Check("foreign-programs", "no other copy of the CLI is about", foreign_programs),
    Check("credential", "the credential can be used, and only by PID 1", credential),
    Check("login", "the CLI's login is not blank", login),
    Check("binds", "what the policy binds is there and safe", binds),
)
