"""The offline demo model: deterministic, needs no key, and streams word by word.

What it does is decided anew at each request from the history alone, so it also works after a resume. The phrases it
knows are in ``phrases``; this module turns one decision into a stream of chunks.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence

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
    text_of,
)
from polyhost.kernel.signals import AbortSignal
from polyhost.wire import json
from polyhost_models.phrases import Action, Say, Use, decide

_TOKEN = re.compile(r"\s*\S+|\s+$")
_CONTEXT_WINDOW = 128_000


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
        actions = decide(request)
        deltas = 0
        for position, action in enumerate(actions):
            for chunk in _chunks(position, action, len(request.messages)):
                if request.signal is not None and request.signal.aborted:
                    raise ModelError("the request was cancelled", code="ABORTED")
                deltas += type(chunk) is TextDelta or type(chunk) is ToolCallDelta
                yield chunk
        prompt = sum(len(text_of(message["content"]).split()) for message in request.messages)
        yield UsageReport({"inputTokens": prompt, "outputTokens": deltas})
        calls = any(isinstance(action, Use) for action in actions)
        yield Finish({"kind": "tool-calls" if calls else "stop"})


def _chunks(position: int, action: Action, step: int) -> Iterator[Chunk]:
    if isinstance(action, Say):
        yield BlockStart(position, "text")
        parts = []
        for token in action.tokens():
            parts.append(token)
            yield TextDelta(position, token)
        yield BlockEnd(position, {"type": "text", "text": "".join(parts)})
        return
    call_id = f"demo-{step}-{position}"
    arguments = json.dumps(action.arguments).decode()
    yield BlockStart(position, "tool-call")
    first = True
    for token in _TOKEN.findall(arguments):
        yield ToolCallDelta(position, call_id, token, action.tool if first else None)
        first = False
    yield BlockEnd(position, {"type": "tool-call", "id": call_id, "name": action.tool, "arguments": arguments})
