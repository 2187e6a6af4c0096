# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Named steps, run one after the other: a line each on the terminal, everything they say in a log file of their own.

A step that is marked so goes on beside those that follow it; its line comes when all others are done.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import typing as t
import xml.etree.ElementTree

TAIL = 14
MESSAGE = 600
LIMIT_SECONDS = 7200
WIDTH = 46


class Failed(Exception):
    """A step that did not do what it is for; the message is empty where the log's last lines say it all."""


class Missing(Exception):
    """A step that cannot run on this machine; the message names what is missing."""


# What runs now, by any step's log.
_children: set[subprocess.Popen[bytes]] = set()


@dataclasses.dataclass
class Log:
    """One step's log file, and the way to run programs into it."""

    path: pathlib.Path
    environment: dict[str, str]

    def write(self, text: str) -> None:
        """Append a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text.rstrip("\n") + "\n")

    def run(self, *argv: str, cwd: pathlib.Path | None = None, **environment: str) -> None:
        """Run a program without a terminal, its output into the log; raise Failed unless it ends with 0."""
        status = self.status(*argv, cwd=cwd, **environment)
        if status:
            raise Failed(f"{pathlib.Path(argv[0]).name} ended with {status}")

    def status(self, *argv: str, cwd: pathlib.Path | None = None, **environment: str) -> int:
        """Run a program as `run` does and return its exit status."""
        self.write(f"$ {' '.join(argv)}")
        with self.path.open("ab") as file:
            try:
                # A session of its own: an interrupt reaches this process alone, which then ends the whole group.
                child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=self.environment | environment,
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise Failed(f"{argv[0]} is not installed") from error
            _children.add(child)
            try:
                return child.wait(LIMIT_SECONDS)
            except subprocess.TimeoutExpired as error:
                end_group(child)
                raise Failed(f"{argv[0]} did not end within {LIMIT_SECONDS} s") from error
            except BaseException:
                end_group(child)
                raise
            finally:
                _children.discard(child)

    def text(self) -> str:
        """Return all that the log holds."""
        return self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""

    def cause(self) -> list[str]:
        """Return the few lines of the log that most likely name the cause."""
        lines = [line.rstrip() for line in self.text().splitlines() if line.strip() and not line.startswith("$ ")]
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line)[:200] for line in lines]
        if errors := [line for line in lines if re.match(r"(ERROR|FATAL): ", line)]:
            return errors[-TAIL:]
        for number in range(len(lines) - 1, -1, -1):
            # Ansible goes on with other hosts and a recap after the line that matters, and prints the dull keys first.
            if re.match(r"(fatal|failed): \[|\[ERROR\]|ERROR!", lines[number]):
                dull = r"    (changed|delta|end|rc|start|\w+_lines|invocation):|    -|PLAY RECAP|\S+ +: ok="
                return [line for line in lines[number:] if not re.match(dull, line)][:TAIL]
        return lines[-TAIL:]


def end_group(child: subprocess.Popen[bytes], patience: float = 10) -> None:
    """End a child and all it started, first politely."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue


@dataclasses.dataclass(frozen=True)
class Step:
    """What is done, what must have been done before, and how its tests are counted."""

    title: str
    action: t.Callable[[Log], None]
    needs: tuple[str, ...] = ()
    counted: bool = False
    junit: pathlib.Path | None = None
    beside: bool = False


@dataclasses.dataclass
class Outcome:
    """How one step went."""

    step: Step
    result: t.Literal["ok", "failed", "skipped"]
    seconds: float = 0
    passed: int = 0
    counted_tests: bool = False
    reasons: list[str] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    tail: list[str] = dataclasses.field(default_factory=list)
    log: pathlib.Path | None = None

    @property
    def failed(self) -> int:
        """How many tests failed; a step that failed otherwise counts as one."""
        return len(self.failures) or int(self.result == "failed")


def counts(path: pathlib.Path) -> tuple[int, list[str], list[str]]:
    """Return how many tests of a junit file passed, the failed ones with what they say, the skipped with reasons."""
    passed = 0
    failures = []
    skipped = []
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        found = {element.tag: element for element in case}
        skip = found.get("skipped")
        failure = found.get("failure", found.get("error"))
        if failure is not None:
            words = " ".join((failure.get("message") or "no message").split())
            failures.append(f"{case.get('name')}: {words[:MESSAGE]}")
        elif skip is not None and skip.get("type") != "pytest.xfail":
            skipped.append(f"{case.get('name')}: {skip.get('message') or 'no reason given'}")
        else:
            passed += 1
    return passed, failures, skipped


