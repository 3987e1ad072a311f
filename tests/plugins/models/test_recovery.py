"""Real failures of a real endpoint under a whole host: what is retried, what is not, and that the session goes on."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from polyhost.interfaces import AGENTS, SESSION_DIRECTORY, Agent, RetryPolicy, TurnOutcome, user_message
from polyhost.testing.mock_model import MockModelServer
from polyhost_models.adapter import OpenAIAdapter


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenAIAdapter, "retry_policy", lambda self, route: RetryPolicy(initial_delay_ms=1))


async def prompt(host: Any, agent: Agent, text: str) -> TurnOutcome:
    return await host.root.get(AGENTS).prompt(agent, user_message(text)).outcome()


def retries_of(agent: Agent) -> list[str]:
    """The types of the session's events about retries."""
    return [event.type for event in agent.session.events() if event.type.startswith("llm/retry")]


@pytest.mark.case("CASE-15")
@pytest.mark.contract("RTY-08")
@pytest.mark.parametrize(
    "behaviour", ["empty", "empty_body", "stall", "partial_stall", "connection_reset", "server_error"]
)
async def test_transient_failures_recover_within_the_turn(
    polyhost_host: Any, mock_model: MockModelServer, behaviour: str
) -> None:
    mock_model.script(behaviour, "success")
    async with polyhost_host(mock_model.provider(idle_timeout=0.1)) as host:
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=os.getcwd())
        outcome = await prompt(host, opened.agent, "hello")
        retries = retries_of(opened.agent)
        await opened.close()
    assert outcome.text == "Hello from the mock model."
    assert retries == ["llm/retry", "llm/retry-started"]
    assert len(mock_model.requests) == 2
    assert mock_model.requests[0] == mock_model.requests[1]


@pytest.mark.contract("RTY-08")
async def test_a_refused_connection_is_tried_again_until_the_budget_is_spent(polyhost_host: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = f'host.model = "dead/m"\n[plugins.models.providers.dead]\nbase_url = "http://127.0.0.1:{port}"\n'
    async with polyhost_host(config) as host:
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=os.getcwd())
        outcome = await prompt(host, opened.agent, "hello")
        retries = retries_of(opened.agent)
        await opened.close()
    assert outcome.reason["kind"] == "error"
    assert outcome.reason["error"]["code"] == "TRANSPORT"
    assert retries == ["llm/retry", "llm/retry-started"] * 2


@pytest.mark.case("CASE-15")
@pytest.mark.contract("RTY-08")
@pytest.mark.parametrize("behaviour", ["partial_eof", "stream_eof", "auth_error"])
async def test_what_is_not_transient_ends_the_turn_and_not_the_session(
    polyhost_host: Any, mock_model: MockModelServer, behaviour: str
) -> None:
    mock_model.script(behaviour, "success")
    async with polyhost_host(mock_model.provider()) as host:
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=os.getcwd())
        first = await prompt(host, opened.agent, "hello")
        second = await prompt(host, opened.agent, "again")
        retries = retries_of(opened.agent)
        await opened.close()
    assert first.reason["kind"] == "error"
    assert second.text == "Hello from the mock model."
    assert retries == []


@pytest.mark.case("CASE-15")
@pytest.mark.parametrize("behaviour", ["stall", "partial_stall"])
async def test_cancelling_a_stalled_turn_settles_and_the_session_goes_on(
    polyhost_host: Any, mock_model: MockModelServer, behaviour: str, until: Callable[..., Any]
) -> None:
    mock_model.script(behaviour, "success")
    async with polyhost_host(mock_model.provider(idle_timeout=60)) as host:
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=os.getcwd())
        ticket = host.root.get(AGENTS).prompt(opened.agent, user_message("hello"))
        await until(lambda: len(mock_model.requests) > 0)
        opened.agent.cancel({"kind": "user"})
        async with asyncio.timeout(5):
            first = await ticket.outcome()
        second = await prompt(host, opened.agent, "again")
        await opened.close()
    assert first.reason["kind"] == "aborted"
    assert second.text == "Hello from the mock model."
