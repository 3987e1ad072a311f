"""The session index as the storage uses it: questions from the event loop, one thread, and what happens when it fails.

The index is derived and never the truth. A file that is missing, damaged or of another version is made anew; while it
cannot be used (locked for long, not writable, disk full) an index in memory takes its place, made by reading all logs.
Tables are in ``database``, how they are kept right in ``freshness``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from polyhost.interfaces.sessions import SessionError, SessionMatch, SessionPage, StoredSession
from polyhost.runtime.sessions import header as headers

if TYPE_CHECKING:
    import sqlite3
    from concurrent.futures import Future, ThreadPoolExecutor

    from polyhost.runtime.sessions.database import IndexDatabase, LogRow
    from polyhost.runtime.sessions.freshness import Freshness

T = TypeVar("T")

INDEX_NAME = "index.sqlite"
_RETRY_SECONDS = 60.0
_ANNOUNCE_SECONDS = 0.25
_ROUNDS = 3  # of looking at a page's logs and reading those again that changed
_CORRUPT = frozenset({1, 11, 26})  # SQLITE_ERROR (tables missing), SQLITE_CORRUPT, SQLITE_NOTADB

_logger = logging.getLogger(__name__)


class SessionIndex:
    """Pages, searches and finds the sessions under ``root``. The file ``root/index.sqlite`` is shared by all hosts.

    :param clock: seconds; says when a file that could not be used is tried again.
    """

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._path = root / INDEX_NAME
        self._clock = clock
        self._executor: ThreadPoolExecutor | None = None
        self._closed = False
        self._has_removed = False
        # Of the thread:
        self._database: IndexDatabase | None = None
        self._substitute: IndexDatabase | None = None
        self._retry_at = 0.0

    async def page(
        self,
        *,
        limit: int | None,
        cursor: str | None = None,
        cwd: str | None = None,
        subagents: bool = True,
    ) -> SessionPage:
        """See :meth:`polyhost.interfaces.sessions.StoredSessions.page`; without ``limit`` it is everything."""
        after = _parsed(cursor) if cursor is not None else None

        def ask(database: IndexDatabase) -> SessionPage:
            freshness = self._refreshed(database)
            wanted = -1 if limit is None else limit + 1
            for _ in range(_ROUNDS):
                rows = database.page(limit=wanted, after=after, cwd=cwd, subagents=subagents)
                if not freshness.check(rows):
                    break
            more = limit is not None and len(rows) > limit
            sessions = [self._stored(row) for row in rows[:limit]]
            return SessionPage(sessions, sessions[-1].cursor if more else None, database.left_out())

        return await self._ask(ask)

    async def search(self, words: str, *, limit: int, cwd: str | None = None) -> Sequence[SessionMatch]:
        """See :meth:`polyhost.interfaces.sessions.StoredSessions.search`."""
        if not words.split():
            raise SessionError("a search needs a word", code="USAGE")

        def ask(database: IndexDatabase) -> Sequence[SessionMatch]:
            freshness = self._refreshed(database)
            for _ in range(_ROUNDS):
                found = database.search(words.split(), limit=limit, cwd=cwd)
                rows = {match.key: database.by_key(match.key) for match in found}
                if not freshness.check(row for row in rows.values() if row is not None):
                    break
            return [
                SessionMatch(self._stored(row), match.seq, match.role, match.snippet)
                for match in found
                if (row := rows[match.key]) is not None
            ]

        return await self._ask(ask)

    async def ids(self, prefix: str, limit: int) -> Sequence[str]:
        """Ids that begin with ``prefix``, at most ``limit``."""

        def ask(database: IndexDatabase) -> Sequence[str]:
            self._refreshed(database)
            return database.ids(prefix, limit)

        return await self._ask(ask)

    async def places(self, session_id: str) -> Sequence[Path]:
        """Where logs of this id were when the index last looked. Nothing is refreshed: these are hints."""

        def ask(database: IndexDatabase) -> Sequence[Path]:
            return [self._log(row) for row in database.logs_of(session_id)]

        return await self._ask(ask)

    async def announce(self, log: Path, *, anew: bool = False) -> None:
        """Note a log before it is written to, so that listings of all hosts look at it from now on.

        Waits for that, but not for long: the log itself does not depend on it.
        """
        noted = self.note(log, anew=anew)
        if noted is not None:
            await asyncio.wait([asyncio.wrap_future(noted)], timeout=_ANNOUNCE_SECONDS)

    def note(self, log: Path, *, anew: bool = False, removed: bool = False) -> Future[None] | None:
        """Look at one log, later and in the thread: it was created, opened, closed or removed.

        A failure is logged; the next listing finds the change in another way. ``anew``: it was more than appended to.
        ``removed``: its texts are to leave the file, and not only the tables, when the index is closed.
        """
        if self._closed:
            return None
        self._has_removed = self._has_removed or removed

        def look() -> None:
            import sqlite3

            try:
                from polyhost.runtime.sessions.freshness import Freshness

                if (database := self._opened()) is not None:
                    Freshness(database, self._root).note(log.parent.parent.name, log.parent.name, anew=anew)
            except (sqlite3.Error, OSError) as error:
                _logger.info("the session index could not note %s: %s", log, error)
            except Exception:
                _logger.exception("the session index failed at %s", log)

        return self._thread().submit(look)

    async def rebuild(self) -> None:
        """Make the index anew out of all logs."""

        def build() -> None:
            self._discard()
            self._retry_at = 0.0

        await self._in_thread(build)
        await self._ask(self._refreshed)

    async def close(self) -> None:
        """Note what is still to be noted, give up what else is under way, end the thread. Idempotent."""
        self._closed = True
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.submit(self._close_all)
            await asyncio.to_thread(executor.shutdown)

    # In the thread

    def _answer(self, question: Callable[[IndexDatabase], T]) -> T:
        import sqlite3

        for _ in range(2):
            try:
                database = self._opened()
                if database is None:
                    break
                return question(database)
            except sqlite3.Error as error:
                if not _is_corrupt(error):
                    self._give_up(error)
                    break
                _logger.warning("the session index %s is damaged and made anew: %s", self._path, error)
                self._discard()
        return question(self._in_memory())

    def _opened(self) -> IndexDatabase | None:
        """The index file; None while it cannot be used, and when there are no sessions yet."""
        if self._clock() < self._retry_at or not self._root.is_dir():
            return None
        if self._database is not None and not self._database.in_place:
            self._database.close()
            self._database = None
        if self._database is None:
            try:
                self._database = self._open()
            except OSError as error:
                self._give_up(error)
                return None
        if self._substitute is not None:
            self._substitute.close()
            self._substitute = None
        return self._database

    def _open(self) -> IndexDatabase:
        from polyhost.runtime.sessions.database import IndexDatabase, UnusableIndexError

        try:
            return IndexDatabase(self._path)
        except UnusableIndexError as error:
            _logger.info("%s; it is made anew", error)
            self._discard()
            return IndexDatabase(self._path)

    def _in_memory(self) -> IndexDatabase:
        import sqlite3

        from polyhost.runtime.sessions.database import IndexDatabase

        if self._substitute is None:
            try:
                self._substitute = IndexDatabase(None)
            except sqlite3.Error as error:
                raise SessionError(
                    f"sessions cannot be listed: this Python's SQLite is not usable ({error}); it needs FTS5",
                    code="SESSION_INDEX_UNUSABLE",
                ) from error
        return self._substitute

    def _give_up(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        _logger.warning(
            "the session index %s cannot be used (%s); all logs are read instead, which takes longer",
            self._path,
            reason,
        )
        self._close_database()
        self._retry_at = self._clock() + _RETRY_SECONDS

    def _discard(self) -> None:
        """Remove the file. Another process that has it open notices that it is not in its place any more."""
        self._close_database()
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _close_all(self) -> None:
        import sqlite3

        if self._database is not None and self._has_removed:
            with contextlib.suppress(sqlite3.Error):  # another process is at it, and does the same when it ends
                self._database.forget_deleted()
        self._close_database()
        if self._substitute is not None:
            self._substitute.close()

    def _refreshed(self, database: IndexDatabase) -> Freshness:
        from polyhost.runtime.sessions.freshness import Freshness

        freshness = Freshness(database, self._root, lambda: self._closed)
        freshness.refresh()
        return freshness

    def _stored(self, row: LogRow) -> StoredSession:
        assert row.header is not None
        path = self._log(row)
        return StoredSession(
            headers.decode(row.header, str(path)),
            str(path),
            row.modified,
            row.size,
            row.title,
            row.revision,
            row.events,
            row.turns,
        )

    def _log(self, row: LogRow) -> Path:
        return self._root / row.project / row.name / (row.file or "")

    # From the event loop

    async def _ask(self, question: Callable[[IndexDatabase], T]) -> T:
        return await self._in_thread(lambda: self._answer(question))

    async def _in_thread(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread(), job)

    def _thread(self) -> ThreadPoolExecutor:
        if self._closed:
            raise SessionError("the session storage is closed", code="SESSION_CLOSED")
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(1, "polyhost-index")
        return self._executor


def _parsed(cursor: str) -> tuple[int, str]:
    modified, dot, session_id = cursor.partition(".")
    try:
        if dot:
            return int(modified), session_id
    except ValueError:
        pass
    raise SessionError(f"{cursor!r} is no cursor; use one that a listing gave", code="USAGE")


def _is_corrupt(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT
