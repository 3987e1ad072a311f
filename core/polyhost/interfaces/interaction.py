"""Approvals and questions: who is asked, with what, and what counts as an answer (agent-core 2.15, 2.16; design 5).

A front end that can put something before a person mounts a :class:`Surface`. The broker offers each approval and
question to the surface that owns the session and to attached ones; the first valid answer wins and the others are
withdrawn through their signal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey

if TYPE_CHECKING:
    from polyhost.interfaces.agents import Agent
    from polyhost.interfaces.sessions import Session
    from polyhost.kernel.signals import AbortSignal

PermissionMode: TypeAlias = Literal["read-only", "ask", "workspace", "full"]
PERMISSION_MODES: tuple[PermissionMode, ...] = ("read-only", "ask", "workspace", "full")

ApprovalOutcome: TypeAlias = Literal["allowed-once", "rejected", "cancelled", "unavailable"]
ApprovalPolicy: TypeAlias = Literal["ask", "never"]
"""``never`` rejects every approval without asking anybody."""


class QuestionError(PolyhostError):
    """A question could not be put or answered: ASK_ABORTED, EMPTY_QUESTIONS, NO_PROVIDER, ASK_CANCELLED, ..."""

    default_code = "ASK_FAILED"


class ApprovalRequest(NamedTuple):
    """One question "may this tool run?". ``arguments`` is what exactly will run: the answer binds to it.

    :param preview: what the call would do, when its tool can tell, for the person to see; for changes of files
        ``{"diffs": [{"path": str, "oldText": str | None, "newText": str}]}``, one entry for each hunk; ``oldText`` is
        None for a new file.
    """

    id: str
    agent: Agent
    tool: str
    arguments: JsonValue
    call_id: str | None
    reason: str | None
    signal: AbortSignal
    preview: JsonObject | None = None


class ApprovalAnswer(NamedTuple):
    """What a person decided.

    :param allowed: None when the question was closed without an answer; the call is then cancelled.
    :param remember: also allow the same tool for the rest of this session, in this process.
    """

    allowed: bool | None
    remember: bool = False


class QuestionRequest(NamedTuple):
    """A batch of questions ``[{id, question, detail?, header?, options?, multiSelect?}]`` of one tool call."""

    id: str
    agent: Agent | None
    questions: list[JsonObject]
    signal: AbortSignal


class Surface(Protocol):
    """A front end that can ask a person. Either method returns None to leave the request to others.

    A request is withdrawn through its ``signal``: whatever is returned after that is discarded. A surface that serves
    a session only from some moment on calls :meth:`Interactions.reoffer` to be asked what is still open.
    """

    @property
    def name(self) -> str: ...

    @property
    def default_mode(self) -> PermissionMode | None:
        """Mode of sessions that this surface owns and whose log says nothing; None takes the host's default."""
        ...

    @property
    def trusts_shell(self) -> bool:
        """Whether, in ``workspace`` mode, sessions that this surface owns run commands without asking."""
        ...

    def serves(self, session_id: str) -> bool:
        """Whether this surface owns, or is attached to, the session."""
        ...

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer | None: ...

    async def ask(self, request: QuestionRequest) -> list[JsonObject] | None:
        """Answers ``[{id, selected: [label], custom?}]`` in the order of the questions.

        Raise :class:`QuestionError` with ASK_CANCELLED when a person closed the question without an answer.
        """
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
        preview: JsonObject | None = None,
    ) -> ApprovalOutcome:
        """Ask whether ``tool`` may run with ``arguments``; ``preview`` is shown with the question."""
        ...

    async def ask(self, agent: Agent | None, questions: list[JsonObject], signal: AbortSignal) -> list[JsonObject]:
        """Validated answers. Raises :class:`QuestionError`."""
        ...

    def check_answers(self, questions: Sequence[JsonObject], answers: JsonValue) -> None:
        """Raise :class:`QuestionError` (BAD_ANSWER) unless ``answers`` answers ``questions``.

        For front ends that want to tell their user; the broker checks every answer anyway.
        """
        ...

    def adopt(
        self, session: Session, *, surface: str | None = None, mode: PermissionMode | None = None, pin: bool = True
    ) -> Callable[[], None]:
        """Note which front end owns a session that is being opened; returns the undo.

        With ``pin``, also log the permission facts that the log lacks: those of ``mode``, else of the front end's
        default, else of the host's. Facts that are there already stay.
        """
        ...

    def mode(self, agent: Agent) -> PermissionMode:
        """The session's permission mode, folded from its log, else the front end's default, else the host's."""
        ...

    def set_mode(self, agent: Agent, mode: PermissionMode) -> None:
        """Log the new mode and tell the model at its next step; a no-op when nothing changes."""
        ...

    def preset(self, agent: Agent) -> str:
        """Name of the logged knobs' combination (agent-core 2.15), ``custom`` when no preset matches them."""
        ...

    def policy(self, agent: Agent) -> ApprovalPolicy: ...

    def set_policy(self, agent: Agent, policy: ApprovalPolicy) -> None:
        """Log the new policy and tell the model at its next step; a no-op when nothing changes."""
        ...

    def pending(self, session_id: str) -> Sequence[ApprovalRequest | QuestionRequest]:
        """What waits for a person in this session, oldest first."""
        ...

    def reoffer(self, session_id: str) -> None:
        """Offer what is pending to surfaces that serve the session by now and have not been asked."""
        ...


INTERACTIONS = ServiceKey[Interactions]("interactions")
SURFACE = MountKind[Surface]("surface", unique=False, scoped=False)
APPROVAL_REQUEST = EventKey[[ApprovalRequest, Callable[[], Awaitable[ApprovalOutcome]]]](
    "approval/request", EventMode.WATERFALL
)
"""``async listener(request, next) -> ApprovalOutcome``; the innermost step offers the request to surfaces."""
