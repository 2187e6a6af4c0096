# Copyright: confined.slots contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The validator of schemas: it knows every keyword that is used, and agrees with a library that knows them all."""

from __future__ import annotations

import copy
import json
import pathlib
import typing as t

import hypothesis
import hypothesis.strategies as st
import jsonschema
import pytest
import yaml
from ansible_collections.confined.slots.plugins.module_utils import _profile_schema, _schema
from ansible_collections.confined.slots.plugins.module_utils._declarations import Invalid

from .test_capabilities import SITE
from .test_profiles import FULL, OWN

SCHEMAS = {"schema.json": _profile_schema.PROFILE, "capabilities.schema.json": _profile_schema.CAPABILITIES}
GOOD: list[tuple[_schema.Schema, t.Any]] = [
    (_profile_schema.CAPABILITIES, SITE),
    (_profile_schema.PROFILE, FULL),
    *((_profile_schema.PROFILE, yaml.safe_load(path.read_text())) for path in sorted(OWN.glob("*.yml"))),
]


def schemas_in(schema: dict[str, t.Any]) -> t.Iterator[dict[str, t.Any]]:
    """Yield a schema and all that are in it."""
    yield schema
    below = [schema.get("items"), schema.get("additionalProperties"), schema.get("propertyNames")]
    for inner in [*below, *schema.get("properties", {}).values()]:
        if isinstance(inner, dict):
            yield from schemas_in(inner)


@pytest.mark.parametrize("file", sorted(SCHEMAS))
def test_editors_get_the_schema_that_counts(file: str) -> None:
    path = OWN / file
    text = json.dumps(SCHEMAS[file], indent=2) + "\n"
    assert path.read_text() == text, f"write to profiles/{file}:\n{text}"


@pytest.mark.parametrize("path", sorted(OWN.glob("*.yml")), ids=lambda path: path.stem)
def test_every_profile_tells_editors_of_it(path: pathlib.Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")


@pytest.mark.parametrize("file", sorted(SCHEMAS))
def test_no_keyword_is_overlooked(file: str) -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMAS[file])
    for schema in schemas_in(SCHEMAS[file]):
        assert set(schema) <= _schema.KEYWORDS
        assert "pattern" not in schema or {"patternErrorMessage", "type"} <= set(schema)
        assert "type" in schema and (schema["type"] != "array" or "items" in schema)


@pytest.mark.parametrize("file", sorted(SCHEMAS))
def test_every_key_is_explained(file: str) -> None:
    for schema in schemas_in(SCHEMAS[file]):
        for key, inner in schema.get("properties", {}).items():
            assert "description" in inner or "patternErrorMessage" in inner, key


values = st.recursive(
    # A library takes 1.0 for a whole number; here it is none, as no YAML reader makes it one.
    st.none() | st.booleans() | st.integers() | st.floats().filter(lambda number: number % 1 != 0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
texts = st.text(max_size=8) | st.sampled_from(
    ["", "\n", "a\n", "..", "a/..", "/etc", "/etc/a", "A", "LANG", "a:1", "1.0", "{npm}", "\u202e", "\ud800", "none"]
)


def places_in(value: t.Any, place: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    """Yield the place of a value and of all that are in it."""
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inner:
        yield from places_in(item, (*place, step))


def mutated(data: st.DataObject, good: t.Any) -> t.Any:
    """Return a valid document with one value replaced, taken away, added or repeated."""
    document = copy.deepcopy(good)
    place = data.draw(st.sampled_from([place for place in places_in(document) if place]))
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    how = data.draw(st.sampled_from(["replace", "remove", "add", "repeat"]))
    if how == "remove":
        del holder[place[-1]]
    elif how == "replace":
        holder[place[-1]] = data.draw(texts | values)
    elif isinstance(holder, dict):
        holder[data.draw(texts)] = copy.deepcopy(holder[place[-1]]) if how == "repeat" else data.draw(texts | values)
    else:
        holder.append(copy.deepcopy(holder[place[-1]]) if how == "repeat" else data.draw(texts | values))
    return document


def assert_agreement(document: t.Any, schema: _schema.Schema) -> None:
    """Compare the places that are wrong with those that the library finds."""
    ours = {fault.place for fault in _schema.faults(document, schema)}
    theirs = {tuple(error.absolute_path) for error in jsonschema.Draft7Validator(schema).iter_errors(document)}
    assert ours == theirs, document


@hypothesis.settings(max_examples=1000)
@hypothesis.given(st.data(), st.sampled_from(GOOD))
def test_it_agrees_with_a_library_on_what_is_wrong_and_where(
    data: st.DataObject, good: tuple[_schema.Schema, t.Any]
) -> None:
    assert_agreement(mutated(data, good[1]), good[0])


@pytest.mark.parametrize("value", [None, True, 0, 1, -1, 1.5, "", "a", "A", "\n", [], [[]], {}, {"a": 1}], ids=repr)
@pytest.mark.parametrize("good", GOOD[:2], ids=["site", "profile"])
def test_it_agrees_with_a_library_on_an_awkward_value_anywhere(
    good: tuple[_schema.Schema, t.Any], value: object
) -> None:
    for place in places_in(good[1]):
        document = {"": copy.deepcopy(good[1])}
        holder: t.Any = document
        for step in ("", *place)[:-1]:
            holder = holder[step]
        holder[("", *place)[-1]] = value
        assert_agreement(document[""], good[0])


@pytest.mark.parametrize("good", GOOD, ids=lambda good: str(good[1].get("name", "site")))
def test_what_is_right_is_taken(good: tuple[_schema.Schema, t.Any]) -> None:
    _schema.check(good[1], good[0], "it", "mend it")
    assert not list(jsonschema.Draft7Validator(good[0]).iter_errors(good[1]))


def test_a_long_value_is_cut_short() -> None:
    with pytest.raises(Invalid) as caught:
        _schema.check({"a": ["x" * 10_000]}, {"type": "string"}, "it", "mend it")
    assert len(str(caught.value)) < 200 and str(caught.value).endswith("[mend it]")
