"""The broker: the one place that finds who answers an approval or a question, and that knows a session's mode.

It ties together ``modes`` (what the log says), ``approvals`` and ``questions`` (their rules) and ``offers`` (asking
several surfaces at once). Whether a call has to ask at all is decided in ``permissions``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from polyhost.interfaces.agents import Agent, AgentRegistry
from polyhost.interfaces.interaction import (
    APPROVAL_REQUEST,
    SURFACE,
    ApprovalAnswer,
    ApprovalOutcome,
    ApprovalPolicy,
    ApprovalRequest,
    PermissionMode,
    QuestionError,
    QuestionRequest,
    Surface,
)
from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.messages import new_id, plugin_message
from polyhost.interfaces.sessions import Session
from polyhost.kernel.context import Kernel
from polyhost.kernel.events import Target
from polyhost.kernel.mounts import MountState, MountToken
from polyhost.kernel.signals import AbortController, AbortedError, AbortSignal
from polyhost.runtime.interaction.approvals import audited, checked_answer, outcome_of
from polyhost.runtime.interaction.modes import (
    POLICY_EVENT,
    FactReader,
    current_preset,
    missing_facts,
    mode_of,
    policy_of,
    preset_of,
    switching_facts,
)
from polyhost.runtime.interaction.offers import ANSWERED, Offer, Stragglers, first
from polyhost.runtime.interaction.questions import check_answers, check_questions
from polyhost.wire.json import loads, snapshot

PLUGIN = "user-approval"
"""Source of the messages that tell the model of changed permissions."""


class Broker:
    """Implements :class:`polyhost.interfaces.interaction.Interactions`.

    :param agents: finds the registry of live agents at each use.
    :param default_mode: mode of sessions whose log and front end say nothing.
    :param approval_timeout: seconds after which an unanswered approval is cancelled; None waits for ever.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        agents: Callable[[], AgentRegistry | None],
        default_mode: PermissionMode = "ask",
        approval_timeout: float | None = None,
    ) -> None:
        self._kernel = kernel
        self._agents = agents
        self._default_mode = preset_of(default_mode).mode
        self._approval_timeout = approval_timeout
        self._facts = FactReader()
        self._owners: dict[str, dict[object, str]] = {}
        self._remembered: dict[str, set[str]] = {}
        self._open: dict[str, tuple[ApprovalRequest | QuestionRequest, Offer[Any, Any]]] = {}
        self._stragglers = Stragglers()

    # -- approvals

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
        image = snapshot([arguments, preview], root="request")
        given: list[ApprovalAnswer] = []

        async def decide(request_id: str) -> object:
            if signal.aborted:
                return "cancelled"
            if self.policy(agent) == "never":
                return "rejected"
            if tool in self._remembered.get(agent.id, ()):
                return "allowed-once"
            withdrawn = AbortController()
            shown = loads(image)
            request = ApprovalRequest(
                request_id, agent, tool, shown[0], call_id, reason, withdrawn.signal, preview=shown[1]
            )
            try:
                return await self._consult(request, image, signal, withdrawn, given)
            except AbortedError:
                return "cancelled"

        outcome = await audited(agent, tool, call_id=call_id, reason=reason, decide=decide)
        if outcome == "allowed-once" and any(answer.remember for answer in given):
            self._remembered.setdefault(agent.id, set()).add(tool)
        return outcome

    async def _consult(
        self,
        request: ApprovalRequest,
        image: bytes,
        signal: AbortSignal,
        withdrawn: AbortController,
        given: list[ApprovalAnswer],
    ) -> object:
        """Ask listeners, and innermost the surfaces, whose answer is added to ``given``.

        :param image: arguments and preview, from which each surface gets copies of its own.
        """

        async def put(surface: Surface) -> ApprovalAnswer | None:
            arguments, preview = loads(image)
            return await surface.approve(request._replace(arguments=arguments, preview=preview))

        offer = Offer(put, checked_answer, request.signal, self._stragglers)

        async def innermost() -> ApprovalOutcome:
            offer.to(self._surfaces(request.agent))
            answer = await offer.outcome()
            if answer is not None:
                given.append(answer)
            return outcome_of(answer)

        async def consult() -> object:
            events = self._kernel.events.to(Target(request.agent.context.scope_tag))
            return await events.waterfall(APPROVAL_REQUEST, request, inner=innermost)

        return await self._settle(request, offer, consult(), signal, withdrawn, self._approval_timeout)

    # -- questions

    async def ask(self, agent: Agent | None, questions: list[JsonObject], signal: AbortSignal) -> list[JsonObject]:
        if signal.aborted:
            raise QuestionError("the question was cancelled before it was asked", code="ASK_ABORTED")
        check_questions(questions)
        self._check_caller(agent)
        withdrawn = AbortController()
        image = snapshot(questions, root="questions")
        request = QuestionRequest(new_id(), agent, loads(image), withdrawn.signal)

        async def put(surface: Surface) -> list[JsonObject] | None:
            return await surface.ask(request._replace(questions=loads(image)))

        def accept(answers: list[JsonObject]) -> list[JsonObject]:
            check_answers(questions, answers)
            return answers

        offer = Offer(put, accept, request.signal, self._stragglers)
        offer.to(self._surfaces(agent))
        try:
            answers = await self._settle(request, offer, offer.outcome(), signal, withdrawn, None)
        except AbortedError as error:
            raise QuestionError("the question was cancelled while it waited", code="ASK_ABORTED") from error
        if answers is None:
            raise QuestionError("nobody is there to answer: no user interface took the question", code="NO_PROVIDER")
        return loads(snapshot(answers))  # type: ignore[no-any-return]

    def check_answers(self, questions: Sequence[JsonObject], answers: JsonValue) -> None:
        check_answers(questions, answers)

    def _check_caller(self, agent: Agent | None) -> None:
        if agent is None:
            return
        agents = self._agents()
        if agents is None or agents.get(agent.id) is not agent:
            raise QuestionError(f"agent {agent.id} is not live, so its question has no owner", code="CALLER_NOT_LIVE")
        if len(self._kernel.scopes.chain(agent.context.scope_tag)) > 1:
            raise QuestionError(
                "a delegated agent cannot ask the user: put the question into the result", code="DELEGATED_CALLER"
            )

    # -- what is open

    async def _settle(
        self,
        request: ApprovalRequest | QuestionRequest,
        offer: Offer[Any, Any],
        work: Any,
        signal: AbortSignal,
        withdrawn: AbortController,
        timeout: float | None,
    ) -> Any:
        self._open[request.id] = (request, offer)
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work, name=f"request {request.id}")
        try:
            return await first(task, signal, self._stragglers, timeout=timeout)
        finally:
            del self._open[request.id]
            withdrawn.abort(signal.cause if signal.aborted else ANSWERED)

    def pending(self, session_id: str) -> Sequence[ApprovalRequest | QuestionRequest]:
        return tuple(
            request
            for request, _ in self._open.values()
            if request.agent is not None and request.agent.id == session_id
        )

    def reoffer(self, session_id: str | None = None) -> None:
        for request, offer in list(self._open.values()):
            if session_id is None or (request.agent is not None and request.agent.id == session_id):
                offer.to(self._surfaces(request.agent))

    def mount_changed(self, token: MountToken[Any], old: MountState, new: MountState) -> None:
        """A ``mount/changed`` listener: a new surface is offered what is open."""
        if token.kind == SURFACE and new is MountState.ACTIVE and self._open:
            self.reoffer()

    async def aclose(self) -> None:
        """Wait for surfaces that have not yet put away what was withdrawn."""
        await self._stragglers.aclose()

    # -- who owns a session

    def adopt(
        self, session: Session, *, surface: str | None = None, mode: PermissionMode | None = None, pin: bool = True
    ) -> Callable[[], None]:
        handle = object()
        if surface is not None:
            self._owners.setdefault(session.id, {})[handle] = surface
        if pin:
            preset = preset_of(mode or self._fallback_mode(session.id))
            for type_, data in missing_facts(self._facts.read(session), preset):
                session.append(type_, data)

        def release() -> None:
            owners = self._owners.get(session.id, {})
            owners.pop(handle, None)
            if not owners:
                self._owners.pop(session.id, None)

        return release

    def forget(self, session: Session) -> None:
        """A ``session/disposed`` listener: what was remembered for a session ends with it."""
        self._remembered.pop(session.id, None)
        self._owners.pop(session.id, None)

    def trusts_shell(self, agent: Agent | None) -> bool:
        """Whether the front end that owns the session lets it run programs unasked in ``workspace`` mode."""
        owner = self._owner(agent.id) if agent is not None else None
        return owner is not None and owner.trusts_shell is True

    def _owner(self, session_id: str) -> Surface | None:
        """A surface of the front end that opened the session first and still holds it."""
        name = next(iter(self._owners.get(session_id, {}).values()), None)
        surfaces = (token.value for token in self._kernel.mounts.tokens(SURFACE))
        return next((surface for surface in surfaces if surface.name == name), None)

    def _surfaces(self, agent: Agent | None) -> list[MountToken[Surface]]:
        tokens = self._kernel.mounts.tokens(SURFACE)
        return [token for token in tokens if agent is None or token.value.serves(agent.id)]

    # -- modes and policies

    def mode(self, agent: Agent | None) -> PermissionMode:
        if agent is None:
            return self._default_mode
        return mode_of(self._facts.read(agent.session), self._fallback_mode(agent.id))

    def set_mode(self, agent: Agent, mode: PermissionMode) -> None:
        preset = preset_of(mode)
        events = list(switching_facts(self._facts.read(agent.session), preset))
        if not events:
            return
        for type_, data in events:
            agent.session.append(type_, data)
        _tell(agent, f"The permission mode of this session is now {mode}.")

    def preset(self, agent: Agent) -> str:
        return current_preset(self._facts.read(agent.session), self._fallback_mode(agent.id))

    def policy(self, agent: Agent) -> ApprovalPolicy:
        return policy_of(self._facts.read(agent.session), self._fallback_mode(agent.id))

    def set_policy(self, agent: Agent, policy: ApprovalPolicy) -> None:
        if policy not in ("ask", "never"):
            raise ValueError(f"unknown approval policy {policy!r}; the policies are ask and never")
        if self.policy(agent) == policy:
            return
        agent.session.append(POLICY_EVENT, {"policy": policy})
        _tell(agent, f"The approval policy of this session is now {policy}.")

    def _fallback_mode(self, session_id: str) -> PermissionMode:
        owner = self._owner(session_id)
        return owner.default_mode or self._default_mode if owner is not None else self._default_mode


def _tell(agent: Agent, text: str) -> None:
    agent.inject(plugin_message(PLUGIN, text, form="notice", summary=text))
