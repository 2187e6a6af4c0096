# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator declares for a slot, checked before anything is done."""

from __future__ import annotations

import dataclasses
import re
import time
import typing as t

MODES = ("compatibility", "isolated", "verified")
NETWORKS = ("none", "private", "host")

_SLOT_NAME = re.compile(r"[a-z][a-z0-9-]{0,22}\Z")
_PROVIDER_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_WORKSPACE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_SIZE = re.compile(r"([1-9][0-9]{0,8})([KMGT])\Z")
_PERCENT = re.compile(r"[1-9][0-9]{0,5}%\Z")
_CAPABILITY = re.compile(r"[a-z][a-z0-9_]{0,63}\Z")
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}\Z")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_SPAN = re.compile(r"[1-9][0-9]{0,5}(s|min|h|d)\Z")
_SCHEDULE_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}\Z")
# What systemd's calendars and time zones are written in, and nothing that a unit file takes for more than text.
_CALENDAR = re.compile(r"[A-Za-z0-9*~][A-Za-z0-9 *~:,./_+-]{0,199}\Z")
# Linux takes 128 KiB as one argument of a program; the CLI's command line may have words around the prompt.
_MOST_PROMPT = 100_000
_LOGIN = re.compile(r"\s*\{.*\"refresh_?token", re.DOTALL | re.IGNORECASE)


class Invalid(ValueError):
    """Something declared that cannot be: the message names the value, what may be, and the cure."""


@dataclasses.dataclass(frozen=True)
class Resources:
    """Limits of a slot, in systemd's own notation; None sets none."""

    memory_max: str | None = None
    cpu_quota: str | None = None
    tasks_max: int | None = 4096
    session_max: str | None = None
    tmp_size: str = "1G"


@dataclasses.dataclass(frozen=True)
class ExtraBind:
    """A path of the host that the operator lets the slot see, at the same place unless target says otherwise."""

    source: str
    target: str
    mode: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Credential:
    """One secret for the slot's provider; value is None where only its name matters, and never in a representation.

    expires is the day, YYYY-MM-DD, on which it is good no more.
    """

    name: str
    value: str | None = dataclasses.field(default=None, repr=False)
    expires: str | None = None


@dataclasses.dataclass(frozen=True)
class Approval:
    """Who approved which policy, and when; on is a day as YYYY-MM-DD."""

    by: str
    on: str
    fingerprint: str


@dataclasses.dataclass(frozen=True)
class Restriction:
    """What a workspace has less than its slot; every field can only take away."""

    read_only: bool = False
    offline: bool = False
    without_credential: bool = False
    without_capabilities: tuple[str, ...] = ()
    without_binds: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A session that systemd starts: when, where, and either a prompt or the CLI's arguments, whichever is not None."""

    name: str
    calendar: str
    workspace: str
    prompt: str | None = None
    arguments: tuple[str, ...] | None = None
    timeout: str = "1h"


@dataclasses.dataclass(frozen=True)
class Slot:
    """One slot as declared; mode is None where the host's default (or the mode that it has) is meant.

    capabilities is None where the provider's own are meant; restrictions has the workspaces that are narrower.
    """

    name: str
    enabled: bool = True
    provider: str = "shell"
    mode: str | None = None
    profile_version: int | None = None
    capabilities: tuple[str, ...] | None = None
    approval: Approval | None = None
    workspaces: tuple[str, ...] = ("main",)
    restrictions: t.Mapping[str, Restriction] = dataclasses.field(default_factory=dict, hash=False)
    masks: tuple[str, ...] = ()
    network: str = "none"
    forwards: tuple[int, ...] = ()
    docker: bool = False
    nested_sandbox: bool = False
    resources: Resources = Resources()
    binds: tuple[ExtraBind, ...] = ()
    credential: Credential | None = None
    schedules: tuple[Schedule, ...] = ()
    console_password_hash: str | None = dataclasses.field(default=None, repr=False)


