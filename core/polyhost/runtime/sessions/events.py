"""One session event: its line of JSON, the view that everybody reads it through, and the rules of its envelope.

An event is encoded once and lives as an LF-ended ``bytes`` line (agent-core 2.1). Which types exist is in
``catalogue``, what their payloads must look like in ``shapes``, how events follow each other in ``surface`` and
``invariants``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polyhost.interfaces.sessions import SessionError, SurfaceOp
from polyhost.wire.dialects import MAX_DEPTH
from polyhost.wire.errors import WireError
from polyhost.wire.json import dumps, dumps_text, loads

if TYPE_CHECKING:
    from polyhost.interfaces.json_types import JsonObject
    from polyhost.runtime.sessions.catalogue import EventCatalogue

MAX_SAFE_INTEGER = 2**53 - 1

SURFACE_TYPES = frozenset({"user/message", "assistant/message", "tool/result"})
"""Types whose events are model-visible and carry ``surfaceOp``."""

_KEYS = frozenset({"type", "seq", "time", "data", "sourceEventSeqs", "surfaceOp", "ignorable"})
_REPLACE_KEYS = {"op", "start", "end"}
LINE_DEPTH = MAX_DEPTH + 1  # the envelope is one level around the payload
_HEAD = re.compile(rb'\{"type":"([a-z/-]+)","seq":(\d+),"time":(-?\d+),"data":')


class EventView:
    """A light view of one committed line; see :class:`polyhost.interfaces.sessions.SessionEvent`."""

    __slots__ = ("line", "seq", "time", "type")

    def __init__(self, line: bytes, type: str, seq: int, time: int) -> None:
        self.line = line
        self.type = type
        self.seq = seq
        self.time = time

    @property
    def data(self) -> JsonObject:
        data: JsonObject = self.envelope["data"]
        return data

    @property
    def envelope(self) -> JsonObject:
        return decode_line(self.line)

    def __repr__(self) -> str:
        return f"<event {self.seq} {self.type}>"


def view(line: bytes) -> EventView:
    """The view of a line that was committed before."""
    head = _HEAD.match(line)
    if head is not None:
        return EventView(line, head[1].decode(), int(head[2]), int(head[3]))
    envelope = decode_line(line)
    return EventView(line, envelope["type"], envelope["seq"], envelope["time"])


def decode_line(line: bytes) -> JsonObject:
    """The envelope of a committed line, fresh and detached."""
    envelope: JsonObject = loads(line, max_depth=LINE_DEPTH)
    return envelope


def encode_line(
    type: str,
    seq: int,
    time: int,
    data: bytes,
    *,
    source_seqs: Sequence[int] | None = None,
    surface_op: SurfaceOp | None = None,
    ignorable: bool = False,
) -> bytes:
    """The line of one event whose payload is encoded already."""
    tail = b""
    if source_seqs is not None:
        tail = b',"sourceEventSeqs":%b' % dumps(list(source_seqs))
    if surface_op is not None:
        tail += b',"surfaceOp":%b' % (b'"append"' if surface_op == "append" else dumps(surface_op))
    if ignorable:
        tail += b',"ignorable":true'
    return b'{"type":%b,"seq":%d,"time":%d,"data":%b%b}\n' % (dumps_text(type), seq, time, data, tail)


def is_safe_integer(value: Any) -> bool:
    """True for an integer (not a bool) that every JSON reader keeps exactly."""
    return type(value) is int and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER


def read_foreign(line: bytes, seq: int, catalogue: EventCatalogue) -> JsonObject:
    """Decode and check one event from elsewhere (a seed, a stored log) that must have the sequence number ``seq``.

    :raises SessionError: SESSION_CORRUPT with the defect, or SESSION_UNSUPPORTED for an unknown required type.
    """
    try:
        envelope = loads(line, max_depth=LINE_DEPTH)
    except WireError as error:
        raise SessionError(f"event {seq} is not JSON: {error.message}", code="SESSION_CORRUPT") from error
    problem = envelope_problem(envelope, seq)
    if problem is not None:
        raise SessionError(f"event {seq}: {problem}", code="SESSION_CORRUPT")
    checked: JsonObject = envelope
    catalogue.require(checked["type"], ignorable="ignorable" in checked, seq=seq)
    problem = catalogue.problem(
        checked["type"], checked["data"], checked.get("surfaceOp"), checked.get("sourceEventSeqs"), seq
    )
    if problem is not None:
        raise SessionError(f"event {seq} ({checked['type']}): {problem}", code="SESSION_CORRUPT")
    return checked


def envelope_problem(envelope: Any, seq: int) -> str | None:
    """What is wrong with the fields around the payload, in words; None when they are sound."""
    if not isinstance(envelope, dict):
        return "not an object"
    unknown = envelope.keys() - _KEYS
    if unknown:
        return f"unknown envelope field {min(unknown)!r}"
    if not isinstance(envelope.get("type"), str):
        return "type must be a string"
    if envelope.get("seq") != seq or type(envelope["seq"]) is not int:
        return f"seq is {envelope.get('seq')!r} where {seq} was due"
    if not is_safe_integer(envelope.get("time")):
        return "time must be a safe integer"
    if "data" not in envelope:
        return "data is missing"
    if envelope.get("ignorable", True) is not True:
        return "ignorable must be true or absent"
    if envelope.keys() & {"surfaceOp", "sourceEventSeqs"}:
        if "surfaceOp" not in envelope or envelope["surfaceOp"] is None:
            return "sourceEventSeqs without surfaceOp"
        if envelope.get("sourceEventSeqs", ()) is None:
            return "sourceEventSeqs must be a list"
    return None


def surface_problem(type: str, surface_op: Any, source_seqs: Any, seq: int) -> str | None:
    """What is wrong with an event's surface fields, apart from which nodes are on the surface."""
    if type not in SURFACE_TYPES:
        if surface_op is not None or source_seqs is not None:
            return "only user/message, assistant/message and tool/result carry surfaceOp and sourceEventSeqs"
        return None
    if surface_op is None:
        return "surfaceOp is mandatory on this type"
    if surface_op != "append" and not _is_replace(surface_op):
        return 'surfaceOp must be "append" or {op: "replace", start, end}'
    if source_seqs is None:
        return "a replace must cite every event that it shadows" if surface_op != "append" else None
    return _citation_problem(type, source_seqs, seq)


def _is_replace(surface_op: Any) -> bool:
    return (
        isinstance(surface_op, dict)
        and surface_op.keys() == _REPLACE_KEYS
        and surface_op["op"] == "replace"
        and is_safe_integer(surface_op["start"])
        and is_safe_integer(surface_op["end"])
    )


def _citation_problem(type: str, source_seqs: Any, seq: int) -> str | None:
    if not isinstance(source_seqs, list | tuple):
        return "sourceEventSeqs must be a list"
    if not source_seqs and type != "assistant/message":
        return "an empty sourceEventSeqs is allowed on assistant/message only"
    if not all(is_safe_integer(cited) and 0 <= cited < seq for cited in source_seqs):
        return "sourceEventSeqs must name earlier events"
    if len(set(source_seqs)) != len(source_seqs):
        return "sourceEventSeqs must not repeat"
    return None
