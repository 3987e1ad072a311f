"""One approval from question to answer, with its audit pair in the log (agent-core 2.15).

What decides, in this order: an aborted signal, the policy ``never``, what a person chose to remember, listeners of
``approval/request``, and innermost the surfaces.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.interaction import ApprovalAnswer, ApprovalOutcome
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import new_id
from polyhost.kernel.errors import PolyhostError

_log = logging.getLogger(__name__)

OUTCOMES: frozenset[Any] = frozenset({"allowed-once", "rejected", "cancelled", "unavailable"})


class ApprovalError(PolyhostError):
    """An approval was asked for outside a turn."""

    default_code = "NO_OPEN_TURN"


async def audited(
    agent: Agent, tool: str, *, call_id: str | None, reason: str | None, decide: Callable[[str], Awaitable[object]]
) -> ApprovalOutcome:
    """Run ``decide(id)`` between ``approval/asked`` and ``approval/decided``.

    :raises ApprovalError: no turn is open; nothing was logged.
    :raises SessionError: an append failed.
    """
    session = agent.session
    if not session.turn_open:
        raise ApprovalError(f"approval for tool {tool!r} was asked for outside a turn of session {session.id}")
    asked: JsonObject = {"id": new_id(), "toolName": tool}
    if call_id is not None:
        asked["callId"] = call_id
    if reason is not None:
        asked["reason"] = reason
    session.append("approval/asked", asked)
    outcome: ApprovalOutcome = "cancelled"  # when this very task is cancelled
    try:
        outcome = await _outcome(decide(asked["id"]), tool)
    finally:
        session.append("approval/decided", {"id": asked["id"], "outcome": outcome})
    return outcome


async def _outcome(decision: Awaitable[object], tool: str) -> ApprovalOutcome:
    try:
        outcome: Any = await decision
    except Exception:
        _log.exception("nobody could be asked whether tool %s may run", tool)
        return "unavailable"
    if isinstance(outcome, str) and outcome in OUTCOMES:
        return outcome  # type: ignore[return-value]
    _log.error("an approval listener answered %.80r for tool %s, which is no outcome", outcome, tool)
    return "unavailable"


def checked_answer(answer: ApprovalAnswer) -> ApprovalAnswer:
    """``answer``, when it is one.

    :raises TypeError: it is not.
    """
    if not isinstance(answer, ApprovalAnswer) or answer.allowed not in (True, False, None):
        raise TypeError(f"a surface must answer with an ApprovalAnswer, not {answer!r:.80}")
    return answer


def outcome_of(answer: ApprovalAnswer | None) -> ApprovalOutcome:
    """The outcome that a surface's answer amounts to; None means that nobody gave one."""
    if answer is None:
        return "unavailable"
    if answer.allowed is None:
        return "cancelled"
    return "allowed-once" if answer.allowed else "rejected"
