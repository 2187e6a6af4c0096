# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a session on record: written by PID 1's ExecStopPost, so that it is kept even if slotctl was killed.

One case is left to the next slotctl: a unit whose terminal has gone with its killed slotctl can run no ExecStopPost.
"""

from __future__ import annotations

import calendar
import fcntl
import os
import pwd
import time

from confined_slots import _layout, _sessions
from confined_slots._refusals import Refusal

from . import transcripts, unit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

KINDS = ("args", "status", "record")
FROM_START = (
    *("workspace", "mode", "provider", "profile_version", "capabilities", "policy", "release", "caller", "start"),
    *("resumes", "unattended", "schedule", "discovery"),
)


def session_ended(slot: str, session: str, environ: t.Mapping[str, str]) -> int:
    """Record the end of a session of which systemd says how its main process ended; return the exit status."""
    if not _sessions.is_session(session) or "/" in slot:
        raise Refusal("audit-unavailable", f"{session!r:.80} is no session", "slotctl is not called like this by hand")
    words = [environ.get(name, "") for name in ("SERVICE_RESULT", "EXIT_CODE", "EXIT_STATUS")]
    end_session(slot, session, *words)
    return 0


def end_session(slot: str, session: str, result: str, code: str, status: str) -> dict[str, t.Any]:
    """Judge how a session ended, put it on record, remove the session's files; return the end record.

    A record that cannot be kept is named in it as `audit`: the session is over, there is nothing left to refuse.
    """
    record = _open(slot, session, "record", os.O_RDWR | os.O_APPEND)
    try:
        lines = _sessions.lines_of(os.pread(record, os.fstat(record).st_size, 0))
        start = lines[0] if lines else {}
        asked = next((str(line.get("reason", "")) for line in lines if line.get("event") == "stop"), "")
        if not asked and not _held(record):
            asked = "its caller was gone"
        verdict = _sessions.judge(_report(slot, session), result, code, status, stopped=bool(asked))
        end = {"event": "end", "slot": slot, "session": session, "end": _sessions.now(), **verdict.fields()}
        where = next((line for line in lines if line.get("event") == "transcripts"), {})
        end["conversations"] = _conversations(slot, where, str(start.get("start", "")))
        if verdict.outcome == "stopped" and asked:
            end["reason"] = asked
        end |= {key: start[key] for key in FROM_START if key in start}
        try:
            _sessions.append(slot, _gid(slot), end)
        except Refusal as refusal:
            end["audit"] = refusal.what
        os.write(record, _sessions.as_line(end).encode())
    finally:
        os.close(record)
    remove_files(slot, session)
    return end


def sweep(slot: str) -> None:
    """See to the files of sessions that neither their caller nor PID 1 has: whoever was to had been killed.

    The end of a session is put on record, unless it is.
    """
    for session, lines in _sessions.recorded(slot):
        try:
            record = _open(slot, session, "record", os.O_RDONLY)
        except Refusal:  # it has just ended
            continue
        try:
            orphaned = not _held(record) and not unit.runs(slot, session)
        finally:
            os.close(record)
        if orphaned and _sessions.is_live(lines):
            unit.drop_scope(slot, session)
            end_session(slot, session, "", "", "")
        elif orphaned:
            remove_files(slot, session)


def record_refusal(start: dict[str, t.Any], refusal: Refusal) -> None:
    """Put on record that a session was refused before it began; where that cannot be, the refusal itself must do."""
    words = {"code": refusal.code, "what": refusal.what, "cure": refusal.cure}
    record = {**start, "event": "refused", "outcome": "refused", "refusal": words, "end": _sessions.now()}
    try:
        if refusal.code == "slot-unknown":
            _sessions.to_journal(record)
        else:
            _sessions.append(start["slot"], _gid(start["slot"]), record)
    except (Refusal, OSError):
        return


def ask(record: int, reason: str) -> None:
    """Note in an open SESSION.record that the session is asked to stop, and why."""
    os.write(record, _sessions.as_line({"event": "stop", "reason": reason, "time": _sessions.now()}).encode())


def begin(parent: int, session: str, *lines: dict[str, t.Any]) -> int:
    """Make SESSION.record in the directory `parent`, and return it; a lock on it shows that the session's caller lives.

    It has no name before it is locked and whole, so that whoever is killed leaves nothing that is neither.
    """
    record = os.open(".", os.O_RDWR | os.O_APPEND | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=parent)
    fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _sessions.write_whole(record, "".join(map(_sessions.as_line, lines)).encode())
    os.link(f"/proc/self/fd/{record}", f"{session}.record", dst_dir_fd=parent)
    return record


def remove_files(slot: str, session: str) -> None:
    """Remove the session's files beside its run directory."""
    for kind in KINDS:
        try:
            os.unlink(_sessions.path_of(slot, session, kind))
        except FileNotFoundError:
            continue


def _conversations(slot: str, where: dict[str, t.Any], start: str) -> list[str]:
    """Return the ids of the CLI's conversations that were written since the session's start."""
    try:
        began = calendar.timegm(time.strptime(start[:19], "%Y-%m-%dT%H:%M:%S")) + int(start[20:23]) / 1000
        entry = pwd.getpwnam(_layout.account(slot))
    except (ValueError, KeyError):
        return []
    return transcripts.written_since(where, began, entry.pw_uid, entry.pw_gid)


def _held(record: int) -> bool:
    try:
        fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _report(slot: str, session: str) -> bytes:
    try:
        descriptor = _open(slot, session, "status", os.O_RDONLY)
    except Refusal:
        return b""
    try:
        return os.read(descriptor, _sessions.MOST_REPORTED)
    finally:
        os.close(descriptor)


def _open(slot: str, session: str, kind: str, flags: int) -> int:
    path = _sessions.path_of(slot, session, kind)
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        cure = f"start sessions with 'slotctl run {slot}'"
        raise Refusal("audit-unavailable", f"{path}: {error.strerror}", cure) from None


def _gid(slot: str) -> int:
    """Return the group that may read the slot's records: that of their directory."""
    try:
        return os.stat(_layout.log(slot)).st_gid
    except FileNotFoundError:
        return 0
