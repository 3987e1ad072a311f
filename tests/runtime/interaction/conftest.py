"""A bench for the broker: a real kernel and real session logs, agents and surfaces of straw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from polyhost.interfaces import SURFACE, SessionHeader
from polyhost.kernel.context import Kernel
from polyhost.kernel.signals import AbortController
from polyhost.runtime.interaction.broker import Broker
from polyhost.runtime.sessions.log import LiveSession


class FakeAgent:
    """An agent over a real log, in a real scope."""

    def __init__(self, kernel: Kernel, session: LiveSession, parent: FakeAgent | None = None) -> None:
        self.id = session.id
        self.session = session
        self.context = kernel.root.scope(self, parent).context
        self.injected: list[Any] = []

    def inject(self, message: Any) -> None:
        self.injected.append(message)


class FakeSurface:
    """Answers what it was told; by default it waits, and can be answered later through ``reply``."""

    def __init__(self, name: str = "ui", sessions: tuple[str, ...] = ("s1",), answer: Any = ...) -> None:
        self.name = name
        self.sessions = set(sessions)
        self.answer = answer
        self.default_mode: Any = None
        self.trusts_shell = False
        self.requests: list[Any] = []
        self.withdrawn: list[Any] = []
        self.reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def serves(self, session_id: str) -> bool:
        return session_id in self.sessions

    async def approve(self, request: Any) -> Any:
        return await self._answer(request)

    async def ask(self, request: Any) -> Any:
        return await self._answer(request)

    async def _answer(self, request: Any) -> Any:
        self.requests.append(request)
        request.signal.on_abort(lambda signal: self.withdrawn.append(signal.cause))
        if self.answer is ...:
            return await self.reply
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(request) if callable(self.answer) else self.answer


class Bench:
    """One host with a broker."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.agents: dict[str, FakeAgent] = {}
        self.broker = Broker(self.kernel, agents=lambda: SimpleNamespace(get=self.agents.get))  # type: ignore[arg-type,return-value]
        self.caller = AbortController()

    def agent(self, name: str = "s1", parent: FakeAgent | None = None, *, turn: bool = True) -> Any:
        session = LiveSession(SessionHeader(name, 0, "/tmp"))
        agent = self.agents[name] = FakeAgent(self.kernel, session, parent)
        if turn:
            session.append("turn/start", {"turn": 1})
        return agent

    def surface(self, *args: Any, **options: Any) -> FakeSurface:
        surface = FakeSurface(*args, **options)
        surface.token = self.kernel.root.mount(SURFACE, None, surface)  # type: ignore[attr-defined]
        return surface

    def approve(self, agent: Any, **options: Any) -> Any:
        options = {"call_id": "call_1", "reason": None, "signal": self.caller.signal, **options}
        return self.broker.approve(
            agent, options.pop("tool", "bash"), options.pop("arguments", {"command": "ls"}), **options
        )

    def log(self, agent: Any, prefix: str = "") -> list[tuple[str, Any]]:
        return [(event.type, event.data) for event in agent.session.events() if event.type.startswith(prefix)]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.broker.aclose()
    await made.kernel.aclose()


async def spin(turns: int = 5) -> None:
    """Let everything that is ready run."""
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.fixture(name="spin")
def spin_fixture() -> Any:
    return spin
