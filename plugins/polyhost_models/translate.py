"""From chat-completion stream objects to chunks (agent-core 2.18). Plain state, no I/O."""

from __future__ import annotations

from typing import Any

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    JsonObject,
    ModelError,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from polyhost.wire import json
from polyhost.wire.errors import WireError

_FINISH_KINDS = {"stop": "stop", "tool_calls": "tool-calls", "length": "max-tokens"}


class _ToolCall:
    __slots__ = ("arguments", "id", "name", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = f"call-{position}"
        self.name = ""
        self.arguments: list[str] = []


class Translator:
    """One response. ``feed`` each event's data; after ``[DONE]`` it has returned the closing chunks and is ``done``."""

    def __init__(self) -> None:
        self.done = False
        self._positions = 0
        self._text: tuple[int, list[str]] | None = None
        self._reasoning: tuple[int, list[str]] | None = None
        self._calls: dict[int, _ToolCall] = {}
        self._usage: JsonObject | None = None
        self._finish: str | None = None

    def feed(self, data: bytes) -> list[Chunk]:
        """Chunks of one event. Raises :class:`ModelError`: MALFORMED_RESPONSE, EMPTY_RESPONSE or the finish reason."""
        if data == b"[DONE]":
            self.done = True
            return self._close()
        try:
            event = json.loads(data)
        except WireError as error:
            raise ModelError(f"the endpoint sent a broken event: {error.message}", code="MALFORMED_RESPONSE") from error
        if not isinstance(event, dict):
            raise ModelError("the endpoint sent an event that is not a JSON object", code="MALFORMED_RESPONSE")
        if isinstance(event.get("error"), dict):
            raise _stream_error(event["error"])
        if isinstance(event.get("usage"), dict):
            self._usage = _usage(event["usage"])
        chunks: list[Chunk] = []
        for choice in event.get("choices") or ():
            self._choice(choice, chunks)
        return chunks

    def _choice(self, choice: Any, chunks: list[Chunk]) -> None:
        delta = choice.get("delta") or {}
        if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
            if self._reasoning is None:
                self._reasoning = (self._open("reasoning", chunks), [])
            self._reasoning[1].append(reasoning)
            chunks.append(ReasoningDelta(self._reasoning[0], reasoning))
        if text := delta.get("content"):
            if self._text is None:
                self._text = (self._open("text", chunks), [])
            self._text[1].append(text)
            chunks.append(TextDelta(self._text[0], text))
        for part in delta.get("tool_calls") or ():
            self._tool_call(part, chunks)
        if reason := choice.get("finish_reason"):
            self._finish = reason

    def _tool_call(self, part: Any, chunks: list[Chunk]) -> None:
        key = part.get("index", 0)
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _ToolCall(self._open("tool-call", chunks))
        function = part.get("function") or {}
        if part.get("id"):
            call.id = part["id"]
        name = function.get("name") or None
        if name:
            call.name = name
        arguments = function.get("arguments") or ""
        call.arguments.append(arguments)
        chunks.append(ToolCallDelta(call.position, call.id, arguments, name))

    def _open(self, block_type: str, chunks: list[Chunk]) -> int:
        position = self._positions
        self._positions += 1
        chunks.append(BlockStart(position, block_type))
        return position

    def _close(self) -> list[Chunk]:
        if self._finish not in _FINISH_KINDS and self._finish is not None:
            raise ModelError(f"the model stopped with finish reason {self._finish}", code=str(self._finish).upper())
        if self._positions == 0 and self._finish in (None, "stop"):
            raise ModelError("the model's response was empty", code="EMPTY_RESPONSE")
        blocks: list[tuple[int, JsonObject]] = []
        if self._reasoning is not None:
            blocks.append((self._reasoning[0], {"type": "reasoning", "text": "".join(self._reasoning[1])}))
        if self._text is not None:
            blocks.append((self._text[0], {"type": "text", "text": "".join(self._text[1])}))
        for call in self._calls.values():
            block = {"type": "tool-call", "id": call.id, "name": call.name, "arguments": "".join(call.arguments)}
            blocks.append((call.position, block))
        chunks: list[Chunk] = [
            BlockEnd(position, block) for position, block in sorted(blocks, key=lambda item: item[0])
        ]
        if self._usage is not None:
            chunks.append(UsageReport(self._usage))
        chunks.append(Finish({"kind": _FINISH_KINDS[self._finish or "stop"]}))
        return chunks


def _usage(usage: JsonObject) -> JsonObject:
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens")
    if cached is None:
        cached = usage.get("prompt_cache_hit_tokens")
    result: JsonObject = {
        "inputTokens": max(0, (usage.get("prompt_tokens") or 0) - (cached or 0)),
        "outputTokens": usage.get("completion_tokens") or 0,
    }
    if cached is not None:
        result["cacheReadTokens"] = cached
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    if reasoning is not None:
        result["reasoningTokens"] = reasoning
    return result


def _stream_error(error: JsonObject) -> ModelError:
    from polyhost_models.failures import classify

    return classify(500, {}, {"error": error}, "the endpoint reported an error in the stream")
