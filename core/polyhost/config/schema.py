"""What the JSON schema of a configuration model says about a place in it: which keys fit there, and what is secret.

Making a schema takes milliseconds and loads pydantic's schema code, so this is for error messages and dumps only. A
model that has no JSON schema (custom types) answers "nothing known".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from polyhost.config.tomltext import KeyPath


class ModelSchema:
    """The schema of ``adapter``, a :class:`pydantic.TypeAdapter`."""

    def __init__(self, adapter: Any) -> None:
        try:
            self._root: Mapping[str, Any] = adapter.json_schema()
        except Exception:  # a plugin's own type may raise anything here, and an error is being explained already
            self._root = {}

    def keys_at(self, path: KeyPath) -> list[str]:
        """The keys that the table at ``path`` accepts by name."""
        return list(dict.fromkeys(key for node in self._nodes(path) for key in node.get("properties", ())))

    def fields(self) -> list[tuple[str, str, Any]]:
        """The keys of the table itself: name, JSON type in words, default (None when there is none)."""
        return [
            (name, _type_of(node), node.get("default"))
            for root in self._nodes(())
            for name, node in root.get("properties", {}).items()
        ]

    def secret_strings(self, value: Any, path: KeyPath = ()) -> Iterator[str]:
        """The strings in the unvalidated ``value`` that stand where the model has a secret type."""
        if isinstance(value, Mapping):
            for key, child in value.items():
                yield from self.secret_strings(child, (*path, key))
        elif isinstance(value, list):
            for index, child in enumerate(value):
                yield from self.secret_strings(child, (*path, index))
        elif isinstance(value, str) and any(node.get("writeOnly") for node in self._nodes(path)):
            yield value

    def _nodes(self, path: KeyPath) -> list[Mapping[str, Any]]:
        """Every alternative of the schema at ``path``."""
        nodes = self._expand(self._root)
        for part in path:
            nodes = [found for node in nodes for child in _children(node, part) for found in self._expand(child)]
        return nodes

    def _expand(self, node: Any) -> list[Mapping[str, Any]]:
        """``node`` itself and what its references and alternatives lead to."""
        found: list[Mapping[str, Any]] = []
        waiting = [node]
        while waiting:
            node = waiting.pop(0)
            if not isinstance(node, Mapping) or any(node is known for known in found):
                continue
            found.append(node)
            if reference := node.get("$ref"):
                waiting.append(self._root.get("$defs", {}).get(reference.rpartition("/")[2]))
            for alternatives in ("anyOf", "oneOf", "allOf"):
                waiting += node.get(alternatives, ())
        return found


def _children(node: Mapping[str, Any], part: str | int) -> list[Any]:
    if isinstance(part, int):
        first = node.get("prefixItems", ())
        return [first[part]] if part < len(first) else [node.get("items")]
    named = node.get("properties", {}).get(part)
    return [named if named is not None else node.get("additionalProperties")]


def _type_of(node: Mapping[str, Any]) -> str:
    """The type of a schema node in words, such as ``integer`` or ``array or null``."""
    if "enum" in node:
        return "one of " + ", ".join(map(str, node["enum"]))
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(_type_of(choice) for choice in node["anyOf"]))
    return "table" if "$ref" in node or node.get("type") == "object" else str(node.get("type", "any"))
