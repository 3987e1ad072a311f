"""The driver of one agent: when it runs, what wakes it, how it is cancelled, and when it is idle.

Phases: idle, running (one driver task, turn after turn), maintenance. Everything up to the claim of the first turn
happens synchronously inside the call that wakes the agent, so that a caller finds its receipt in the log on return.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from polyhost.interfaces import (
    AGENT_INBOX_DISCARDED,
    AGENT_INBOX_INSERTED,
    AGENT_STATUS,
    AgentStatus,
    InboxTarget,
    JsonObject,
    PromptTicket,
    SessionError,
    TurnOutcome,
)
from polyhost.kernel.context import Context
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.signals import AbortController, AbortSignal
from polyhost.kernel.startup import current_context
from polyhost.runtime.agents.events import AgentEvents
from polyhost.runtime.agents.grace import AbortGrace
from polyhost.runtime.agents.inbox import NEXT_STEP, NEXT_TURN, AgentInbox
from polyhost.runtime.agents.parts import AgentParts, AgentServices, TurnLimits
from polyhost.runtime.agents.requests import Requests
from polyhost.runtime.agents.turn import DISPOSED, Turn
from polyhost.runtime.containment import ends_task
from polyhost.runtime.models.errors import failure_of
from polyhost.runtime.sessions.log import LiveSession

_log = logging.getLogger(__name__)

CANCEL_CAUSES = ("user", "parent", "disposed", "hook")


class AgentBusyError(PolyhostError):
    """Exclusive work was asked of an agent that is not idle."""

    default_code = "AGENT_BUSY"


class AgentDisposedError(PolyhostError):
    """A message was sent to an agent that is gone."""

    default_code = "AGENT_DISPOSED"


class _Activity:
    """A stretch of not being idle: from a wake, or the start of maintenance, to convergence.

    :ivar turn: the turn that runs, None in maintenance and between turns.
    :ivar error: what made the driver fail, outside of any turn.
    :ivar settling: True while the end of the stretch is being published; what wakes the agent then is replayed after.
    """

    __slots__ = ("controller", "done", "driving", "error", "settling", "task", "turn")

    def __init__(self, *, driving: bool) -> None:
        self.controller = AbortController()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.driving = driving
        self.settling = False
        self.turn: Turn | None = None
        self.task: asyncio.Task[None] | None = None
        self.error: BaseException | None = None

    def lost(self, turn: int) -> TurnOutcome:
        """The outcome for those whose turn could not tell them its own."""
        if self.error is None:
            return TurnOutcome(turn, {"kind": "aborted", "reason": self.controller.signal.cause}, "", {})
        return TurnOutcome(turn, {"kind": "error", "error": failure_of(self.error)}, "", {})

    @property
    def late(self) -> bool:
        """Whether queued work is no longer picked up by this activity itself."""
        return self.controller.signal.aborted or self.settling or (self.turn is not None and self.turn.closing)


class LiveAgent:
    """The handle of a live agent; see :class:`polyhost.interfaces.agents.Agent`.

    :param context: the scope that belongs to this agent.
    :param model: ``provider/model``, or None to leave the route to ``agent/request`` listeners.
    :param max_tokens: output cap of each request, None for the adapter's default.
    """

    def __init__(
        self,
        session: LiveSession,
        context: Context,
        services: AgentServices,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self._session = session
        self._context = context
        self._inbox = AgentInbox(session, self)
        self._requests = Requests(session, model, max_tokens)
        self._parts = AgentParts(
            agent=self,
            session=session,
            services=services,
            events=AgentEvents(context),
            inbox=self._inbox,
            requests=self._requests,
        )
        # Drivers work on behalf of this agent, whoever woke it.
        self._variables = contextvars.copy_context()
        self._variables.run(current_context.set, context)
        self._activity: _Activity | None = None
        self._latched = False
        self._doomed: set[str] = set()  # cancelled, but their splices could not be logged yet
        self._closing = False
        self._closed = False

    @property
    def id(self) -> str:
        return self._session.id

    @property
    def session(self) -> LiveSession:
        return self._session

    @property
    def context(self) -> Context:
        return self._context

    @property
    def inbox(self) -> AgentInbox:
        return self._inbox

    @property
    def status(self) -> AgentStatus:
        activity = self._activity
        return "running" if activity is not None and activity.driving and not activity.settling else "idle"

    @property
    def closing(self) -> bool:
        """Whether the agent is being disposed, or is gone."""
        return self._closing

    @property
    def model(self) -> str | None:
        return self._requests.model

    def set_model(self, model: str) -> None:
        self._requests.select(model)

    def limit(self, *, max_steps: int | None = None, seconds: float | None = None, tokens: int | None = None) -> None:
        self._parts.limits = TurnLimits(max_steps, seconds, tokens)

    # -- messages in

    def followup(self, message: JsonObject) -> None:
        self._send(message, NEXT_TURN, wake=True)

    def steer(self, message: JsonObject) -> None:
        self._send(message, NEXT_STEP, wake=True)

    def inject(self, message: JsonObject) -> None:
        self._send(message, NEXT_STEP, wake=False)

    def prompt(self, message: JsonObject) -> PromptTicket:
        """:meth:`followup`, and the ticket that follows the message."""
        ticket = self._parts.tickets.open(self, message["id"])
        try:
            self.followup(message)
        except BaseException:
            self._parts.tickets.forget(message["id"])
            raise
        return ticket

    def resume_queue(self) -> None:
        """Wake the agent for work that a failed, blocked or cancelled turn left parked. Does nothing without any."""
        if self._inbox.pending and not self._closing:
            self._wake()

    def inserted(self, message: JsonObject) -> None:
        """The inbox took a message."""
        self._parts.emit(AGENT_INBOX_INSERTED, message)

    def discarded(self, message: JsonObject, replacement: JsonObject | None) -> None:
        """The inbox dropped a message, perhaps for an edited one of the same id, which its ticket goes on following."""
        if replacement is None or replacement["id"] != message["id"]:
            self._parts.tickets.discarded(message)
        self._parts.emit(AGENT_INBOX_DISCARDED, message)

    def _send(self, message: JsonObject, target: InboxTarget, *, wake: bool) -> None:
        if self._closed:
            raise AgentDisposedError(f"agent {self.id} was disposed; open its session again to send it a message")
        activity = self._activity
        if wake and activity is not None and activity.driving and activity.controller.signal.aborted:
            target = NEXT_TURN  # the turn that it would have joined is over
        self._inbox.insert(target, message)
        if wake:
            self._wake()

    # -- running

    def _wake(self) -> None:
        activity = self._activity
        if activity is None:
            if not self._closing:
                self._start()
        elif activity.late or not activity.driving:
            self._latched = not self._closing

    def _start(self) -> None:
        """Become running and open a turn, synchronously; the rest runs in the driver's task."""
        activity = self._activity = _Activity(driving=True)
        try:
            self._publish("running")
            self._open_turn(activity)
        finally:  # whatever listeners did: only a driver leads back to idle
            activity.task = asyncio.get_running_loop().create_task(
                self._drive(activity), name=f"agent {self.id}", context=self._variables.copy()
            )
            activity.task.add_done_callback(lambda _: self._drive_ended(activity))

    def _open_turn(self, activity: _Activity) -> None:
        activity.turn = None
        if activity.controller.signal.aborted:
            return
        turn = Turn(self._parts, activity.controller)
        if turn.open():
            activity.turn = turn

    async def _drive(self, activity: _Activity) -> None:
        """Run turns until one says "no more"; then converge to idle."""
        try:
            while activity.turn is not None:
                more = await activity.turn.run()
                if not more or activity.controller.signal.aborted or not self._inbox.pending:
                    break
                activity.controller = AbortController()
                self._open_turn(activity)
        except BaseException as error:
            if ends_task(error):
                raise
            activity.error = error
            _log.error("agent %s stopped unexpectedly", self.id, exc_info=error)
        finally:
            self._converge(activity)

    def _drive_ended(self, activity: _Activity) -> None:
        if not activity.done.done():  # cancelled before its first step: the driver could not even clean up
            if activity.turn is not None:
                activity.turn.cut_off()
            self._converge(activity)

    def _converge(self, activity: _Activity) -> None:
        """Publish idle, then replay what asked to run meanwhile. One synchronous section: no wake can be lost."""
        self._parts.tickets.turn_ended(activity.lost(self._session.last_turn))  # none, unless the driver has failed
        self._contain(self._discard_doomed)
        activity.settling = True
        if activity.driving:
            self._contain(self._publish, "idle")
        self._activity = None
        latched, self._latched = self._latched, False
        if latched and self._inbox.pending and not self._closing:
            self._contain(self._start)
        activity.done.set_result(None)

    def _contain(self, work: Callable[..., object], *args: Any) -> None:
        """Do what must not keep the agent from becoming idle; report what it raises."""
        try:
            work(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._parts.report(self._session.last_turn, 0, error)

    def _publish(self, status: AgentStatus) -> None:
        self._parts.emit(AGENT_STATUS, status)

    async def when_idle(self) -> None:
        while (activity := self._activity) is not None:
            await asyncio.shield(activity.done)

    async def maintain(self, task: Callable[[AbortSignal], Awaitable[Any]]) -> Any:
        if self._activity is not None or self._closing:
            raise AgentBusyError(f"agent {self.id} is not idle; maintenance waits for idle or cancels first")
        activity = self._activity = _Activity(driving=False)
        try:
            with AbortGrace(activity.controller.signal, self._parts.services.abort_grace):
                return await task(activity.controller.signal)
        finally:
            self._converge(activity)

    # -- ending

    def cancel(self, cause: JsonObject, *, keep_inbox: bool = False) -> None:
        if cause.get("kind") not in CANCEL_CAUSES:
            raise ValueError(
                f"cannot cancel agent {self.id} with cause {cause!r:.80}; its kind must be one of "
                f"{', '.join(CANCEL_CAUSES)}"
            )
        activity = self._activity
        doomed = [] if keep_inbox else self._inbox.ids()
        if not keep_inbox:
            self._latched = False
        # The abort comes first: clearing the queue may have to wait, the cancellation must not.
        if activity is not None and not activity.settling:
            activity.controller.abort(cause)
        if doomed:
            self._doomed.update(doomed)
            self._discard_doomed()

    def _discard_doomed(self) -> None:
        """Log the cancellation of queued messages; inside an observer of the log, at the next tick of the loop."""
        if not self._doomed:
            return
        try:
            self._inbox.discard(self._doomed)
        except SessionError as error:
            if error.code != "SESSION_REENTRANT":
                self._doomed.clear()
                raise
            asyncio.get_running_loop().call_soon(self._discard_doomed)
            return
        self._doomed.clear()

    def stop(self) -> None:
        """Cancel the current activity with cause ``disposed`` and let nothing start any more.

        What is queued stays in the session's log and is pending again when it is resumed.
        """
        self._closing = True
        self._latched = False
        self.cancel(DISPOSED, keep_inbox=True)

    async def close(self) -> None:
        """:meth:`stop`, and wait until everything has ended. From then on messages are refused."""
        self.stop()
        await self.when_idle()
        self._closed = True
        self._parts.tickets.close()
