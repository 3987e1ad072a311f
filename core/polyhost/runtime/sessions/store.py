"""The live sessions of a host: their table, their events on the bus, forks. Implements ``SESSIONS`` (agent-core 2.9).

Logs themselves are in ``log``; how they reach the disk is the business of a :class:`Persistence`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from polyhost.interfaces.sessions import (
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SESSION_FLUSH,
    Session,
    SessionError,
    SessionHeader,
)
from polyhost.kernel.events import EventBus, Target
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.forks import inherited
from polyhost.runtime.sessions.log import LiveSession, epoch_milliseconds


class Persistence(Protocol):
    """What the store asks of the durable side; both raise :class:`SessionError` when the log cannot be written."""

    async def written(self, session: Session) -> None: ...

    async def flush(self, session: Session) -> bool:
        """False when this session is not persisted."""
        ...


class _Entry:
    __slots__ = ("announced", "announcing", "detach_due", "session", "target", "undo")

    def __init__(self, session: LiveSession, target: Target, undo: Callable[[], None]) -> None:
        self.session = session
        self.target = target
        self.undo = undo
        self.announced = False
        self.announcing = False
        self.detach_due = False


class LiveSessions:
    """The live table. One store belongs to one host and its event loop.

    :param persistence: takes part in :meth:`written` and :meth:`flush`; None keeps sessions in memory.
    """

    def __init__(
        self,
        bus: EventBus,
        persistence: Persistence | None = None,
        *,
        clock: Callable[[], int] = epoch_milliseconds,
        catalogue: EventCatalogue | None = None,
    ) -> None:
        self.catalogue = catalogue or EventCatalogue()
        self._bus = bus
        self._persistence = persistence
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._minted = 0

    def get(self, session_id: str) -> LiveSession | None:
        entry = self._entries.get(session_id)
        return entry.session if entry is not None else None

    def list(self) -> Sequence[LiveSession]:
        return [entry.session for entry in self._entries.values()]

    # From construction to publication

    def prepare(
        self,
        session_id: str | None = None,
        *,
        seed: Sequence[bytes] | None = None,
        created_at: int | None = None,
        cwd: str | None = None,
        parent_session: str | None = None,
        seed_length: int | None = None,
        origin: str | None = None,
        delegation_depth: int | None = None,
        agent_preset: str | None = None,
    ) -> LiveSession:
        """An unpublished session, which can still be dropped. Without an id it becomes ``session-<n>``.

        :raises SessionError: see :class:`LiveSession`.
        """
        header = SessionHeader(
            session_id if session_id is not None else self._mint(),
            created_at if created_at is not None else self._clock(),
            cwd,
            parent_session,
            seed_length,
            origin,
            delegation_depth,
            agent_preset,
        )
        return LiveSession(header, seed, clock=self._clock, catalogue=self.catalogue)

    def restore(self, header: SessionHeader, seed: Sequence[bytes]) -> LiveSession:
        """An unpublished session out of lines that a live session or the storage has checked. They are not again."""
        return LiveSession(header, seed, seed_checked=True, clock=self._clock, catalogue=self.catalogue)

    def enter(self, session: LiveSession, *, scope: object | None = None) -> Callable[[], None]:
        """Make the session live and its events heard. Returns its idempotent :meth:`detach`.

        :param scope: tag of the scope that the session belongs to; listeners of other scopes do not hear of it.
        :raises SessionError: SESSION_ALREADY_EXISTS for a live id, SESSION_ATTACHED for an object that a store has.
        """
        if session.id in self._entries:
            raise SessionError(f"session {session.id!r} is live already", code="SESSION_ALREADY_EXISTS")
        if session.store is not None:
            raise SessionError(f"session {session.id!r} is attached to another store", code="SESSION_ATTACHED")
        target = Target(scope)
        emit = self._bus.emitter(SESSION_EVENT, target)
        undo = session.observe(lambda event: emit(session, event))
        session.store = self
        self._entries[session.id] = _Entry(session, target, undo)
        return lambda: self.detach(session)

    def announce(self, session: LiveSession) -> None:
        """Emit ``session/created``, once. What a listener raises vetoes: the session is detached and the error goes on.

        :raises SessionError: SESSION_NOT_LIVE, or SESSION_ANNOUNCED for a second call, also from a listener.
        """
        entry = self._live(session)
        if entry.announced:
            raise SessionError(f"session {session.id!r} was announced already", code="SESSION_ANNOUNCED")
        entry.announced = entry.announcing = True
        try:
            self._bus.to(entry.target).emit(SESSION_CREATED, session)
        except BaseException:
            entry.detach_due = True
            raise
        finally:
            entry.announcing = False
            if entry.detach_due:
                self.detach(session)

    def create(self, session_id: str | None = None, *, cwd: str | None = None) -> LiveSession:
        """Prepare, enter and announce a fresh session."""
        if session_id is not None:
            self._refuse_live(session_id)
        session = self.prepare(session_id, cwd=cwd)
        self.enter(session)
        self.announce(session)
        return session

    def detach(self, session: LiveSession) -> None:
        """Take the session out of the table and emit ``session/disposed`` if it was announced. Idempotent.

        During the session's announcement it waits for the end of that dispatch.
        """
        entry = self._entries.get(session.id)
        if entry is None or entry.session is not session:
            return
        if entry.announcing:
            entry.detach_due = True
            return
        del self._entries[session.id]
        entry.undo()
        session.store = None
        if entry.announced:
            self._bus.to(entry.target).emit(SESSION_DISPOSED, session)

    # Forks

    def fork(self, source: str | LiveSession, boundary: int | None = None, child_id: str | None = None) -> LiveSession:
        """Copy the events up to and including ``boundary`` (default: the last) into a new live session.

        :raises SessionError: SESSION_NOT_FOUND, SESSION_NOT_LIVE, SESSION_ALREADY_EXISTS, INVALID_BOUNDARY or
            OPEN_TURN; nothing was created.
        """
        parent = self._source(source)
        if child_id is not None:
            self._refuse_live(child_id)
        child = self.prepare_fork(parent.header, inherited(parent.id, parent.lines(), boundary), child_id)
        self.enter(child)
        self.announce(child)
        return child

    def prepare_fork(self, parent: SessionHeader, seed: Sequence[bytes], session_id: str | None = None) -> LiveSession:
        """An unpublished child that begins with ``seed``, events of its parent, which are not checked again."""
        header = SessionHeader(
            session_id if session_id is not None else self._mint(),
            self._clock(),
            parent.cwd,
            parent_session=parent.id,
            seed_length=len(seed),
        )
        return self.restore(header, seed)

    # Durability

    async def written(self, session: Session) -> None:
        self._live(session)
        if self._persistence is not None:
            await self._persistence.written(session)

    async def flush(self, session: Session) -> bool:
        """See :meth:`SessionStore.flush`. Listeners of ``session/flush`` and the persistence run side by side.

        Raises the first failure when all have ended.
        """
        entry = self._live(session)
        work: list[Awaitable[object]] = []
        if self._bus.select(SESSION_FLUSH, entry.target):
            work.append(self._flush_listeners(session, entry.target))
        if self._persistence is not None:
            work.append(self._persistence.flush(session))
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return any(outcomes)

    async def _flush_listeners(self, session: Session, target: Target) -> bool:
        try:
            await self._bus.to(target).parallel(SESSION_FLUSH, session)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return True

    # Parts

    def _live(self, session: Session) -> _Entry:
        entry = self._entries.get(session.id)
        if entry is None or entry.session is not session:
            raise SessionError(f"session {session.id!r} is not live", code="SESSION_NOT_LIVE")
        return entry

    def _source(self, source: str | LiveSession) -> LiveSession:
        if isinstance(source, LiveSession):
            return self._live(source).session
        session = self.get(source)
        if session is None:
            raise SessionError(f"session {source!r} not found", code="SESSION_NOT_FOUND")
        return session

    def _refuse_live(self, session_id: str) -> None:
        if session_id in self._entries:
            raise SessionError(f"session {session_id!r} is live already", code="SESSION_ALREADY_EXISTS")

    def _mint(self) -> str:
        while True:
            self._minted += 1
            session_id = f"session-{self._minted}"
            if session_id not in self._entries:
                return session_id
