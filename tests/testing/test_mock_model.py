"""The mock model server: every behaviour as a plain client sees it, and running it in a thread or a process."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from polyhost.testing import sample
from polyhost.testing.mock_model import BEHAVIOURS, MockModelServer, Reply, in_thread, story
from polyhost.wire import json

CONTRACTED = (
    "success slow_success reasoning_success tool_call_success max_tokens empty empty_body stream_eof partial_eof "
    "stream_disconnect partial_disconnect connection_reset stall malformed_json malformed_event wrong_content_type "
    "rate_limit server_error service_unavailable auth_error invalid_request context_overflow quota_exceeded random"
)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=5, sock_read=0.1)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield session


async def post(client: aiohttp.ClientSession, server: MockModelServer) -> tuple[int, bytes]:
    """Status and body of one request."""
    async with client.post(f"{server.url}/v1/chat/completions", json={"model": "m"}) as response:
        return response.status, await response.read()


def events(body: bytes) -> list[Any]:
    return [json.loads(event[6:]) for event in body.split(b"\n\n") if event.startswith(b"data: {")]


def test_all_behaviours_are_there() -> None:
    assert set(CONTRACTED.split()) <= set(BEHAVIOURS)


@pytest.mark.parametrize(
    "behaviour", ["success", "slow_success", "reasoning_success", "tool_call_success", "max_tokens"]
)
async def test_successes_are_whole_streams(client: aiohttp.ClientSession, behaviour: str) -> None:
    async with MockModelServer([behaviour]) as server:
        status, body = await post(client, server)
    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    finishes = [choice["finish_reason"] for event in events(body) for choice in event["choices"]]
    assert finishes[-1] in ("stop", "tool_calls", "length")
    assert events(body)[-1]["usage"]["prompt_tokens"] == 12


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        ("rate_limit", 429, "rate_limit_exceeded"),
        ("server_error", 500, "internal_error"),
        ("service_unavailable", 503, "overloaded"),
        ("auth_error", 401, "invalid_api_key"),
        ("invalid_request", 400, "invalid_request_error"),
        ("context_overflow", 400, "context_length_exceeded"),
        ("quota_exceeded", 402, "insufficient_quota"),
    ],
)
async def test_errors(client: aiohttp.ClientSession, behaviour: str, status: int, code: str) -> None:
    async with MockModelServer([behaviour]) as server:
        got, body = await post(client, server)
    assert (got, json.loads(body)["error"]["code"]) == (status, code)


@pytest.mark.parametrize("behaviour", ["stream_eof", "partial_eof", "empty_body", "malformed_json", "malformed_event"])
async def test_streams_that_end_without_being_done(client: aiohttp.ClientSession, behaviour: str) -> None:
    async with MockModelServer([behaviour]) as server:
        status, body = await post(client, server)
    assert status == 200
    assert b"[DONE]" not in body
    assert (b"partial" in body) == behaviour.startswith("partial")


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("stream_disconnect", aiohttp.ClientPayloadError),
        ("partial_disconnect", aiohttp.ClientPayloadError),
        ("connection_reset", aiohttp.ServerDisconnectedError),
        ("stall", TimeoutError),
        ("partial_stall", TimeoutError),
    ],
)
async def test_connections_that_break_or_hang(
    client: aiohttp.ClientSession, behaviour: str, error: type[Exception]
) -> None:
    async with MockModelServer([behaviour]) as server:
        with pytest.raises(error):
            await post(client, server)


async def test_the_script_is_followed_and_requests_are_kept(client: aiohttp.ClientSession) -> None:
    async with MockModelServer(["server_error"], then=Reply("later")) as server:
        server.script(Reply(calls=[("read", {"file_path": "a b.py"})]))
        answers = [await post(client, server) for _ in range(3)]
    assert [status for status, _ in answers] == [500, 200, 200]
    parts = [part["function"] for event in events(answers[1][1]) for part in delta(event).get("tool_calls", ())]
    assert parts[0] == {"name": "read", "arguments": ""}
    assert json.loads("".join(part["arguments"] for part in parts)) == {"file_path": "a b.py"}
    assert b"later" in answers[2][1]
    assert server.requests == [{"model": "m"}] * 3
    assert server.headers[0]["content-type"] == "application/json"


def delta(event: dict[str, Any]) -> dict[str, Any]:
    return event["choices"][0]["delta"] if event["choices"] else {}


async def test_random_is_the_same_for_the_same_seed(client: aiohttp.ClientSession) -> None:
    runs = []
    for _ in range(2):
        async with MockModelServer(then="random", seed=3) as server:
            answers = []
            for _ in range(8):
                try:
                    answers.append(await post(client, server))
                except (aiohttp.ClientError, TimeoutError) as error:
                    answers.append((0, type(error).__name__.encode()))
            runs.append(answers)
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 3


def test_an_unknown_behaviour_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="unknown behaviour 'sucess'; there are success, "):
        MockModelServer(["sucess"])


def test_the_story_mends_the_sample() -> None:
    calls = [call for reply in story() for call in reply.calls]
    assert [name for name, _ in calls] == ["bash", "read", "edit", "bash"]
    assert sample.FILES[sample.MODULE].count(calls[2][1]["old_string"]) == 1


def test_in_a_thread_it_serves_code_that_blocks() -> None:
    with in_thread(MockModelServer()) as server, urllib.request.urlopen(f"{server.url}/v1/models", timeout=5) as reply:
        assert [row["id"] for row in json.loads(reply.read())["data"]] == ["mock-small", "mock-large"]


def test_from_a_shell() -> None:
    command = [sys.executable, "-m", "polyhost.testing.mock_model"]
    with subprocess.Popen([*command, "auth_error"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[4]
        request = urllib.request.Request(f"{url}/chat/completions", data=b"{}")
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            urllib.request.urlopen(request, timeout=5)
        caught.value.close()
        process.terminate()
    refused = subprocess.run([*command, "nonsense"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "unknown behaviour 'nonsense'" in refused.stderr
