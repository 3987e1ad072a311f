"""Approvals and questions: who is asked, with what, and what counts as an answer (agent-core 2.15, 2.16; design 5).

A front end that can put something before a person mounts a :class:`Surface`. The broker offers each approval and
question to the surface that owns the session and to attached ones; the first valid answer wins and the others are
withdrawn through their signal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey

if TYPE_CHECKING:
    from polyhost.interfaces.agents import Agent
    from polyhost.kernel.signals import AbortSignal

PermissionMode: TypeAlias = Literal["read-only", "ask", "workspace", "full"]
PERMISSION_MODES: tuple[PermissionMode, ...] = ("read-only", "ask", "workspace", "full")

ApprovalOutcome: TypeAlias = Literal["allowed-once", "rejected", "cancelled", "unavailable"]


class QuestionError(PolyhostError):
    """A question could not be put or answered: ASK_ABORTED, EMPTY_QUESTIONS, NO_PROVIDER, ASK_CANCELLED, ..."""

    default_code = "ASK_FAILED"


class ApprovalRequest(NamedTuple):
    """One question "may this tool run?". ``arguments`` is what exactly will run: the answer binds to it."""

    id: str
    agent: Agent
    tool: str
    arguments: JsonValue
    call_id: str | None
    reason: str | None
    signal: AbortSignal


class ApprovalAnswer(NamedTuple):
    """``remember`` also allows the same tool for the rest of this session, in this process."""

    allowed: bool
    remember: bool = False


class QuestionRequest(NamedTuple):
    """A batch of questions ``[{id, question, detail?, header?, options?, multiSelect?}]`` of one tool call."""

    id: str
    agent: Agent | None
    questions: list[JsonObject]
    signal: AbortSignal


class Surface(Protocol):
    """A front end that can ask a person. Either method returns None to leave the request to others."""

    @property
    def name(self) -> str: ...

    def serves(self, session_id: str) -> bool:
        """Whether this surface owns, or is attached to, the session."""
        ...

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer | None: ...

    async def ask(self, request: QuestionRequest) -> list[JsonObject] | None:
        """Answers ``[{id, selected: [label], custom?}]`` in the order of the questions."""
        ...


class Interactions(Protocol):
    """The broker: decides allow, ask or deny for each tool call, and finds who answers."""

    async def approve(
        self,
        agent: Agent,
        tool: str,
        arguments: JsonValue,
        *,
        call_id: str | None,
        reason: str | None,
        signal: AbortSignal,
    ) -> ApprovalOutcome: ...

    async def ask(self, agent: Agent | None, questions: list[JsonObject], signal: AbortSignal) -> list[JsonObject]:
        """Validated answers. Raises :class:`QuestionError`."""
        ...

    def mode(self, agent: Agent) -> PermissionMode:
        """The session's permission mode, folded from its log, else the default."""
        ...

    def set_mode(self, agent: Agent, mode: PermissionMode) -> None:
        """Log the new mode and tell the model at its next step; a no-op when nothing changes."""
        ...


INTERACTIONS = ServiceKey[Interactions]("interactions")
SURFACE = MountKind[Surface]("surface", unique=False)
APPROVAL_REQUEST = EventKey[[ApprovalRequest]]("approval/request", EventMode.WATERFALL)
"""``async listener(request, next) -> ApprovalOutcome``; the innermost step offers the request to surfaces."""
