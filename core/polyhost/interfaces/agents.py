"""Agents: one driver over exactly one session, with an inbox, turns and cancellation (agent-core 2.10, 2.11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject
from polyhost.kernel.keys import EventKey, EventMode, ServiceKey
from polyhost.kernel.signals import AbortSignal

if TYPE_CHECKING:
    from polyhost.interfaces.models import RetryPolicy
    from polyhost.interfaces.sessions import Session
    from polyhost.kernel.context import Context

AgentStatus: TypeAlias = Literal["idle", "running"]
InboxTarget: TypeAlias = Literal["next-turn", "next-step"]


class Inbox(Protocol):
    """Messages that were accepted and not yet claimed by a turn."""

    @property
    def next_turn(self) -> Sequence[JsonObject]: ...

    @property
    def next_step(self) -> Sequence[JsonObject]: ...

    @property
    def pending(self) -> bool: ...

    def remove(self, message_id: str) -> bool:
        """Withdraw a pending message; False when it is not pending (any more)."""
        ...

    def replace(self, message_id: str, message: JsonObject) -> bool:
        """Put ``message``, of the same id or a new one, in the place of a pending one; False when it is not pending."""
        ...


class Agent(Protocol):
    """The handle that every front end drives. ``agent.id == agent.session.id``."""

    @property
    def id(self) -> str: ...

    @property
    def session(self) -> Session: ...

    @property
    def status(self) -> AgentStatus: ...

    @property
    def inbox(self) -> Inbox: ...

    @property
    def context(self) -> Context:
        """Scope of this agent: tools, prompt parts and listeners mounted here are its own and die with it."""
        ...

    @property
    def model(self) -> str | None:
        """``provider/model`` that the next request starts from."""
        ...

    def set_model(self, model: str) -> None:
        """Use ``provider/model`` from the next request on."""
        ...

    def followup(self, message: JsonObject) -> None:
        """Queue ``message`` as a later turn of its own and wake. The receipt event is in the log on return."""
        ...

    def steer(self, message: JsonObject) -> None:
        """Join the running turn at its next step; on an idle agent, open a turn."""
        ...

    def inject(self, message: JsonObject) -> None:
        """Stage context for the next step without waking."""
        ...

    def cancel(self, cause: JsonObject, *, keep_inbox: bool = False) -> None:
        """Abort the current activity with ``{kind: user | parent | disposed | hook, ...}``; the first cause wins.

        Unless ``keep_inbox``, what is queued at this moment is discarded. Raises ValueError for another kind.
        """
        ...

    def limit(self, *, max_steps: int | None = None, seconds: float | None = None, tokens: int | None = None) -> None:
        """Bound each turn; None for no bound. A turn that reaches a bound ends ``aborted`` with a ``hook`` cause.

        :param tokens: input and output together, as models report them; cached input does not count. Checked before
            each further step, so the step that reaches the bound is completed.
        """
        ...

    def resume_queue(self) -> None:
        """Wake the agent for messages that a failed, blocked or cancelled turn left in the inbox, if any."""
        ...

    async def when_idle(self) -> None:
        """Wait until nothing is in flight, following work that starts meanwhile. Never raises for the work."""
        ...

    async def maintain(self, task: Callable[[AbortSignal], Awaitable[Any]]) -> Any:
        """Exclusive work that is not a turn; only when idle, else raises AGENT_BUSY before its first suspension."""
        ...


class TurnOutcome(NamedTuple):
    """How the turn that consumed one prompt ended. ``reason`` is the ``turn/end`` reason, None when none did."""

    turn: int | None
    reason: JsonObject | None
    text: str
    usage: JsonObject


class PromptTicket(Protocol):
    """Follows one prompt from receipt to idle and knows exactly which turn answered it."""

    @property
    def message_id(self) -> str: ...

    async def claimed(self) -> int | None:
        """Number of the turn that claimed the message; None when it was discarded unrun."""
        ...

    async def outcome(self) -> TurnOutcome:
        """Wait for the end of the claiming turn (or the discard) and for idle."""
        ...


class AgentRegistry(Protocol):
    """Live agents by id."""

    def get(self, agent_id: str) -> Agent | None: ...

    def list(self) -> Sequence[Agent]: ...

    def prompt(self, agent: Agent, message: JsonObject) -> PromptTicket:
        """Queue ``message`` with ``followup`` and follow it."""
        ...


class StepProposal(NamedTuple):
    """What ``agent/pre-step`` decides on: the claimed messages of one proposed step."""

    agent: Agent
    messages: tuple[JsonObject, ...]
    turn: int
    step: int
    signal: AbortSignal


class Enter(NamedTuple):
    """Run the step with these messages."""

    messages: tuple[JsonObject, ...]


class Reject(NamedTuple):
    """Refuse the step; the turn ends ``blocked``."""


class RequestBuild(NamedTuple):
    """What ``agent/request`` may change: the call configuration of the next request."""

    agent: Agent
    turn: int
    step: int
    signal: AbortSignal


class RequestFailure(NamedTuple):
    """One failed model attempt, offered to ``agent/request-error``; answering True asks for a retry."""

    agent: Agent
    turn: int
    step: int
    provider: str
    failure: JsonObject
    retry_policy: RetryPolicy | None
    signal: AbortSignal


AGENTS = ServiceKey[AgentRegistry]("agents")


def _scope(agent: Agent, *_: object) -> object:
    return agent.context.scope_tag


def _subject(payload: StepProposal | RequestBuild | RequestFailure, *_: object) -> object:
    return payload.agent.context.scope_tag


AGENT_CREATED = EventKey[[Agent]]("agent/created", contained=False, scoped=True, subject=_scope)
"""A raising listener vetoes the creation."""
AGENT_DISPOSED = EventKey[[Agent]]("agent/disposed", scoped=True, subject=_scope)
AGENT_SESSION_START = EventKey[[Agent, str]]("agent/session-start", scoped=True, subject=_scope)
"""``(agent, source)`` with source ``startup`` or ``resume``."""
AGENT_STATUS = EventKey[[Agent, AgentStatus]]("agent/status", scoped=True, subject=_scope)
AGENT_INBOX_INSERTED = EventKey[[Agent, JsonObject]]("agent/inbox/inserted", scoped=True, subject=_scope)
AGENT_INBOX_DISCARDED = EventKey[[Agent, JsonObject]]("agent/inbox/discarded", scoped=True, subject=_scope)
AGENT_INBOX_CLAIMED = EventKey[[Agent, JsonObject, int]]("agent/inbox/claimed", scoped=True, subject=_scope)
AGENT_PRE_STEP = EventKey[[StepProposal, Callable[[], Awaitable[Enter | Reject]]]](
    "agent/pre-step", EventMode.WATERFALL, scoped=True, subject=_subject
)
"""``async listener(proposal, next) -> Enter | Reject``."""
AGENT_REQUEST = EventKey[[RequestBuild, Callable[[], Awaitable[JsonObject]]]](
    "agent/request", EventMode.WATERFALL, scoped=True, subject=_subject
)
"""``async listener(build, next) -> call configuration``."""
AGENT_REQUEST_ERROR = EventKey[[RequestFailure, Callable[[], Awaitable[bool]]]](
    "agent/request-error", EventMode.WATERFALL, scoped=True, subject=_subject
)
"""``async listener(failure, next) -> bool``: True retries in the same step."""
AGENT_TURN_STOPPING = EventKey[[Agent, int, AbortSignal]](
    "agent/turn-stopping", EventMode.SERIAL, scoped=True, subject=_scope
)
AGENT_ERROR = EventKey[[Agent, int, int, BaseException]]("agent/error", scoped=True, subject=_scope)
"""``(agent, turn, step, error)``; step 0 means before the first step."""
