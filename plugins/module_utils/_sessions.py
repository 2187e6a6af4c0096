# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions: their ids and files, what their records say, and how the end of one is judged.

While a session lives, three files stand beside its run directory: SESSION.args (the CLI's arguments, NUL-ended),
SESSION.status (what launcher and bwrap report: written by the slot's account, so untrusted) and SESSION.record (root's
alone: the start record, who asked to stop it, the end record, one JSON object a line). Records also go to
sessions.jsonl and to the journal, where `_UID=0` tells them from what anybody else may write there.

On slotctl's path to a session: no dataclasses, typing or re.
"""

from __future__ import annotations

import _socket
import json
import os
import stat
import time

from . import _layout
from ._manifest import Untrusted, open_trusted
from ._refusals import CODES, EXIT_REFUSED, Refusal, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

    Record = dict[str, t.Any]

RECORDS = "sessions.jsonl"
JOURNAL = "/run/systemd/journal/socket"
MESSAGE_ID = "a61fdd3ab0d949d2a3db5f3c4a0e5a35"
OUTCOMES = ("ended", "refused", "sandbox-failed", "stopped", "timed-out")

MOST_REPORTED = 1 << 16
MOST_READ_BACK = 1 << 20
MOST_UNPACKED = 1 << 26
MOST_ROTATED = 60
_JOURNAL_SECONDS = 2.0
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")


def new_session() -> str:
    """Return a new session's id, `YYYYMMDDtHHMMSS-` (UTC) and eight random hex digits."""
    return f"{time.strftime('%Y%m%dt%H%M%S', time.gmtime())}-{os.urandom(4).hex()}"


def is_session(name: str) -> bool:
    """Return whether name has the form of a session's id."""
    date, clock, rest = name[:8], name[9:15], name[16:]
    return (
        len(name) == 24
        and name[8] == "t"
        and name[15] == "-"
        and _DIGITS.issuperset(date + clock)
        and _HEX.issuperset(rest)
    )


def path_of(slot: str, session: str, kind: str) -> str:
    """Return one of the session's files; kind is `args`, `status` or `record`."""
    return f"{_layout.run_directory(slot, session)}.{kind}"


def now() -> str:
    """Return the time as records carry it, UTC to the millisecond."""
    seconds = time.time()
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(seconds * 1000) % 1000:03d}Z"


def as_line(record: Record) -> str:
    """Return a record as one line: ASCII, whatever its values hold."""
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")) + "\n"


def lines_of(data: bytes) -> list[Record]:
    """Return the JSON objects among the lines of data, in order; lines that are none are passed over."""
    found = []
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):  # half a line after a full disk, or whatever the slot's account wrote
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


class Verdict:
    """How a session ended: one of OUTCOMES, and the exit status that `slotctl run` gives."""

    def __init__(self, outcome: str, exit_status: int, reason: str = "", refusal: Record | None = None) -> None:
        self.outcome, self.exit_status, self.reason, self.refusal = outcome, exit_status, reason, refusal

    def fields(self) -> Record:
        """Return it as the end record's part of its own."""
        words: Record = {"outcome": self.outcome, "exit_status": self.exit_status}
        if self.reason:
            words["reason"] = self.reason
        if self.refusal:
            words["refusal"] = self.refusal
        return words


def judge(report: bytes, result: str, code: str, status: str, *, stopped: bool) -> Verdict:
    """Return how a session ended.

    report: what launcher and bwrap wrote (bwrap's JSON lines, or a refusal), untrusted; result, code, status: systemd's
    $SERVICE_RESULT, $EXIT_CODE, $EXIT_STATUS; stopped: whether its end was asked for, or its caller was gone by then.
    Only bwrap's record of an exit tells that the CLI ran and ended; no wording of any message is looked at.
    """
    refusal, exit_status = read_report(report)
    outcome = "stopped" if stopped else "timed-out" if result == "timeout" else ""
    if exit_status is not None:
        return Verdict(outcome or "ended", exit_status, result if result in ("oom-kill", "timeout") else "")
    if code in ("killed", "dumped"):
        return Verdict(outcome or "stopped", 128 + _signal_number(status), f"signal {printable(status)[:20]}, {result}")
    if refusal is not None:
        return Verdict("refused", EXIT_REFUSED, refusal=refusal)
    if stopped and not code:
        return Verdict("stopped", 128 + 15, "before it began")
    reason = f"{code or 'not started'} {status}, {result}".replace(" ,", ",")
    return Verdict("sandbox-failed", EXIT_REFUSED, printable(reason)[:120])


def read_report(report: bytes) -> tuple[Record | None, int | None]:
    """Return the launcher's refusal and the CLI's exit status out of untrusted bytes, None for what is not there.

    Once bwrap has begun, the launcher is gone: a refusal that stands there too is the slot's own invention.
    """
    refusal: Record | None = None
    began = False
    exit_status: int | None = None
    for line in lines_of(report[:MOST_REPORTED]):
        code, number = line.get("refusal"), line.get("exit-code")
        began = began or "child-pid" in line
        if isinstance(code, str) and code in CODES:
            refusal = {"code": code, **{key: printable(str(line.get(key, "")))[:2000] for key in ("what", "cure")}}
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= 255:
            exit_status = number
    return None if began else refusal, exit_status