def slots_argument() -> dict[str, t.Any]:
    """Return the part of a module's argument_spec that takes the declared slots."""
    return {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "enabled": {"type": "bool", "default": True},
            "provider": {"type": "str", "default": "shell"},
            "mode": {"type": "str", "choices": list(MODES)},
            "profile_version": {"type": "int"},
            "capabilities": {"type": "list", "elements": "str"},
            "approval": {
                "type": "dict",
                "options": {
                    "by": {"type": "str", "required": True},
                    "on": {"type": "str", "required": True},
                    "fingerprint": {"type": "str", "required": True},
                },
            },
            "workspaces": {"type": "list", "elements": "raw", "default": ["main"]},
            "masks": {"type": "list", "elements": "path", "default": []},
            "network": {"type": "str", "default": "none", "choices": list(NETWORKS)},
            "forwards": {"type": "list", "elements": "int", "default": []},
            "docker": {"type": "bool", "default": False},
            "nested_sandbox": {"type": "bool", "default": False},
            "resources": {
                "type": "dict",
                "options": {
                    "memory_max": {"type": "str"},
                    "cpu_quota": {"type": "str"},
                    "tasks_max": {"type": "int", "default": 4096},
                    "session_max": {"type": "str"},
                    "tmp_size": {"type": "str", "default": "1G"},
                },
            },
            "binds": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "source": {"type": "path", "required": True},
                    "target": {"type": "path"},
                    "mode": {"type": "str", "default": "ro", "choices": ["ro", "rw"]},
                    "reason": {"type": "str", "required": True},
                },
            },
            "credential": {
                "type": "dict",
                "no_log": False,
                "options": {
                    "name": {"type": "str", "required": True},
                    "value": {"type": "str", "no_log": True},
                    "expires": {"type": "str"},
                },
            },
            "schedules": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "calendar": {"type": "str", "required": True},
                    "workspace": {"type": "str"},
                    "prompt": {"type": "str"},
                    "arguments": {"type": "list", "elements": "str"},
                    "timeout": {"type": "str", "default": "1h"},
                },
            },
            "console_password_hash": {"type": "str", "no_log": True},
        },
    }


def parse(declared: t.Sequence[t.Mapping[str, t.Any]]) -> tuple[Slot, ...]:
    """Return the declared slots; Invalid names the first value that cannot be."""
    slots = tuple(_slot(entry, f"slots[{index}]") for index, entry in enumerate(declared))
    seen: dict[str, int] = {}
    for index, slot in enumerate(slots):
        if slot.name in seen:
            raise Invalid(
                f"slots[{index}].name is '{slot.name}', as is slots[{seen[slot.name]}].name; "
                "names must differ [rename one]"
            )
        seen[slot.name] = index
    return slots


def size_in_bytes(size: str) -> int:
    """Return the bytes of a size such as 8G (powers of 1024)."""
    match = _SIZE.match(size)
    if match is None:
        raise Invalid(f"'{size}' is no size; it can be a whole number with K, M, G or T, such as 8G")
    return int(match.group(1)) << {"K": 10, "M": 20, "G": 30, "T": 40}[match.group(2)]


def _slot(entry: t.Mapping[str, t.Any], where: str) -> Slot:
    entry = _a(dict, entry, where)
    name = _matching(
        entry.get("name"), _SLOT_NAME, f"{where}.name", "a lower-case letter, then at most 22 of a-z, 0-9 and -"
    )
    where = f"slot '{name}'"
    mode = entry.get("mode")
    if mode is not None:
        check_mode_name(mode, f"{where}: mode")
    network = entry.get("network") or "none"
    if network not in NETWORKS:
        raise Invalid(
            f"{where}: network is {network!r:.80}; it can be {', '.join(NETWORKS)} [choose none for work offline]"
        )
    docker = _a(bool, False if entry.get("docker") is None else entry["docker"], f"{where}: docker")
    if docker and network == "none":
        raise Invalid(
            f"{where}: docker is true and network is none, but containers reach the internet"
            " [choose network: private, or docker: false]"
        )
    named = [
        _a(dict, each, f"{where}: workspaces[{index}]") if isinstance(each, dict) else {"name": each}
        for index, each in enumerate(
            _a(list, ["main"] if entry.get("workspaces") is None else entry["workspaces"], f"{where}: workspaces")
        )
    ]
    workspaces = _workspaces([each.get("name") for each in named], where)
    return Slot(
        name=name,
        enabled=_a(bool, True if entry.get("enabled") is None else entry["enabled"], f"{where}: enabled"),
        provider=_matching(
            entry.get("provider") or "shell", _PROVIDER_NAME, f"{where}: provider", "a-z, 0-9 and _, a letter first"
        ),
        mode=mode,
        profile_version=_number(entry.get("profile_version"), f"{where}: profile_version"),
        capabilities=None
        if entry.get("capabilities") is None
        else _words(entry["capabilities"], _CAPABILITY, f"{where}: capabilities"),
        approval=_approval(entry.get("approval"), where),
        workspaces=workspaces,
        restrictions={
            each["name"]: _restriction(each, f"{where}: workspace '{each['name']}'") for each in named if len(each) > 1
        },
        masks=tuple(
            absolute(path, f"{where}: masks[{index}]")
            for index, path in enumerate(_a(list, entry.get("masks") or [], f"{where}: masks"))
        ),
        network=network,
        forwards=_ports(entry.get("forwards"), network, f"{where}: forwards"),
        nested_sandbox=_a(bool, entry.get("nested_sandbox") or False, f"{where}: nested_sandbox"),
        docker=docker,
        resources=_resources(_a(dict, entry.get("resources") or {}, f"{where}: resources"), where),
        binds=tuple(
            extra_bind(_a(dict, bind, f"{where}: binds[{index}]"), f"{where}: binds[{index}]")
            for index, bind in enumerate(_a(list, entry.get("binds") or [], f"{where}: binds"))
        ),
        credential=_credential(entry.get("credential"), where),
        schedules=_schedules(entry.get("schedules"), workspaces, where),
        console_password_hash=_hash(entry.get("console_password_hash"), where),
    )


