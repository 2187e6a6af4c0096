# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""`slotctl run`: everything is checked, the start is recorded, systemd runs the session, the end is recorded."""

from __future__ import annotations

import os
import pwd
import signal
import time

from confined_slots import _layout, _sessions
from confined_slots._launch import check_enabled, workspace_path
from confined_slots._manifest import open_trusted, verify_release
from confined_slots._plan import value
from confined_slots._refusals import Refusal, printable

from . import checks, ended, kept, transcripts, unit
from .slots import Slot, check_known, current_release, load
from .streams import Streams, copy, open_missing
from .tables import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t

    from .observer import Observer
    from .streams import Relay

    Words = t.Callable[[Slot], list[str]]

MOST_ARGUMENTS = 1 << 21
MOST_NAMED = 80
# systemd needs TimeoutStopSec for the processes and again for the end record; after that something is wrong with it
STOP_PATIENCE = 3 * unit.STOP_SECONDS
DRAIN_SECONDS = 2.0
EXIT_CUT_SHORT = 1
RETRY_MILLISECONDS = 200


def run(
    name: str,
    workspace: str | None,
    words: Words,
    *,
    json: bool,
    resumes: str = "",
    unattended: dict[str, t.Any] | None = None,
    until: float | None = None,
    observer: Observer | None = None,
) -> int:
    """Run a session; return the CLI's exit status, 1 for its 0 if output was lost. Refusal if it does not start.

    words makes the CLI's arguments of the slot; resumes is the session that this one goes on with; unattended is what
    the record says of a session without a person, which gets nothing to read, is refused with all that it lacks, and
    has failed unless it ended by itself; until is when that one will have ended, now if left out; observer is who looks
    on, from before the launcher begins.
    """
    open_missing()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it would hide how our children ended
    start = asked(name, workspace) | (unattended or {})
    try:
        check_known(name)
        release = current_release()
        if unattended:
            _leave_alone()
            start |= described(load(name, workspace), release)
            check_all(name, workspace, words, until)
        verify_release(release)
        slot = load(name, workspace)
        ended.sweep(name)
        start |= described(slot, release)
        arguments = words(slot)
        chosen = preflight(slot, workspace, arguments)
        start |= {"resumes": resumes} if resumes else {}
        start |= {
            "workspace": chosen,
            "arguments": len(arguments),
            "session": _sessions.new_session(),
            "start": _sessions.now(),
        }
        kept.keep(slot)
        if observer is not None:
            start |= {"discovery": True}
            observer.begin(slot, release, start)
        files = Files(slot, start, arguments)
    except Refusal as refusal:
        ended.record_refusal(start, refusal)
        raise
    return Session(slot, release, start, files, observer).run(json=json)


def asked(name: str, workspace: str | None) -> dict[str, t.Any]:
    """Return the record of what was asked for, of which nothing has been checked yet."""
    return {
        "event": "start",
        "slot": printable(name)[:MOST_NAMED],
        "session": "",
        "workspace": printable(workspace or "")[:MOST_NAMED],
        "caller": caller(),
    }


def check_all(name: str, workspace: str | None, words: Words, until: float | None = None) -> None:
    """Refuse a session without a person, naming all that it lacks: nobody is there to mend one thing and try again."""
    from . import preflight

    found = preflight.preflight(name, workspace, words, time.time() if until is None else until)
    lacking = preflight.missing(found)
    if lacking is not None:
        raise lacking


def caller() -> dict[str, t.Any]:
    """Return who asks: by sudo's word, and by the kernel's audit trail, which a login sets once."""
    uid = os.environ.get("SUDO_UID", "")
    found: dict[str, t.Any] = {"uid": int(uid) if uid.isascii() and uid.isdigit() else os.getuid()}
    try:
        found["user"] = printable(os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name)[:64]
    except KeyError:
        found["user"] = ""
    try:
        with open("/proc/self/loginuid", encoding="ascii") as file:
            login = int(file.read(16))
    except (OSError, ValueError):
        return found
    return found if login == 0xFFFFFFFF else found | {"login_uid": login}


def described(slot: Slot, release: str) -> dict[str, t.Any]:
    """Return what a record says of the policy that a session runs under."""
    provider = slot.policy["provider"]
    return {
        "mode": slot.policy["mode"],
        "provider": {key: provider[key] for key in ("name", "version", "identity")},
        "profile_version": provider["profile_version"],
        "capabilities": [each["key"] for each in slot.policy["capabilities"]],
        "policy": value(slot.records, "fingerprint"),
        "release": os.path.basename(release),
    }


