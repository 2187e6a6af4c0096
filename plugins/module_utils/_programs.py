# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host's own tools, run as root: in a plain environment, away from any terminal, for a bounded time."""

from __future__ import annotations

import dataclasses
import subprocess
import typing as t

ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
SECONDS = 300


class Failed(Exception):
    """A tool of the host did not do its work; the message holds what it said."""


class NotInstalled(Failed):
    """The tool is not there."""


@dataclasses.dataclass(frozen=True)
class Done:
    """How a program ended, and what it said on its two outputs."""

    status: int
    out: str
    error: str

    @property
    def why(self) -> str:
        """What it said of an error, on one line."""
        return " ".join((self.error or self.out).split()) or "no message"


def ask(command: t.Sequence[str], text: str = "", *, seconds: float = SECONDS) -> Done:
    """Return how a program ended that was given a text; Failed if it is not there, or does not end in time."""
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=ENVIRONMENT,
            cwd="/",
            check=False,
            timeout=seconds,
        )
    except FileNotFoundError:
        raise NotInstalled(f"{command[0]} is not installed [install the package that has it]") from None
    except OSError as error:
        raise Failed(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"`{' '.join(command)}` has not ended in {seconds:g} s [see what it waits for]") from None
    return Done(done.returncode, done.stdout, done.stderr)


def run(command: t.Sequence[str], text: str = "", *, seconds: float = SECONDS) -> None:
    """Run a program that is given a text; Failed if it does not succeed."""
    done = ask(command, text, seconds=seconds)
    if done.status != 0:
        raise Failed(f"`{' '.join(command)}` ended with {done.status}: {done.why}")
