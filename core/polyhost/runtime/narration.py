"""What the host's log says of its life: plugins, sessions and turns as they come and go. Never their content."""

from __future__ import annotations

import logging
from typing import Any

from polyhost.interfaces import AGENT_ERROR, AGENT_SESSION_START, AGENT_STATUS, Agent, AgentStatus
from polyhost.kernel.context import Context
from polyhost.kernel.events import FIBER_STATUS, TASK_CRASHED
from polyhost.kernel.fibers import Fiber, FiberState
from polyhost.kernel.plugins import one_line
from polyhost.kernel.tokens import MountToken
from polyhost.runtime.models.errors import error_chain

logger = logging.getLogger("polyhost.life")
people = logging.getLogger("polyhost.host")
"""Its warnings are shown on stderr."""


def narrate(root: Context) -> None:
    """Log, for the life of ``root``: plugin states (debug), sessions and statuses (info), failed turns (warning)."""
    root.on(FIBER_STATUS, _fiber, everywhere=True)
    root.on(AGENT_SESSION_START, _session, everywhere=True)
    root.on(AGENT_STATUS, _status, everywhere=True)
    root.on(AGENT_ERROR, _error, everywhere=True)


def warn_of_failures(root: Context) -> None:
    """Tell people, for the life of ``root``, of plugins that fail from now on, and why."""
    failures = _Failures()
    root.on(TASK_CRASHED, failures.task, everywhere=True)
    root.on(FIBER_STATUS, failures.fiber, everywhere=True)


class _Failures:
    def __init__(self) -> None:
        self._told: BaseException | None = None

    def task(self, token: MountToken[Any], error: BaseException) -> None:
        self._told = error
        people.warning("plugin %s: its background task %r crashed: %s", token.owner.fiber.name, token.key, _line(error))

    def fiber(self, fiber: Fiber, previous: FiberState) -> None:
        if fiber.state is FiberState.FAILED and fiber.error is not None and fiber.error is not self._told:
            people.warning("plugin %s has failed: %s", fiber.name, _line(fiber.error))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _fiber(fiber: Fiber, previous: FiberState) -> None:
    logger.debug("%s: %s, was %s", fiber.name, fiber.state, previous)


def _session(agent: Agent, source: str) -> None:
    logger.info("session %s: %s in %s with %s", agent.id, source, agent.session.header.cwd, agent.model)


def _status(agent: Agent, status: AgentStatus) -> None:
    logger.info("session %s: %s after turn %d", agent.id, status, agent.session.last_turn)


def _error(agent: Agent, turn: int, step: int, error: BaseException) -> None:
    logger.warning("session %s: turn %d, step %d failed: %s", agent.id, turn, step, error_chain(error))
