# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words for people: messages, and aligned columns."""

from __future__ import annotations

import sys

from confined_slots._refusals import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import typing as t


def say(text: str) -> None:
    """Write a line to standard error, if there is still somebody to read it."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except OSError:  # a terminal that has hung up
        return


def table(heads: t.Sequence[str], rows: t.Sequence[t.Sequence[str]]) -> str:
    """Return rows under heads, columns aligned, each cell on one line."""
    lines = [list(heads), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads) - 1)]
    texts = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    ]
    return "".join(f"{text.rstrip()}\n" for text in texts)


def pairs(rows: t.Sequence[tuple[str, str]]) -> str:
    """Return names and values, one pair a line, values aligned."""
    width = max(len(name) for name, _unused in rows)
    return "".join(f"{name.ljust(width)}  {printable(text)}".rstrip() + "\n" for name, text in rows)
