"""A bench for the tool runtime: real mounts, events and scopes, with no plugins around them and agents of straw."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from polyhost.interfaces import TOOL, TOOL_RESULT, Tool, ToolCall, ToolOutput, ToolResult, text_block
from polyhost.kernel.context import Kernel
from polyhost.kernel.drain import Limits
from polyhost.kernel.keys import EventKey, MountKind
from polyhost.kernel.mounts import MountToken
from polyhost.kernel.signals import AbortController, AbortSignal
from polyhost.runtime.tools.draining import DrainLimits
from polyhost.runtime.tools.registry import prepare_tool_kinds
from polyhost.runtime.tools.runtime import ToolService
from polyhost.runtime.tools.spill import SpillPolicy

QUICK = DrainLimits(0.05, 0.05)
ANYTHING = ToolOutput({}, lambda arguments, value: [text_block(str(value))])


class FakeAgent:
    """An agent whose scope may lie in another agent's."""

    def __init__(self, kernel: Kernel, name: str, parent: FakeAgent | None = None) -> None:
        self.id = name
        self.scope = kernel.root.scope(self, parent)
        self.context = self.scope.context

    def __repr__(self) -> str:
        return f"<agent {self.id}>"


class Bench:
    """Mounts tools and listeners, and executes calls."""

    def __init__(self) -> None:
        self.kernel = Kernel(limits=Limits(abort_grace=0.2, cancel_grace=0.2))
        self.broker: Any = None
        self.published: list[ToolResult] = []
        self.caller = AbortController()
        prepare_tool_kinds(self.kernel)
        self.tools = self.service()
        self.on(TOOL_RESULT, lambda call, result: self.published.append(result))

    def service(self, spill: SpillPolicy | None = None, limits: DrainLimits = QUICK) -> ToolService:
        self.tools = ToolService(self.kernel, interactions=lambda: self.broker, spill=spill, drain_limits=limits)
        return self.tools

    def mount(self, kind: MountKind[Any], key: Any, value: Any, agent: FakeAgent | None = None) -> MountToken[Any]:
        return (agent.context if agent else self.kernel.root).mount(kind, key, value)

    def on(self, event: EventKey[Any], callback: Callable[..., Any], agent: FakeAgent | None = None) -> MountToken[Any]:
        return (agent.context if agent else self.kernel.root).on(event, callback)

    def agent(self, name: str = "a", parent: FakeAgent | None = None) -> Any:
        return FakeAgent(self.kernel, name, parent)

    def tool(
        self,
        name: str = "echo",
        execute: Callable[..., Awaitable[Any]] | None = None,
        *,
        agent: FakeAgent | None = None,
        **options: Any,
    ) -> MountToken[Tool]:
        """Mount a tool that returns its arguments, or does ``execute(arguments, call)``."""

        async def echo(arguments: Any, call: ToolCall) -> Any:
            return arguments

        options = {"description": "", "parameters": {"type": "object"}, "output": ANYTHING, **options}
        return self.mount(TOOL, name, Tool(name=name, execute=execute or echo, **options), agent)

    def call(
        self,
        name: str = "echo",
        arguments: Any = None,
        *,
        agent: Any = None,
        signal: AbortSignal | None = None,
        **more: Any,
    ) -> ToolCall:
        return ToolCall(
            call_id="call_1",
            name=name,
            arguments={} if arguments is None else arguments,
            signal=signal or self.caller.signal,
            agent=agent,
            **more,
        )

    async def run(self, *args: Any, **options: Any) -> ToolResult:
        return await self.tools.execute(self.call(*args, **options))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.kernel.aclose()
