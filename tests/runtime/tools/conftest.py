"""A bench for the tool runtime: real mounts, events and scopes, with no plugins around them and agents of straw."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from polyhost.interfaces import TOOL, TOOL_RESULT, Tool, ToolCall, ToolOutput, ToolResult, text_block
from polyhost.kernel.drain import Limits
from polyhost.kernel.events import LISTENER, EventBus, Listener
from polyhost.kernel.keys import EventKey, MountKind
from polyhost.kernel.mounts import MountTable, MountToken
from polyhost.kernel.scopes import ScopeTree
from polyhost.kernel.signals import AbortController, AbortSignal
from polyhost.runtime.tools.draining import DrainLimits
from polyhost.runtime.tools.registry import ToolKind
from polyhost.runtime.tools.runtime import ToolService
from polyhost.runtime.tools.spill import SpillPolicy

QUICK = DrainLimits(0.05, 0.05)
ANYTHING = ToolOutput({}, lambda arguments, value: [text_block(str(value))])


class Owner:
    """What the mount table needs of an owner."""

    def __init__(self) -> None:
        self.name = "bench"
        self.tokens: dict[Any, None] = {}
        self.fiber = SimpleNamespace(uid=1)
        self.logger = logging.getLogger("bench")


class FakeContext:
    """What the runtime uses of an agent's context: mounting in its scope."""

    def __init__(self, bench: Bench, tag: object) -> None:
        self.tag = tag
        self._bench = bench

    def mount(self, kind: MountKind[Any], key: Any, value: Any) -> MountToken[Any]:
        return self._bench.mount(kind, key, value, self.tag)


class FakeAgent:
    """An agent whose scope may lie in another agent's."""

    def __init__(self, bench: Bench, name: str, parent: FakeAgent | None = None) -> None:
        self.id = name
        self.context = FakeContext(bench, self)
        if parent is not None:
            bench.scopes.bind(self, parent)

    def __repr__(self) -> str:
        return f"<agent {self.id}>"


class Bench:
    """Mounts tools and listeners, and executes calls."""

    def __init__(self) -> None:
        self.scopes = ScopeTree()
        self.mounts = MountTable(self.scopes, Limits(abort_grace=0.2, cancel_grace=0.2))
        self.events = EventBus(self.mounts, self.scopes)
        self.owner = Owner()
        self.changes = 0
        self.broker: Any = None
        self.published: list[ToolResult] = []
        self.caller = AbortController()
        self.mounts.handle(TOOL, ToolKind(self._changed))
        self.tools = self.service()
        self.on(TOOL_RESULT, lambda call, result: self.published.append(result))

    def service(self, spill: SpillPolicy | None = None, limits: DrainLimits = QUICK) -> ToolService:
        self.tools = ToolService(
            self.mounts, self.events, interactions=lambda: self.broker, spill=spill, drain_limits=limits
        )
        return self.tools

    def _changed(self) -> None:
        self.changes += 1

    def mount(self, kind: MountKind[Any], key: Any, value: Any, scope: object | None = None) -> MountToken[Any]:
        token = self.mounts.reserve(kind, key, value, owner=self.owner, scope=scope)  # type: ignore[arg-type]
        self.mounts.commit([token])
        return token

    def on(self, event: EventKey[Any], callback: Callable[..., Any], agent: FakeAgent | None = None) -> MountToken[Any]:
        listener = Listener(callback, None, prepend=False, everywhere=False, once=False)  # type: ignore[arg-type]
        return self.mount(LISTENER, event, listener, agent)

    def agent(self, name: str = "a", parent: FakeAgent | None = None) -> Any:
        return FakeAgent(self, name, parent)

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
def bench() -> Bench:
    return Bench()
