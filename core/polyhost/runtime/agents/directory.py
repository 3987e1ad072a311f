"""Opening and forking sessions, live or stored: the one door that every front end uses.

Concurrent opens of one id share one creation or resume; each opener holds a lease, and the agent ends with the last of
them. Who answers the session's approvals is noted with the broker. How an agent is made is in ``loop``.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from polyhost.interfaces import (
    PERMISSION_MODES,
    Interactions,
    OpenedSession,
    PermissionMode,
    SessionError,
    SessionHeader,
    StoredSession,
)
from polyhost.kernel.signals import AbortController, AbortSignal
from polyhost.runtime.agents.agent import LiveAgent
from polyhost.runtime.agents.loop import AgentHandle, AgentLoop, AgentSpec
from polyhost.runtime.agents.registry import LiveAgents
from polyhost.runtime.agents.requests import split_model
from polyhost.runtime.sessions.storage import JsonlStorage

T = TypeVar("T")

_FOR_ITS_FIRST = frozenset({"SESSION_NOT_FOUND", "SESSION_HEADER", "INVALID_BOUNDARY", "OPEN_TURN"})
"""Failures of an opening that come from what its first opener asked for, and need not be those of another one."""


class _Wishes(NamedTuple):
    """What an opener asks for; those of the first one count."""

    create: bool
    cwd: str | None
    model: str | None
    max_tokens: int | None
    surface: str | None
    mode: PermissionMode | None


class _Residency:
    """One live agent that was opened here, and how many still use it."""

    __slots__ = ("created", "handle", "leases")

    def __init__(self, handle: AgentHandle, *, created: bool) -> None:
        self.handle = handle
        self.created = created
        self.leases = 0


class _Opening:
    """A creation or resume under way, and how many wait for it; ``wishes`` is None for a fork."""

    __slots__ = ("controller", "task", "waiting", "wishes")

    def __init__(
        self, controller: AbortController, task: asyncio.Task[_Residency], wishes: _Wishes | None = None
    ) -> None:
        self.controller = controller
        self.task = task
        self.wishes = wishes
        self.waiting = 0


class Directory:
    """See :class:`polyhost.interfaces.sessions.SessionDirectory`.

    :param storage: None keeps sessions in memory: nothing is stored, nothing can be resumed.
    :param interactions: finds the broker at each use; None while there is none.
    """

    def __init__(
        self,
        loop: AgentLoop,
        agents: LiveAgents,
        *,
        storage: JsonlStorage | None = None,
        interactions: Callable[[], Interactions | None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._agents = agents
        self._storage = storage
        self._interactions = interactions
        self._residencies: dict[str, _Residency] = {}
        self._openings: dict[str, _Opening] = {}

    async def open(
        self,
        session_id: str | None = None,
        *,
        cwd: str | None = None,
        model: str | None = None,
        create: bool = True,
        surface: str | None = None,
        mode: str | None = None,
        signal: AbortSignal | None = None,
        max_tokens: int | None = None,
    ) -> OpenedSession:
        """See :meth:`polyhost.interfaces.sessions.SessionDirectory.open`.

        ``signal`` ends the caller's own wait; an opening that others share goes on.

        :param max_tokens: output cap of each request, for an agent that this call makes.
        :raises SessionError: also SESSION_HEADER for a missing or relative ``cwd``, SESSION_CWD for another one,
            SESSION_MODE for an unknown ``mode``.
        :raises NoModelError: ``model`` is not ``provider/model``.
        :raises AbortedError: ``signal``.
        """
        if model is not None:
            split_model(model)
        if cwd is not None and not os.path.isabs(cwd):
            raise SessionError(f"a session's working directory is an absolute path, not {cwd!r}", code="SESSION_HEADER")
        wishes = _Wishes(create, cwd, model, max_tokens, surface, _checked_mode(mode))
        residency, made_here = await self._enter(session_id, wishes, signal)
        close = self._lease(residency)
        agent = residency.handle.agent
        try:
            _require_cwd(agent, cwd)
        except SessionError:
            await close()
            raise
        if model is not None and agent.model != model:
            agent.set_model(model)
        return OpenedSession(agent, close, resumed=not (made_here and residency.created))

    async def fork(
        self,
        session_id: str,
        *,
        boundary: int | None = None,
        child_id: str | None = None,
        model: str | None = None,
        surface: str | None = None,
        signal: AbortSignal | None = None,
        max_tokens: int | None = None,
    ) -> OpenedSession:
        """See :meth:`polyhost.interfaces.sessions.SessionDirectory.fork`; the rest is as in :meth:`open`."""
        if model is not None:
            split_model(model)
        if child_id is None:
            child_id = str(uuid.uuid4())
        else:
            await self._refuse_stored(child_id)
        if child_id in self._residencies or child_id in self._openings or self._agents.get(child_id) is not None:
            raise _exists(child_id)
        spec = self._spec(_Wishes(True, None, model, max_tokens, surface, None))

        async def make(signal: AbortSignal) -> _Residency:
            handle = await self._loop.fork(spec, session_id, boundary=boundary, session_id=child_id, signal=signal)
            return _Residency(handle, created=True)

        residency = await self._join(self._begin(child_id, make), signal)
        close = self._lease(residency)
        agent = residency.handle.agent
        if self._storage is not None:
            try:
                await _within(signal, self._storage.written(agent.session))
            except BaseException:
                await close()
                raise
        return OpenedSession(agent, close, resumed=False)

    async def stored(self, *, limit: int | None = None) -> Sequence[StoredSession]:
        return await self._storage.list(limit=limit) if self._storage is not None else ()

    async def read(self, session_id: str) -> tuple[StoredSession, Sequence[bytes]]:
        if self._storage is None:
            raise _not_found(session_id)
        inspected = await self._storage.inspect(session_id)
        return inspected.stored, inspected.lines

    # -- the agent of a session

    async def _enter(
        self, session_id: str | None, wishes: _Wishes, signal: AbortSignal | None
    ) -> tuple[_Residency, bool]:
        """The residency of a session with a lease taken, and whether this call began it."""
        known = session_id is not None
        if session_id is None:
            session_id = str(uuid.uuid4())
        while True:
            residency, opening = self._residencies.get(session_id), self._openings.get(session_id)
            if residency is not None and not residency.handle.agent.closing:
                residency.leases += 1
                return residency, False
            if residency is not None:
                await _within(signal, residency.handle.dispose())
                self._forget(session_id, residency)
            elif opening is None:
                self._refuse_foreign(session_id)
                make = partial(self._resume_or_create, session_id, wishes, known)
                return await self._join(self._begin(session_id, make, wishes), signal), True
            elif opening.controller.signal.aborted:
                await _within(signal, asyncio.wait([opening.task]))  # given up by others
            else:
                try:
                    return await self._join(opening, signal), False
                except SessionError as error:
                    if error.code not in _FOR_ITS_FIRST or opening.wishes == wishes:
                        raise

    def _refuse_foreign(self, session_id: str) -> None:
        """Raise when an agent is live that was not opened here: a child of another one, for instance."""
        if self._agents.get(session_id) is not None:
            raise SessionError(f"session {session_id!r} is in use by another part of this process", code="SESSION_BUSY")

    def _begin(
        self, session_id: str, make: Callable[[AbortSignal], Awaitable[_Residency]], wishes: _Wishes | None = None
    ) -> _Opening:
        controller = AbortController()
        task = asyncio.get_running_loop().create_task(
            self._make(session_id, make, controller.signal), name=f"opening session {session_id}"
        )
        opening = self._openings[session_id] = _Opening(controller, task, wishes)
        return opening

    async def _join(self, opening: _Opening, signal: AbortSignal | None) -> _Residency:
        """Wait for the residency; whoever still waits when it comes to be has a lease of it."""
        opening.waiting += 1
        try:
            return await _within(signal, asyncio.shield(opening.task))
        except BaseException:
            self._leave(opening)
            raise

    def _leave(self, opening: _Opening) -> None:
        """One who waited does so no more. The last one ends the opening, or what has come of it."""
        opening.waiting -= 1
        task = opening.task
        if task.done():
            if not task.cancelled() and task.exception() is None:
                task.result().leases -= 1
                self._drop_unused(task)
        elif not opening.waiting:
            opening.controller.abort("everybody who wanted the session has left")
            task.add_done_callback(self._drop_unused)

    def _drop_unused(self, task: asyncio.Task[_Residency]) -> None:
        """End the session when nobody waited until it was open."""
        if not task.cancelled() and task.exception() is None and not task.result().leases:
            residency = task.result()
            ending = asyncio.ensure_future(residency.handle.dispose())
            ending.add_done_callback(lambda _: self._forget(residency.handle.agent.id, residency))

    async def _make(
        self, session_id: str, make: Callable[[AbortSignal], Awaitable[_Residency]], signal: AbortSignal
    ) -> _Residency:
        try:
            residency = await make(signal)
            # Leases are given now: the first to wake up may close, which must not end the session for the others.
            residency.leases = self._openings[session_id].waiting
            self._residencies[session_id] = residency
            return residency
        finally:
            del self._openings[session_id]

    async def _resume_or_create(self, session_id: str, wishes: _Wishes, known: bool, signal: AbortSignal) -> _Residency:
        spec = self._spec(wishes)
        if known and self._storage is not None:
            try:
                return _Residency(await self._loop.resume(spec, session_id, signal=signal), created=False)
            except SessionError as error:
                if error.code != "SESSION_NOT_FOUND" or not wishes.create:
                    raise
        if not wishes.create:
            raise _not_found(session_id)
        if wishes.cwd is None:
            raise SessionError("a new session needs a working directory (cwd)", code="SESSION_HEADER")
        self._refuse_foreign(session_id)  # the look into the storage took its time
        handle = await self._loop.create(spec, session_id, signal=signal, cwd=wishes.cwd)
        return _Residency(handle, created=True)

    async def _refuse_stored(self, session_id: str) -> None:
        if self._storage is not None:
            try:
                await self._storage.find(session_id)
            except SessionError as error:
                if error.code == "SESSION_NOT_FOUND":
                    return
                raise
            raise _exists(session_id)

    def _spec(self, wishes: _Wishes) -> AgentSpec:
        return AgentSpec(
            model=wishes.model,
            max_tokens=wishes.max_tokens,
            admit=_admit,
            entered=lambda agent: self._adopt(agent, wishes),
        )

    def _adopt(self, agent: LiveAgent, wishes: _Wishes) -> None:
        """Tell the broker who owns the session, and let it log the permission facts that are not there yet."""
        broker = self._interactions()
        if broker is not None:
            undo = broker.adopt(agent.session, surface=wishes.surface, mode=wishes.mode)
            agent.context.defer(undo, label="leaving its front end")

    # -- leases

    def _lease(self, residency: _Residency) -> Callable[[], Awaitable[None]]:
        """The function that gives one lease back, once; with the last one the agent ends."""
        held = True

        async def close() -> None:
            nonlocal held
            if held:
                held = False
                residency.leases -= 1
            if not residency.leases:
                await residency.handle.dispose()
                self._forget(residency.handle.agent.id, residency)

        return close

    def _forget(self, session_id: str, residency: _Residency) -> None:
        if self._residencies.get(session_id) is residency:
            del self._residencies[session_id]


async def _within(signal: AbortSignal | None, work: Awaitable[T]) -> T:
    return await (work if signal is None else signal.race(work))


def _require_cwd(agent: LiveAgent, cwd: str | None) -> None:
    stored = agent.session.header.cwd
    if cwd is not None and stored is not None and os.path.normpath(cwd) != os.path.normpath(stored):
        raise SessionError(
            f"session {agent.id!r} belongs to {stored}, not to {cwd}; open it there, or start another one",
            code="SESSION_CWD",
        )


def _checked_mode(mode: str | None) -> PermissionMode | None:
    if mode is None or mode in PERMISSION_MODES:
        return mode
    raise SessionError(f"there is no permission mode {mode!r}; use {', '.join(PERMISSION_MODES)}", code="SESSION_MODE")


def _exists(session_id: str) -> SessionError:
    return SessionError(f"there is a session {session_id!r} already", code="SESSION_ALREADY_EXISTS")


def _admit(header: SessionHeader) -> None:
    """Refuse a stored session that nobody may open as a conversation of their own; all can be read."""
    if header.origin == "subagent":
        raise SessionError(
            f"session {header.id!r} is a subagent of {header.parent_session!r} and is reached through that session",
            code="SESSION_BUSY",
        )
    if header.cwd is None:
        raise SessionError(
            f"session {header.id!r} was stored without a working directory, so it can be read but not continued",
            code="SESSION_CWD",
        )


def _not_found(session_id: str) -> SessionError:
    return SessionError(f'session "{session_id}" not found', code="SESSION_NOT_FOUND")
