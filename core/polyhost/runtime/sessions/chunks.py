"""Writing streamed chunks to a log, through byte templates: the hot path of the host (agent-core 2.4).

Nothing is built per delta but its line and one view of it.
"""

from __future__ import annotations

from typing import Protocol

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.models import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from polyhost.runtime.sessions.events import EventView
from polyhost.wire.json import dumps, dumps_text

_CHUNK = "assistant/chunk"


class ChunkLog(Protocol):
    """What the writer needs of its session."""

    def begin_chunk(self, step: tuple[int, int]) -> tuple[int, int]:
        """The seq and time of the next event; raises unless ``step`` itself is the open one and an append may come."""
        ...

    def commit_chunk(self, event: EventView) -> None: ...


class ChunkWriter:
    """Appends the chunks of one step to its session.

    :param step: the session's own pair (turn, step) of the open step.
    """

    __slots__ = ("_call", "_log", "_named_call", "_other", "_reasoning", "_step", "_text")

    def __init__(self, log: ChunkLog, step: tuple[int, int]) -> None:
        self._log = log
        self._step = step
        head = b'{"type":"assistant/chunk","seq":%%d,"time":%%d,"data":{"turn":%d,"step":%d,"chunk":' % step
        self._text = head + b'{"type":"text-delta","index":%d,"text":%b}}}\n'
        self._reasoning = head + b'{"type":"reasoning-delta","index":%d,"text":%b}}}\n'
        self._call = head + b'{"type":"tool-call-delta","index":%d,"id":%b,"argumentsDelta":%b}}}\n'
        self._named_call = head + b'{"type":"tool-call-delta","index":%d,"id":%b,"name":%b,"argumentsDelta":%b}}}\n'
        self._other = head + b"%b}}\n"

    def write(self, chunk: Chunk) -> int:
        """Append one chunk and return its seq.

        :raises SessionError: the step is no longer the open one, a validator vetoed, or the call came from an
            observer; the log is as it was.
        """
        seq, time = self._log.begin_chunk(self._step)
        if isinstance(chunk, TextDelta):
            line = self._text % (seq, time, chunk.position, dumps_text(chunk.text))
        elif isinstance(chunk, ReasoningDelta):
            line = self._reasoning % (seq, time, chunk.position, dumps_text(chunk.text))
        elif isinstance(chunk, ToolCallDelta):
            line = self._encode_call(seq, time, chunk)
        else:
            line = self._other % (seq, time, dumps(wire_form(chunk)))
        self._log.commit_chunk(EventView(line, _CHUNK, seq, time))
        return seq

    def _encode_call(self, seq: int, time: int, chunk: ToolCallDelta) -> bytes:
        call_id, arguments = dumps_text(chunk.id), dumps_text(chunk.arguments)
        if chunk.name is None:
            return self._call % (seq, time, chunk.position, call_id, arguments)
        return self._named_call % (seq, time, chunk.position, call_id, dumps_text(chunk.name), arguments)


def wire_form(chunk: Chunk) -> JsonObject:
    """The JSON object of one chunk, keys in wire order."""
    match chunk:
        case TextDelta(position, text):
            return {"type": "text-delta", "index": position, "text": text}
        case ReasoningDelta(position, text):
            return {"type": "reasoning-delta", "index": position, "text": text}
        case ToolCallDelta(position, call_id, arguments, name):
            named = {} if name is None else {"name": name}
            return {"type": "tool-call-delta", "index": position, "id": call_id, **named, "argumentsDelta": arguments}
        case BlockStart(position, block_type):
            return {"type": "block-start", "index": position, "blockType": block_type}
        case BlockEnd(position, block):
            return {"type": "block-end", "index": position, "block": block}
        case UsageReport(usage):
            return {"type": "usage", "usage": usage}
        case Finish(reason, replay_state):
            state = {} if replay_state is None else {"replayState": replay_state}
            return {"type": "finish", "reason": reason, **state}
