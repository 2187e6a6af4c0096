# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks data against the part of JSON Schema (draft 7) that this collection's schemas use.

Hosts have no library for it. A keyword that is not in KEYWORDS would be overlooked, so a test refuses it in a schema.
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ._declarations import Invalid

KEYWORDS = {
    *("type", "enum", "pattern", "minimum", "items", "uniqueItems"),
    *("properties", "required", "additionalProperties", "propertyNames"),
    # for people and their editors
    *("$schema", "title", "description", "patternErrorMessage"),
}
TYPES: t.Mapping[str, tuple[type, str]] = {
    "array": (list, "a list"),
    "boolean": (bool, "true or false"),
    "integer": (int, "a whole number"),
    "object": (dict, "a mapping"),
    "string": (str, "a text in quotes"),
}

Schema = t.Mapping[str, t.Any]
Place = tuple[t.Any, ...]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the keys and indices that lead to it, and what it is and can be."""

    place: Place
    what: str

    def __str__(self) -> str:
        """Return the fault as one line, such as `state[0].path is '/etc'; it can be …`."""
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.place)
        return f"{path.lstrip('.')} {self.what}".lstrip()


def check(value: t.Any, schema: Schema, where: str, cure: str) -> None:
    """Raise Invalid for the first fault, if there is any; where says what the value is."""
    for fault in faults(value, schema):
        colon = ": " if fault.place else " "
        raise Invalid(f"{where}{colon}{fault} [{cure}]")


def faults(value: t.Any, schema: Schema, place: Place = ()) -> t.Iterator[Fault]:
    """Yield what is wrong with a value, outermost first."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(_is_a(value, name) for name in types):
        rule = schema.get("patternErrorMessage", "")
        must = " or ".join(TYPES[name][1] for name in types)
        yield Fault(place, f"is {value!r:.80}; it " + (f"can be {rule}, as {must}" if rule else f"must be {must}"))
    elif isinstance(value, str):
        yield from _of_text(value, schema, place)
    elif isinstance(value, list):
        yield from _of_list(value, schema, place)
    elif isinstance(value, dict):
        yield from _of_mapping(value, schema, place)
    elif value < schema.get("minimum", value):
        yield Fault(place, f"is {value!r:.80}; it must be at least {schema['minimum']}")


def _is_a(value: t.Any, name: str) -> bool:
    return isinstance(value, TYPES[name][0]) and (name != "integer" or not isinstance(value, bool))


def _of_text(value: str, schema: Schema, place: Place) -> t.Iterator[Fault]:
    if "enum" in schema and value not in schema["enum"]:
        yield Fault(place, f"is {value!r:.80}; it can be {' or '.join(schema['enum'])}")
    if not re.search(schema.get("pattern", ""), value):
        yield Fault(place, f"is {value!r:.80}; it can be {schema['patternErrorMessage']}")


def _of_list(value: list[t.Any], schema: Schema, place: Place) -> t.Iterator[Fault]:
    for index, item in enumerate(value):
        yield from faults(item, schema["items"], (*place, index))
    twice = [item for index, item in enumerate(value) if item in value[:index]]
    if twice and schema.get("uniqueItems"):
        yield Fault(place, f"has {twice[0]!r:.80} twice; it can have it once")


def _of_mapping(value: dict[t.Any, t.Any], schema: Schema, place: Place) -> t.Iterator[Fault]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key in schema.get("required", ()):
        if key not in value:
            yield Fault(place, f"has no {key}; it must have {', '.join(schema['required'])}")
    for key, item in value.items():
        if "propertyNames" in schema:
            yield from faults(key, schema["propertyNames"], place)
        if key in known:
            yield from faults(item, known[key], (*place, key))
        elif others is False:
            yield Fault(place, f"has {key!r:.80}; it can have {', '.join(sorted(known))}")
        elif others is not True:
            yield from faults(item, others, (*place, key))
