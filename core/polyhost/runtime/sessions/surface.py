"""The surface: which events are model-visible, in which order, and the messages derived from them (agent-core 2.8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.sessions import SessionError, SurfaceOp
from polyhost.runtime.sessions.events import SURFACE_TYPES


class Surface:
    """An ordered list of event numbers, advanced by one event at a time.

    :param envelope: the event of a number that is on this surface; needed to compare a replaced tool result.
    """

    __slots__ = ("_envelope", "_nodes")

    def __init__(self, envelope: Callable[[int], JsonObject]) -> None:
        self._envelope = envelope
        self._nodes: list[int] = []

    @property
    def nodes(self) -> Sequence[int]:
        """Sequence numbers in model order, as a snapshot."""
        return tuple(self._nodes)

    def check(
        self, type: str, data: Any, surface_op: SurfaceOp | None, source_seqs: Sequence[int] | None
    ) -> slice | None:
        """The run of nodes that the event would replace; None when it would not replace any.

        :raises SessionError: SURFACE_INVALID; nothing has changed.
        """
        if surface_op is None or isinstance(surface_op, str):
            return None
        run = self._run(surface_op["start"], surface_op["end"])
        shadowed = self._nodes[run]
        uncited = set(shadowed).difference(source_seqs or ())
        if uncited:
            raise _invalid(f"the replacement does not cite event {min(uncited)} that it shadows")
        if type == "tool/result":
            self._check_result(shadowed, data)
        return run

    def apply(self, seq: int, surface_op: SurfaceOp | None, run: slice | None) -> None:
        """Take in the event ``seq`` with the answer of :meth:`check`."""
        if run is not None:
            self._nodes[run] = [seq]
        elif surface_op is not None:
            self._nodes.append(seq)

    def _run(self, start: int, end: int) -> slice:
        try:
            first, last = self._nodes.index(start), self._nodes.index(end)
        except ValueError:
            missing = start if start not in self._nodes else end
            raise _invalid(f"event {missing} is not on the surface") from None
        if first > last:
            raise _invalid(f"the replaced run starts at event {start}, which stands after its end {end}")
        return slice(first, last + 1)

    def _check_result(self, shadowed: Sequence[int], data: Any) -> None:
        if len(shadowed) != 1:
            raise _invalid("a tool result may replace exactly one event")
        before = self._envelope(shadowed[0])
        if before["type"] != "tool/result":
            raise _invalid(f"a tool result may not replace a {before['type']}")
        if _without_content(before["data"]) != _without_content(data):
            raise _invalid("a replacing tool result may change the content of the result only")


def fold(events: Iterable[JsonObject]) -> Sequence[int]:
    """The surface of a run of envelopes, which may be the tail of a log.

    :raises SessionError: SURFACE_INVALID, also when a replacement reaches before the run.
    """
    seen: dict[int, JsonObject] = {}
    surface = Surface(seen.__getitem__)
    for event in events:
        operation = event.get("surfaceOp")
        if operation is None:
            continue
        run = surface.check(event["type"], event["data"], operation, event.get("sourceEventSeqs"))
        seen[event["seq"]] = event
        surface.apply(event["seq"], operation, run)
    return surface.nodes


def message_of(envelope: JsonObject) -> JsonObject | None:
    """The message that one event contributes to the model's history, or None."""
    type_ = envelope["type"]
    if type_ not in SURFACE_TYPES:
        return None
    message: JsonObject = envelope["data"] if type_ == "user/message" else envelope["data"]["message"]
    if type_ == "assistant/message" and not message["content"]:
        return None  # stays in the log for its usage and citations
    return message


def _without_content(data: JsonObject) -> JsonObject:
    message = data["message"]
    (block,) = message["content"]
    return {**data, "message": {**message, "content": [{**block, "content": None}]}}


def _invalid(message: str) -> SessionError:
    return SessionError(message, code="SURFACE_INVALID")
