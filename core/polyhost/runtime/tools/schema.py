"""The JSON Schema subset of tool parameters and outputs: a checker for schemas and a validator for values.

Both report every violation, as short phrases that a model can act on, and never raise on any JSON input. Keywords:
``type`` (one name), ``properties``, ``required``, ``additionalProperties`` (boolean), ``items``, ``enum``, ``const``,
``oneOf`` (two or more, exactly one must match, no ``type`` beside it) and the annotations ``description``, ``title``,
``default`` and ``examples``. Defaults are documentation: nothing here fills them in.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.tools import ToolError

MAX_SCHEMA_DEPTH = 64
"""Levels of nesting that a schema may have."""

_ANNOTATIONS = frozenset({"description", "title", "default", "examples"})
_OBJECT_ONLY = frozenset({"properties", "required", "additionalProperties"})
_KEYWORDS = _ANNOTATIONS | _OBJECT_ONLY | {"type", "items", "enum", "const", "oneOf"}


class UnsupportedSchemaError(ToolError):
    """A tool was registered with a schema outside the subset."""

    default_code = "UNSUPPORTED_SCHEMA"


def require_parameters(schema: object, where: str) -> None:
    """Check a parameter schema: an object at its root that is open to further keys.

    :raises UnsupportedSchemaError: naming every violation.
    """
    problems = list(schema_violations(schema))
    if isinstance(schema, dict) and not problems:
        if schema.get("type") != "object":
            problems.append('the root of parameters must have type "object"')
        if schema.get("additionalProperties") is False:
            problems.append('the root of parameters is open: remove "additionalProperties": false')
    _raise_for(problems, where)


def require_schema(schema: object, where: str) -> None:
    """Check any other schema.

    :raises UnsupportedSchemaError: naming every violation.
    """
    _raise_for(list(schema_violations(schema)), where)


def _raise_for(problems: list[str], where: str) -> None:
    if problems:
        raise UnsupportedSchemaError(f"unsupported schema in {where}: {'; '.join(problems)}")


# -- checking schemas --------------------------------------------------------------------------------------------------


def schema_violations(schema: object) -> Iterator[str]:
    """What keeps ``schema`` from being in the subset, one phrase per violation."""
    return _check_node(schema, "schema", ())


def _check_node(node: object, path: str, above: tuple[int, ...]) -> Iterator[str]:
    if not isinstance(node, dict):
        yield f"{path} must be an object, got {_kind(node)}"
        return
    if id(node) in above:
        yield f"{path} refers to itself"
        return
    if len(above) >= MAX_SCHEMA_DEPTH:
        yield f"{path} is nested deeper than {MAX_SCHEMA_DEPTH} levels"
        return
    above = (*above, id(node))
    for key in node:
        if not isinstance(key, str) or key not in _KEYWORDS:
            yield f"{path} has the unsupported keyword {key!r}"
    yield from _check_annotations(node, path)
    kind = node.get("type")
    if "type" in node and not (isinstance(kind, str) and kind in _TYPES):
        yield f"{path}.type must be one of {', '.join(_TYPES)}, got {reprlib.repr(kind)}"
        kind = None
    yield from _check_placement(node, path, kind)
    yield from _check_choices(node, path, kind)
    yield from _check_children(node, path, above)


def _check_annotations(node: dict[Any, Any], path: str) -> Iterator[str]:
    for key in ("description", "title"):
        if key in node and not isinstance(node[key], str):
            yield f"{path}.{key} must be a string"
    if "examples" in node and not isinstance(node["examples"], list):
        yield f"{path}.examples must be an array"


def _check_placement(node: dict[Any, Any], path: str, kind: object) -> Iterator[str]:
    for key in sorted(_OBJECT_ONLY & node.keys()):
        if kind != "object":
            yield f'{path}.{key} needs type "object" beside it'
    if "items" in node and kind != "array":
        yield f'{path}.items needs type "array" beside it'
    if "oneOf" in node:
        for key in ("type", "enum", "const"):
            if key in node:
                yield f"{path}.oneOf cannot stand beside {key}"
    if "enum" in node and "const" in node:
        yield f"{path}.enum cannot stand beside const"


def _check_choices(node: dict[Any, Any], path: str, kind: object) -> Iterator[str]:
    choices = node.get("enum", [])
    if "enum" in node and (not isinstance(choices, list) or not choices):
        yield f"{path}.enum must be a non-empty array"
        return
    if "const" in node:
        choices = [node["const"]]
    keyword = "const" if "const" in node else "enum"
    for index, choice in enumerate(choices):
        if any(json_equal(choice, earlier) for earlier in choices[:index]):
            yield f"{path}.enum repeats {reprlib.repr(choice)}"
        if isinstance(kind, str) and kind in _TYPES and not _TYPES[kind](choice):
            yield f"{path}.{keyword} value {reprlib.repr(choice)} is not {_article(kind)}"


def _check_children(node: dict[Any, Any], path: str, above: tuple[int, ...]) -> Iterator[str]:
    properties = node.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(name, str) for name in properties):
        yield f"{path}.properties must be an object"
    else:
        for name, child in properties.items():
            yield from _check_node(child, f"{path}.properties.{name}", above)
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        yield f"{path}.required must be an array of strings"
    elif len(set(required)) != len(required):
        yield f"{path}.required repeats a name"
    if "additionalProperties" in node and not isinstance(node["additionalProperties"], bool):
        yield f"{path}.additionalProperties must be a boolean"
    if "items" in node:
        yield from _check_node(node["items"], f"{path}.items", above)
    if "oneOf" in node:
        branches = node["oneOf"]
        if not isinstance(branches, list) or len(branches) < 2:
            yield f"{path}.oneOf must be an array of at least two schemas"
        else:
            for index, branch in enumerate(branches):
                yield from _check_node(branch, f"{path}.oneOf[{index}]", above)


# -- validating values -------------------------------------------------------------------------------------------------


def violations(schema: JsonObject, value: JsonValue, path: str = "") -> Iterator[str]:
    """How ``value`` differs from a schema of the subset, one phrase per violation; nothing when it matches.

    :param path: what to call the value, such as ``todos[0]``; empty for the root.
    """
    kind = schema.get("type")
    if kind is not None and not _TYPES[kind](value):
        yield f"{_name(path)} must be {_article(kind)}, got {_kind(value)}"
        return
    if "const" in schema and not json_equal(schema["const"], value):
        yield f"{_name(path)} must be {_show(schema['const'])}"
    if "enum" in schema and not any(json_equal(choice, value) for choice in schema["enum"]):
        yield f"{_name(path)} must be one of {', '.join(_show(choice) for choice in schema['enum'])}"
    if kind == "object":
        yield from _object_violations(schema, value, path)
    elif kind == "array" and "items" in schema:
        for index, item in enumerate(value):
            yield from violations(schema["items"], item, f"{path}[{index}]")
    elif "oneOf" in schema:
        matching = sum(next(violations(branch, value), None) is None for branch in schema["oneOf"])
        if matching != 1:
            how_many = "none" if matching == 0 else str(matching)
            yield f"{_name(path)} must match exactly one of {len(schema['oneOf'])} alternatives, it matches {how_many}"


def _object_violations(schema: JsonObject, value: JsonObject, path: str) -> Iterator[str]:
    properties: JsonObject = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"missing required property {_show(_join(path, name))}"
    for name, child in properties.items():
        if name in value:
            yield from violations(child, value[name], _join(path, name))
    if schema.get("additionalProperties") is False:
        for name in value:
            if name not in properties:
                yield f"unknown property {_show(_join(path, name))}"


def json_equal(left: JsonValue, right: JsonValue) -> bool:
    """Equality of JSON values of any depth: ``true`` is not 1, ``1`` is ``1.0``, object key order does not count."""
    pairs = [(left, right)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pairs += [(item, other[key]) for key, item in one.items()]
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif isinstance(one, bool) or isinstance(other, bool):
            if one is not other:
                return False
        elif isinstance(one, dict | list) or isinstance(other, dict | list) or one != other:
            return False
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": _is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def _kind(value: object) -> str:
    for kind, matches in _TYPES.items():
        if matches(value):
            return kind
    return type(value).__name__


def _article(kind: str) -> str:
    if kind == "null":
        return kind
    return f"an {kind}" if kind[0] in "aio" else f"a {kind}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(path: str) -> str:
    return _show(path) if path else "the value"


def _show(value: JsonValue) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f'"{value}"' if isinstance(value, str) else reprlib.repr(value)
