from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from polyhost.interfaces import BlockEnd, Chunk, Finish, ModelError, ModelRequest, TextDelta, ToolCallDelta, UsageReport
from polyhost.kernel.signals import AbortController
from polyhost.runtime.models.assembler import assemble
from polyhost.testing.scripted import (
    HANG,
    HANG_SLOW,
    ScriptedAdapter,
    call_script,
    calls_script,
    failure_script,
    text_script,
)


def request(controller: AbortController | None = None) -> ModelRequest:
    signal = controller.signal if controller else None
    return ModelRequest(provider="scripted", model="m", messages=(), signal=signal)


async def play(adapter: ScriptedAdapter, asked: ModelRequest | None = None) -> list[Chunk]:
    return [chunk async for chunk in adapter.stream(asked or request())]


async def test_one_script_per_request_and_an_error_beyond_the_last() -> None:
    adapter = ScriptedAdapter([text_script("a"), lambda asked: text_script(asked.model)])
    adapter.add(call_script("t", {"x": 1}))
    assert assemble(await play(adapter)).content() == [{"type": "text", "text": "a"}]
    assert assemble(await play(adapter)).content() == [{"type": "text", "text": "m"}]
    (call,) = assemble(await play(adapter)).content()
    assert call == {"type": "tool-call", "id": "call-1", "name": "t", "arguments": '{"x":1}'}
    with pytest.raises(ModelError, match="request 4 came, but only 3"):
        await play(adapter)
    assert len(adapter.requests) == 4


def test_helpers_send_what_real_models_send() -> None:
    chunks = text_script("hey")
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["h", "e", "y"]
    assert chunks[-2:] == [UsageReport({"inputTokens": 10, "outputTokens": 3}), Finish({"kind": "stop"})]
    calls = calls_script(("a", "t", {}), ("b", "u", "{raw"))
    assert [chunk.id for chunk in calls if isinstance(chunk, ToolCallDelta)] == ["a", "b"]
    assert [chunk.block["arguments"] for chunk in calls if isinstance(chunk, BlockEnd)] == ["{}", "{raw"]
    assert calls[-1] == Finish({"kind": "tool-calls"})


async def test_a_failing_script_sends_its_partial_text_first() -> None:
    adapter = ScriptedAdapter([failure_script("AUTH", "no key", partial="half", status=401)])
    got: list[Any] = []
    with pytest.raises(ModelError) as caught:
        async for chunk in adapter.stream(request()):
            got.append(chunk)
    assert got == [TextDelta(0, "half")]
    assert (caught.value.code, caught.value.status) == ("AUTH", 401)


@pytest.mark.parametrize(("script", "at_least"), [(HANG, 0.0), (HANG_SLOW, 0.05)])
async def test_a_hanging_script_ends_with_the_abort(script: Any, at_least: float) -> None:
    controller = AbortController()
    adapter = ScriptedAdapter([script])
    task = asyncio.ensure_future(play(adapter, request(controller)))
    await asyncio.sleep(0)
    assert not task.done()
    started = time.monotonic()
    controller.abort("enough")
    with pytest.raises(ModelError) as caught:
        await task
    assert caught.value.code == "ABORTED"
    assert time.monotonic() - started >= at_least
    with pytest.raises(ModelError, match="signal"):
        await play(ScriptedAdapter([HANG]))