def preflight(slot: Slot, workspace: str | None, arguments: list[str]) -> str:
    """Return the workspace's name, once nothing is known to stand in the way of a session; Refusal otherwise."""
    check_enabled(slot.records)
    chosen = workspace if workspace is not None else next(iter(slot.base["workspaces"]))
    workspace_path(slot.records, chosen)
    checks.account(slot)
    checks.approval(slot)
    checks.network(slot)
    checks.docker(slot)
    checks.credential(slot)
    if sum(len(os.fsencode(word)) + 1 for word in arguments) > MOST_ARGUMENTS:
        raise Refusal(
            "policy-invalid", f"the CLI's arguments are longer than {MOST_ARGUMENTS} bytes", "put them into a file"
        )
    return chosen


class Files:
    """A session's files, made and open; the start is on record once they stand."""

    def __init__(self, slot: Slot, start: dict[str, t.Any], arguments: list[str]) -> None:
        self.slot, self.session = slot.name, start["session"]
        directory = f"{_layout.RUN}/{slot.name}"
        words = b"".join(os.fsencode(word) + b"\0" for word in arguments)
        try:
            parent = _open_run_directory(slot.name)
            try:
                self.record = ended.begin(parent, self.session, start, transcripts.where(slot.policy))
                args = self._make(parent, "args", 0o640, slot.gid)
                with open(args, "wb") as file:
                    file.write(words)
                os.close(self._make(parent, "status", 0o620, slot.gid))
            finally:
                os.close(parent)
        except OSError as error:
            self.remove()
            raise Refusal(
                "audit-unavailable", f"{directory}: {error.strerror}", "make room on its file system"
            ) from None
        try:
            _sessions.append(slot.name, slot.gid, start)
        except Refusal:
            self.remove()
            raise

    def end(self) -> dict[str, t.Any] | None:
        """Return the end record, None while there is none."""
        size = os.fstat(self.record).st_size
        for record in _sessions.lines_of(os.pread(self.record, size, 0)):
            if record.get("event") == "end":
                return record
        return None

    def remove(self) -> None:
        """Remove what is there of the files."""
        ended.remove_files(self.slot, self.session)

    def _make(self, parent: int, kind: str, mode: int, gid: int) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{self.session}.{kind}", flags, 0o600, dir_fd=parent)
        os.fchown(descriptor, 0, gid)
        os.fchmod(descriptor, mode)
        return descriptor