Shape = t.TypeVar("Shape", dict[str, t.Any], list[t.Any], bool)


def _a(shape: type[Shape], value: t.Any, where: str) -> Shape:
    if not isinstance(value, shape):
        raise Invalid(f"{where} is {value!r:.80}; it must be a {shape.__name__}")
    return value


def _matching(value: t.Any, pattern: re.Pattern[str], where: str, rule: str) -> str:
    if not isinstance(value, str) or not pattern.match(value):
        raise Invalid(f"{where} is {value!r:.80}; it can be {rule}")
    return value


def _workspaces(names: t.Sequence[t.Any], where: str) -> tuple[str, ...]:
    if not names:
        raise Invalid(f"{where}: workspaces is empty; a slot needs at least one [leave it out for 'main']")
    rule = "at most 64 letters, digits, dots, underscores and dashes, a letter or digit first"
    workspaces = tuple(
        _matching(name, _WORKSPACE_NAME, f"{where}: workspaces[{index}]", rule) for index, name in enumerate(names)
    )
    if len(set(workspaces)) < len(workspaces):
        raise Invalid(f"{where}: workspaces names one twice: {', '.join(sorted(workspaces))} [name each once]")
    return workspaces


def _restriction(entry: t.Mapping[str, t.Any], where: str) -> Restriction:
    known = ("name", "read_only", "network", "credential", "without_capabilities", "without_binds")
    unknown = sorted(map(str, set(entry) - set(known)))
    if unknown:
        raise Invalid(f"{where} has {unknown[0]!r:.80}; it can have {', '.join(known)} [it can only take away]")
    if entry.get("network", "none") != "none":
        raise Invalid(f"{where}: network is {entry['network']!r:.80}; a workspace can only take it away: none")
    if _a(bool, entry.get("credential", False), f"{where}: credential"):
        raise Invalid(f"{where}: credential is true; a workspace can only take it away: false [leave it out]")
    binds = _a(list, entry.get("without_binds") or [], f"{where}: without_binds")
    return Restriction(
        read_only=_a(bool, entry.get("read_only", False), f"{where}: read_only"),
        offline="network" in entry,
        without_credential="credential" in entry,
        without_capabilities=_words(
            entry.get("without_capabilities") or [], _CAPABILITY, f"{where}: without_capabilities"
        ),
        without_binds=tuple(absolute(path, f"{where}: without_binds[{at}]") for at, path in enumerate(binds)),
    )


def check_mode_name(mode: t.Any, where: str) -> str:
    """Return the mode once sure that it is one."""
    if mode not in MODES:
        raise Invalid(f"{where} is {mode!r:.80}; it can be {', '.join(MODES)}")
    return str(mode)


def _words(value: t.Any, pattern: re.Pattern[str], where: str) -> tuple[str, ...]:
    words = tuple(
        _matching(word, pattern, f"{where}[{index}]", "a-z, 0-9 and _, a letter first")
        for index, word in enumerate(_a(list, value, where))
    )
    if len(set(words)) < len(words):
        raise Invalid(f"{where} names one twice: {', '.join(sorted(words))} [name each once]")
    return words


