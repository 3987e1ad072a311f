"""The live agents of a host: their table, who created whom, and their announcement.

How an agent is built and torn down is in ``loop``; which session it opens is in ``directory``.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyhost.interfaces import AGENT_CREATED, AGENT_DISPOSED, Agent, JsonObject, PromptTicket
from polyhost.kernel.context import Context
from polyhost.kernel.errors import PolyhostError
from polyhost.runtime.agents.agent import LiveAgent


class AgentRegistryError(PolyhostError):
    """An agent cannot be entered, or is not the live one of its id."""

    default_code = "AGENT_NOT_LIVE"


class _Entry:
    __slots__ = ("agent", "announced", "announcing", "detach_due", "owner")

    def __init__(self, agent: LiveAgent, owner: Agent | None) -> None:
        self.agent = agent
        self.owner = owner
        self.announced = False
        self.announcing = False
        self.detach_due = False


class LiveAgents:
    """The table; see :class:`polyhost.interfaces.agents.AgentRegistry`."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def get(self, agent_id: str) -> LiveAgent | None:
        entry = self._entries.get(agent_id)
        return entry.agent if entry is not None else None

    def list(self) -> Sequence[LiveAgent]:
        return [entry.agent for entry in self._entries.values()]

    def roots(self) -> Sequence[LiveAgent]:
        """Live agents that no other live agent created."""
        return [entry.agent for entry in self._entries.values() if self.owner(entry.agent) is None]

    def owner(self, agent: Agent) -> Agent | None:
        """The live agent that created ``agent``, None for a root."""
        entry = self._entries.get(agent.id)
        if entry is None or entry.owner is None or self.get(entry.owner.id) is not entry.owner:
            return None
        return entry.owner

    def is_owned_by(self, agent: Agent, ancestor: Agent) -> bool:
        """Whether ``ancestor`` created ``agent``, directly or through other live agents."""
        owner = self.owner(agent)
        while owner is not None and owner is not ancestor:
            owner = self.owner(owner)
        return owner is ancestor

    def current(self) -> LiveAgent | None:
        """The live agent on whose behalf the running code works: that of the driver that it is part of."""
        context = Context.current()
        if context is None or context.scope_tag is None:
            return None
        for entry in self._entries.values():
            if entry.agent.context.scope_tag is context.scope_tag:
                return entry.agent
        return None

    def prompt(self, agent: Agent, message: JsonObject) -> PromptTicket:
        """Queue ``message`` and follow it. Raises :class:`AgentRegistryError` when ``agent`` is not live."""
        return self._live(agent).agent.prompt(message)

    def enter(self, agent: LiveAgent, owner: Agent | None = None) -> None:
        """Put ``agent`` into the table. Raises :class:`AgentRegistryError` for a live id."""
        if agent.id in self._entries:
            raise AgentRegistryError(f"agent {agent.id!r} is live already", code="AGENT_ALREADY_EXISTS")
        self._entries[agent.id] = _Entry(agent, owner)

    def announce(self, agent: LiveAgent) -> None:
        """Emit ``agent/created``, once. What a listener raises vetoes: the agent is detached and the error goes on."""
        entry = self._live(agent)
        if entry.announced:
            raise AgentRegistryError(f"agent {agent.id!r} was announced already", code="AGENT_ANNOUNCED")
        entry.announced = entry.announcing = True
        try:
            agent.context.events.emit(AGENT_CREATED, agent)
        except BaseException:
            entry.detach_due = True
            raise
        finally:
            entry.announcing = False
            if entry.detach_due:
                self.detach(agent)

    def detach(self, agent: LiveAgent) -> None:
        """Take exactly this agent out of the table and emit ``agent/disposed`` if it was announced. Idempotent.

        During its announcement it waits for the end of that dispatch.
        """
        entry = self._entries.get(agent.id)
        if entry is None or entry.agent is not agent:
            return
        if entry.announcing:
            entry.detach_due = True
            return
        del self._entries[agent.id]
        if entry.announced:
            agent.context.events.emit(AGENT_DISPOSED, agent)

    def _live(self, agent: Agent) -> _Entry:
        entry = self._entries.get(agent.id)
        if entry is None or entry.agent is not agent:
            raise AgentRegistryError(f"agent {agent.id!r} is not live; open its session again")
        return entry
