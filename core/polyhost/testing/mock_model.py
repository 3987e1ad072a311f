"""A mock chat-completions server on loopback, with one scripted behaviour per request.

It makes an OpenAI-compatible adapter, and everything above it, testable end to end without a key or a network:

    async with MockModelServer([Reply("Hello"), "rate_limit", Reply(calls=[("read", {"file_path": "a.py"})])]) as server:
        ...  # point a provider's base_url at server.url; server.requests holds the decoded bodies

``python -m polyhost.testing.mock_model`` serves from a shell; ``--story`` plays the sample repository's repair.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web

from polyhost.testing import sample
from polyhost.wire import json

BEHAVIOURS = (
    "success",
    "slow_success",
    "reasoning_success",
    "tool_call_success",
    "max_tokens",
    "empty",
    "empty_body",
    "stream_eof",
    "partial_eof",
    "stream_disconnect",
    "partial_disconnect",
    "connection_reset",
    "stall",
    "partial_stall",
    "malformed_json",
    "malformed_event",
    "wrong_content_type",
    "rate_limit",
    "server_error",
    "service_unavailable",
    "auth_error",
    "invalid_request",
    "context_overflow",
    "quota_exceeded",
    "random",
)

_ERRORS: dict[str, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_exceeded", "Too many requests, slow down."),
    "server_error": (500, "internal_error", "The model crashed."),
    "service_unavailable": (503, "overloaded", "The model is overloaded."),
    "auth_error": (401, "invalid_api_key", "The API key is not valid."),
    "invalid_request": (400, "invalid_request_error", "The request is not valid."),
    "context_overflow": (400, "context_length_exceeded", "The prompt exceeds the maximum context length."),
    "quota_exceeded": (402, "insufficient_quota", "You exceeded your current quota."),
}


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


_NAMED = {
    "success": Reply("Hello from the mock model."),
    "slow_success": Reply("Hello, slowly.", delay=0.02),
    "reasoning_success": Reply("Four.", reasoning="Two and two."),
    "tool_call_success": Reply(calls=[("read", {"file_path": "README.md"})]),
    "max_tokens": Reply("This was cut", finish="length"),
    "empty": Reply(""),
}


class MockModelServer:
    """Serves ``POST .../chat/completions`` on 127.0.0.1; ``url`` is the base URL, ``requests`` what came in.

    :param script: one behaviour name or :class:`Reply` per request; afterwards ``then`` answers.
    :param seed: of the ``random`` behaviour.
    """

    def __init__(
        self, script: Iterable[str | Reply] = (), *, then: str | Reply = "success", port: int = 0, seed: int = 0
    ) -> None:
        self._script = list(script)
        self._then = then
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

    def script(self, *behaviours: str | Reply) -> None:
        """Append behaviours for the next requests."""
        self._script.extend(behaviours)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "mock-large"}, {"id": "mock-small"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(json.loads(await request.read()))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        behaviour = self._script.pop(0) if self._script else self._then
        if behaviour == "random":
            behaviour = self._random.choice(BEHAVIOURS[:-1])
        if isinstance(behaviour, str) and behaviour in _ERRORS:
            return _error(*_ERRORS[behaviour])
        reply = _NAMED.get(behaviour) if isinstance(behaviour, str) else behaviour
        if reply is not None:
            return await self._stream(request, reply)
        return await self._misbehave(request, str(behaviour))

    async def _stream(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        response = await _begin(request)
        for event in reply.events():
            if reply.delay:
                await asyncio.sleep(reply.delay)
            await response.write(_sse(event))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _misbehave(self, request: web.Request, behaviour: str) -> web.StreamResponse:
        if behaviour == "wrong_content_type":
            return web.Response(text="<html>not a model</html>", content_type="text/html")
        if behaviour == "connection_reset":
            _drop(request)
            return web.Response()
        if behaviour == "stall":
            await self._released.wait()
            return web.Response()
        response = await _begin(request)
        if behaviour == "malformed_json":
            await response.write(b"data: {not json\n\n")
        elif behaviour == "malformed_event":
            await response.write(b"data: [1, 2]\n\n")
        elif behaviour.startswith("partial") or behaviour == "stream_disconnect":
            await response.write(_sse(_delta({"content": "partial"})))
        if behaviour == "partial_stall":
            await response.write(b'data: {"choices": [{"del')
            await self._released.wait()
        elif behaviour.endswith("disconnect"):
            _drop(request)
        elif behaviour not in (*_MISBEHAVIOURS, "malformed_json", "malformed_event"):
            raise web.HTTPInternalServerError(text=f"unknown behaviour {behaviour!r}")
        return response


_MISBEHAVIOURS = ("empty_body", "stream_eof", "partial_eof")


def _words(text: str) -> list[str]:
    return [word for word in text.replace(" ", " \0").split("\0") if word]


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event) + b"\n\n"


async def _begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-request-id": "mock-request"})
    await response.prepare(request)
    return response


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _error(status: int, code: str, message: str) -> web.Response:
    headers = {"x-request-id": "mock-request"}
    if status == 429:
        headers["retry-after"] = "1"
    return web.json_response(
        {"error": {"code": code, "type": code, "message": message}}, status=status, headers=headers
    )


async def _serve(options: argparse.Namespace) -> None:
    script: list[str | Reply] = [*story()] if options.story else list(options.behaviour)
    async with MockModelServer(script, port=options.port) as server:
        print(f"mock model server at {server.url} (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A mock chat-completions server on loopback.")
    parser.add_argument("behaviour", nargs="*", choices=[*BEHAVIOURS, []], help="behaviour of each request, in order")
    parser.add_argument("--port", type=int, default=0, help="port (default: a free one)")
    parser.add_argument("--story", action="store_true", help="repair the sample repository of `hostctl run --demo`")
    try:
        asyncio.run(_serve(parser.parse_args()))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
