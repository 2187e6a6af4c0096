# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs checks: a child for each subject, all in parallel, each check with a time limit, all within one budget.

A child makes its checks one after the other and tells of each on a pipe. One that hangs is killed with all that it has
started, its check is `unknown`, and another child goes on with the next check: a mount that hangs costs one result.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import select
import signal
import sys
import time
import typing as t

from confined_slots import _health
from confined_slots._declarations import Invalid
from confined_slots._files import UnsafePath
from confined_slots._health import CouldNot, DoesNotApply, Outcome, unknown
from confined_slots._manifest import Untrusted
from confined_slots._refusals import Refusal, printable

from .context import CONVERGE, Check, Context

GRACE_SECONDS = 2.0  # between asking a child to end and killing it, so that it takes its files away
_PIECE = 1 << 16
_PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True)
class Subject:
    """What a child looks at: a context, and the checks to make of it."""

    context: Context
    checks: tuple[Check, ...]


@dataclasses.dataclass
class Results:
    """What came of a subject's checks: results in order, and those that did not apply with the reason."""

    checks: list[_health.Json] = dataclasses.field(default_factory=list)
    not_applicable: list[dict[str, str]] = dataclasses.field(default_factory=list)


class _Child:
    """A child at work on a subject from its check number `first` on."""

    def __init__(self, subject: Subject, first: int) -> None:
        self.subject, self.next, self.buffer = subject, first, b""
        self.began = time.monotonic()
        self.killed_at: float | None = None
        self.given_up = ""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pipe, write_end = os.pipe2(os.O_CLOEXEC)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            status = 70
            try:
                os.setpgid(0, 0)
                signal.signal(signal.SIGTERM, _leave)
                _end_with(parent)
                os.close(self.pipe)
                _work(subject, first, write_end)
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)

    @property
    def check(self) -> Check | None:
        """The check that it is at, None once it is through."""
        return self.subject.checks[self.next] if self.next < len(self.subject.checks) else None

    def deadline(self) -> float:
        """Return the time at which something has to be done about it."""
        if self.killed_at is not None:
            return self.killed_at + GRACE_SECONDS
        return self.began + (self.check.seconds if self.check else GRACE_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal to it and to what it has started."""
        for target in (-self.pid, self.pid):
            try:
                os.kill(target, number)
            except ProcessLookupError:
                continue


def run(subjects: t.Sequence[Subject], budget: float, jobs: int) -> list[Results]:
    """Return what came of every check of every subject, in their order, after at most about budget seconds."""
    end = time.monotonic() + budget
    results = [Results() for _unused in subjects]
    waiting = list(enumerate(subjects))
    running: dict[int, tuple[int, _Child]] = {}
    poll = select.poll()

    def start(number: int, subject: Subject, first: int) -> None:
        child = _Child(subject, first)
        running[child.pipe] = (number, child)
        poll.register(child.pipe, select.POLLIN)

    try:
        while waiting or running:
            while waiting and len(running) < jobs and time.monotonic() < end:
                start(*waiting.pop(0), 0)
            now = time.monotonic()
            if now >= end:
                for number, subject in waiting:
                    _not_run(results[number], subject, 0, budget)
                waiting = []
                for _number, child in running.values():
                    child.given_up = child.given_up or f"the budget of {budget:.0f} s was used up"
            next_at = min([end, *(child.deadline() for _number, child in running.values())], default=end)
            ready = poll.poll(max(0.0, min(next_at - now, 1.0)) * 1000 + 1 if now < end else 50)
            for pipe, _event in ready:
                number, child = running[pipe]
                if _read(child, results[number]):
                    _ended(running, poll, pipe)
                    first = _settle(child, results[number], budget)
                    if first < len(child.subject.checks):
                        start(number, child.subject, first)
            _look_after(running, poll, results, start, budget)
    finally:
        for _number, child in running.values():
            child.signal(signal.SIGKILL)
    return results


def _look_after(
    running: dict[int, tuple[int, _Child]],
    poll: select.poll,
    results: list[Results],
    start: t.Callable[[int, Subject, int], None],
    budget: float,
) -> None:
    """Ask the children whose time is up to end, kill those that do not, and give up those that even that cannot end."""
    for pipe, (number, child) in list(running.items()):
        now = time.monotonic()
        if child.killed_at is None and (child.given_up or now >= child.deadline()):
            if not child.given_up and child.check:
                child.given_up = f"it did not end in {child.check.seconds:.0f} s"
            child.killed_at = now
            child.signal(signal.SIGTERM)
        elif child.killed_at is not None and now >= child.deadline():
            child.signal(signal.SIGKILL)
            # in a call of the kernel that nothing ends, as on a dead file server: left to itself
            _ended(running, poll, pipe)
            first = _settle(child, results[number], budget)
            if first < len(child.subject.checks):
                start(number, child.subject, first)


def _ended(running: dict[int, tuple[int, _Child]], poll: select.poll, pipe: int) -> None:
    poll.unregister(pipe)
    os.close(pipe)
    _number, child = running.pop(pipe)
    child.signal(signal.SIGKILL)


def _settle(child: _Child, results: Results, budget: float) -> int:
    """Note what has become of the check that an ended child was at; return which check is next."""
    deadline = time.monotonic() + (0.2 if child.given_up else GRACE_SECONDS)
    status = 0
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            break
        time.sleep(0.001)
    check = child.check
    if check is None:
        return child.next
    if child.given_up.startswith("the budget"):
        _not_run(results, child.subject, child.next, budget)
        return len(child.subject.checks)
    why = child.given_up or f"its process was ended ({_how(status)})"
    child.subject.context.gave_no_result.add(check.id)
    results.checks.append(
        _health.as_json(check.id, unknown(f"the check {check.id} gave no result: {why}"), _since(child.began))
    )
    return child.next + 1


def _not_run(results: Results, subject: Subject, first: int, budget: float) -> None:
    for check in subject.checks[first:]:
        why = f"the check {check.id} was not made: the budget of {budget:.0f} s was used up"
        results.checks.append(_health.as_json(check.id, unknown(why, "raise the budget, or see what hangs"), 0.0))


def _read(child: _Child, results: Results) -> bool:
    """Take in what a child says; return whether it has ended."""
    piece = os.read(child.pipe, _PIECE)
    child.buffer += piece
    while b"\n" in child.buffer:
        line, _unused, child.buffer = child.buffer.partition(b"\n")
        if child.check is None or child.given_up:
            continue
        said = json.loads(line)
        if "why" in said:
            results.not_applicable.append({"slot": child.subject.context.name, "check": child.check.id, **said})
        else:
            results.checks.append(said)
        child.next += 1
        child.began = time.monotonic()
    return not piece


def _work(subject: Subject, first: int, pipe: int) -> None:
    for check in subject.checks[first:]:
        began = time.monotonic()
        try:
            said: _health.Json = _health.as_json(check.id, outcome(check, subject.context), _since(began))
        except DoesNotApply as reason:
            said = {"why": printable(str(reason))}
        data = json.dumps(said).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]


def outcome(check: Check, context: Context) -> Outcome:
    """Return what a check says; whatever else it does is `unknown`."""
    try:
        found = check.look(context)
    except Refusal as refusal:
        return _health.critical(f"{refusal.code}: {refusal.what}", check.about, refusal.cure)
    except (Untrusted, UnsafePath) as error:
        return _health.critical(str(error), check.about, f"find out who did it, then {CONVERGE}")
    except Invalid as error:
        what, _unused, cure = str(error).rpartition(" [")
        return _health.critical(what or cure, check.about, cure.rstrip("]") if what else CONVERGE)
    except CouldNot as reason:
        return unknown(str(reason))
    except DoesNotApply:
        raise
    except OSError as error:
        return unknown(f"{error.filename or 'the host'}: {error.strerror or error}")
    except Exception as error:  # a check that breaks says nothing about the host, and must not say it is well
        return unknown(f"the check {check.id} broke: {type(error).__name__}: {error}")
    if not isinstance(found, Outcome):
        return unknown(f"the check {check.id} gave no result: {found!r:.80}")
    return found


def _end_with(parent: int) -> None:
    """Have the kernel ask this process to end, and to take its files away, when the process parent does."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit(70)


def _leave(_number: int, _frame: t.Any) -> t.NoReturn:
    """Leave by way of every `finally`."""
    raise SystemExit(70)


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _since(began: float) -> float:
    return (time.monotonic() - began) * 1000
