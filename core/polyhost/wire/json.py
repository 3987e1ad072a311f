"""JSON encoding and decoding for the whole host. The only module that knows orjson.

Three kinds of values pass here: what the host builds itself (:func:`dumps`, :func:`dumps_text`), text from a peer or
a file (:func:`loads`), and foreign Python values that must become part of a log or frame (:func:`check_json`,
:func:`snapshot`). What orjson refuses although it is JSON, lone surrogates and deep nesting, takes a slower way with
the same result.

Bytes from :func:`dumps` and :func:`dumps_text` are to be written or spliced at once: each such object keeps a buffer
of 4 KB alive. To keep one, keep ``detach(data)``; what :func:`snapshot` returns is detached already.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import orjson

from polyhost.wire import safety
from polyhost.wire.dialects import MAX_DEPTH
from polyhost.wire.errors import JsonDecodeError, JsonDepthError

__all__ = ["check_json", "detach", "dumps", "dumps_text", "loads", "nesting_depth", "snapshot"]

_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_ORJSON_DEPTH = 1024  # what orjson decodes; it encodes 254
_BRACKETS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def dumps(value: object) -> bytes:
    """Encode a value that the host built itself: JSON builtins and their subclasses. Transient, see the module.

    Compact, UTF-8, keys in their order; lone surrogates are escaped. NaN and infinities become null, integers have
    64 bits, floats stay floats.

    :raises JsonValueError: something that is not JSON; names its path.
    :raises JsonDepthError: nested deeper than :data:`~polyhost.wire.dialects.MAX_DEPTH`.
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        pass
    return _slow_dumps(value)


def dumps_text(text: str) -> bytes:
    """Encode one string as a JSON literal with its quotes, to be spliced into a template. Transient."""
    try:
        return orjson.dumps(text)
    except TypeError:
        return _slow_dumps(text)


def loads(data: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Decode one JSON text, without byte order mark.

    Of duplicate keys the last wins. Integers of 64 bits are exact; larger ones become the nearest float, which is how
    most peers read them. Lone surrogates may stand in escapes.

    :raises JsonDecodeError: not JSON; also NaN, Infinity, a number beyond a double, or invalid UTF-8.
    :raises JsonDepthError: nested deeper than ``max_depth`` levels.
    """
    if max_depth < _ORJSON_DEPTH and _may_exceed(data, max_depth) and nesting_depth(data) > max_depth:
        raise JsonDepthError(max_depth)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    return _slow_loads(data, max_depth)


def check_json(value: object, *, root: str = "value") -> None:
    """Refuse a foreign value unless it is lossless JSON; the rules are those of :func:`polyhost.wire.safety.inspect`.

    :param root: the name by which messages call ``value``.
    :raises JsonValueError: names the path and the reason, as in ``data.items[3]: not a finite number``.
    :raises JsonDepthError: nested deeper than :data:`~polyhost.wire.dialects.MAX_DEPTH`.
    """
    safety.inspect(value, root=root)


def snapshot(value: object, *, root: str = "value") -> bytes:
    """Check a foreign value as :func:`check_json` does and encode it: its immutable image, detached from it.

    Integral floats become integers (``1.0`` is ``1``), tuples arrays. Free to keep.
    """
    if safety.inspect(value, root=root):
        return _slow_dumps(value)
    return detach(dumps(value))


def detach(data: bytes) -> bytes:
    """A copy of encoded bytes that occupies no more than it shows; free to keep."""
    return b"%b" % data


def nesting_depth(data: bytes | str) -> int:
    """Deepest level of brackets outside strings, found without decoding; for a text that is not JSON, some number."""
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b"".join(unescaped.split(b'"')[::2])
    brackets = structure.translate(_BRACKETS, _NOT_BRACKETS)
    return max(accumulate(map((-1).__add__, brackets), initial=0))


def _may_exceed(data: bytes | str, depth: int) -> bool:
    if isinstance(data, str):
        return data.count("[") + data.count("{") > depth
    return data.count(b"[") + data.count(b"{") > depth


def _slow_dumps(value: object) -> bytes:
    from polyhost.wire import slow_json

    return slow_json.encode(value)


def _slow_loads(data: bytes | str, max_depth: int) -> Any:
    """Decode what orjson refused, if it is JSON none the less, and otherwise say why not."""
    if nesting_depth(data) > max_depth:
        raise JsonDepthError(max_depth)
    text = data if isinstance(data, str) else _decode_utf8(data)
    from polyhost.wire import slow_json

    return slow_json.decode(text)


def _decode_utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        start = error.start
    raise JsonDecodeError(f"invalid UTF-8 at byte {start}")  # out here, because the caught error holds the bytes