def append(slot: str, gid: int, record: Record) -> None:
    """Add a record to the slot's sessions.jsonl and to the journal; Refusal `audit-unavailable` if either fails."""
    cure = "make room on its file system, or converge the host with the playbook confined.slots.site"
    path = f"{_layout.log(slot)}/{RECORDS}"
    failure = None
    try:
        _append_line(_layout.log(slot), gid, as_line(record))
    except Untrusted as error:
        failure = Refusal("audit-unavailable", str(error), cure)
    except OSError as error:
        failure = Refusal("audit-unavailable", f"{path}: {error.strerror or error}", cure)
    try:
        to_journal(record)
    except OSError as error:
        cure = "see 'systemctl status systemd-journald'"
        failure = failure or Refusal("audit-unavailable", f"{JOURNAL}: {error.strerror or error}", cure)
    if failure is not None:
        raise failure


def to_journal(record: Record) -> None:
    """Send a record to the journal by its native protocol; OSError if the journal does not take it."""
    slot, session, event = (str(record.get(key, "")) for key in ("slot", "session", "event"))
    about = f": {record['outcome']}, exit status {record['exit_status']}" if event == "end" else ""
    if event == "refused":
        about = f": {record['refusal']['code']}"
    fields = {
        "MESSAGE": printable(f"slot {slot}: session {session or '(none)'} {event}{about}"),
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": "6" if event == "start" or record.get("outcome") == "ended" else "4",
        "SYSLOG_IDENTIFIER": "slotctl",
        "CONFINED_SLOTS_EVENT": event,
        "CONFINED_SLOTS_SLOT": printable(slot),
        "CONFINED_SLOTS_SESSION": session,
        "CONFINED_SLOTS_RECORD": as_line(record).rstrip("\n"),
    }
    message = "".join(f"{name}={text}\n" for name, text in fields.items()).encode("ascii", "backslashreplace")
    client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        client.settimeout(_JOURNAL_SECONDS)
        client.connect(JOURNAL)
        client.send(message)
    finally:
        client.close()


def write_whole(descriptor: int, data: bytes) -> None:
    """Write a record; OSError also where there was room for a part of it."""
    if os.write(descriptor, data) != len(data):
        raise OSError(28, "no space left for the record")


def read_records(slot: str, most: int = MOST_READ_BACK) -> list[Record]:
    """Return the records at the end of the slot's sessions.jsonl (at most that many bytes), the oldest first.

    Refusal `audit-unavailable` if it is no file that can be read.
    """
    path, cure = f"{_layout.log(slot)}/{RECORDS}", "move it away"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Refusal("audit-unavailable", f"{path}: {error.strerror}", cure) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refusal("audit-unavailable", f"{path} is not a regular file", cure)
    with open(descriptor, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        return lines_of(file.read(most))


def read_history(slot: str) -> list[Record]:
    """Return the slot's records, the oldest first, with those that logrotate has put away and that can be read."""
    found: list[Record] = []
    base = f"{_layout.log(slot)}/{RECORDS}"
    for number in range(MOST_ROTATED, 0, -1):
        try:
            data = _read_rotated(f"{base}.{number}")
        except OSError:
            continue
        found += lines_of(data)
    return found + read_records(slot)


def _read_rotated(path: str) -> bytes:
    """Return the last of what a rotated file holds, compressed or not; only root writes in its directory."""
    import gzip
    import zlib

    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_READ_BACK))
            return file.read(MOST_READ_BACK)
    except FileNotFoundError:
        try:
            with gzip.open(f"{path}.gz") as packed:
                return packed.read(MOST_UNPACKED)[-MOST_READ_BACK:]
        except (EOFError, zlib.error):
            return b""


def live_sessions(slot: str) -> list[Record]:
    """Return the start records of the slot's sessions that have not ended, the oldest first."""
    return [lines[0] for _session, lines in recorded(slot) if is_live(lines)]


def is_live(lines: list[Record]) -> bool:
    """Return whether a SESSION.record that holds these lines is of a session that has begun and not ended."""
    return bool(lines) and all(line.get("event") != "end" for line in lines)


def recorded(slot: str) -> list[tuple[str, list[Record]]]:
    """Return each session of which there is a SESSION.record, and what that holds, the oldest first."""
    try:
        names = sorted(os.listdir(f"{_layout.RUN}/{slot}"))
    except FileNotFoundError:
        return []
    sessions = [name.removesuffix(".record") for name in names if name.endswith(".record")]
    return [(session, _read_record(slot, session)) for session in sessions if is_session(session)]


def _read_record(slot: str, session: str) -> list[Record]:
    try:
        descriptor = os.open(path_of(slot, session, "record"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    with open(descriptor, "rb") as file:
        return lines_of(file.read(MOST_READ_BACK))


def _append_line(directory: str, gid: int, line: str) -> None:
    parent = open_trusted(directory)
    try:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(RECORDS, flags, 0o600, dir_fd=parent)
    finally:
        os.close(parent)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022 or found.st_nlink != 1:
            raise Untrusted(f"{directory}/{RECORDS} is not a file that only root can write")
        if stat.S_IMODE(found.st_mode) != 0o640 or found.st_gid != gid:
            os.fchown(descriptor, 0, gid)
            os.fchmod(descriptor, 0o640)
        # a full disk may have left half a line
        broken = found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n"
        data = ("\n" + line if broken else line).encode("ascii")
        write_whole(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _signal_number(name: str) -> int:
    import signal

    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return 0
