"""Whole hosts with a scripted model, and sessions in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import AGENTS, MODEL_ADAPTER, SESSION_DIRECTORY, Agent, TurnOutcome, user_message
from polyhost.runtime.host import Host
from polyhost.testing.scripted import ScriptedAdapter, text_script

MODEL = "scripted/one"


class Room:
    """One running host with a model that answers ``ok`` as often as it is asked."""

    def __init__(self, host: Host, cwd: Path) -> None:
        self.host = host
        self.root = host.root
        self.cwd = cwd
        self.model = ScriptedAdapter([text_script("ok")] * 50)
        self.root.mount(MODEL_ADAPTER, "scripted", self.model)
        self._opened: list[Any] = []

    async def open(self, session_id: str | None = None) -> Agent:
        opened = await self.root.get(SESSION_DIRECTORY).open(session_id, cwd=str(self.cwd), model=MODEL)
        self._opened.append(opened)
        return opened.agent

    async def say(self, agent: Agent, message: str | dict[str, Any]) -> TurnOutcome:
        message = user_message(message) if isinstance(message, str) else message
        return await self.root.get(AGENTS).prompt(agent, message).outcome()

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()


@pytest.fixture
async def room(polyhost_host: Callable[..., AbstractAsyncContextManager[Host]], tmp_path: Path) -> AsyncIterator[Room]:
    async with polyhost_host() as host:
        room = Room(host, tmp_path)
        yield room
        await room.close()


def events_of(agent: Agent, *types: str) -> list[Any]:
    return [event.envelope for event in agent.session.events() if not types or event.type in types]


@pytest.fixture
def events() -> Callable[..., list[Any]]:
    """``events(agent, *types)``: the envelopes in the agent's log, of these types only if there are any."""
    return events_of
