"""The schema subset: which schemas are accepted, and what validation says of values."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.runtime.tools.schema import (
    UnsupportedSchemaError,
    json_equal,
    require_parameters,
    require_schema,
    schema_violations,
    violations,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)
TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"]


def _schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaf = st.sampled_from([{"type": name} for name in TYPES]) | st.lists(
        st.integers() | st.text(max_size=3), min_size=1, max_size=3, unique_by=str
    ).map(lambda choices: {"enum": choices})
    return st.recursive(
        leaf,
        lambda inner: (
            st.builds(
                lambda props, closed: {
                    "type": "object",
                    "properties": props,
                    "required": sorted(props)[:1],
                    "additionalProperties": not closed,
                },
                st.dictionaries(st.text(max_size=4), inner, max_size=3),
                st.booleans(),
            )
            | inner.map(lambda items: {"type": "array", "items": items})
            | st.lists(inner, min_size=2, max_size=3).map(lambda branches: {"oneOf": branches})
        ),
        max_leaves=8,
    )


def check(schema: Any, value: Any) -> list[str]:
    return list(violations(schema, value))


@pytest.mark.contract("TOOL-14")
@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        (
            {"type": "object", "required": ["a", "b"]},
            {},
            ['missing required property "a"', 'missing required property "b"'],
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}},
            {"a": 1, "z": 2},
            ['"a" must be a string, got number'],
        ),
        ({"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}, {}, []),
        ({"type": "object"}, "text", ["the value must be an object, got string"]),
        ({"type": "integer"}, 1.0, []),
        ({"type": "integer"}, 1.5, ["the value must be an integer, got number"]),
        ({"type": "integer"}, True, ["the value must be an integer, got boolean"]),
        ({"type": "number"}, False, ["the value must be a number, got boolean"]),
        ({"type": "null"}, 0, ["the value must be null, got number"]),
        ({"enum": ["a", 1]}, True, ['the value must be one of "a", 1']),
        ({"const": {"k": [1]}}, {"k": [1.0]}, []),
        ({"const": 0}, False, ["the value must be 0"]),
        (
            {
                "type": "object",
                "properties": {
                    "todos": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"status": {"type": "string", "enum": ["open", "done"]}},
                            "required": ["status"],
                        },
                    }
                },
            },
            {"todos": [{"status": "open"}, {}, {"status": "lost"}, 5]},
            [
                'missing required property "todos[1].status"',
                '"todos[2].status" must be one of "open", "done"',
                '"todos[3]" must be an object, got number',
            ],
        ),
    ],
)
def test_values_are_described_violation_by_violation(schema: Any, value: Any, expected: list[str]) -> None:
    assert check(schema, value) == expected


@pytest.mark.contract("TOOL-21")
def test_one_of_matches_exactly_one() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]}
    assert check(schema, "a") == []
    assert check(schema, 1.5) == []
    assert check(schema, 1) == ["the value must match exactly one of 3 alternatives, it matches 2"]
    assert check(schema, None) == ["the value must match exactly one of 3 alternatives, it matches none"]


@pytest.mark.contract("TOOL-21")
def test_closed_objects_refuse_further_keys() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}
    assert check(schema, {"a": None, "b": 1, "c": 2}) == ['unknown property "b"', 'unknown property "c"']


CYCLE: dict[str, Any] = {"type": "array"}
CYCLE["items"] = CYCLE
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(70):
    DEEP = {"type": "array", "items": DEEP}


@pytest.mark.contract("TOOL-21")
@pytest.mark.parametrize(
    ("schema", "phrase"),
    [
        (True, "must be an object"),
        ({"type": ["string", "null"]}, "schema.type must be one of"),
        ({"type": "str"}, "schema.type must be one of"),
        ({"type": "string", "pattern": "x"}, "unsupported keyword 'pattern'"),
        ({"$ref": "#/x"}, "unsupported keyword '$ref'"),
        ({"anyOf": [{}, {}]}, "unsupported keyword 'anyOf'"),
        ({"properties": {}}, 'schema.properties needs type "object"'),
        ({"type": "string", "items": {}}, 'schema.items needs type "array"'),
        ({"type": "object", "properties": []}, "schema.properties must be an object"),
        ({"type": "object", "required": "a"}, "schema.required must be an array of strings"),
        ({"type": "object", "required": ["a", "a"]}, "schema.required repeats a name"),
        ({"type": "object", "additionalProperties": {}}, "schema.additionalProperties must be a boolean"),
        ({"enum": []}, "schema.enum must be a non-empty array"),
        ({"enum": "ab"}, "schema.enum must be a non-empty array"),
        ({"enum": [1, 1.0]}, "schema.enum repeats 1.0"),
        ({"type": "string", "enum": ["a", 1]}, "schema.enum value 1 is not a string"),
        ({"type": "null", "const": 0}, "schema.const value 0 is not null"),
        ({"oneOf": [{}]}, "at least two schemas"),
        ({"type": "string", "oneOf": [{}, {}]}, "schema.oneOf cannot stand beside type"),
        ({"enum": [1], "oneOf": [{}, {}]}, "schema.oneOf cannot stand beside enum"),
        ({"const": 1, "oneOf": [{}, {}]}, "schema.oneOf cannot stand beside const"),
        ({"enum": [1], "const": 1}, "schema.enum cannot stand beside const"),
        ({"description": 1}, "schema.description must be a string"),
        ({"title": 1}, "schema.title must be a string"),
        ({"examples": 1}, "schema.examples must be an array"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"x": 1}}}}, "schema.properties.a.items"),
        (CYCLE, "refers to itself"),
        (DEEP, "nested deeper than 64 levels"),
    ],
)
def test_schemas_outside_the_subset_are_refused(schema: Any, phrase: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=re.escape(phrase)) as caught:
        require_schema(schema, "a test")
    assert caught.value.code == "UNSUPPORTED_SCHEMA"


@pytest.mark.contract("TOOL-21")
def test_every_violation_of_a_schema_is_reported() -> None:
    schema = {"type": "object", "format": "x", "properties": {"a": {"type": "text"}, "b": {"minimum": 1}}}
    assert len(list(schema_violations(schema))) == 3


@pytest.mark.contract("TOOL-14")
def test_the_root_of_parameters_is_an_open_object() -> None:
    require_parameters({"type": "object", "properties": {}}, "a test")
    with pytest.raises(UnsupportedSchemaError, match='type "object"'):
        require_parameters({"type": "string"}, "a test")
    with pytest.raises(UnsupportedSchemaError, match="is open"):
        require_parameters({"type": "object", "additionalProperties": False}, "a test")


@pytest.mark.contract("TOOL-14")
@given(_schemas(), JSON)
def test_validation_is_total(schema: dict[str, Any], value: Any) -> None:
    assert list(schema_violations(schema)) == []
    for phrase in check(schema, value):
        assert isinstance(phrase, str)


@pytest.mark.contract("TOOL-14")
def test_validation_survives_any_depth() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    schema = {
        "type": "object",
        "properties": {"a": {"const": [[]]}, "b": {"type": "array", "items": {"type": "string"}}},
    }
    assert len(check(schema, {"a": deep, "b": deep})) == 2


@given(JSON)
def test_the_checker_is_total(value: Any) -> None:
    assert all(isinstance(phrase, str) for phrase in schema_violations(value))


@given(JSON)
def test_equality_survives_a_round_trip(value: Any) -> None:
    assert json_equal(value, json.loads(json.dumps(value, sort_keys=True)))
    assert not json_equal(value, [value])
