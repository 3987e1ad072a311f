"""A mock chat-completions server on loopback, with one scripted behaviour per request.

It makes an OpenAI-compatible adapter, and everything above it, testable end to end without a key or a network:

    async with MockModelServer(["rate_limit", Reply(calls=[("read", {"file_path": "a.py"})])]) as server:
        ...  # point a provider's base_url at server.url; server.requests holds the decoded bodies

``python -m polyhost.testing.mock_model`` serves from a shell; ``--story`` plays the sample repository's repair.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from aiohttp import web

from polyhost.testing import sample
from polyhost.wire import json


class Reply:
    """A successful answer: reasoning, text and tool calls, streamed word by word.

    :param calls: ``[(tool name, arguments object)]``.
    :param finish: finish reason; by default ``tool_calls`` with calls, else ``stop``.
    :param delay: seconds before each event.
    """

    def __init__(
        self,
        text: str = "",
        *,
        reasoning: str = "",
        calls: Sequence[tuple[str, dict[str, Any]]] = (),
        finish: str | None = None,
        delay: float = 0.0,
    ) -> None:
        self.text = text
        self.reasoning = reasoning
        self.calls = tuple(calls)
        self.finish = finish or ("tool_calls" if calls else "stop")
        self.delay = delay

    def events(self) -> Iterable[dict[str, Any]]:
        """The stream objects of this answer."""
        for word in _words(self.reasoning):
            yield _delta({"reasoning_content": word})
        for word in _words(self.text):
            yield _delta({"content": word})
        for index, (name, arguments) in enumerate(self.calls):
            head = {"index": index, "id": f"call_{index}", "type": "function"}
            yield _delta({"tool_calls": [{**head, "function": {"name": name, "arguments": ""}}]})
            for word in _words(json.dumps(arguments).decode()):
                yield _delta({"tool_calls": [{"index": index, "function": {"arguments": word}}]})
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]}
        output = len(self.text.split()) + len(self.calls)
        yield {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": output}}


def story() -> list[Reply]:
    """The repair of the sample repository, as a model would do it over HTTP."""
    test = {"command": f"{shlex.quote(sys.executable)} -m unittest -v", "description": "Run the unit tests"}
    edit = {"file_path": sample.MODULE, "old_string": sample.BROKEN, "new_string": sample.MENDED}
    return [
        Reply("I run the tests to see what fails.", calls=[("bash", test)]),
        Reply(f"{sample.FAILING_TEST} fails. I look at the code.", calls=[("read", {"file_path": sample.MODULE})]),
        Reply(sample.DIAGNOSIS, calls=[("edit", edit)]),
        Reply("I run the tests again.", calls=[("bash", test)]),
        Reply(f"All tests pass now. {sample.SUMMARY}"),
    ]


def _words(text: str) -> list[str]:
    return [word for word in text.replace(" ", " \0").split("\0") if word]


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event) + b"\n\n"


class _Error(NamedTuple):
    """An HTTP error with the body that goes with it."""

    status: int
    code: str
    message: str


class _Broken(NamedTuple):
    """A response that goes wrong: what is sent of its body (None: not even a head), and how it ends."""

    body: bytes | None
    ending: Literal["end", "drop", "hang"]
    content_type: str = "text/event-stream"


_COMMENT = b": the model is thinking\n\n"
_PARTIAL = _sse(_delta({"content": "partial"}))

_BEHAVIOURS: dict[str, Reply | _Error | _Broken] = {
    "success": Reply("Hello from the mock model."),
    "slow_success": Reply("Hello, slowly.", delay=0.02),
    "reasoning_success": Reply("Four.", reasoning="Two and two."),
    "tool_call_success": Reply(calls=[("read", {"file_path": "README.md"})]),
    "max_tokens": Reply("This was cut", finish="length"),
    "empty": Reply(""),
    "empty_body": _Broken(b"", "end"),
    "stream_eof": _Broken(_COMMENT, "end"),
    "partial_eof": _Broken(_PARTIAL, "end"),
    "stream_disconnect": _Broken(_COMMENT, "drop"),
    "partial_disconnect": _Broken(_PARTIAL, "drop"),
    "connection_reset": _Broken(None, "drop"),
    "stall": _Broken(None, "hang"),
    "partial_stall": _Broken(_PARTIAL + b'data: {"choices": [{"del', "hang"),
    "malformed_json": _Broken(b"data: {not json\n\n", "end"),
    "malformed_event": _Broken(b"data: [1, 2]\n\n", "end"),
    "wrong_content_type": _Broken(b"<html>not a model</html>", "end", "text/html"),
    "rate_limit": _Error(429, "rate_limit_exceeded", "Too many requests, slow down."),
    "server_error": _Error(500, "internal_error", "The model crashed."),
    "service_unavailable": _Error(503, "overloaded", "The model is overloaded."),
    "auth_error": _Error(401, "invalid_api_key", "The API key is not valid."),
    "invalid_request": _Error(400, "invalid_request_error", "The request is not valid."),
    "context_overflow": _Error(400, "context_length_exceeded", "The prompt exceeds the maximum context length."),
    "quota_exceeded": _Error(402, "insufficient_quota", "You exceeded your current quota."),
}

BEHAVIOURS = (*_BEHAVIOURS, "random")
"""Names of the behaviours; ``random`` is one of the others, chosen by the server's seed."""

_THREAD_TIMEOUT = 10.0  # seconds to start or stop
_HEADERS = {"x-request-id": "mock-request"}


class MockModelServer:
    """Serves ``POST .../chat/completions`` on 127.0.0.1.

    :param script: one behaviour name or :class:`Reply` per request; afterwards ``then`` answers. An unknown name
        raises ValueError.
    :param seed: of the ``random`` behaviour.
    :ivar url: the base URL, once entered.
    :ivar requests: the decoded bodies that came in; ``headers`` has the headers of each, names in lower case.
    """

    def __init__(
        self, script: Iterable[str | Reply] = (), *, then: str | Reply = "success", port: int = 0, seed: int = 0
    ) -> None:
        self._script: list[str | Reply] = []
        self.script(*script)
        self._then = _known(then)
        self._port = port
        self._random = random.Random(seed)
        self._runner: web.AppRunner | None = None
        self._released = asyncio.Event()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def __aenter__(self) -> MockModelServer:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/{prefix:.*}chat/completions", self._complete)
        app.router.add_get("/{prefix:.*}models", self._models)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._released.set()
        assert self._runner is not None
        await self._runner.cleanup()

    def provider(self, id: str = "mock", **settings: Any) -> str:
        """Configuration, as TOML, that makes this server the provider ``id`` and its model the host's default.

        :param settings: further keys of ``[plugins.models.providers.ID]``; strings and numbers.
        """
        keys = {"base_url": self.url, **settings}
        lines = [f"{key} = {json.dumps(value).decode()}" for key, value in keys.items()]
        return "\n".join([f'host.model = "{id}/mock-large"', f"[plugins.models.providers.{id}]", *lines, ""])

    def script(self, *behaviours: str | Reply) -> None:
        """Append behaviours for the next requests."""
        self._script.extend(map(_known, behaviours))

    @property
    def connections(self) -> int:
        """How many clients are connected, also to responses that hang."""
        server = self._runner.server if self._runner is not None else None
        handlers = server.connections if server is not None else ()
        return sum(handler.transport is not None for handler in handlers)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mock-small"}, {"id": "mock-large"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(json.loads(await request.read()))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        behaviour = self._script.pop(0) if self._script else self._then
        if behaviour == "random":
            behaviour = self._random.choice(BEHAVIOURS[:-1])
        answer = _BEHAVIOURS[behaviour] if isinstance(behaviour, str) else behaviour
        if isinstance(answer, Reply):
            return await _stream(request, answer)
        if isinstance(answer, _Error):
            return _error(answer)
        return await self._break(request, answer)

    async def _break(self, request: web.Request, broken: _Broken) -> web.StreamResponse:
        response: web.StreamResponse = web.Response()
        if broken.body is not None:
            response = await _begin(request, broken.content_type)
            await response.write(broken.body)
        if broken.ending == "hang":
            await self._released.wait()
        elif broken.ending == "drop" and request.transport is not None:
            request.transport.abort()
        return response


@contextlib.contextmanager
def in_thread(server: MockModelServer) -> Iterator[MockModelServer]:
    """Run ``server`` on an event loop in another thread while inside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mock model server", daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(_THREAD_TIMEOUT)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(_THREAD_TIMEOUT)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_THREAD_TIMEOUT)
        loop.close()


def _known(behaviour: str | Reply) -> str | Reply:
    if isinstance(behaviour, str) and behaviour not in BEHAVIOURS:
        raise ValueError(f"unknown behaviour {behaviour!r}; there are {', '.join(BEHAVIOURS)}")
    return behaviour


async def _begin(request: web.Request, content_type: str = "text/event-stream") -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": content_type, **_HEADERS})
    await response.prepare(request)
    return response


async def _stream(request: web.Request, reply: Reply) -> web.StreamResponse:
    response = await _begin(request)
    for event in reply.events():
        if reply.delay:
            await asyncio.sleep(reply.delay)
        await response.write(_sse(event))
    await response.write(b"data: [DONE]\n\n")
    return response


def _error(error: _Error) -> web.Response:
    headers = {**_HEADERS, "retry-after": "1"} if error.status == 429 else _HEADERS
    body = {"error": {"code": error.code, "type": error.code, "message": error.message}}
    return web.json_response(body, status=error.status, headers=headers)


async def _serve(server: MockModelServer) -> None:
    async with server:
        print(f"mock model server at {server.url} (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A mock chat-completions server on loopback.")
    parser.add_argument("behaviour", nargs="*", help=f"behaviour of each request, in order: {', '.join(BEHAVIOURS)}")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--story", action="store_true", help="repair the sample repository of `hostctl run --demo`")
    options = parser.parse_args()
    try:
        server = MockModelServer(story() if options.story else options.behaviour, port=options.port)
    except ValueError as error:
        parser.error(str(error))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(server))


if __name__ == "__main__":
    main()
