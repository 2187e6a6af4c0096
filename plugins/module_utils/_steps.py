# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a converge is going to do, as data: check mode, diff and the result are all made from it."""

from __future__ import annotations

import dataclasses
import typing as t


@dataclasses.dataclass(frozen=True)
class Step:
    """One change, small enough to name in a sentence; before and after never hold a secret."""

    subject: str
    action: str
    before: t.Any = None
    after: t.Any = None


def as_diff(steps: t.Iterable[Step]) -> list[dict[str, str]]:
    """Return Ansible's diff structure, one entry for each step."""
    return [
        {
            "before_header": f"{step.subject} ({step.action})",
            "after_header": f"{step.subject} ({step.action})",
            "before": _as_text(step.before),
            "after": _as_text(step.after),
        }
        for step in steps
    ]


def as_result(steps: t.Sequence[Step]) -> dict[str, t.Any]:
    """Return what a module exits with: `changed`, `steps` without texts of files, and `diff`."""
    return {
        "changed": bool(steps),
        "steps": [{"subject": step.subject, "action": step.action} for step in steps],
        "diff": as_diff(steps),
    }


def _as_text(value: t.Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    return text if text.endswith("\n") else text + "\n"