class Session:
    """One session from the start of its unit to its end record."""

    def __init__(
        self, slot: Slot, release: str, start: dict[str, t.Any], files: Files, observer: Observer | None = None
    ) -> None:
        self.slot, self.release, self.start, self.files, self.observer = slot, release, start, files, observer
        self.name, self.session = slot.name, start["session"]
        self.received: list[int] = []
        self.stopper = 0
        self.patience = 0.0

    def run(self, *, json: bool) -> int:
        """Run it; return the exit status."""
        terminal = os.isatty(0) and os.isatty(1)
        modes = _terminal_modes() if terminal else None
        streams = Streams(terminal=terminal)
        wakeup = self._catch_signals()
        client = self._spawn(self._command(terminal=terminal, json=json), streams.given)
        streams.close_given()
        if self.observer is not None and not self.observer.attach(client):
            unit.stop(self.name, [self.session])
        status = self._wait(client, streams, wakeup)
        if modes is not None and status != 0:
            _restore_terminal(modes)
        status = self._tell(self._end(status), streams.error, json=json)
        losses = streams.losses()
        for loss in losses:
            say(_sessions.as_line({"error": loss}).rstrip("\n") if json else f"slotctl: {loss}")
        return status or int(bool(losses))

    def _spawn(self, words: list[str], streams: list[int]) -> int:
        try:
            return unit.spawn(words, streams)
        except OSError as error:
            ended.end_session(self.name, self.session, "", "", "")
            what = f"{words[0]} cannot be started: {error.strerror}"
            raise Refusal("sandbox-unavailable", what, "install the packages systemd and util-linux") from None

    def _command(self, *, terminal: bool, json: bool) -> list[str]:
        credential, longest = checks.credential_file(self.slot), self.slot.policy["resources"].get("session_max")
        wanted = unit.properties(self.name, self.session, self.release, credential, longest, terminal=terminal)
        launcher = [f"{self.release}/bin/slot-launcher", *(["--json"] if json else []), self.slot.path]
        words = [*launcher, self.start["workspace"], self.session, self.start["policy"]]
        if self.observer is not None:
            words = self.observer.held(words)
        environment = unit.terminal_environment(os.environ)
        inner = unit.service(self.name, self.session, wanted, environment, words, terminal=terminal)
        return unit.client(self.name, self.session, inner, parent=os.getpid())

    def _catch_signals(self) -> int:
        """Note SIGINT, SIGTERM and SIGHUP (unless ignored, as by nohup); return what can be read once one has come."""
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _unused: self.received.append(number))
        return read_end

    def _wait(self, client: int, streams: Streams, wakeup: int) -> int:
        """Copy until the client has ended, then what is left; stop it on a signal. Return the client's status."""
        child = os.pidfd_open(client)
        ready: set[int] = set()
        while child not in ready:
            ready = copy(streams.copying(), (child, wakeup), RETRY_MILLISECONDS if self.received else None)
            if wakeup in ready:
                os.read(wakeup, 4096)
            if self.received and child not in ready:
                self._keep_stopping(client)
        os.close(child)
        status = os.waitstatus_to_exitcode(os.waitpid(client, 0)[1])
        deadline = time.monotonic() + DRAIN_SECONDS
        while left := streams.copying(outward_only=True):
            if any(relay.pending for relay in left) and not self.received:
                deadline = time.monotonic() + DRAIN_SECONDS  # behind what a slow reader takes there may be more
            elif time.monotonic() > deadline:
                break
            copy(left, (), RETRY_MILLISECONDS)
        if self.stopper:
            os.waitpid(self.stopper, 0)
        return status

    def _keep_stopping(self, client: int) -> None:
        """Have systemd stop the unit, again if it was not there yet; give up on the client after STOP_PATIENCE."""
        if not self.patience:
            self.patience = time.monotonic() + STOP_PATIENCE
            ended.ask(self.files.record, f"{signal.Signals(self.received[0]).name} to slotctl")
        if self.stopper and os.waitpid(self.stopper, os.WNOHANG) != (0, 0):
            self.stopper = 0
        if not self.stopper:
            self.stopper = unit.start_stopping(self.name, [self.session])
        if time.monotonic() > self.patience:
            os.kill(client, signal.SIGKILL)

    def _end(self, status: int) -> dict[str, t.Any]:
        """Return the end record; if there is none yet, the client was lost or the unit never came to be: see to it."""
        found = self.files.end()
        if found is None:
            if status < 0:
                ended.ask(self.files.record, f"signal {-status} to its systemd-run")
            unit.stop(self.name, [self.session])
            found = self.files.end()
        if found is None:
            found = ended.end_session(self.name, self.session, "", "", "")
        return found

    def _tell(self, end: dict[str, t.Any], error: Relay | None, *, json: bool) -> int:
        outcome, status = end["outcome"], int(end["exit_status"])
        if outcome == "sandbox-failed":
            raise Refusal("sandbox-unavailable", *self._sandbox_failure(end, error))
        if "audit" in end:
            say(f"slotctl: the end of session {self.session} is not on record: {end['audit']}")
        if json and outcome != "refused":
            say(_sessions.as_line(end).rstrip("\n"))
        elif outcome == "timed-out":
            say(f"slotctl: session {self.session} ended at the slot's session_max")
        elif outcome == "stopped":
            say(f"slotctl: session {self.session} was stopped ({end.get('reason') or 'asked'})")
        if outcome != "ended" and "unattended" in self.start:
            status = status or EXIT_CUT_SHORT
        return 128 + self.received[0] if self.received else status

    def _sandbox_failure(self, end: dict[str, t.Any], error: Relay | None) -> tuple[str, str]:
        said = printable(error.kept.decode("utf-8", "replace").strip()) if error else ""
        what = f"session {self.session}: the sandbox did not come to be ({end.get('reason', '')})"
        # not at the top: what they import would cost each session time
        from confined_slots import _apparmor, _apparmor_profiles, _userns

        for obstacle in _userns.obstacles(_userns.read(), profiles=_apparmor.is_loaded(_apparmor_profiles.LAUNCHER)):
            what = f"{what}; {obstacle}"
        if said:
            return f"{what}: {said}", f"see 'slotctl selftest {self.name}'"
        name = _layout.session_unit(self.name, self.session)
        return f"{what}; what it said stands above", f"see 'slotctl selftest {self.name}' and 'journalctl -u {name}'"


def _open_run_directory(slot: str) -> int:
    """Return a descriptor of /run/confined-slots/SLOT, made if a boot has removed it."""
    parent = open_trusted(os.path.dirname(_layout.RUN))
    for name, mode in ((os.path.basename(_layout.RUN), 0o755), (slot, 0o711)):
        try:
            os.mkdir(name, mode, dir_fd=parent)
            os.chmod(name, mode, dir_fd=parent)
        except FileExistsError:
            pass
        os.close(parent)
        parent = open_trusted(_layout.RUN if name != slot else f"{_layout.RUN}/{slot}")
    return parent


def _leave_alone() -> None:
    """Make standard input /dev/null: what the session asks finds its end at once, and nothing waits for a person."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)


def _terminal_modes() -> list[t.Any]:
    import termios

    return termios.tcgetattr(0)


def _restore_terminal(modes: list[t.Any]) -> None:
    """Put the caller's terminal back as it was: a systemd-run that was killed has left it raw."""
    import termios

    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        termios.tcsetattr(0, termios.TCSADRAIN, modes)
    except termios.error:  # the terminal has gone
        return
