# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl preflight`: what a session without a person would lack, all of it at once; it asks and changes nothing."""

from __future__ import annotations

import os
import secrets
import time
import typing as t

from confined_slots import _layout
from confined_slots._as_slot import as_slot
from confined_slots._files import Owned, ensure_directory
from confined_slots._health import CouldNot
from confined_slots._launch import workspace_path
from confined_slots._plan import value, values
from confined_slots._refusals import Refusal

from . import expiry, readiness, trial
from .slots import Slot, current_release, load
from .tables import table
from .words import started

if t.TYPE_CHECKING:
    from .run import Words

DAY = 86400.0
LOOKED = b"looked"
MOST_ANSWER = 4096
FREE_BYTES = 256 << 20
FREE_FILES = 1000


def preflight(
    name: str, workspace: str | None, words: Words | None = None, until: float | None = None
) -> dict[str, t.Any]:
    """Return every check of a session in a workspace (default: the slot's first), and whether it would start.

    words makes the CLI's arguments; those of a prompt are meant if it is left out. until is when the session will have
    ended, in seconds since 1970: what it logs in with must last as long; a day from now, if that is left out.
    """
    end = time.time() + DAY if until is None else until
    slot = load(name, workspace)
    chosen = workspace if workspace is not None else next(iter(slot.base["workspaces"]))
    more: tuple[readiness.Check, ...] = (
        ("workspace", lambda slot: workspace_path(slot.records, chosen)),
        ("headless", lambda slot: _headless(slot, words or started("", []))),
        ("writable", _writable),
        ("expiry", lambda slot: expiry.check(slot, end)),
        ("space", lambda slot: _space(workspace_path(slot.records, chosen))),
        ("sandbox", lambda slot: _sandbox(slot, chosen)),
    )
    found = readiness.outcomes(slot, more)
    return {
        "slot": name,
        "workspace": chosen,
        "ready": not any(check["refusal"] for check in found),
        "policy": value(slot.records, "fingerprint"),
        "checks": found,
    }


def show(found: dict[str, t.Any]) -> str:
    """Return a preflight for people."""
    rows = [(check["check"], check["refusal"] or "ok", check["what"]) for check in found["checks"]]
    verdict = "a session would start" if found["ready"] else "a session would NOT start"
    return f"slot {found['slot']}, workspace {found['workspace']}: {verdict}\n\n{table(('CHECK', 'RESULT', ''), rows)}"


def missing(found: dict[str, t.Any]) -> Refusal | None:
    """Return one refusal that names all that is missing, under the first one's code; None if nothing is."""
    failed = [check for check in found["checks"] if check["refusal"]]
    if not failed:
        return None
    what = "; ".join(dict.fromkeys(f"{check['refusal']}: {check['what']}" for check in failed))
    return Refusal(failed[0]["refusal"], f"preflight failed: {what}", f"slotctl preflight {found['slot']}")


def _headless(slot: Slot, words: Words) -> str:
    words(slot)
    return "runs without a person"


def _writable(slot: Slot) -> str:
    """Refuse a bind that is declared writable and that the slot's account cannot write, whatever the mount allows."""
    paths = [path for mode, path, _unused in values(slot.records, "bind") if mode == "rw"]

    def work() -> bytes:
        return b"\0".join([LOOKED, *(os.fsencode(path) for path in paths if not os.access(path, os.W_OK | os.X_OK))])

    looked, *shut = as_slot(slot.uid, slot.gid, work, MOST_ANSWER).split(b"\0")
    if looked != LOOKED or shut:
        path, account = os.fsdecode(shut[0]) if shut else "(which one, nobody could look)", _layout.account(slot.name)
        cure = f"give it to {account} (chown or setfacl), or declare it ro"
        raise Refusal("policy-invalid", f"bind {path} is rw, and {account} cannot write there", cure)
    return f"{len(paths)} binds"


def _space(path: str) -> str:
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise Refusal("space-low", f"{path}: {error.strerror}", "make it, or converge the host") from None
    free = found.f_bavail * found.f_frsize
    if free < FREE_BYTES or (found.f_files and found.f_favail < FREE_FILES):
        least = f"it needs {FREE_BYTES >> 20} MiB and {FREE_FILES}"
        what = f"{path} has room for {free >> 20} MiB and {found.f_favail} files; {least}"
        raise Refusal("space-low", what, "make room on its file system")
    return f"{free >> 20} MiB free"


def _sandbox(slot: Slot, workspace: str) -> str:
    """Have the launcher run /usr/bin/true with the very flags and mounts of a session, and keep what bwrap says."""
    release, session = current_release(), f"preflight-{secrets.token_hex(8)}"
    ensure_directory(f"{_layout.RUN}/{slot.name}", Owned(0, 0, 0o711))
    with trial.files(slot.name, session, trial.plan(slot.records, ["/usr/bin/true"]), []) as path:
        try:
            done = trial.ran(slot.name, session, [f"{release}/bin/slot-launcher", path, workspace, session])
        except CouldNot as error:
            raise Refusal("sandbox-unavailable", str(error), f"slotctl selftest {slot.name}") from None
    if done.returncode:
        raise Refusal("sandbox-unavailable", trial.said(done), f"slotctl selftest {slot.name}")
    return "starts"
