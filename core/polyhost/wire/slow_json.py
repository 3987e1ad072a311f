"""JSON for the rare documents that orjson refuses though they are JSON: lone surrogates and deep nesting.

Loaded by :mod:`polyhost.wire.json` when such a document turns up; nothing else should call it. The interpreter's
limit of recursion plays no role here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.encoder import encode_basestring
from typing import Any, NoReturn

from polyhost.wire.dialects import MAX_DEPTH
from polyhost.wire.errors import JsonDecodeError, JsonDepthError, JsonValueError
from polyhost.wire.safety import MAX_SAFE_INTEGER, path_of

_INFINITY = float("inf")
_INT64_DIGITS = 20  # with the sign, of 2**64 or -2**63
_END = object()
_SPACE = re.compile(r"[ \t\n\r]*")


def encode(value: object) -> bytes:
    """Encode JSON builtins and their subclasses, compactly; see :func:`polyhost.wire.json.dumps`.

    Integral floats become integers, since JSON has one kind of number.

    :raises JsonValueError: not JSON, or a container inside itself.
    :raises JsonDepthError: nested too deeply.
    """
    out: list[str] = []
    parents: list[Any] = []
    rests: list[Iterator[Any]] = []
    open_ids: set[int] = set()
    item: Any = value
    while True:
        if isinstance(item, dict | list | tuple):
            if id(item) in open_ids:
                raise JsonValueError(path_of("value", parents, item), "container that contains itself")
            if len(parents) == MAX_DEPTH:
                raise JsonDepthError(MAX_DEPTH)
            open_ids.add(id(item))
            parents.append(item)
            rests.append(iter(item.items() if isinstance(item, dict) else item))
            out.append("{" if isinstance(item, dict) else "[")
        else:
            out.append(_scalar(item, parents))
        while parents and (item := next(rests[-1], _END)) is _END:
            closed = parents.pop()
            open_ids.discard(id(closed))
            rests.pop()
            out.append(_closer(closed))
        if not parents:
            # Only surrogates cannot be encoded, and their backslash form is their JSON escape.
            return "".join(out).encode("utf-8", "backslashreplace")
        if out[-1] not in ("{", "["):
            out.append(",")
        if isinstance(parents[-1], dict):
            key, item = item
            if not isinstance(key, str):
                raise JsonValueError(path_of("value", parents[:-1], parents[-1]), "dict key that is not a string")
            out.append(encode_basestring(key) + ":")


def _scalar(item: object, parents: list[Any]) -> str:
    if item is None:
        return "null"
    if item is True:
        return "true"
    if item is False:
        return "false"
    if isinstance(item, str):
        return encode_basestring(item)
    if isinstance(item, int) and -(2**63) <= item < 2**64:
        return int.__repr__(item)
    if isinstance(item, float):
        text = float.__repr__(item)
        if text.endswith(".0") and abs(item) <= MAX_SAFE_INTEGER and text != "-0.0":
            return text.removesuffix(".0")
        return text if abs(item) < _INFINITY else "null"
    reason = "integer beyond 64 bits" if isinstance(item, int) else f"{type(item).__name__} is not JSON"
    raise JsonValueError(path_of("value", parents, item), reason)


def decode(text: str) -> Any:
    """Decode ``text`` as orjson would; its depth is the caller's to check.

    :raises JsonDecodeError: not JSON.
    """
    try:
        return _STDLIB.decode(text)
    except RecursionError:
        failure = None
    except json.JSONDecodeError as error:
        failure = _malformed(error.msg, error.pos)
    if failure is None:
        return _decode_deep(text)
    raise failure  # out here, because the caught error holds the whole document


def _decode_deep(text: str) -> Any:
    """Decode with a list of open containers in the place of stack frames."""
    document: list[Any] = []
    parents: list[Any] = [document]
    key = ""  # under which the next value enters the innermost container, if that is a dict
    pos = _skip_space(text, 0)
    while True:
        value, pos = _begin_value(text, pos)
        if isinstance(parents[-1], dict):
            parents[-1][key] = value
        else:
            parents[-1].append(value)
        if isinstance(value, dict | list):
            parents.append(value)
            if not text.startswith(_closer(value), pos):
                if isinstance(value, dict):
                    key, pos = _read_key(text, pos)
                continue
        while len(parents) > 1 and text.startswith(_closer(parents[-1]), pos):
            parents.pop()
            pos = _skip_space(text, pos + 1)
        if len(parents) == 1:
            if pos < len(text):
                raise _malformed("content after the document", pos)
            return document[0]
        if not text.startswith(",", pos):
            raise _malformed("comma or end of container expected", pos)
        pos = _skip_space(text, pos + 1)
        if isinstance(parents[-1], dict):
            key, pos = _read_key(text, pos)


def _begin_value(text: str, pos: int) -> tuple[Any, int]:
    """The scalar at ``pos``, or a new empty container for the bracket there; and where the next token stands."""
    char = text[pos : pos + 1]
    if char == "{" or char == "[":
        return {} if char == "{" else [], _skip_space(text, pos + 1)
    return _read_scalar(text, pos)


def _read_key(text: str, pos: int) -> tuple[str, int]:
    if not text.startswith('"', pos):
        raise _malformed("string as key expected", pos)
    key, pos = _read_scalar(text, pos)
    if not text.startswith(":", pos):
        raise _malformed("colon expected", pos)
    return key, _skip_space(text, pos + 1)


def _read_scalar(text: str, pos: int) -> tuple[Any, int]:
    try:
        value, end = _STDLIB.raw_decode(text, pos)
    except json.JSONDecodeError as error:
        reason = error.msg
    else:
        return value, _skip_space(text, end)
    raise _malformed(reason, pos)


def _skip_space(text: str, pos: int) -> int:
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def _closer(container: object) -> str:
    return "}" if isinstance(container, dict) else "]"


def _malformed(reason: str, pos: int) -> JsonDecodeError:
    return JsonDecodeError(f"{reason}: char {pos}")


def _int(digits: str) -> int | float:
    """An integer of 64 bits, else the nearest double, as most peers read all numbers."""
    if len(digits) <= _INT64_DIGITS and -(2**63) <= (value := int(digits)) < 2**64:
        return value
    return _float(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if abs(value) == _INFINITY:
        raise JsonDecodeError("number beyond the range of a double")
    return value


def _constant(name: str) -> NoReturn:
    raise JsonDecodeError(f"{name} is not JSON")


_STDLIB = json.JSONDecoder(parse_int=_int, parse_float=_float, parse_constant=_constant)
