"""The tool service: lookups for agents and models, and the door to the pipeline.

Joins the registry, the event bus and the policies that act on every call; each of them stands in its own module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.interaction import Interactions
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.tools import TOOL_GUARD, Tool, ToolCall, ToolGuard, ToolResult
from polyhost.kernel.context import Kernel
from polyhost.kernel.events import Dispatcher, Target
from polyhost.kernel.keys import EventKey
from polyhost.kernel.mounts import MountToken
from polyhost.runtime.tools.draining import DEFAULT_LIMITS, DrainLimits
from polyhost.runtime.tools.pipeline import Execution
from polyhost.runtime.tools.registry import ToolRegistry, scope_of
from polyhost.runtime.tools.schema import violations
from polyhost.runtime.tools.spill import SpillPolicy


class ToolService:
    """Implements :class:`polyhost.interfaces.tools.ToolRuntime`.

    :param interactions: finds the broker at each use; None while there is none.
    :param spill: keeps large results out of the conversation; None lets them in.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        interactions: Callable[[], Interactions | None],
        spill: SpillPolicy | None = None,
        drain_limits: DrainLimits = DEFAULT_LIMITS,
    ) -> None:
        self.interactions = interactions
        self.drain_limits = drain_limits
        self._mounts = kernel.mounts
        self._events = kernel.events
        self._registry = ToolRegistry(kernel.mounts, kernel.scopes)
        self._spill = spill

    # -- the registration view

    def schemas(self, agent: Agent | None = None) -> list[JsonObject]:
        return self._registry.schemas(agent)

    def get(self, name: str, agent: Agent | None = None) -> Tool | None:
        token = self._registry.token(name, agent)
        return token.value if token is not None else None

    def restrict(
        self, agent: Agent, *, allow: Sequence[str] | None = None, deny: Sequence[str] | None = None
    ) -> Callable[[], None]:
        return self._registry.restrict(agent, allow, deny)

    # -- execution

    def is_parallel(self, call: ToolCall) -> bool:
        tool = self.get(call.name, call.agent)
        if tool is None or tool.concurrency_safe is None or next(violations(tool.parameters, call.arguments), None):
            return False
        try:
            return tool.concurrency_safe(call.arguments) is True
        except Exception:
            return False  # a classifier that fails says nothing; alone is always right

    def begin(self, call: ToolCall) -> Execution:
        return Execution(self, call)

    async def execute(self, call: ToolCall) -> ToolResult:
        execution = self.begin(call)
        await execution.prepare()
        await execution.run()
        return await execution.finish()

    # -- what the pipeline asks of its host

    def find(self, call: ToolCall) -> MountToken[Tool] | None:
        return self._registry.token(call.name, call.agent)

    def guards(self, call: ToolCall) -> Iterable[ToolGuard]:
        """Global ones first, then those of the agent's scope."""
        tokens = self._mounts.tokens(TOOL_GUARD, scope=scope_of(call.agent))
        return (token.value for token in tokens)

    async def waterfall(
        self, event: EventKey[Any], call: ToolCall, *args: object, inner: Callable[[], Awaitable[Any]]
    ) -> Any:
        return await self._to(call).waterfall(event, call, *args, inner=inner)

    def emit(self, event: EventKey[Any], call: ToolCall, *args: object) -> None:
        self._to(call).emit(event, call, *args)

    async def fit(self, tool: Tool, call: ToolCall, result: ToolResult) -> ToolResult:
        return result if self._spill is None else await self._spill.fit(tool, call, result)

    def _to(self, call: ToolCall) -> Dispatcher:
        return self._events.to(Target(scope_of(call.agent)))
