"""A provider on the mock server, credentials in memory, and shorthands for one attempt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from polyhost.interfaces import Chunk, ModelError, ModelRequest, user_message
from polyhost.kernel.errors import PolyhostError
from polyhost.testing.mock_model import MockModelServer
from polyhost_models.adapter import OpenAIAdapter
from polyhost_models.providers import Provider


class MemoryCredentials:
    """Secrets in a dict; counts how often it is asked."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.asked = 0

    def get(self, name: str) -> str | None:
        self.asked += 1
        return self.values.get(name)

    def require(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            raise PolyhostError(f"there is no credential {name}", code="MISSING_CREDENTIAL")
        return value


@pytest.fixture
def credentials() -> MemoryCredentials:
    return MemoryCredentials()


@pytest.fixture
async def server() -> AsyncIterator[MockModelServer]:
    async with MockModelServer() as mock:
        yield mock


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """``await until(condition)``: let the loop run until it holds, for conditions that nothing announces."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0)

    return wait


@pytest.fixture
async def connect(credentials: MemoryCredentials) -> AsyncIterator[Callable[..., OpenAIAdapter]]:
    """``connect(base_url, **provider fields)``: an adapter that is closed after the test."""
    adapters: list[OpenAIAdapter] = []

    def build(base_url: str, **fields: Any) -> OpenAIAdapter:
        provider = Provider(**{"id": "mock", "name": "Mock", "base_url": base_url, "idle_timeout": 5.0, **fields})
        adapters.append(OpenAIAdapter(provider, credentials, version="1.2"))
        return adapters[-1]

    yield build
    for adapter in adapters:
        await adapter.aclose()


@pytest.fixture
def ask() -> Callable[..., ModelRequest]:
    """``ask(text, **fields)``: a request with one human message."""

    def build(text: str = "hello", **fields: Any) -> ModelRequest:
        return ModelRequest(**{"provider": "mock", "model": "m", "messages": [user_message(text)], **fields})

    return build


@pytest.fixture
def failure() -> Callable[[OpenAIAdapter, ModelRequest], Awaitable[ModelError]]:
    """``await failure(adapter, request)``: the error that ends the attempt."""

    async def run(adapter: OpenAIAdapter, request: ModelRequest) -> ModelError:
        chunks: list[Chunk] = []
        with pytest.raises(ModelError) as caught:
            async for chunk in adapter.stream(request):
                chunks.append(chunk)
        return caught.value

    return run


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """``await serve(*parts, pause=0, read=True)``: the URL of a raw server that answers each request with ``parts``.

    The part None stalls until the test ends; after the last part the connection is closed. ``pause`` is in seconds,
    before each part but the first.
    """
    over = asyncio.Event()
    handlers: set[asyncio.Task[None]] = set()
    servers: list[asyncio.Server] = []

    async def start(*parts: bytes | None, pause: float = 0.0, read: bool = True) -> str:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.add(task)
            try:
                if read:
                    await reader.readuntil(b"\r\n\r\n")
                for number, part in enumerate(parts):
                    if part is None:
                        await over.wait()
                        break
                    if number and pause:
                        await asyncio.sleep(pause)
                    writer.write(part)
                    await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    over.set()
    for server in servers:
        server.close()
    await asyncio.gather(*handlers, return_exceptions=True)
