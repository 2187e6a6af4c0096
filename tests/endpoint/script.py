# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The script of one run: which command comes next, and what was seen so far."""

from __future__ import annotations

import json
import os
import pathlib
import re
import secrets
import threading
import typing as t

from wire import Asked, Call, Malformed, Result

FINAL = "The script has ended."
ASIDE = "Scripted run"

CALL_ID = re.compile(r"call_([0-9a-f]{16})x([0-9]{1,6})")


class Script:
    """Answers requests with the commands in turn, and keeps a record of all in a file.

    Each tool call's id holds this run's own random id and the command's index. What comes next follows from which of
    these ids have a result in the request itself, never from what was asked before: a repeated request, one for a title
    or a conversation of an earlier run that goes on cannot shift the script.
    """

    def __init__(self, commands: t.Sequence[str], record: pathlib.Path | None = None) -> None:
        """Take the commands and the file of the record, whose directory exists; write a first, empty record."""
        self.run = secrets.token_hex(8)
        self.commands = tuple(commands)
        self._record = record
        self._lock = threading.Lock()
        self._results: dict[int, Result] = {}
        self._prior: set[str] = set()
        self._credentials: dict[tuple[str, str], None] = {}
        self._requests: list[dict[str, t.Any]] = []
        self._finished = False
        self._write()

    def answer(self, asked: Asked) -> Call | str:
        """Note the results in a request and return the answer: the next command, or a text; Malformed if made up."""
        with self._lock:
            done = set()
            for result in asked.results:
                match = CALL_ID.fullmatch(result.call_id)
                if not match:
                    continue
                if match[1] != self.run:
                    self._prior.add(result.call_id)
                    continue
                if int(match[2]) >= len(self.commands):
                    raise Malformed(f"{result.call_id} is no call of this run")
                done.add(int(match[2]))
                # The first word counts: a CLI may shorten old results in later requests.
                self._results.setdefault(int(match[2]), result)
            if asked.shell is None:
                return ASIDE
            for index, command in enumerate(self.commands):
                if index not in done:
                    return Call(f"call_{self.run}x{index}", asked.shell, command)
            self._finished = True
            return FINAL

    def note(self, request: dict[str, t.Any], credentials: t.Iterable[tuple[str, str]]) -> None:
        """Add a request, as it shall stand in the record, and its credentials: header, start of the value's sha256."""
        with self._lock:
            self._requests.append(request)
            self._credentials.update(dict.fromkeys(credentials))
            self._write()

    def result(self) -> dict[str, t.Any]:
        """Return the record: `finished` once the closing text was given, `prior_results` of other runs' calls."""
        with self._lock:
            return self._result()

    def _result(self) -> dict[str, t.Any]:
        results = [
            {
                "index": index,
                "command": self.commands[index],
                "output": result.output,
                "is_error": result.is_error,
            }
            for index, result in sorted(self._results.items())
        ]
        return {
            "run": self.run,
            "finished": self._finished,
            "results": results,
            "prior_results": len(self._prior),
            "credentials": [{"header": header, "sha256": digest} for header, digest in self._credentials],
            "requests": list(self._requests),
        }

    def _write(self) -> None:
        if self._record:
            replace(self._record, json.dumps(self._result(), indent=1) + "\n")


def replace(path: pathlib.Path, content: str) -> None:
    """Write a file so that a reader finds the old one or the new one, whole."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(content, encoding="utf-8")
    new.replace(path)
