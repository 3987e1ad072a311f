"""The safety walk: is a foreign value lossless JSON?

For values that other people's code hands in (tool results, plugin events, remote arguments) before they become part
of a log or a frame. Values that the host builds itself do not pass here: the walk costs about as much as encoding.
Python's own depth of recursion plays no role, and nothing of the value's own code runs, since only exact builtin
types are entered.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from polyhost.wire.dialects import MAX_DEPTH, MAX_NODES
from polyhost.wire.errors import JsonDepthError, JsonValueError

MAX_SAFE_INTEGER = 2**53 - 1
"""Largest integer that every peer reads exactly, since many have only doubles."""

_INFINITY = float("inf")
_STRING_ONLY = frozenset((str,))
_PATH_STEPS = 16  # longer paths are cut in the middle
_KEY_CHARS = 40


def inspect(value: object, *, root: str = "value") -> bool:
    """Refuse ``value`` unless it is lossless JSON; say whether it holds integral floats (``1.0``).

    Accepted: None, bool, str (lone surrogates too: JSON can escape them), int within 2**53 - 1 on both sides of
    zero, finite float except -0.0, and list, tuple and dict with str keys, of at most :data:`MAX_DEPTH` levels and
    :data:`MAX_NODES` nodes. Subclasses of these are refused, whatever they are: enum members, named tuples, default
    dictionaries. A container may occur several times, but not inside itself.

    :param root: the name by which messages call ``value``.
    :raises JsonValueError: names the path and the reason.
    :raises JsonDepthError: nested too deeply.
    """
    integral_floats = False
    nodes = 1
    parents: list[Any] = []  # containers being walked, outermost first, and the rest of each one's items
    rests: list[Iterator[Any]] = []
    open_ids: set[int] = set()
    items: Iterator[Any] = iter((value,))
    while True:
        for item in items:
            kind = type(item)
            if kind is str or item is None or kind is bool:
                continue
            if kind is int:
                if not -MAX_SAFE_INTEGER <= item <= MAX_SAFE_INTEGER:
                    _refuse(root, parents, item, "integer beyond 2**53 - 1, which not every peer reads exactly")
            elif kind is float:
                if not -_INFINITY < item < _INFINITY:
                    _refuse(root, parents, item, "not a finite number")
                if item.is_integer():
                    if item == 0 and str(item) == "-0.0":
                        _refuse(root, parents, item, "negative zero, which JSON does not keep")
                    integral_floats = True
            elif kind is dict or kind is list or kind is tuple:
                if id(item) in open_ids:
                    _refuse(root, parents, item, f"{kind.__name__} that contains itself")
                if len(parents) == MAX_DEPTH:
                    raise JsonDepthError(MAX_DEPTH)
                nodes += len(item)
                if nodes > MAX_NODES:
                    _refuse(root, parents, item, f"more than {MAX_NODES} nodes up to here")
                if kind is dict and not _STRING_ONLY.issuperset(map(type, item)):
                    _refuse(root, parents, item, f"dict with a key of type {_odd_key(item)}; keys are strings")
                open_ids.add(id(item))
                parents.append(item)
                rests.append(items)
                items = iter(item.values() if kind is dict else item)
                break
            else:
                _refuse(root, parents, item, f"{_type_name(kind)} is not JSON; pass plain builtin values")
        else:
            if not parents:
                return integral_floats
            open_ids.discard(id(parents.pop()))
            items = rests.pop()


def path_of(root: str, parents: list[Any], item: object) -> str:
    """Where ``item`` stands, given its containers from the outside in, as in ``data.items[3]``.

    Steps are found by identity, so that walks need not record keys. The first place of a shared object is as true
    as any other.
    """
    steps = [_step(parent, child) for parent, child in pairwise([*parents, item])]
    if len(steps) > _PATH_STEPS:
        steps[_PATH_STEPS // 2 : -_PATH_STEPS // 2] = ["…"]
    return root + "".join(steps)


def _step(parent: Any, child: object) -> str:
    if not isinstance(parent, dict):
        return next((f"[{index}]" for index, value in enumerate(parent) if value is child), "[?]")
    key = next((key for key, value in parent.items() if value is child), "?")
    if key.isidentifier() and len(key) <= _KEY_CHARS:
        return f".{key}"
    return f"[{key[:_KEY_CHARS]!a}]"


def _refuse(root: str, parents: list[Any], item: object, reason: str) -> None:
    raise JsonValueError(path_of(root, parents, item), reason)


def _odd_key(item: dict[Any, Any]) -> str:
    return next(_type_name(type(key)) for key in item if type(key) is not str)


def _type_name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
