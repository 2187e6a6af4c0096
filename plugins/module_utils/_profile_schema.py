# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The JSON schemas of provider profiles and of a site's capabilities.

Here as Python, since hosts get no other files; `profiles/*.json` are the same for editors. Patterns are such that
Python and editors (ECMAScript) read them alike.
"""

from __future__ import annotations

import typing as t

KINDS = ("builtin", "npm", "archive")

# Neither control characters nor what hides text or turns it round, nor halves of characters.
_UNSEEN = r"\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"


def whole(pattern: str) -> str:
    """Return a pattern that takes the whole text; a Python `$` alone would take a line break after it too."""
    return rf"^(?:{pattern})$(?!\n)"


def _plain(characters: str) -> str:
    """Return the pattern of a relative path whose names are made of these characters, and none of them is . or .."""
    name = rf"(?!\.\.?(?:/|$))(?:{characters})+"
    return f"{name}(?:/{name})*"


def _text(pattern: str, rule: str, about: str = "") -> dict[str, t.Any]:
    return {
        "type": "string",
        "pattern": whole(pattern),
        "patternErrorMessage": rule,
        **({"description": about} if about else {}),
    }


def _line(about: str = "") -> dict[str, t.Any]:
    return _text(rf"[^\u0000-\u001f{_UNSEEN}]+", "one line of text without control characters", about)


def _choice(choices: t.Iterable[str], about: str) -> dict[str, t.Any]:
    return {"type": "string", "enum": list(choices), "description": about}


def _list(items: dict[str, t.Any], about: str, **rules: t.Any) -> dict[str, t.Any]:
    return {"type": "array", "items": items, "description": about, **rules}


def _set(items: dict[str, t.Any], about: str) -> dict[str, t.Any]:
    return _list(items, about, uniqueItems=True)


def _mapping(about: str, properties: dict[str, t.Any], required: t.Iterable[str] = ()) -> dict[str, t.Any]:
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _by_name(names: dict[str, t.Any], values: dict[str, t.Any], about: str) -> dict[str, t.Any]:
    return {"type": "object", "description": about, "propertyNames": names, "additionalProperties": values}


_NAME = _text("[a-z][a-z0-9_]{0,31}", "a-z, 0-9 and _, a letter first", "The profile's name, and its file's.")
_KEY = _text("[a-z][a-z0-9_]{0,63}", "a-z, 0-9 and _, a letter first")
_VARIABLE = _text("[A-Z_][A-Z0-9_]*", "a variable's name in capitals")
VERSION = _text(r"[0-9]+(?:\.[0-9]+){1,3}(?:[-+][0-9A-Za-z.-]+)?", "one exact version such as 1.2.3")
_HOST = _text("[a-z0-9][a-z0-9.-]*:[1-9][0-9]{0,4}", "HOST:PORT")
_BELOW_HOME = _text(_plain("[A-Za-z0-9@._+-]"), "a plain path relative to HOME, without '.', '..' or '//'")
_IN_TREE = _text(
    "/?" + _plain(r"[A-Za-z0-9@._+-]|\{npm\}|\{machine\}"),
    "a plain path, relative to the provider's tree or absolute for kind builtin, without '.', '..' or '//'",
)
_ABSOLUTE = _text("/" + _plain(rf"[^/\u0000-\u001f{_UNSEEN}]"), "a plain absolute path, without '.', '..' or '//'")
_PACKAGE = _text(
    r"(?:@[a-z0-9][a-z0-9._-]*/)?[a-z0-9](?:[a-z0-9._-]|\{npm\}|\{machine\})*",
    "an npm package's name such as @scope/name",
)
_SHA256 = _text("[0-9a-f]{64}", "64 digits and letters a-f", "SHA-256 of the executable that was looked at, on x86_64.")
_MEMBER = _text("[A-Za-z0-9_.-]+", "a key of a JSON object, in A-Z, a-z, 0-9, _, . and -")
_HOLDS = ("settings", "login", "history", "cache", "programs")
_WORDS = {
    "words": _line("What it allows, in words for people."),
    "why": _line("What somebody needs it for, and what it costs."),
}

PROFILE: dict[str, t.Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Provider profile of confined.slots",
    **_mapping(
        "The contract of one provider (coding CLI).",
        {
            "name": _NAME,
            "profile_version": {
                "type": "integer",
                "minimum": 1,
                "description": "Counts the profile's changes; approvals name it.",
            },
            "summary": _line("What it is."),
            "install": _mapping(
                "Where its tree comes from.",
                {
                    "kind": _choice(
                        KINDS, "The distribution's; npm packages; or an archive that the operator has and declares."
                    ),
                    "packages": _list(
                        _mapping("An npm package.", {"name": _PACKAGE, "version": VERSION}, ["name", "version"]),
                        "For kind npm: exact versions, the provider's own package first.",
                    ),
                    "version": {**VERSION, "description": "For kind archive: the version that the profile is about."},
                },
                ["kind"],
            ),
            "identity": _choice(
                ["distribution", "file", "tree"],
                "What is hashed before each start: root's file in the distribution, the executable (and interpreter), "
                "or its whole tree.",
            ),
            "executable": {**_IN_TREE, "description": "What is started."},
            "interpreter": {**_IN_TREE, "description": "What the executable is given to, if it is no program itself."},
            "arguments": _list(_line(), "Words that come before all others."),
            "path": _set(_IN_TREE, "Directories that come first in PATH."),
            "passed": _set(_VARIABLE, "Variables let through from the caller."),
            "denied": _set(_VARIABLE, "Variables that nobody can set for it, beside those that are denied to all."),
            "environment": _by_name(_VARIABLE, _line(), "Variables that it always has; {home} is the session's HOME."),
            "state": _set(
                _mapping(
                    "A directory.",
                    {"path": _BELOW_HOME, "holds": _set(_choice(_HOLDS, "What it keeps."), "What is in it.")},
                    ["path", "holds"],
                ),
                "Directories below HOME that outlive a session.",
            ),
            "renames": _set(_BELOW_HOME, "Files it replaces by rename: their directories are bound, never they."),
            "transcript": _text(
                r"(?:[A-Za-z0-9*._/-]|\{session\})+",
                "a glob pattern relative to HOME, with {session} for the id",
                "Where it keeps a conversation, as a glob pattern relative to HOME.",
            ),
            "headless": _list(_line(), "Words that run {prompt} without a person."),
            "resume": _list(_line(), "Words that go on with the conversation {session}, for a person."),
            "resume_headless": _list(_line(), "Words that go on with {session} and run {prompt}, without a person."),
            "login": _list(_line(), "Words that start its own login."),
            "credentials": _set(
                _mapping(
                    "A credential.",
                    {
                        "name": {**_VARIABLE, "description": "The variable that the CLI reads it from, and its name."},
                        "by": _choice(["environment", "descriptor"], "How it reaches the CLI."),
                        "variable": {**_VARIABLE, "description": "The variable that gets the descriptor's number."},
                        "refreshable": {"type": "boolean", "description": "Whether the CLI renews it by itself."},
                    },
                    ["name", "by"],
                ),
                "Secrets that a slot can declare for it.",
            ),
            "login_expiry": _mapping(
                "How the file of its login says when that ends.",
                {
                    "file": {**_BELOW_HOME, "description": "A JSON file below HOME, in a directory of state."},
                    "at": _list(_MEMBER, "The keys that lead to the time of its end."),
                    "unit": _choice(["seconds", "milliseconds"], "What that time counts, from 1970 on."),
                    "renewed_by": _list(_MEMBER, "The keys that lead to what renews it; where that is, it has no end."),
                },
                ["file", "at", "unit"],
            ),
            "conflicts": _set(_VARIABLE, "Credentials of which only one can be set."),
            "managed": _set(
                _mapping(
                    "A file.",
                    {
                        "target": _text("/etc/" + _plain("[A-Za-z0-9@._+-]"), "a plain absolute path below /etc"),
                        "content": {
                            "type": ["string", "object"],
                            "pattern": whole(rf"[^\u0000-\u0008\u000b-\u001f{_UNSEEN}]+"),
                            "patternErrorMessage": "lines of text without control characters, or a mapping",
                            "description": "The file's text; a mapping becomes JSON.",
                        },
                        "reason": _line("Why the slot needs it."),
                    },
                    ["target", "content", "reason"],
                ),
                "Settings that root owns, given to each slot read-only.",
            ),
            "inner_sandbox": _mapping(
                "The sandbox that the CLI brings itself.",
                {
                    "setting": _choice(["none", "disabled", "allowed"], "It has none; it is off; it may be used."),
                    "how": _line("What switches it."),
                    "reason": _line("Why so."),
                },
                ["setting", "reason"],
            ),
            "daemons": _set(
                _mapping(
                    "A daemon.",
                    {
                        "name": _line("What it is."),
                        "socket": _line("Where it listens."),
                        "stopped_by": _line("What keeps a session from one outside, and ends one inside."),
                        "reason": _line("What it would do otherwise."),
                    },
                    ["name", "socket", "stopped_by", "reason"],
                ),
                "Processes that it likes to leave behind.",
            ),
            "network": _set(_HOST, "Hosts that it needs."),
            "capabilities": _by_name(
                _KEY,
                _mapping(
                    "A capability.",
                    {
                        **_WORDS,
                        "required": {"type": "boolean", "description": "Whether nothing runs without it."},
                        "state": _set(_BELOW_HOME, "Paths out of state."),
                        "credentials": _set(_VARIABLE, "Names out of credentials."),
                        "hosts": _set(_HOST, "Hosts out of network."),
                    },
                    ["words", "why"],
                ),
                "What it can be allowed, in words, and what that means for this provider.",
            ),
            "certification": _mapping(
                "What is known of it.",
                {
                    "status": _choice(
                        ["certified", "documented", "builtin", "none"],
                        "Certified by the scripted endpoint; measured or documented only; the distribution's; unknown.",
                    ),
                    "note": _line("What there is to say about it."),
                    "evidence": _text(
                        r"evidence/[a-z0-9_.-]+\.json", "evidence/NAME.json beside the profile", "The record of it."
                    ),
                    "cli_version": VERSION,
                    "sha256": _SHA256,
                },
                ["status"],
            ),
            "reasons": _mapping("Why the slot needs what it is given.", {"tree": _line()}, ["tree"]),
        },
        ["name", "profile_version", "summary", "install", "executable"],
    ),
}

CAPABILITIES: dict[str, t.Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "A site's capabilities for confined.slots",
    **_by_name(
        _KEY,
        _mapping(
            "A capability.",
            {
                **_WORDS,
                "binds": _list(
                    _mapping(
                        "A file or directory of the host.",
                        {
                            "source": _ABSOLUTE,
                            "target": {**_ABSOLUTE, "description": "Where the slot sees it; without, at its source."},
                            "mode": _choice(["ro", "rw"], "Read-only unless it says rw."),
                            "reason": _line("Why a slot needs it."),
                        },
                        ["source", "reason"],
                    ),
                    "What of the host a slot sees.",
                ),
                "variables": _by_name(_VARIABLE, _line(), "Variables that a slot has; no secrets, policies show them."),
                "hosts": _set(_HOST, "Hosts that a slot can reach."),
            },
            ["words", "why"],
        ),
        "What slots can be allowed at this site beside what providers' profiles say, in words.",
    ),
}
