"""``{ env = "NAME" }``: a value of a plugin's configuration that stands in an environment variable.

References are evaluated in one place only: anywhere inside a plugin row, when the row is validated. Elsewhere
(``[host]``, ``enabled``, ``use``) they are errors, never silently a table. The value is never written anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any


def is_variable_name(text: str) -> bool:
    """Whether ``text`` can name an environment variable; a secret written in its place mostly cannot."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None


def is_reference(value: object) -> bool:
    """Whether ``value`` is a table with the single key ``env`` whose value is a string."""
    return isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get("env"), str)


def has_reference(value: object) -> bool:
    """Whether ``value`` is a reference or holds one at any depth."""
    if isinstance(value, Mapping):
        return is_reference(value) or any(has_reference(child) for child in value.values())
    return isinstance(value, list) and any(has_reference(child) for child in value)


def replace_references(value: Any, resolve: Callable[[str, tuple[str | int, ...]], Any], path: Any = ()) -> Any:
    """A copy of ``value`` with ``resolve(name, path)`` in the place of every reference."""
    if is_reference(value):
        return resolve(value["env"], path)
    if isinstance(value, Mapping):
        return {key: replace_references(child, resolve, (*path, key)) for key, child in value.items()}
    if isinstance(value, list):
        return [replace_references(child, resolve, (*path, index)) for index, child in enumerate(value)]
    return value
