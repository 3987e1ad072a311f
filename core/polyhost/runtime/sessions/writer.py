"""Write-behind for one live session: what was appended reaches its file soon, and at once when somebody waits for it.

The log itself is the queue: a position says how much of it is written, another how much is durable. One write and one
sync are in flight at a time. After a failure nothing is lost and nothing is retried behind anybody's back: the next
barrier tries again. Blocking work is in ``files``, done by ``worker``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from polyhost.interfaces.sessions import Session, SessionError
from polyhost.runtime.sessions.worker import DiskWorker, Urgency

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """The blocking side; see :class:`polyhost.runtime.sessions.files.LogFile`."""

    def append(self, lines: list[bytes]) -> None: ...

    def sync(self) -> None: ...


class _Barrier:
    """A position of the log that is passed later, and those who wait for it to come to theirs."""

    __slots__ = ("busy", "position", "waiters")

    def __init__(self, position: int) -> None:
        self.position = position
        self.busy = False
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def wanted(self) -> int:
        return max((target for target, waiter in self.waiters if not waiter.done()), default=0)

    def reach(self, position: int) -> None:
        self.position = position
        waiting = []
        for target, waiter in self.waiters:
            if target > position:
                waiting.append((target, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self.waiters = waiting

    def fail(self, error: Exception) -> None:
        waiters, self.waiters = self.waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)


class WriteBehind:
    """Brings one session's log to ``sink``. Belongs to the event loop's thread.

    :param stored: how many events the sink has already.
    :param window: seconds from the first unwritten event to the write of its batch.
    :param on_health: told the reason when writing begins to fail, and None when it works again.
    """

    def __init__(
        self,
        session: Session,
        sink: Sink,
        worker: DiskWorker,
        *,
        stored: int,
        window: float,
        on_health: Callable[[Session, str | None], object],
    ) -> None:
        self.problem: SessionError | None = None
        self._session = session
        self._sink = sink
        self._worker = worker
        self._window = window
        self._on_health = on_health
        self._written = _Barrier(stored)
        self._synced = _Barrier(stored)
        self._timer: asyncio.TimerHandle | None = None
        self._stop_observing = session.observe(self._note)
        if len(session) > stored:
            self._note()

    async def written(self) -> None:
        """Wait until everything appended so far has reached the operating system. Raises :class:`SessionError`."""
        target = len(self._session)
        if self._written.position < target:
            await self._wait(self._written, target, self._write)

    async def flush(self) -> None:
        """Wait until everything appended so far is durable. Raises :class:`SessionError`."""
        target = len(self._session)
        await self.written()
        if self._synced.position < target:
            await self._wait(self._synced, target, self._sync)

    async def close(self) -> None:
        """Stop watching the session and flush; tries once more after a failure. Raises :class:`SessionError`."""
        self._stop_observing()
        try:
            await self.flush()
        except SessionError:
            await self.flush()
        finally:
            self._disarm()

    def _note(self, _event: object = None) -> None:
        """An event was appended: its batch is due one window later. This runs for every delta."""
        if self._timer is None and self.problem is None:
            self._timer = asyncio.get_running_loop().call_later(self._window, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._write()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self, barrier: _Barrier, target: int, start: Callable[[], None]) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        barrier.waiters.append((target, waiter))
        start()
        await waiter

    def _write(self) -> None:
        if self._written.busy:
            return  # looks for more when it is done
        self._disarm()
        lines = list(self._session.lines(self._written.position))
        if not lines:
            return
        end = self._written.position + len(lines)
        self._written.busy = True
        self._worker.submit(Urgency.WRITE, lambda: self._sink.append(lines), lambda error: self._write_done(end, error))

    def _write_done(self, end: int, error: Exception | None) -> None:
        self._written.busy = False
        if error is not None:
            self._failed(error)
            return
        if self.problem is not None and self.problem.code != "SESSION_SYNC_FAILED":
            self._recovered()
        self._written.reach(end)
        if self._written.wanted > end:
            self._write()
        elif len(self._session) > end:
            self._note()
        self._sync()

    def _sync(self) -> None:
        if self._synced.busy or self._synced.position >= self._written.position:
            return
        end = self._written.position
        self._synced.busy = True
        self._worker.submit(Urgency.SYNC, self._sink.sync, lambda error: self._sync_done(end, error))

    def _sync_done(self, end: int, error: Exception | None) -> None:
        self._synced.busy = False
        if error is not None:
            self._failed(error)
            return
        self._synced.reach(end)
        self._sync()

    def _recovered(self) -> None:
        self.problem = None
        _logger.warning("session %s can be written again", self._session.id)
        self._on_health(self._session, None)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, SessionError):
            _logger.error("writing session %s failed unexpectedly", self._session.id, exc_info=error)
            error = SessionError(f"writing session {self._session.id!r} failed: {error!r}", code="SESSION_WRITE_FAILED")
        news = self.problem is None or self.problem.message != error.message
        self.problem = error
        self._disarm()
        self._written.fail(error)
        self._synced.fail(error)
        if news:
            _logger.error("session %s cannot be written: %s", self._session.id, error.message)
            self._on_health(self._session, error.message)
