"""From chat-completion stream objects to chunks (agent-core 2.18). Plain state, no I/O.

The endpoint is foreign: every member is checked for its type where it is read, so that whatever it sends ends as
chunks or as one :class:`ModelError`.
"""

from __future__ import annotations

from typing import Any, TypeVar

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
from polyhost_models.failures import stream_error

T = TypeVar("T")

_FINISH_KINDS = {"stop": "stop", "tool_calls": "tool-calls", "length": "max-tokens"}


class _Text:
    """The text or reasoning block of a response as it grows."""

    __slots__ = ("kind", "parts", "position")

    def __init__(self, position: int, kind: str) -> None:
        self.position = position
        self.kind = kind
        self.parts: list[str] = []

    def content(self) -> JsonObject:
        return {"type": self.kind, "text": "".join(self.parts)}


class _ToolCall:
    """One tool call as it grows; an endpoint that sends no id gets one made from the position."""

    __slots__ = ("arguments", "id", "kind", "name", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.kind = "tool-call"
        self.id = f"call-{position}"
        self.name = ""
        self.arguments: list[str] = []

    def content(self) -> JsonObject:
        return {"type": self.kind, "id": self.id, "name": self.name, "arguments": "".join(self.arguments)}


B = TypeVar("B", _Text, _ToolCall)


class Translator:
    """One response. ``feed`` each event's data; after ``[DONE]`` it has returned the closing chunks and is ``done``."""

    def __init__(self) -> None:
        self.done = False
        self._blocks: list[_Text | _ToolCall] = []
        self._text: _Text | None = None
        self._reasoning: _Text | None = None
        self._calls: dict[int, _ToolCall] = {}
        self._usage: JsonObject | None = None
        self._finish: str | None = None

    def feed(self, data: bytes) -> list[Chunk]:
        """Chunks of one event.

        Raises :class:`ModelError`: MALFORMED_RESPONSE, EMPTY_RESPONSE, the code of an error that the endpoint reports
        in the stream, or an unusual finish reason in upper case.
        """
        if data == b"[DONE]":
            self.done = True
            return self._close()
        try:
            event = json.loads(data)
        except WireError as error:
            raise ModelError(f"the endpoint sent a broken event: {error.message}", code="MALFORMED_RESPONSE") from error
        if type(event) is not dict:
            raise _malformed("an event")
        if reported := event.get("error"):
            raise stream_error(reported)
        if usage := _member(event, "usage", dict):
            self._usage = _usage(usage)
        chunks: list[Chunk] = []
        for choice in _member(event, "choices", list) or ():
            if type(choice) is not dict:
                raise _malformed("choices")
            if delta := _member(choice, "delta", dict):
                self._delta(delta, chunks)
            if reason := _member(choice, "finish_reason", str):
                self._finish = reason
        return chunks

    def _delta(self, delta: JsonObject, chunks: list[Chunk]) -> None:
        if reasoning := _member(delta, "reasoning_content", str) or _member(delta, "reasoning", str):
            block = self._reasoning
            if block is None:
                block = self._reasoning = self._open(_Text(len(self._blocks), "reasoning"), chunks)
            block.parts.append(reasoning)
            chunks.append(ReasoningDelta(block.position, reasoning))
        if text := _member(delta, "content", str):
            block = self._text
            if block is None:
                block = self._text = self._open(_Text(len(self._blocks), "text"), chunks)
            block.parts.append(text)
            chunks.append(TextDelta(block.position, text))
        for part in _member(delta, "tool_calls", list) or ():
            if type(part) is not dict:
                raise _malformed("tool_calls")
            self._tool_call(part, chunks)

    def _tool_call(self, part: JsonObject, chunks: list[Chunk]) -> None:
        index = _member(part, "index", int) or 0
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = self._open(_ToolCall(len(self._blocks)), chunks)
        function = _member(part, "function", dict) or {}
        name = _member(function, "name", str) or None
        arguments = _member(function, "arguments", str) or ""
        call.id = _member(part, "id", str) or call.id
        call.name = name or call.name
        call.arguments.append(arguments)
        chunks.append(ToolCallDelta(call.position, call.id, arguments, name))

    def _open(self, block: B, chunks: list[Chunk]) -> B:
        self._blocks.append(block)
        chunks.append(BlockStart(block.position, block.kind))
        return block

    def _close(self) -> list[Chunk]:
        """The chunks that were held back until now: only here it is certain that the response is whole."""
        finish = self._finish or "stop"
        if finish not in _FINISH_KINDS:
            raise ModelError(f"the model stopped with finish reason {finish}", code=finish.upper())
        if finish == "stop" and not self._blocks:
            raise ModelError("the model's response was empty", code="EMPTY_RESPONSE")
        chunks: list[Chunk] = [BlockEnd(block.position, block.content()) for block in self._blocks]
        if self._usage is not None:
            chunks.append(UsageReport(self._usage))
        chunks.append(Finish({"kind": _FINISH_KINDS[finish]}))
        return chunks


def _usage(usage: JsonObject) -> JsonObject:
    """Disjoint counts; the endpoint's prompt tokens include the cached ones."""
    cached = _count(_member(usage, "prompt_tokens_details", dict) or {}, "cached_tokens")
    if cached is None:
        cached = _count(usage, "prompt_cache_hit_tokens")
    result: JsonObject = {
        "inputTokens": max(0, (_count(usage, "prompt_tokens") or 0) - (cached or 0)),
        "outputTokens": _count(usage, "completion_tokens") or 0,
    }
    if cached is not None:
        result["cacheReadTokens"] = cached
    reasoning = _count(_member(usage, "completion_tokens_details", dict) or {}, "reasoning_tokens")
    if reasoning is not None:
        result["reasoningTokens"] = reasoning
    return result


def _count(holder: JsonObject, name: str) -> int | None:
    value = _member(holder, name, int)
    if value is not None and value < 0:
        raise _malformed(name)
    return value


def _member(holder: dict[str, Any], name: str, kind: type[T]) -> T | None:
    """The member, or None when it is absent or null. Raises :class:`ModelError` for any other JSON type."""
    value = holder.get(name)
    if value is None or type(value) is kind:
        return value
    raise _malformed(name)


def _malformed(where: str) -> ModelError:
    return ModelError(f"the endpoint sent {where} of an unexpected type", code="MALFORMED_RESPONSE")