def _number(value: t.Any, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise Invalid(f"{where} is {value!r:.80}; it must be a whole number from 1")
    return value


def _ports(value: t.Any, network: str, where: str) -> tuple[int, ...]:
    ports = _a(list, value or [], where)
    for index, port in enumerate(ports):
        if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
            raise Invalid(f"{where}[{index}] is {port!r:.80}; it can be a port from 1 to 65535")
    if ports and network != "private":
        raise Invalid(f"{where} is for network: private; with {network} it means nothing [take it away]")
    return tuple(sorted(set(ports)))


def _approval(entry: t.Any, where: str) -> Approval | None:
    if not entry:
        return None
    entry, where = _a(dict, entry, f"{where}: approval"), f"{where}: approval"
    by, on = entry.get("by"), str(entry.get("on"))
    if not isinstance(by, str) or not by.strip() or not by.isprintable() or len(by) > 128:
        raise Invalid(f"{where}.by is {by!r:.80}; it must name the person who approved")
    fingerprint = _matching(
        entry.get("fingerprint"), _FINGERPRINT, f"{where}.fingerprint", "sha256: and 64 digits and letters a-f"
    )
    return Approval(by.strip(), _matching(on, _DAY, f"{where}.on", "a day such as 2026-11-29"), fingerprint)


def _day(value: str, where: str) -> str:
    day = _matching(value, _DAY, where, "a day such as 2026-11-29")
    try:
        time.strptime(day, "%Y-%m-%d")
    except ValueError:
        raise Invalid(f"{where} is '{day}', which is in no calendar; it can be a day such as 2026-11-29") from None
    return day


def _resources(entry: t.Mapping[str, t.Any], where: str) -> Resources:
    rules = {
        "memory_max": (_SIZE, "a whole number with K, M, G or T, such as 8G"),
        "cpu_quota": (_PERCENT, "a percentage such as 200%"),
        "session_max": (_SPAN, "a whole number with s, min, h or d, such as 8h"),
        "tmp_size": (_SIZE, "a whole number with K, M, G or T, such as 1G"),
    }
    checked: dict[str, t.Any] = {
        key: _matching(entry[key], pattern, f"{where}: resources.{key}", rule)
        for key, (pattern, rule) in rules.items()
        if entry.get(key) is not None
    }
    tasks_max = entry.get("tasks_max")
    if tasks_max is not None:
        if isinstance(tasks_max, bool) or not isinstance(tasks_max, int) or not 16 <= tasks_max <= 1_000_000:
            raise Invalid(f"{where}: resources.tasks_max is {tasks_max!r}; it can be 16 to 1000000")
        checked["tasks_max"] = tasks_max
    return Resources(**checked)


def extra_bind(entry: t.Mapping[str, t.Any], where: str) -> ExtraBind:
    """Return a declared bind; Invalid names the value that cannot be."""
    source = absolute(entry.get("source"), f"{where}.source")
    target = source if entry.get("target") is None else absolute(entry["target"], f"{where}.target")
    mode = entry.get("mode") or "ro"
    if mode not in ("ro", "rw"):
        raise Invalid(f"{where}.mode is {mode!r}; it can be ro or rw")
    reason = entry.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise Invalid(
            f"{where}.reason is empty; a bind without a reason does not compile "
            f"[say in a sentence why the slot needs {source}]"
        )
    return ExtraBind(source, target, mode, reason.strip())


def absolute(path: t.Any, where: str) -> str:
    """Return the path once sure that it is absolute and in its plain form."""
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise Invalid(f"{where} is {path!r:.120}; it must be an absolute path without NUL")
    if (len(path) > 1 and path.endswith("/")) or any(
        part in ("", ".", "..") for part in path[1:].split("/") if path != "/"
    ):
        raise Invalid(
            f"{where} is {path!r:.120}; it must be in its plain form, without '.', '..', '//' or a '/' at its end"
        )
    return path


def _credential(entry: t.Mapping[str, t.Any] | None, where: str) -> Credential | None:
    if not entry:
        return None
    entry = _a(dict, entry, f"{where}: credential")
    name = _matching(entry.get("name"), _VARIABLE_NAME, f"{where}: credential.name", "a variable's name in capitals")
    value, expires = entry.get("value"), entry.get("expires")
    if expires is not None:
        expires = _day(str(expires), f"{where}: credential.expires")
    if value is None:
        return Credential(name, None, expires)
    if not isinstance(value, str) or not value.strip("\r\n"):
        raise Invalid(f"{where}: credential.value is empty [give it from a vault, or leave the credential out]")
    if _LOGIN.match(value.lstrip("\ufeff")):
        raise Invalid(
            f"{where}: credential-not-seedable: credential.value is a login with a refresh token, which is used once:"
            " a copy logs the original out [log in on the host with slotctl login,"
            " or give a long-lived token or an API key]"
        )
    for suffix in ("\r\n", "\n"):
        if value.endswith(suffix):
            value = value[: -len(suffix)]
            break
    for offset, character in enumerate(value):
        if not "!" <= character <= "~":
            raise Invalid(
                f"{where}: credential.value has a character at offset {offset} that is no printable ASCII"
                " (a space, a line break or a byte-order mark, say) [paste the token again, on one line]"
            )
    return Credential(name, value, expires)


def _schedules(entries: t.Any, workspaces: tuple[str, ...], where: str) -> tuple[Schedule, ...]:
    found = tuple(
        _schedule(_a(dict, entry, f"{where}: schedules[{index}]"), workspaces, f"{where}: schedules[{index}]")
        for index, entry in enumerate(_a(list, entries or [], f"{where}: schedules"))
    )
    names = [schedule.name for schedule in found]
    if len(set(names)) < len(names):
        raise Invalid(f"{where}: schedules has a name twice: {', '.join(sorted(names))} [name each differently]")
    return found


def _schedule(entry: t.Mapping[str, t.Any], workspaces: tuple[str, ...], where: str) -> Schedule:
    name = _matching(
        entry.get("name"), _SCHEDULE_NAME, f"{where}.name", "a lower-case letter, then at most 31 of a-z, 0-9 and -"
    )
    where = f"{where.partition(': ')[0]}: schedule '{name}'"
    workspace = workspaces[0] if entry.get("workspace") is None else entry["workspace"]
    if workspace not in workspaces:
        raise Invalid(f"{where}: workspace is {workspace!r:.80}; it can be {' or '.join(workspaces)}")
    prompt, arguments = entry.get("prompt"), entry.get("arguments")
    if (prompt is None) == (arguments is None):
        what = "neither prompt nor arguments" if prompt is None else "both prompt and arguments"
        raise Invalid(f"{where} has {what}; it must have one [prompt: what the CLI is to do]")
    return Schedule(
        name=name,
        calendar=calendar(entry.get("calendar"), f"{where}: calendar"),
        workspace=workspace,
        prompt=None if prompt is None else _text(prompt, f"{where}: prompt"),
        arguments=None
        if arguments is None
        else tuple(
            _text(word, f"{where}: arguments[{index}]", empty=True)
            for index, word in enumerate(_a(list, arguments, f"{where}: arguments"))
        ),
        timeout=_matching(
            entry.get("timeout") or "1h", _SPAN, f"{where}: timeout", "a whole number with s, min, h or d, such as 2h"
        ),
    )


def calendar(value: t.Any, where: str) -> str:
    """Return when something is to happen, once sure that it is of the form of systemd's calendars."""
    return _matching(value, _CALENDAR, where, "one of systemd's, such as 'Mon..Fri 03:00'")


def _text(value: t.Any, where: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise Invalid(f"{where} is {value!r:.80}; it must be text without NUL")
    if not (value.strip() or empty):
        raise Invalid(f"{where} is empty [say what is to be done]")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{where} holds half of a surrogate pair, which is no character [write it as text]") from None
    if size > _MOST_PROMPT:
        cure = "put the text into a file in the workspace, and name that"
        raise Invalid(f"{where} has {size} bytes; it can have {_MOST_PROMPT} [{cure}]")
    return value


def _hash(value: t.Any, where: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.match(r"\$(6|y|2b)\$[A-Za-z0-9./$=]{20,200}\Z", value):
        raise Invalid(
            f"{where}: console_password_hash is not a crypt(3) hash of sha512, yescrypt or bcrypt "
            "[use console_password]"
        )
    return value
