"""A bench for agents: real kernel, sessions, tools, models and prompts around a scripted adapter; nothing on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from polyhost.interfaces import (
    AGENT_CREATED,
    AGENT_DISPOSED,
    AGENT_ERROR,
    AGENT_INBOX_CLAIMED,
    AGENT_INBOX_DISCARDED,
    AGENT_INBOX_INSERTED,
    AGENT_SESSION_START,
    AGENT_STATUS,
    MODEL_ADAPTER,
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    TOOL,
    Tool,
    ToolCall,
    ToolOutput,
    text_block,
    user_message,
)
from polyhost.kernel.context import Kernel
from polyhost.kernel.drain import Limits
from polyhost.runtime.agents.agent import LiveAgent
from polyhost.runtime.agents.loop import AgentHandle, AgentLoop, AgentSpec
from polyhost.runtime.agents.parts import AgentServices
from polyhost.runtime.agents.prompt import Prompts, prepare_prompt_kinds
from polyhost.runtime.agents.registry import LiveAgents
from polyhost.runtime.models.routes import ModelRoutes, prepare_model_kinds
from polyhost.runtime.sessions.storage import JsonlStorage
from polyhost.runtime.sessions.store import LiveSessions
from polyhost.runtime.tools.registry import prepare_tool_kinds
from polyhost.runtime.tools.runtime import ToolService
from polyhost.testing.scripted import Script, ScriptedAdapter

MODEL = "scripted/one"
ANYTHING = ToolOutput({}, lambda arguments, value: [text_block(str(value))])


class Bench:
    """One host in miniature. ``heard`` collects live events as ``(name, detail)`` in order."""

    def __init__(self, storage: JsonlStorage | None = None) -> None:
        self.kernel = Kernel(limits=Limits(abort_grace=0.2, cancel_grace=0.2), strict=True)
        prepare_model_kinds(self.kernel)
        prepare_prompt_kinds(self.kernel)
        prepare_tool_kinds(self.kernel)
        self.root = self.kernel.root
        self.model = ScriptedAdapter()
        self.root.mount(MODEL_ADAPTER, "scripted", self.model)
        self.storage = storage
        self.sessions = LiveSessions(self.kernel.events, storage)
        self.registry = LiveAgents()
        self.services = AgentServices(
            models=ModelRoutes(self.kernel.mounts, self.kernel.events),
            prompts=Prompts(self.kernel.mounts),
            tools=ToolService(self.kernel, interactions=lambda: None),
            sessions=self.sessions,
            abort_grace=0.2,
        )
        self.loop = AgentLoop(self.root, self.services, self.sessions, self.registry, storage=storage)
        self.heard: list[tuple[str, Any]] = []
        self.errors: list[tuple[int, int, BaseException]] = []
        self._listen()

    def _listen(self) -> None:
        note = self.heard.append
        on = self.root.on
        on(AGENT_CREATED, lambda agent: note(("agent/created", agent.id)))
        on(AGENT_DISPOSED, lambda agent: note(("agent/disposed", agent.id)))
        on(AGENT_SESSION_START, lambda agent, source: note(("agent/session-start", source)))
        on(AGENT_STATUS, lambda agent, status: note(("agent/status", status if status == agent.status else "wrong")))
        on(AGENT_INBOX_INSERTED, lambda agent, message: note(("agent/inbox/inserted", message["id"])))
        on(AGENT_INBOX_CLAIMED, lambda agent, message, turn: note(("agent/inbox/claimed", (message["id"], turn))))
        on(AGENT_INBOX_DISCARDED, lambda agent, message: note(("agent/inbox/discarded", message["id"])))
        on(SESSION_CREATED, lambda session: note(("session/created", session.id)))
        on(SESSION_DISPOSED, lambda session: note(("session/disposed", session.id)))
        on(SESSION_EVENT, lambda session, event: note((event.type, event.seq)))
        on(AGENT_ERROR, lambda agent, turn, step, error: self.errors.append((turn, step, error)))

    def script(self, *scripts: Script) -> None:
        self.model.add(*scripts)

    async def handle(self, session_id: str = "s", **spec: Any) -> AgentHandle:
        spec.setdefault("model", MODEL)
        return await self.loop.create(AgentSpec(**spec), session_id, cwd="/project")

    async def agent(self, *scripts: Script, session_id: str = "s", **spec: Any) -> LiveAgent:
        self.script(*scripts)
        return (await self.handle(session_id, **spec)).agent

    def tool(
        self,
        name: str,
        execute: Callable[[Any, ToolCall], Awaitable[Any]] | None = None,
        *,
        context: Any = None,
        **options: Any,
    ) -> None:
        """Mount a tool; without a body it answers ``ok``."""

        async def ok(arguments: Any, call: ToolCall) -> str:
            return "ok"

        tool = Tool(
            name=name,
            description=f"The tool {name}",
            parameters={"type": "object"},
            output=options.pop("output", ANYTHING),
            execute=execute or ok,
            access="none",
            **options,
        )
        (context or self.root).mount(TOOL, name, tool)

    @property
    def statuses(self) -> list[str]:
        return [detail for name, detail in self.heard if name == "agent/status"]

    @staticmethod
    def types(agent: LiveAgent) -> list[str]:
        """The types of the session's events."""
        return [event.type for event in agent.session.events()]

    @staticmethod
    def data(agent: LiveAgent, type: str) -> list[Any]:
        """The payloads of the session's events of one type."""
        return [event.data for event in agent.session.events() if event.type == type]

    def reasons(self, agent: LiveAgent) -> list[Any]:
        """How the session's turns ended."""
        return [data["reason"] for data in self.data(agent, "turn/end")]

    async def ask(self, agent: LiveAgent, text: str = "hello") -> None:
        """One prompt, to idle."""
        agent.followup(user_message(text))
        await agent.when_idle()

    async def streaming(self, agent: LiveAgent) -> None:
        """Wait until a hanging script has sent its text."""
        arrived = asyncio.Event()
        undo = agent.session.observe(lambda event: b"partial" in event.line and arrived.set())
        await asyncio.wait_for(arrived.wait(), 5)
        undo()


@pytest.fixture
async def bench(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Bench]:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    yield bench
    await bench.kernel.aclose()


@pytest.fixture(scope="session")
def bench_type() -> type[Bench]:
    """For property tests, which need a bench for each example."""
    return Bench
