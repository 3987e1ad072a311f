"""Making agents and ending them: everything is published or nothing, and one teardown is shared by all owners.

Which session is opened, and for whom, is in ``directory``; what an agent does between is in ``agent``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from polyhost.interfaces import AGENT_SESSION_START, SessionError, SessionHeader
from polyhost.kernel.context import Context
from polyhost.kernel.scopes import Scope
from polyhost.kernel.signals import AbortSignal, any_signal
from polyhost.runtime.agents.agent import LiveAgent
from polyhost.runtime.agents.parts import AgentServices
from polyhost.runtime.agents.registry import LiveAgents
from polyhost.runtime.agents.requests import last_model
from polyhost.runtime.sessions.forks import inherited
from polyhost.runtime.sessions.log import LiveSession
from polyhost.runtime.sessions.storage import JsonlStorage
from polyhost.runtime.sessions.store import LiveSessions

Commit: TypeAlias = Callable[[], object]
Setup: TypeAlias = Callable[[LiveAgent], "Awaitable[Commit | None] | Commit | None"]
"""Prepares an agent that nobody sees yet: mounts in its scope, events in its log. May return a final step."""


class _Tag:
    """The scope tag of one agent; a later agent of the same id has another one."""

    __slots__ = ("_session_id",)

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    def __str__(self) -> str:
        return f"agent {self._session_id}"


class AgentSpec:
    """What an agent is made with, beside its session.

    :param model: ``provider/model``; None takes that of the session's last request, else the host's default.
    :param max_tokens: output cap of each request.
    :param owner: the agent that creates it: the new one lives in its scope and dies with it.
    :param setup: prepares the unpublished agent; may be asynchronous.
    :param admit: judges the header of a stored session before it is resumed; raises to refuse.
    :param entered: called when the session has just been announced; what it appends is heard by everybody.
    """

    __slots__ = ("admit", "entered", "max_tokens", "model", "owner", "setup")

    def __init__(
        self,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        owner: LiveAgent | None = None,
        setup: Setup | None = None,
        admit: Callable[[SessionHeader], object] | None = None,
        entered: Callable[[LiveAgent], object] | None = None,
    ) -> None:
        self.admit = admit
        self.model = model
        self.max_tokens = max_tokens
        self.owner = owner
        self.setup = setup
        self.entered = entered


class AgentHandle:
    """A live agent and the right to end it."""

    __slots__ = ("_disposal", "_scope", "agent")

    def __init__(self, agent: LiveAgent, scope: Scope) -> None:
        self.agent = agent
        self._scope = scope
        self._disposal: asyncio.Task[None] | None = None

    def dispose(self) -> Awaitable[None]:
        """Cancel with cause ``disposed``, drain, unwind the scope, leave the registry and the session store.

        Memoized: all callers, and the owner's own teardown, share one.
        """
        if self._disposal is None:
            self.agent.stop()  # from this very moment on nobody is given this agent
            self._disposal = asyncio.get_running_loop().create_task(self._dispose(), name=f"disposing {self.agent.id}")
        return asyncio.shield(self._disposal)

    async def _dispose(self) -> None:
        await self.agent.close()  # before its tools and listeners go
        await self._scope.dispose()


class AgentLoop:
    """The factory of agents.

    :param context: owns every agent without an ``owner``; when it closes, they are disposed.
    :ivar default_model: ``provider/model`` of later agents whose spec and session name none.
    :param storage: keeps logs; None keeps sessions in memory only.
    """

    def __init__(
        self,
        context: Context,
        services: AgentServices,
        sessions: LiveSessions,
        agents: LiveAgents,
        *,
        storage: JsonlStorage | None = None,
        default_model: str | None = None,
    ) -> None:
        self._context = context
        self._services = services
        self._sessions = sessions
        self._agents = agents
        self._storage = storage
        self.default_model = default_model

    async def create(
        self,
        spec: AgentSpec,
        session_id: str | None = None,
        *,
        signal: AbortSignal | None = None,
        seed: Sequence[bytes] | None = None,
        **header: Any,
    ) -> AgentHandle:
        """A new session with its agent.

        :param signal: aborts the creation; has no meaning for the live agent.
        :param seed: event lines of inherited history.
        :param header: further header fields, as :meth:`LiveSessions.prepare` takes them.
        :raises SessionError: the header or seed is refused, or the id is live.
        :raises AbortedError: ``signal``, or the end of the owner.
        """
        self._refuse_live(session_id)
        session = self._sessions.prepare(session_id, seed=seed, **header)
        return await self._make(session, spec, "startup", signal)

    async def fork(
        self,
        spec: AgentSpec,
        source_id: str,
        *,
        boundary: int | None = None,
        session_id: str | None = None,
        signal: AbortSignal | None = None,
    ) -> AgentHandle:
        """A new session that begins with the events of another one, with its agent.

        The source is live or stored; nothing is written to it, and another process may have it open.

        :param boundary: number of the last event that is inherited; None takes all.
        :param session_id: of the new session.
        :param signal: as in :meth:`create`.
        :raises SessionError: SESSION_ALREADY_EXISTS for a live ``session_id``; SESSION_NOT_FOUND or what makes the
            source unreadable; INVALID_BOUNDARY or OPEN_TURN.
        :raises AbortedError: ``signal``, or the end of the owner.
        """
        self._refuse_live(session_id)
        parent, lines = await self._read(source_id)
        session = self._sessions.prepare_fork(parent, inherited(source_id, lines, boundary), session_id)
        return await self._make(session, spec, "startup", signal)

    async def resume(self, spec: AgentSpec, session_id: str, *, signal: AbortSignal | None = None) -> AgentHandle:
        """A stored session with a new agent. Its queue is pending again, its turns go on counting.

        :raises SessionError: see :meth:`JsonlStorage.prepare`; SESSION_NOT_PERSISTED without a storage.
        :raises AbortedError: ``signal``, or the end of the owner.
        """
        if self._storage is None:
            raise SessionError(
                f"cannot resume {session_id!r}: session persistence is not configured", code="SESSION_NOT_PERSISTED"
            )
        self._refuse_live(session_id)
        either, unlink = any_signal(signal, self._owner(spec).stopping)
        try:
            prepared = await self._storage.prepare(session_id, either)
        finally:
            unlink()
        try:
            if spec.admit is not None:
                spec.admit(prepared.header)
            session = self._sessions.restore(prepared.header, prepared.lines)
            return await self._make(session, spec, "resume", signal)
        finally:
            prepared.release()  # does nothing once the session is attached

    def _refuse_live(self, session_id: str | None) -> None:
        if session_id is not None and self._sessions.get(session_id) is not None:
            raise SessionError(f"session {session_id!r} is live already", code="SESSION_ALREADY_EXISTS")

    async def _read(self, session_id: str) -> tuple[SessionHeader, Sequence[bytes]]:
        """Header and events of a session, live or stored."""
        live = self._sessions.get(session_id)
        if live is not None:
            return live.header, live.lines()
        if self._storage is None:
            raise SessionError(f"session {session_id!r} not found", code="SESSION_NOT_FOUND")
        inspected = await self._storage.inspect(session_id)
        return inspected.stored.header, inspected.lines

    def _owner(self, spec: AgentSpec) -> Context:
        return spec.owner.context if spec.owner is not None else self._context

    async def _make(
        self, session: LiveSession, spec: AgentSpec, source: str, signal: AbortSignal | None
    ) -> AgentHandle:
        owner = self._owner(spec)
        scope = owner.scope(_Tag(session.id), owner.scope_tag)
        try:
            agent = LiveAgent(
                session,
                scope.context,
                self._services,
                model=spec.model or last_model(session) or self.default_model,
                max_tokens=spec.max_tokens,
            )
            # The scope's first cleanup, so its last: takes back whatever of the publication was done.
            scope.context.defer(lambda: self._tear_down(agent), label=f"ending {scope.tag}")
            scope.stopping.on_abort(lambda _: agent.stop())
            commit = await self._set_up(agent, spec, scope, signal)
            if commit is not None:
                commit()
            self._publish(agent, spec, scope, source)
        except BaseException:
            await scope.dispose()
            raise
        return AgentHandle(agent, scope)

    async def _set_up(
        self, agent: LiveAgent, spec: AgentSpec, scope: Scope, signal: AbortSignal | None
    ) -> Commit | None:
        either, unlink = any_signal(signal, scope.stopping)
        try:
            either.raise_if_aborted()
            result = spec.setup(agent) if spec.setup is not None else None
            if inspect.isawaitable(result):
                result = await either.race(result)
            either.raise_if_aborted()
        finally:
            unlink()
        return result

    def _publish(self, agent: LiveAgent, spec: AgentSpec, scope: Scope, source: str) -> None:
        """Make session and agent live and tell everybody, in one synchronous section.

        Any listener on the way may raise, which vetoes, or end the owner.
        """
        session = agent.session
        self._sessions.enter(session, scope=scope.tag)
        if self._storage is not None:
            self._storage.attach(session)
        self._agents.enter(agent, spec.owner)
        self._sessions.announce(session)
        scope.check_open()
        if spec.entered is not None:
            spec.entered(agent)
        self._agents.announce(agent)
        scope.check_open()
        agent.context.events.emit(AGENT_SESSION_START, agent, source)
        scope.check_open()

    async def _tear_down(self, agent: LiveAgent) -> None:
        await agent.close()
        self._agents.detach(agent)
        self._sessions.detach(agent.session)
        if self._storage is not None:
            await self._storage.retire(agent.session)
