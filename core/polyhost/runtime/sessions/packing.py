"""Packed rows: a run of streamed deltas as one stored line, and back (agent-core 2.21).

Small deltas are most of a log's volume, and their envelopes are all alike. Packing works on encoded lines: a delta
as :mod:`~polyhost.runtime.sessions.chunks` writes it is recognised by its exact bytes, and its text is spliced
undecoded. So unpacking gives the same bytes again; whatever looks any different is stored as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from polyhost.interfaces.json_types import JsonObject
from polyhost.runtime.sessions.events import MAX_SAFE_INTEGER, is_safe_integer
from polyhost.wire.json import dumps_text, loads

MIN_RUN = 3
MAX_RUN = 1024
"""A longer run becomes several rows, so that no single step of packing or unpacking takes long."""

_INT = rb"(?:0|-?[1-9]\d{0,15})"
_STR = rb'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"'
# Groups: seq, time, what the members of a run have in common, text.
_DELTA = re.compile(
    rb'\{"type":"assistant/chunk","seq":(%b),"time":(%b),"data":(\{"turn":%b,"step":%b,"chunk":\{"type":'
    rb'(?:"(?:text|reasoning)-delta","index":%b,"text"'
    rb'|"tool-call-delta","index":%b,"id":%b(?:,"name":%b)?,"argumentsDelta")):(%b)\}\}\}\n'
    % (_INT, _INT, _INT, _INT, _INT, _INT, _STR, _STR, _STR)
)
# Groups: turn and step, kind, index with the call's id and name, key of the text.
_COMMON = re.compile(
    rb'\{("turn":%b,"step":%b),"chunk":\{"type":"(text|reasoning|tool-call)-delta",("index":.*),"(text|argumentsDelta)"'
    % (_INT, _INT)
)

_ROW_KEYS = {"type", "seq0", "time0", "data"}
_TEXT_KEYS = {"turn", "step", "index", "dt", "texts"}
_CALL_KEYS = {"turn", "step", "index", "id", "dt", "args"}
_TEXT_ROWS = {"text-chunks": b"text", "reasoning-chunks": b"reasoning"}

_Delta: TypeAlias = "tuple[int, int, bytes, bytes]"

ROW_TYPES = frozenset({*_TEXT_ROWS, "tool-call-chunks"})


def match_delta(line: bytes) -> re.Match[bytes] | None:
    """A match whose groups 1 and 2 are seq and time, if ``line`` is a delta exactly as the chunk writer forms it."""
    match = _DELTA.fullmatch(line)
    if match is not None and not line.isascii():
        try:
            line.decode()
        except UnicodeDecodeError:
            return None
    return match


def pack(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The stored form of event lines: rows for runs of like deltas, the rest verbatim."""
    run: list[_Delta] = []
    for line in lines:
        delta = _take_apart(line)
        if run and (delta is None or len(run) == MAX_RUN or not _continues(run[-1], delta)):
            yield from _stored(run)
            run = []
        if delta is None:
            yield line
        else:
            run.append(delta)
    yield from _stored(run)


def unpack(row: JsonObject) -> list[bytes]:
    """The event lines of one decoded row.

    :raises ValueError: malformed, with the reason.
    """
    _expect(row.keys() == _ROW_KEYS, "fields of the row")
    data = row["data"]
    _expect(isinstance(data, dict), "data")
    _expect(all(is_safe_integer(value) for value in (row["seq0"], row["time0"])), "seq0 and time0")
    kind = _TEXT_ROWS.get(row["type"])
    if kind is not None:
        _expect(data.keys() == _TEXT_KEYS, "fields of data")
        member = b'"%b-delta","index":%d,"text":' % (kind, _integer(data, "index"))
        texts = data["texts"]
    else:
        _expect(data.keys() - {"name"} == _CALL_KEYS, "fields of data")
        name = b',"name":%b' % dumps_text(_text(data, "name")) if "name" in data else b""
        call = (_integer(data, "index"), dumps_text(_text(data, "id")), name)
        member = b'"tool-call-delta","index":%d,"id":%b%b,"argumentsDelta":' % call
        texts = data["args"]
    _expect(isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts), "texts")
    prefix = b'"data":{"turn":%d,"step":%d,"chunk":{"type":%b' % (
        _integer(data, "turn"),
        _integer(data, "step"),
        member,
    )
    return [
        b'{"type":"assistant/chunk","seq":%d,"time":%d,%b%b}}}\n' % (seq, time, prefix, dumps_text(text))
        for seq, (time, text) in enumerate(zip(_times(row, len(texts)), texts, strict=True), row["seq0"])
    ]


def _times(row: JsonObject, count: int) -> list[int]:
    gaps = row["data"]["dt"]
    _expect(isinstance(gaps, list) and len(gaps) == count - 1 and all(map(is_safe_integer, gaps)), "dt")
    times = list(accumulate(gaps, initial=row["time0"]))
    _expect(all(map(is_safe_integer, times)), "times")
    return times


def _take_apart(line: bytes) -> _Delta | None:
    match = match_delta(line)
    if match is None:
        return None
    seq, time, common, text = match.groups()
    # Only a string without a backslash can be written in one way alone.
    if b"\\" in line and (b"\\" in common or dumps_text(loads(text)) != text):
        return None
    return int(seq), int(time), common, text


def _continues(last: _Delta, delta: _Delta) -> bool:
    return delta[0] == last[0] + 1 and delta[2] == last[2] and abs(delta[1] - last[1]) <= MAX_SAFE_INTEGER


def _stored(run: list[_Delta]) -> Iterator[bytes]:
    if len(run) < MIN_RUN:
        for delta in run:
            yield b'{"type":"assistant/chunk","seq":%d,"time":%d,"data":%b:%b}}}\n' % delta
        return
    seq0, time0, common, _ = run[0]
    parts = _COMMON.fullmatch(common)
    assert parts is not None
    place, kind, block, text_key = parts.groups()
    gaps = b",".join(b"%d" % (later[1] - earlier[1]) for earlier, later in pairwise(run))
    texts = b",".join([delta[3] for delta in run])
    yield b'{"type":"%b-chunks","seq0":%d,"time0":%d,"data":{%b,%b,"dt":[%b],"%b":[%b]}}\n' % (
        kind,
        seq0,
        time0,
        place,
        block,
        gaps,
        b"texts" if text_key == b"text" else b"args",
        texts,
    )


def _integer(data: JsonObject, field: str) -> int:
    value = data[field]
    _expect(is_safe_integer(value), field)
    number: int = value
    return number


def _text(data: JsonObject, field: str) -> str:
    value = data[field]
    _expect(isinstance(value, str), field)
    text: str = value
    return text


def _expect(condition: Any, what: str) -> None:
    if not condition:
        raise ValueError(f"packed row with wrong {what}")
