"""The offline demo model: deterministic, needs no key, and streams word by word.

What it does is decided anew at each request from the history alone, so it also works after a resume. The phrases it
knows are in ``phrases``; this module turns one decision into a stream of chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ModelError,
    ModelInfo,
    ModelRequest,
    ProviderInfo,
    RetryPolicy,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    image_references,
    text_of,
)
from polyhost.kernel.signals import AbortSignal
from polyhost.wire import json
from polyhost_models.images import refused
from polyhost_models.phrases import Action, Say, Use, count_words, decide, split_words

_CONTEXT_WINDOW = 128_000
_CHUNKS_PER_READ = 50


class DemoAdapter:
    """Adapter of the route ``demo`` with its only model ``demo``."""

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(route, "Offline demo")

    def retry_policy(self, route: str) -> RetryPolicy:
        return RetryPolicy()

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        return (await self.resolve_model(route, "demo", None),)

    async def resolve_model(self, route: str, model: str, signal: AbortSignal | None) -> ModelInfo:
        if model != "demo":
            raise ModelError(f"the offline provider has one model, demo/demo, not {model!r}", code="UNKNOWN_MODEL")
        description = "Answers a few fixed phrases; for trying things out"
        return ModelInfo(route, "demo", "Demo", description, context_window=_CONTEXT_WINDOW)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """The decided actions, word by word; the event loop gets a turn every few chunks, as with a real network."""
        signal = request.signal or AbortSignal()
        if any(list(image_references(message["content"])) for message in request.messages):
            raise refused("demo/demo")
        actions = decide(request)
        seed = request.messages[-1]["id"][:8] if request.messages else "0"  # unique in a session, also compacted
        tokens = 0
        chunks = (
            _chunks(position, action, call_id=f"demo-{seed}-{position}") for position, action in enumerate(actions)
        )
        for number, chunk in enumerate(chain.from_iterable(chunks)):
            if number % _CHUNKS_PER_READ == 0:
                await asyncio.sleep(0)
            if signal.aborted:
                raise ModelError("the request was cancelled", code="ABORTED")
            tokens += isinstance(chunk, (TextDelta, ToolCallDelta))
            yield chunk
        prompt = sum(count_words(text_of(message["content"])) for message in request.messages)
        yield UsageReport({"inputTokens": prompt, "outputTokens": tokens})
        calls = any(isinstance(action, Use) for action in actions)
        yield Finish({"kind": "tool-calls" if calls else "stop"})


def _chunks(position: int, action: Action, call_id: str) -> Iterator[Chunk]:
    if isinstance(action, Say):
        yield BlockStart(position, "text")
        parts = []
        for token in action.tokens():
            parts.append(token)
            yield TextDelta(position, token)
        yield BlockEnd(position, {"type": "text", "text": "".join(parts)})
        return
    arguments = json.dumps(action.arguments).decode()
    yield BlockStart(position, "tool-call")
    name: str | None = action.tool
    for token in split_words(arguments):
        yield ToolCallDelta(position, call_id, token, name)
        name = None
    yield BlockEnd(position, {"type": "tool-call", "id": call_id, "name": action.tool, "arguments": arguments})
