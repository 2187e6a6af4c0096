# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Typed refusals: a stable code, what is wrong, and the command that mends it.

On the launcher's hot path: imports nothing.
"""

from __future__ import annotations

EXIT_REFUSED = 125

CODES = (
    "approval-missing",
    "audit-unavailable",
    "capability-missing",
    "credential-expiring",
    "credential-malformed",
    "credential-missing",
    "discovery-incomplete",
    "docker-unavailable",
    "launcher-tampered",
    "network-unavailable",
    "policy-invalid",
    "policy-missing",
    "policy-tampered",
    "profile-changed",
    "provider-changed",
    "provider-missing",
    "resume-incompatible",
    "sandbox-unavailable",
    "slot-disabled",
    "slot-unknown",
    "space-low",
    "workspace-unknown",
)


def printable(text: str) -> str:
    """Return text on one line that cannot steer a terminal: control, format and undecodable characters are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


class Refusal(Exception):
    """A typed "no": the session does not start, nothing weaker is tried."""

    def __init__(self, code: str, what: str, cure: str) -> None:
        if code not in CODES:
            raise ValueError(f"{code} is not a refusal code")
        self.code, self.what, self.cure = code, printable(what), printable(cure)
        super().__init__(f"{code}: {self.what} [{self.cure}]")

    def as_json(self) -> str:
        """Return the refusal as the one-line object that `--json` prints."""
        words = {"refusal": self.code, "what": self.what, "cure": self.cure}
        return "{" + ", ".join(f'"{key}": "{_quoted(word)}"' for key, word in words.items()) + "}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
