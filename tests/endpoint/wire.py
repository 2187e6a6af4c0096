# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the three wire protocols have in common: requests come in as `Asked`, a `Call` or a text goes out."""

from __future__ import annotations

import dataclasses
import typing as t

# The CLIs' own shell tools by name, the one to prefer first: Codex may offer several of its own.
SHELLS = ("Bash", "exec_command", "shell_command", "shell", "local_shell", "exec", "bash")

# Codex hands a longer command back as still running; it takes no larger number. In ms.
YIELD_MS = 30_000

# Counted by nobody, yet the CLIs want to see numbers.
TOKENS = 7


class Malformed(ValueError):
    """A request that is not of its protocol; the message names the place in its body."""


@dataclasses.dataclass(frozen=True)
class Shell:
    """The shell tool that a request offers; `properties` are those of its JSON schema, `kind` is the protocol's."""

    name: str
    properties: t.Mapping[str, t.Any]
    kind: str = "function"
    namespace: str | None = None

    def arguments(self, command: str) -> dict[str, t.Any]:
        """Return a command as this tool takes it."""
        yields = {"yield_time_ms": YIELD_MS} if "yield_time_ms" in self.properties else {}
        if "cmd" in self.properties:
            return {"cmd": command} | yields
        schema = self.properties.get("command")
        if isinstance(schema, dict) and schema.get("type") == "array":
            return {"command": ["sh", "-c", command]} | yields
        return {"command": command} | yields


@dataclasses.dataclass(frozen=True)
class Result:
    """What the CLI says that a tool call gave; is_error is None where the protocol or the CLI does not say."""

    call_id: str
    output: str
    is_error: bool | None = None


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request for the next turn; shell is None for a side request, such as that for a title."""

    model: str
    stream: bool
    shell: Shell | None
    results: tuple[Result, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call as an answer."""

    call_id: str
    shell: Shell
    command: str

    def arguments(self) -> dict[str, t.Any]:
        """Return the tool's arguments."""
        return self.shell.arguments(self.command)


# What goes out as server-sent events: the event's name, where the protocol names events, and its data.
Events = t.Iterator[tuple[str | None, t.Any]]


class Protocol(t.NamedTuple):
    """A wire protocol: what a body asks (or Malformed), and an answer as one JSON object or as events."""

    read: t.Callable[[dict[str, t.Any]], Asked]
    plain: t.Callable[[Asked, Call | str], dict[str, t.Any]]
    stream: t.Callable[[Asked, Call | str], Events]


def mapping(value: t.Any, where: str) -> dict[str, t.Any]:
    """Return a JSON object that was received, or raise Malformed."""
    if not isinstance(value, dict):
        raise Malformed(f"{where} is {type(value).__name__}, not an object")
    return value


def listing(value: t.Any, where: str) -> list[t.Any]:
    """Return a JSON list that was received, or raise Malformed."""
    if not isinstance(value, list):
        raise Malformed(f"{where} is {type(value).__name__}, not a list")
    return value


def string(value: t.Any, where: str) -> str:
    """Return a JSON string that was received, or raise Malformed."""
    if not isinstance(value, str):
        raise Malformed(f"{where} is {type(value).__name__}, not a string")
    return value


def text(value: t.Any, where: str) -> str:
    """Return the text of a content: a string, or a list of parts of which those without a text do not count."""
    if isinstance(value, str) or value is None:
        return value or ""
    parts = [mapping(part, f"{where}[]") for part in listing(value, where)]
    return "".join(string(part["text"], f"{where}[].text") for part in parts if "text" in part)


def asked(body: dict[str, t.Any], shells: t.Iterable[Shell], results: t.Iterable[Result]) -> Asked:
    """Return the request of a body, given the tools and results that its protocol's module found there."""
    offered = {shell.name: shell for shell in shells}
    shell = next((offered[name] for name in SHELLS if name in offered), None)
    return Asked(string(body.get("model"), "model"), body.get("stream") is True, shell, tuple(results))


def shell(name: t.Any, schema: t.Any) -> Shell:
    """Return an offered tool, given its name and JSON schema, of which only a shell's matters."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return Shell(string(name, "name of a tool"), properties if isinstance(properties, dict) else {})
