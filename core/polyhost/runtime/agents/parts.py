"""What the driver, its turns and its steps share: the services of the host and the state of one agent."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from polyhost.interfaces import (
    AGENT_ERROR,
    Agent,
    ModelRuntime,
    SessionStore,
    SystemPrompt,
    ToolRuntime,
)
from polyhost.runtime.agents.events import AgentEvents
from polyhost.runtime.agents.grace import ABORT_GRACE
from polyhost.runtime.agents.inbox import AgentInbox
from polyhost.runtime.agents.requests import Requests
from polyhost.runtime.agents.scheduler import PARALLEL_CALLS
from polyhost.runtime.agents.snapshots import RuntimeContext
from polyhost.runtime.agents.tickets import Tickets
from polyhost.runtime.sessions.log import LiveSession

_log = logging.getLogger(__name__)


class AgentServices:
    """What every agent of a host uses.

    :param abort_grace: seconds that adapters and listeners have to follow an abort before their await is cancelled.
    :param parallel_tools: how many tool bodies of one step run at the same time; may be changed while agents run.
    """

    __slots__ = ("_parallel_tools", "abort_grace", "models", "prompts", "sessions", "tools")

    def __init__(
        self,
        *,
        models: ModelRuntime,
        prompts: SystemPrompt,
        tools: ToolRuntime,
        sessions: SessionStore,
        abort_grace: float = ABORT_GRACE,
        parallel_tools: int = PARALLEL_CALLS,
    ) -> None:
        self.models = models
        self.prompts = prompts
        self.tools = tools
        self.sessions = sessions
        self.abort_grace = abort_grace
        self.parallel_tools = parallel_tools

    @property
    def parallel_tools(self) -> int:
        return self._parallel_tools

    @parallel_tools.setter
    def parallel_tools(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(f"the number of parallel tool calls must be an integer of at least 1, not {limit!r}")
        self._parallel_tools = limit


class TurnLimits(NamedTuple):
    """Bounds of one turn, None for no bound: steps, seconds, and the input and output tokens that models report."""

    max_steps: int | None = None
    seconds: float | None = None
    tokens: int | None = None


class AgentParts:
    """The state of one agent."""

    __slots__ = ("agent", "events", "inbox", "limits", "requests", "runtime_context", "services", "session", "tickets")

    def __init__(
        self,
        *,
        agent: Agent,
        session: LiveSession,
        services: AgentServices,
        events: AgentEvents,
        inbox: AgentInbox,
        requests: Requests,
    ) -> None:
        self.agent = agent
        self.session = session
        self.services = services
        self.events = events
        self.inbox = inbox
        self.requests = requests
        self.runtime_context = RuntimeContext(session)
        self.tickets = Tickets()
        self.limits = TurnLimits()

    def emit(self, key: Any, *args: Any) -> None:
        """Tell listeners of an event of this agent; the agent itself is the first argument."""
        self.events.emit(key, self.agent, *args)

    def report(self, turn: int, step: int, error: BaseException) -> None:
        """Say live that something failed; step 0 means before the first step. What listeners raise is logged."""
        try:
            self.emit(AGENT_ERROR, turn, step, error)
        except KeyboardInterrupt:
            raise
        except BaseException:
            _log.exception("telling that agent %s failed has failed itself", self.agent.id)
