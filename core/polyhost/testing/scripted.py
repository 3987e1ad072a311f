"""A model adapter that plays scripts: for tests of plugins, and of everything that drives an agent.

One script per request, in order::

    adapter = ScriptedAdapter([call_script("read", {"path": "a.txt"}), text_script("Done.")])
    ctx.mount(MODEL_ADAPTER, "scripted", adapter)

A script is a list of chunks, a function from the request to chunks, :data:`HANG` or :data:`HANG_SLOW`. A request
beyond the last script fails, as does a function that raises: the stream then ends in a failure chunk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Literal, TypeAlias

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    JsonObject,
    ModelError,
    ModelInfo,
    ModelRequest,
    ProviderInfo,
    RetryPolicy,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from polyhost.kernel.signals import AbortSignal

HANG: Final = "hang"
"""Sends the text ``partial`` and then nothing, until the request is aborted."""

HANG_SLOW: Final = "hang-slow"
"""Like :data:`HANG`, but notices the abort 50 ms late: stands for a slow teardown."""

Script: TypeAlias = Sequence[Chunk] | Callable[[ModelRequest], Iterable[Chunk]] | Literal["hang", "hang-slow"]


class ScriptedAdapter:
    """Plays ``scripts`` and records what it is asked.

    :param retry: the retry policy of its route; tests mostly want the default or one without delays.
    :param model: facts about every model, with ``provider`` and ``id`` filled in for the one asked for.
    :ivar requests: every request so far, in order.
    """

    def __init__(
        self, scripts: Iterable[Script] = (), *, retry: RetryPolicy | None = None, model: ModelInfo | None = None
    ) -> None:
        self._scripts = list(scripts)
        self._retry = retry or RetryPolicy(max_retries=0)
        self._model = model or ModelInfo("scripted", "scripted", "Scripted")
        self.requests: list[ModelRequest] = []

    def add(self, *scripts: Script) -> None:
        """Append scripts for later requests."""
        self._scripts.extend(scripts)

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, "Scripted")

    def retry_policy(self, route: str) -> RetryPolicy:
        return self._retry

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        return (self._model._replace(provider=route),)

    async def resolve_model(self, route: str, model: str, signal: AbortSignal | None) -> ModelInfo:
        return self._model._replace(provider=route, id=model)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        number = len(self.requests)
        self.requests.append(request)
        if number >= len(self._scripts):
            raise ModelError(f"request {number + 1} came, but only {len(self._scripts)} were scripted")
        script = self._scripts[number]
        if script in (HANG, HANG_SLOW):
            yield BlockStart(0, "text")
            yield TextDelta(0, "partial")
            await _until_aborted(request)
            if script == HANG_SLOW:
                await asyncio.sleep(0.05)
            raise ModelError("the request was aborted", code="ABORTED")
        assert not isinstance(script, str)
        for chunk in script(request) if callable(script) else script:
            yield chunk


def text_script(text: str, *, finish: str = "stop") -> list[Chunk]:
    """An answer: one delta for each character, usage, and the finish reason."""
    deltas = [TextDelta(0, character) for character in text]
    usage = UsageReport({"inputTokens": 10, "outputTokens": len(text)})
    return [
        BlockStart(0, "text"),
        *deltas,
        BlockEnd(0, {"type": "text", "text": text}),
        usage,
        Finish({"kind": finish}),
    ]


def call_script(name: str, arguments: JsonObject | str, *, call_id: str = "call-1") -> list[Chunk]:
    """One tool call; ``arguments`` as an object, or as the raw text that the model sends."""
    return calls_script((call_id, name, arguments))


def calls_script(*calls: tuple[str, str, JsonObject | str]) -> list[Chunk]:
    """Several tool calls ``(id, name, arguments)`` in one answer."""
    chunks: list[Chunk] = []
    for position, (call_id, name, arguments) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, separators=(",", ":"))
        block = {"type": "tool-call", "id": call_id, "name": name, "arguments": text}
        chunks += [
            BlockStart(position, "tool-call"),
            ToolCallDelta(position, call_id, text, name),
            BlockEnd(position, block),
        ]
    return [*chunks, UsageReport({"inputTokens": 10, "outputTokens": len(calls)}), Finish({"kind": "tool-calls"})]


def failure_script(
    code: str, message: str = "scripted failure", *, partial: str = "", status: int | None = None
) -> Script:
    """Sends ``partial`` and fails with ``code``."""

    def fail(request: ModelRequest) -> Iterable[Chunk]:
        if partial:
            yield TextDelta(0, partial)
        raise ModelError(message, code=code, status=status)

    return fail


async def _until_aborted(request: ModelRequest) -> None:
    if request.signal is None:
        raise ModelError("a hanging script needs a request with a signal")
    await request.signal.wait()
