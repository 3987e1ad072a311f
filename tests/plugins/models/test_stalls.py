"""Endpoints that fall silent: the idle timeout, cancelling during the silence, and what is left afterwards."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

from polyhost.interfaces import Finish, ModelError, ModelRequest, RetryPolicy, TextDelta
from polyhost.kernel.signals import AbortController
from polyhost.testing.mock_model import MockModelServer
from polyhost_models.adapter import OpenAIAdapter

Ask = Callable[..., ModelRequest]
Connect = Callable[..., OpenAIAdapter]
Until = Callable[[Callable[[], bool]], Awaitable[None]]
Failure = Callable[[OpenAIAdapter, ModelRequest], Awaitable[ModelError]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
DELTA = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'


@pytest.fixture
async def clean() -> Callable[[], None]:
    """``clean()``: no task of the adapter is left; the server's do not count."""
    before = asyncio.all_tasks()

    def check() -> None:
        gc.collect()
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        assert [task for task in left if "aiohttp/web_protocol" not in repr(task)] == []

    return check


@pytest.mark.case("CASE-15")
@pytest.mark.contract("DS-05")
@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("stall", "TIMEOUT"),
        ("partial_stall", "TIMEOUT"),
        ("stream_eof", "STREAM_CLOSED"),
        ("partial_eof", "STREAM_CLOSED"),
    ],
)
async def test_a_silent_or_unfinished_response_is_a_typed_failure(
    server: MockModelServer, connect: Connect, ask: Ask, failure: Failure, until: Until, behaviour: str, code: str
) -> None:
    server.script(behaviour)
    adapter = connect(server.url, idle_timeout=0.05)
    async with asyncio.timeout(5):
        error = await failure(adapter, ask())
    assert error.code == code
    assert ("sent nothing for 0.05 seconds" in error.message) == (code == "TIMEOUT")
    assert (code in RetryPolicy().retryable_codes) == (code == "TIMEOUT")
    if code == "TIMEOUT":
        await until(lambda: server.connections == 0)
    assert [chunk async for chunk in adapter.stream(ask())][-1] == Finish({"kind": "stop"})


@pytest.mark.case("CASE-15")
@pytest.mark.contract("DS-05")
@pytest.mark.parametrize("behaviour", ["stall", "partial_stall"])
async def test_cancelling_during_a_stall_settles_at_once_and_closes_the_connection(
    server: MockModelServer, connect: Connect, ask: Ask, behaviour: str, until: Until, clean: Callable[[], None]
) -> None:
    server.script(behaviour)
    adapter = connect(server.url, idle_timeout=60)
    controller = AbortController()

    texts = []

    async def attempt() -> None:
        async for chunk in adapter.stream(ask(signal=controller.signal)):
            if isinstance(chunk, TextDelta):
                texts.append(chunk.text)

    async with asyncio.timeout(5):  # far below the idle timeout
        task = asyncio.create_task(attempt())
        await until(lambda: len(texts if behaviour == "partial_stall" else server.requests) > 0)
        controller.abort("user")
        with pytest.raises(ModelError) as caught:
            await task
    assert caught.value.code == "ABORTED"
    await until(lambda: server.connections == 0)
    clean()
    assert [chunk async for chunk in adapter.stream(ask())][-1] == Finish({"kind": "stop"})


@pytest.mark.case("CASE-15")
async def test_cancelling_the_task_during_a_stall_leaves_nothing(
    server: MockModelServer, connect: Connect, ask: Ask, until: Until, clean: Callable[[], None]
) -> None:
    server.script("partial_stall")
    adapter = connect(server.url, idle_timeout=60)
    seen = asyncio.Event()

    async def attempt() -> None:
        async for chunk in adapter.stream(ask()):
            if isinstance(chunk, TextDelta):
                seen.set()

    async with asyncio.timeout(5):
        task = asyncio.create_task(attempt())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await until(lambda: server.connections == 0)
    clean()


@pytest.mark.contract("DS-05")
async def test_comments_keep_a_stream_alive(serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask) -> None:
    comments = [b": thinking\n\n"] * 15
    url = await serve(HEAD, *comments, DELTA, b"data: [DONE]\n\n", pause=0.04)
    chunks = [chunk async for chunk in connect(url, idle_timeout=0.5).stream(ask())]  # 0.64 s in all
    assert chunks[-1] == Finish({"kind": "stop"})


@pytest.mark.case("CASE-15")
async def test_an_endpoint_that_does_not_even_read_the_request_times_out(
    serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask, failure: Failure
) -> None:
    url = await serve(None, read=False)
    async with asyncio.timeout(5):
        error = await failure(connect(url, idle_timeout=0.1), ask("x" * 20_000_000))
    assert error.code == "TIMEOUT"


@pytest.mark.case("CASE-15")
async def test_an_error_whose_body_stalls_is_told_by_its_status(
    serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask, failure: Failure
) -> None:
    url = await serve(b"HTTP/1.1 429 Slow\r\ncontent-length: 100\r\n\r\n{", None)
    assert (await failure(connect(url, idle_timeout=0.05), ask())).code == "RATE_LIMIT"


async def test_a_complete_response_that_does_not_end_its_body_is_complete(
    serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask
) -> None:
    url = await serve(HEAD + DELTA + b"data: [DONE]\n\n", None)
    async with asyncio.timeout(5):
        chunks = [chunk async for chunk in connect(url, idle_timeout=60).stream(ask())]
    assert chunks[-1] == Finish({"kind": "stop"})