class Workbench:
    """Runs steps, says how each goes, and sums up."""

    def __init__(self, title: str, logs: pathlib.Path, environment: dict[str, str], *, strict: bool) -> None:
        """Take the title of the whole, the directory of logs, and whether a step that cannot run is a failure."""
        self.title = title
        self.logs = logs
        self.environment = environment
        self.strict = strict
        self.outcomes: list[Outcome] = []
        self.started = time.monotonic()

    def perform(self, steps: t.Sequence[Step]) -> bool:
        """Run the steps whose needs are met, say whether none failed; where nothing is tested, stop at a failure."""
        tests = any(step.counted or step.junit for step in steps)
        beside: list[tuple[str, concurrent.futures.Future[Outcome]]] = []
        with concurrent.futures.ThreadPoolExecutor() as threads:
            try:
                for number, step in enumerate(steps, 1):
                    line = f"{number:3}/{len(steps)}  {step.title} {'.' * (WIDTH - len(step.title))} "
                    if step.beside:
                        say(f"{line}goes on beside what follows")
                        beside.append((line, threads.submit(self._do, step, number)))
                        continue
                    say(line, end="")
                    self._tell(self._do(step, number))
                    if self.outcomes[-1].result == "failed" and not tests:
                        return False
                for line, outcome in beside:
                    say(line, end="")
                    self._tell(outcome.result())
            except BaseException:
                for child in [*_children]:
                    end_group(child)
                raise
        return not any(outcome.result == "failed" for outcome in self.outcomes)

    def _do(self, step: Step, number: int) -> Outcome:
        name = re.sub(r"[^a-z0-9]+", "-", step.title.lower()).strip("-")
        log = Log(self.logs / f"{number:02}-{name}.log", self.environment)
        started = time.monotonic()
        outcome = Outcome(step, "ok")
        try:
            self._require(step)
            step.action(log)
        except Missing as missing:
            outcome.result = "failed" if self.strict else "skipped"
            outcome.reasons.append(str(missing))
        except Failed as failure:
            outcome.result = "failed"
            outcome.reasons.append(str(failure))
            outcome.tail = log.cause()
        outcome.seconds = time.monotonic() - started
        outcome.log = log.path if log.path.exists() else None
        self._count(outcome)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        tests = f"  {outcome.passed} passed, {outcome.failed} failed" if outcome.counted_tests else ""
        say(f"{outcome.result if outcome.result != 'failed' else 'FAILED'}  {outcome.seconds:.1f} s{tests}")
        if outcome.result != "ok":
            # The tests that failed are the cause; molecule's last lines only say that some did.
            for line in outcome.failures[:TAIL] or outcome.tail:
                say(f"        | {line}")
            for reason in outcome.reasons[:1]:
                say(f"        {reason}")
            if outcome.log:
                say(f"        log: {outcome.log}")

    def _require(self, step: Step) -> None:
        for outcome in self.outcomes:
            if outcome.step.title in step.needs and outcome.result != "ok":
                if outcome.result == "failed":
                    raise Failed(f"not run, since '{outcome.step.title}' failed")
                raise Missing(outcome.reasons[0])

    def _count(self, outcome: Outcome) -> None:
        junit = outcome.step.junit
        if junit and junit.exists():
            outcome.passed, outcome.failures, skipped = counts(junit)
            outcome.reasons += skipped
            outcome.counted_tests = True
        if outcome.result == "ok" and outcome.step.counted:
            outcome.passed += 1

    def summary(self) -> str:
        """Print what failed and what was skipped, last the plain count of tests; return that line."""
        passed = sum(outcome.passed for outcome in self.outcomes)
        failed = sum(outcome.failed for outcome in self.outcomes)
        seconds = time.monotonic() - self.started
        say(f"\n{self.title}: {len(self.outcomes)} steps in {seconds:.0f} s, logs in {self.logs}")
        for outcome in self.outcomes:
            if outcome.result == "failed":
                for failure in outcome.failures or outcome.reasons[:1]:
                    say(f"  FAILED   {outcome.step.title}: {failure}")
            for reason in outcome.reasons if outcome.result != "failed" else []:
                say(f"  skipped  {outcome.step.title}: {reason}")
        count = f"{passed} passed, {failed} failed"
        if any(outcome.step.counted or outcome.step.junit for outcome in self.outcomes):
            say(count)
        return count


def say(text: str, end: str = "\n") -> None:
    """Print at once, also where the output is a pipe."""
    sys.stdout.write(text + end)
    sys.stdout.flush()
