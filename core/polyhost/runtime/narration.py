"""What the host's log says of its life: plugins, sessions and turns as they come and go. Never their content."""

from __future__ import annotations

import logging

from polyhost.interfaces import AGENT_ERROR, AGENT_SESSION_START, AGENT_STATUS, Agent, AgentStatus
from polyhost.kernel.context import Context
from polyhost.kernel.events import FIBER_STATUS
from polyhost.kernel.fibers import Fiber, FiberState
from polyhost.runtime.models.errors import error_chain

logger = logging.getLogger("polyhost.life")


def narrate(root: Context) -> None:
    """Log, for the life of ``root``: plugin states (debug), sessions and statuses (info), failed turns (warning)."""
    root.on(FIBER_STATUS, _fiber, everywhere=True)
    root.on(AGENT_SESSION_START, _session, everywhere=True)
    root.on(AGENT_STATUS, _status, everywhere=True)
    root.on(AGENT_ERROR, _error, everywhere=True)


def _fiber(fiber: Fiber, previous: FiberState) -> None:
    logger.debug("%s: %s, was %s", fiber.name, fiber.state, previous)


def _session(agent: Agent, source: str) -> None:
    logger.info("session %s: %s in %s with %s", agent.id, source, agent.session.header.cwd, agent.model)


def _status(agent: Agent, status: AgentStatus) -> None:
    logger.info("session %s: %s after turn %d", agent.id, status, agent.session.last_turn)


def _error(agent: Agent, turn: int, step: int, error: BaseException) -> None:
    logger.warning("session %s: turn %d, step %d failed: %s", agent.id, turn, step, error_chain(error))
