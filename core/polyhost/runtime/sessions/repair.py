"""Closing what a dead process left open: the events that end an interrupted turn (agent-core 2.21, load rule 5)."""

from __future__ import annotations

from collections.abc import Sequence

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import text_block, tool_result_message
from polyhost.runtime.sessions.events import decode_line, encode_line, view
from polyhost.runtime.sessions.invariants import NOT_STARTED
from polyhost.wire.json import dumps

_NOT_STARTED = (
    {"name": "ToolNotStartedError", "code": NOT_STARTED},
    "The session was interrupted before this tool call started. It had no effect and may be repeated.",
)
_OUTCOME_UNKNOWN = (
    {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"},
    "The session was interrupted while this tool call ran. It may have taken effect: check before repeating it.",
)


def closers(lines: Sequence[bytes]) -> list[bytes]:
    """The event lines to append to a sound log so that no turn is open; none when it is balanced. Deterministic."""
    tail = _open_turn(lines)
    if not tail:
        return []
    last = view(lines[-1])
    closing = _Closing(last.seq + 1, last.time)
    turn = tail[0]["data"]["turn"]
    step = None
    for event in tail:
        if event["type"] == "step/start":
            step = event["data"]["step"]
        elif event["type"] == "step/end":
            step = None
    if step is not None:
        for call_id, call_seq in _unanswered(tail, step):
            closing.result(turn, step, call_id, call_seq)
        closing.add("step/end", {"turn": turn, "step": step})
    closing.add("turn/end", {"turn": turn, "reason": {"kind": "interrupted"}})
    return closing.lines


class _Closing:
    def __init__(self, seq: int, time: int) -> None:
        self.lines: list[bytes] = []
        self._seq = seq
        self._time = time

    def add(
        self, type: str, data: JsonObject, surface_op: str | None = None, source_seqs: Sequence[int] | None = None
    ) -> None:
        line = encode_line(type, self._seq, self._time, dumps(data), surface_op=surface_op, source_seqs=source_seqs)
        self.lines.append(line)
        self._seq += 1

    def result(self, turn: int, step: int, call_id: str, call_seq: int | None) -> None:
        error, text = _NOT_STARTED if call_seq is None else _OUTCOME_UNKNOWN
        message = tool_result_message(
            call_id,
            [text_block(text)],
            is_error=True,
            message_id=f"interrupted-tool-result-{call_id}-{self._seq}",
        )
        data = {"turn": turn, "step": step, "message": message, "error": error}
        self.add("tool/result", data, "append", None if call_seq is None else [call_seq])


def _open_turn(lines: Sequence[bytes]) -> list[JsonObject]:
    """The events of the open turn but its chunks, oldest first; empty when the log ends outside a turn."""
    events: list[JsonObject] = []
    for line in reversed(lines):
        type_ = view(line).type
        if type_ == "turn/end":
            return []
        if type_ != "assistant/chunk":
            events.append(decode_line(line))
        if type_ == "turn/start":
            return events[::-1]
    return []


def _unanswered(tail: Sequence[JsonObject], step: int) -> list[tuple[str, int | None]]:
    """Tool requests of ``step`` without a result, in transcript order, each with the seq of its call if recorded."""
    requested: dict[str, int | None] = {}
    for event in tail:
        data = event["data"]
        if not isinstance(data, dict) or data.get("step") != step:
            continue
        if event["type"] == "assistant/message":
            for block in data["message"]["content"]:
                if block["type"] == "tool-call":
                    requested.setdefault(block["id"], None)
        elif event["type"] == "tool/call":
            requested[data["callId"]] = event["seq"]
        elif event["type"] == "tool/result":
            requested.pop(data["message"]["source"]["callId"], None)
    return list(requested.items())
