"""The adapter against a real server on loopback: headers, credentials, failures, cancellation, connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from polyhost.config.credentials import CredentialStore
from polyhost.config.mask import MASK, Redactor
from polyhost.config.paths import HomePaths
from polyhost.interfaces import Finish, ModelError, ModelRequest, TextDelta, UsageReport
from polyhost.kernel.signals import AbortController
from polyhost.testing.mock_model import MockModelServer, Reply
from polyhost_models.adapter import OpenAIAdapter
from polyhost_models.providers import Provider, configured_providers

Ask = Callable[..., ModelRequest]
Connect = Callable[..., OpenAIAdapter]
Failure = Callable[[OpenAIAdapter, ModelRequest], Awaitable[ModelError]]

DEEPSEEK = configured_providers(None, {})[0]._asdict()


def as_deepseek(url: str) -> dict[str, Any]:
    return {**DEEPSEEK, "base_url": url}


@pytest.mark.contract("DS-01")
async def test_a_text_stream_end_to_end(server: MockModelServer, connect: Connect, ask: Ask, credentials: Any) -> None:
    credentials.values["DEEPSEEK_API_KEY"] = "sk-1"
    adapter = connect(**as_deepseek(server.url))
    chunks = [chunk async for chunk in adapter.stream(ask("hi", session_id="s-1"))]
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta)) == "Hello from the mock model."
    assert chunks[-2:] == [UsageReport({"inputTokens": 12, "outputTokens": 5}), Finish({"kind": "stop"})]
    assert server.requests[0]["messages"] == [{"role": "user", "content": "hi"}]
    headers = server.headers[0]
    assert headers["authorization"] == "Bearer sk-1"
    assert headers["content-type"] == "application/json"
    assert headers["accept"] == "text/event-stream"
    assert headers["user-agent"] == "polyhost/1.2"
    assert headers["x-deepseek-harness-session-id"] == "s-1"
    assert "x-deepseek-harness-compact" not in headers


@pytest.mark.contract("DS-01")
async def test_compaction_is_marked(server: MockModelServer, connect: Connect, ask: Ask, credentials: Any) -> None:
    credentials.values["DEEPSEEK_API_KEY"] = "sk-1"
    adapter = connect(**as_deepseek(server.url))
    async for _ in adapter.stream(ask(purpose="compaction")):
        pass
    assert server.headers[0]["x-deepseek-harness-compact"] == "1"
    assert "x-deepseek-harness-session-id" not in server.headers[0]


async def test_other_providers_learn_neither_session_nor_purpose(
    server: MockModelServer, connect: Connect, ask: Ask
) -> None:
    adapter = connect(server.url, headers={"x-team": "blue", "accept": "*/*"})
    async for _ in adapter.stream(ask(session_id="s-1", purpose="compaction")):
        pass
    headers = server.headers[0]
    assert not [name for name in headers if name.startswith("x-deepseek")]
    assert "authorization" not in headers
    assert (headers["x-team"], headers["accept"]) == ("blue", "*/*")


@pytest.mark.parametrize("place", ["stream", "models", "check"])
async def test_a_key_that_the_endpoint_quotes_is_not_told(
    ask: Ask, failure: Failure, serve: Callable[..., Awaitable[str]], credentials: Any, place: str
) -> None:
    body = b'{"error":{"message":"Incorrect API key provided: sk-secret-1","code":"invalid_api_key"}}'
    head = b"HTTP/1.1 401 No\r\nx-request-id: for sk-secret-1\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    url = await serve(head % len(body) + body)
    credentials.values["KEY"] = "sk-secret-1"
    redactor = Redactor(["sk-secret-1"])
    adapter = OpenAIAdapter(
        Provider("mock", "Mock", url, credential="KEY"), credentials, version="1", redact=redactor.redact
    )
    if place == "stream":
        error = await failure(adapter, ask())
    else:
        with pytest.raises(ModelError) as caught:
            await (adapter.list_models("mock") if place == "models" else adapter.check())
        error = caught.value
    await adapter.aclose()
    assert error.message == f"Incorrect API key provided: {MASK}"
    assert error.request_id == f"for {MASK}"
    assert error.code == "AUTH"


@pytest.mark.contract("DS-02")
async def test_an_effort_that_is_not_offered_is_refused_before_any_request(
    server: MockModelServer, connect: Connect, ask: Ask, failure: Failure
) -> None:
    assert (await failure(connect(server.url), ask(reasoning_effort="high"))).code == "UNSUPPORTED_REASONING_EFFORT"
    assert server.requests == []


@pytest.mark.contract("DS-07")
async def test_the_key_is_resolved_once_per_request_and_may_come_later(
    server: MockModelServer, connect: Connect, ask: Ask, failure: Failure, credentials: Any
) -> None:
    adapter = connect(server.url, credential="KEY")
    assert (await failure(adapter, ask())).code == "MISSING_CREDENTIAL"
    assert server.requests == []
    for key in ("one", "two"):
        credentials.values["KEY"] = key
        credentials.asked = 0
        async for _ in adapter.stream(ask()):
            pass
        assert server.headers[-1]["authorization"] == f"Bearer {key}"
        assert credentials.asked == 1


@pytest.mark.contract("DS-03", "DS-04", "DS-05", "DS-11")
@pytest.mark.parametrize(
    ("behaviour", "facts"),
    [
        ("empty", {"code": "EMPTY_RESPONSE"}),
        ("empty_body", {"code": "EMPTY_RESPONSE"}),
        ("stream_eof", {"code": "STREAM_CLOSED"}),
        ("partial_eof", {"code": "STREAM_CLOSED"}),
        ("wrong_content_type", {"code": "STREAM_CLOSED"}),
        ("stream_disconnect", {"code": "TRANSPORT"}),
        ("partial_disconnect", {"code": "TRANSPORT"}),
        ("connection_reset", {"code": "TRANSPORT"}),
        ("malformed_json", {"code": "MALFORMED_RESPONSE"}),
        ("malformed_event", {"code": "MALFORMED_RESPONSE"}),
        (
            "rate_limit",
            {"code": "RATE_LIMIT", "status": 429, "providerRetryAfterMs": 1000, "requestId": "mock-request"},
        ),
        ("server_error", {"code": "SERVER", "status": 500, "requestId": "mock-request"}),
        ("service_unavailable", {"code": "SERVER", "status": 503, "requestId": "mock-request"}),
        ("auth_error", {"code": "AUTH", "status": 401, "requestId": "mock-request"}),
        ("invalid_request", {"code": "INVALID_REQUEST", "status": 400, "requestId": "mock-request"}),
        ("context_overflow", {"code": "CONTEXT_WINDOW_EXCEEDED", "status": 400, "requestId": "mock-request"}),
        ("quota_exceeded", {"code": "QUOTA", "status": 402, "requestId": "mock-request"}),
    ],
)
async def test_failures(
    server: MockModelServer, connect: Connect, ask: Ask, failure: Failure, behaviour: str, facts: dict[str, Any]
) -> None:
    server.script(behaviour)
    error = await failure(connect(server.url), ask())
    assert {key: value for key, value in error.failure().items() if key != "message"} == facts


@pytest.mark.contract("DS-05")
async def test_a_refused_connection_is_a_transport_failure_that_says_what_to_check(
    connect: Connect, ask: Ask, failure: Failure
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = await failure(connect(f"http://127.0.0.1:{port}"), ask())
    assert error.code == "TRANSPORT"
    assert "check that the server runs and that plugins.models.providers.mock.base_url" in error.message


@pytest.mark.contract("DS-04")
async def test_an_error_with_a_body_that_is_no_json_is_classified_by_its_status(
    serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask, failure: Failure
) -> None:
    url = await serve(b"HTTP/1.1 503 Oops\r\ncontent-length: 200\r\n\r\n<html>cut")
    error = await failure(connect(url), ask())
    assert (error.code, error.status, error.message) == ("SERVER", 503, "Mock API error (HTTP 503)")


async def test_a_redirect_is_not_followed(
    server: MockModelServer, serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask, failure: Failure
) -> None:
    target = f"{server.url}/chat/completions".encode()
    url = await serve(b"HTTP/1.1 307 Go\r\ncontent-length: 0\r\nlocation: " + target + b"\r\n\r\n")
    assert (await failure(connect(url), ask())).code == "HTTP_307"
    assert server.requests == []


@pytest.mark.contract("DS-11")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n', "STREAM_CLOSED"),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]', "STREAM_CLOSED"),
        (b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n', "STREAM_CLOSED"),
        (b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\ndata: {broken\n\n', None),
    ],
)
async def test_only_a_whole_done_event_completes_a_response(
    serve: Callable[..., Awaitable[str]], connect: Connect, ask: Ask, body: bytes, code: str | None
) -> None:
    url = await serve(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + body)
    chunks, failed = [], None
    try:
        async for chunk in connect(url).stream(ask()):
            chunks.append(chunk)
    except ModelError as error:
        failed = error.code
    assert failed == code
    assert any(isinstance(chunk, Finish) for chunk in chunks) == (code is None)


@pytest.mark.contract("DS-05")
async def test_aborted_before_it_starts_nothing_is_done_at_all(
    server: MockModelServer, connect: Connect, ask: Ask, failure: Failure, credentials: Any
) -> None:
    controller = AbortController()
    controller.abort("user")
    assert (await failure(connect(server.url, credential="KEY"), ask(signal=controller.signal))).code == "ABORTED"
    assert credentials.asked == 0
    assert server.requests == []


@pytest.mark.contract("DS-05")
async def test_aborted_mid_stream_nothing_more_is_yielded(server: MockModelServer, connect: Connect, ask: Ask) -> None:
    server.script(Reply("one two three four"))
    controller = AbortController()
    texts = []
    with pytest.raises(ModelError) as caught:
        async for chunk in connect(server.url).stream(ask(signal=controller.signal)):
            if isinstance(chunk, TextDelta):
                texts.append(chunk.text)
                controller.abort("user")
    assert caught.value.code == "ABORTED"
    assert texts == ["one "]


async def test_complete_responses_share_a_connection_however_late_their_bodies_end(
    aiohttp_server: Any, connect: Connect, ask: Ask
) -> None:
    clients = set()

    async def answer(request: web.Request) -> web.StreamResponse:
        clients.add(request.transport)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n')
        await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.router.add_post("/chat/completions", answer)
    adapter = connect(str((await aiohttp_server(app)).make_url("/")))
    for _ in range(3):
        stream = adapter.stream(ask())
        async for chunk in stream:
            if isinstance(chunk, Finish):
                break
        await stream.aclose()  # type: ignore[attr-defined]
    assert len(clients) == 1


async def test_a_stream_that_is_closed_early_closes_its_connection(
    server: MockModelServer, connect: Connect, ask: Ask, until: Callable[..., Awaitable[None]]
) -> None:
    server.script("partial_stall")
    stream = connect(server.url).stream(ask())
    async for chunk in stream:
        if isinstance(chunk, TextDelta):
            break
    await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: server.connections == 0)


async def test_models_are_the_catalogues_or_what_the_endpoint_lists(server: MockModelServer, connect: Connect) -> None:
    provider = configured_providers(None, {})[0]
    ids = [info.id for info in await connect(server.url, catalogue=provider.catalogue).list_models("mock")]
    assert ids == ["deepseek-v4-flash", "deepseek-v4-pro"]
    assert [info.id for info in await connect(server.url).list_models("mock")] == ["mock-large", "mock-small"]


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "MALFORMED_RESPONSE"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"data":5}', "MALFORMED_RESPONSE"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"data":[5]}', "MALFORMED_RESPONSE"),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"data":[{}]} ', "MALFORMED_RESPONSE"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nno!", "MALFORMED_RESPONSE"),
        (b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n", "AUTH"),
        (b"", "TRANSPORT"),
        (None, "TIMEOUT"),
    ],
)
async def test_an_endpoint_without_a_list_of_models(
    serve: Callable[..., Awaitable[str]], connect: Connect, response: bytes | None, code: str
) -> None:
    adapter = connect(await serve(response), idle_timeout=0.1)
    with pytest.raises(ModelError) as caught:
        await adapter.list_models("mock")
    assert caught.value.code == code


async def test_facts_of_a_route_need_no_network(connect: Connect) -> None:
    adapter = connect("http://192.0.2.1")
    assert adapter.provider_info("mock").name == "Mock"
    assert adapter.retry_policy("mock").mode == "normal"
    assert (await adapter.resolve_model("mock", "any/id", None)).id == "any/id"
    assert Provider("a", "A", "http://h").describe("x").name == "x"


@pytest.mark.contract("KEY-01")
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "MISSING_CREDENTIAL"),
        ("   ", "MISSING_CREDENTIAL"),
        ("sk two", "INVALID_CREDENTIAL"),
        ("sk-\u00e9", "INVALID_CREDENTIAL"),
        ("sk\r\nx-evil: 1", "INVALID_CREDENTIAL"),
        (" sk-1\n", None),
    ],
)
async def test_keys_are_trimmed_checked_and_never_echoed(
    server: MockModelServer, ask: Ask, tmp_path: Path, value: str | None, code: str | None
) -> None:
    environ = {} if value is None else {"KEY": value}
    store = CredentialStore(HomePaths(tmp_path), environ=environ)
    adapter = OpenAIAdapter(Provider("p", "P", server.url, credential="KEY"), store, version="1")
    try:
        async for _ in adapter.stream(ask()):
            pass
    except ModelError as error:
        failed: ModelError | None = error
    else:
        failed = None
    await adapter.aclose()
    assert (failed.code if failed else None) == code
    assert [headers["authorization"] for headers in server.headers] == ([] if code else ["Bearer sk-1"])
    assert "sk" not in (failed.message if failed else "")
