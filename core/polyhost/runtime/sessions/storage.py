"""Stored sessions on disk: find, list, read, open for writing, and keep live ones written (agent-core 2.21, 3.9).

The face of persistence. Names are in ``layout``, bytes in ``codec``, the rules of reading in ``reading``, appending in
``files`` and ``writer``, what there is in ``index``. Only the process that holds a session's lock writes; reading needs
no lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.sessions import Session, SessionDiagnosis, SessionError, SessionHeader, StoredSession
from polyhost.kernel.signals import AbortSignal
from polyhost.runtime.sessions.archive import Archive, InspectedSession, LockedLog, stored_row, unreadable
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.codec import Encoder
from polyhost.runtime.sessions.events import encode_line, view
from polyhost.runtime.sessions.files import LogFile
from polyhost.runtime.sessions.importing import import_log
from polyhost.runtime.sessions.index import SessionIndex
from polyhost.runtime.sessions.layout import FILE_NAMES, Encoding, crowded, directory
from polyhost.runtime.sessions.log import epoch_milliseconds
from polyhost.runtime.sessions.removal import remove
from polyhost.runtime.sessions.restoring import cut_off
from polyhost.runtime.sessions.worker import DiskWorker, Urgency
from polyhost.runtime.sessions.writer import WriteBehind
from polyhost.wire.json import dumps

_MAX_WINDOW_MS = 2**31 - 1

_logger = logging.getLogger(__name__)


class PreparedSession:
    """A stored session, repaired, that this process alone may write.

    Attach a session that was built from it, or release it.

    :ivar lines: its events, closed by ``turn/end``.
    :ivar notes: what was repaired, in words.
    """

    __slots__ = ("file", "header", "lines", "notes", "release")

    def __init__(
        self, header: SessionHeader, lines: list[bytes], notes: list[str], file: LogFile, release: Callable[[], None]
    ) -> None:
        self.header = header
        self.lines = lines
        self.notes = notes
        self.file = file
        self.release = release
        """Give the session up. Idempotent; does nothing once it is attached."""


class _Live:
    __slots__ = ("file", "retirement", "session", "writer")

    def __init__(self, session: Session, file: LogFile, writer: WriteBehind) -> None:
        self.session = session
        self.file = file
        self.writer = writer
        self.retirement: asyncio.Task[None] | None = None


class JsonlStorage:
    """The sessions under one root directory.

    :param root: created when the first session is written.
    :param encoding: of new logs; both encodings are read, and a log keeps its own.
    :param packed: store runs of deltas as rows; both forms are read.
    :param durable: :meth:`written` waits for the disk, as :meth:`flush` does.
    :param window_ms: longest time from an append to its write.
    :param on_health: told why a session cannot be written, at once, and None when it can again.
    :raises ValueError: a window outside 1..2**31 - 1.
    """

    def __init__(
        self,
        root: Path,
        *,
        catalogue: EventCatalogue | None = None,
        encoding: Encoding = "zstd",
        packed: bool = True,
        durable: bool = False,
        window_ms: int = 200,
        on_health: Callable[[Session, str | None], object] = lambda session, reason: None,
    ) -> None:
        if not 1 <= window_ms <= _MAX_WINDOW_MS:
            raise ValueError(f"window_ms must be between 1 and {_MAX_WINDOW_MS}, not {window_ms}")
        self.index = SessionIndex(root)
        self._root = root
        self._catalogue = catalogue or EventCatalogue()
        self._archive = Archive(root, self._catalogue)
        self._encoding: Encoding = encoding
        self._packed = packed
        self._durable = durable
        self._window = window_ms / 1000
        self._on_health = on_health
        self._worker = DiskWorker()
        self._encoder = Encoder()  # used in the worker's thread alone
        self._live: dict[str, _Live] = {}
        self._preparing: dict[str, asyncio.Task[PreparedSession]] = {}
        self._prepared: dict[str, PreparedSession] = {}

    # Reading

    async def list(self, *, limit: int | None = None) -> Sequence[StoredSession]:
        """Stored sessions, most recently changed first. Unreadable ones are left out and logged."""
        return (await self.index.page(limit=limit)).sessions

    async def inspect(self, session_id: str) -> InspectedSession:
        """A session as it is: the live log if it is live here, else the stored one, repaired in memory only.

        :raises SessionError: SESSION_NOT_FOUND, SESSION_CORRUPT or SESSION_UNSUPPORTED.
        """
        live = self._live.get(session_id)
        if live is not None:
            return InspectedSession(stored_row(live.session.header, live.file.path), live.session.lines(), ())
        return await asyncio.to_thread(self._archive.inspect, session_id, await self._hints(session_id))

    async def find(self, session_id: str) -> Path:
        """Where a stored log is, readable or not. Raises like :meth:`inspect`."""
        path, _ = await asyncio.to_thread(self._archive.find, session_id, await self._hints(session_id))
        return path

    async def read_from(self, session_id: str, seq: int) -> Sequence[bytes]:
        """The stored events from ``seq`` on, without any repair. Raises like :meth:`inspect`."""
        return await asyncio.to_thread(self._archive.read_from, session_id, seq, await self._hints(session_id))

    async def export(self, session_id: str) -> tuple[SessionHeader, str, bytes]:
        """Header, file name and stored text of a log, decompressed and unrepaired. Raises like :meth:`inspect`."""
        return await asyncio.to_thread(self._archive.export, session_id, await self._hints(session_id))

    async def diagnose(self, session_id: str | None = None) -> Sequence[SessionDiagnosis]:
        """What is to be said about each stored log, or about one. Nothing is changed."""
        if session_id is None:
            return await asyncio.to_thread(self._archive.diagnose)
        return [await asyncio.to_thread(self._archive.diagnose_one, session_id, await self._hints(session_id))]

    def locate(self, header: SessionHeader) -> Path:
        """Where the log of a new session with this header will be."""
        return directory(self._root, header) / FILE_NAMES[self._encoding]

    # Stored sessions that nobody has open

    async def append(self, session_id: str, type: str, data: JsonObject) -> None:
        """Log one event of a stored session without making it live. Raises like :meth:`prepare`."""
        prepared = await self.prepare(session_id)
        try:
            last = view(prepared.lines[-1]).time if prepared.lines else 0
            line = encode_line(type, len(prepared.lines), max(last, epoch_milliseconds()), dumps(data))
            await self._worker.run(Urgency.WRITE, lambda: prepared.file.append([line]))
            await self._worker.run(Urgency.SYNC, prepared.file.sync)
        finally:
            prepared.release()

    async def delete(self, session_id: str, *, unchanged_since: int | None = None) -> None:
        """See :meth:`polyhost.interfaces.sessions.StoredSessions.delete`."""
        if self._is_open(session_id):
            raise _busy(session_id)
        path = await self.find(session_id)
        await asyncio.to_thread(remove, path, session_id, unchanged_since)
        self.index.note(path, removed=True)

    async def add(self, source: Path) -> StoredSession:
        """Take over one log file from elsewhere.

        :raises SessionError: it cannot be read or written, or SESSION_ALREADY_EXISTS.
        """
        header, path = await asyncio.to_thread(import_log, source, self._root, self._catalogue)
        self.index.note(path)
        return await asyncio.to_thread(stored_row, header, path)

    # Writing

    async def prepare(self, session_id: str, signal: AbortSignal | None = None) -> PreparedSession:
        """Lock, read and repair a stored session, in order to resume it.

        Waits for a session of that id that is just being retired.

        :raises SessionError: SESSION_NOT_FOUND, SESSION_CORRUPT, SESSION_UNSUPPORTED, SESSION_LOCKED (another process
            has it), SESSION_BUSY (this one has it) or SESSION_WRITE_FAILED.
        :raises AbortedError: at once; what was under way is released when it comes in.
        """
        live = self._live.get(session_id)
        if live is not None and live.retirement is not None:
            await asyncio.wait([live.retirement])
        if self._is_open(session_id):
            raise _busy(session_id)
        task = asyncio.create_task(self._prepare(session_id), name=f"preparing session {session_id}")
        self._preparing[session_id] = task
        try:
            return await (asyncio.shield(task) if signal is None else signal.race(asyncio.shield(task)))
        except BaseException:
            task.add_done_callback(_release_late)
            raise

    def attach(self, session: Session) -> None:
        """Keep a live session written from now on. Idempotent.

        The session is new, was built from what :meth:`prepare` gave for its id, or has been live since another storage
        kept it: then its stored log is taken over with the first write, and only what is missing there is written.

        :raises SessionError: SESSION_BUSY when the id belongs to another session, or to a stored log with another
            beginning.
        """
        live = self._live.get(session.id)
        if live is not None and live.session is session:
            return
        if live is not None or session.id in self._preparing:
            raise _busy(session.id)
        prepared = self._prepared.get(session.id)
        if prepared is None:
            stored = 0
            file = LogFile.new(
                self.locate(session.header),
                session.header,
                self._archive,
                self._encoding,
                self._encoder,
                packed=self._packed,
            )
        else:
            stored, file = len(prepared.lines), prepared.file
            if session.header != prepared.header or list(session.lines()[:stored]) != prepared.lines:
                raise SessionError(
                    f"session {session.id!r} does not continue the stored session of that id", code="SESSION_BUSY"
                )
            del self._prepared[session.id]
        writer = WriteBehind(session, file, self._worker, stored=stored, window=self._window, on_health=self._on_health)
        self._live[session.id] = _Live(session, file, writer)

    def warm_up(self) -> None:
        """Load what the first write needs, in the worker's thread, so that the first receipt need not wait for it."""
        self._worker.submit(Urgency.SYNC, lambda: self._encoder.load(self._encoding), lambda error: None)

    async def written(self, session: Session) -> None:
        """See :meth:`polyhost.interfaces.sessions.SessionStore.written`."""
        live = self._live.get(session.id)
        if live is not None and live.session is session:
            await (live.writer.flush() if self._durable else live.writer.written())

    async def flush(self, session: Session) -> bool:
        """See :meth:`polyhost.interfaces.sessions.SessionStore.flush`."""
        live = self._live.get(session.id)
        if live is None or live.session is not session:
            return False
        await live.writer.flush()
        return True

    async def retire(self, session: Session) -> None:
        """Write what is left of a session and give its lock back. All callers share one retirement.

        :raises SessionError: the rest cannot be written, after a second attempt; the session is given up all the same.
        """
        live = self._live.get(session.id)
        if live is None or live.session is not session:
            return
        if live.retirement is None:
            live.retirement = asyncio.create_task(self._retire(live), name=f"retiring session {session.id}")
        await asyncio.shield(live.retirement)

    async def close(self) -> None:
        """Retire every session, release what was prepared, end the worker. Failures are logged. Idempotent."""
        sessions = [live.session for live in self._live.values()]
        outcomes = await asyncio.gather(*map(self.retire, sessions), return_exceptions=True)
        for session, outcome in zip(sessions, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                _logger.error("events of session %s are lost: %s", session.id, outcome)
        if self._preparing:
            await asyncio.wait(self._preparing.values())
        for prepared in list(self._prepared.values()):
            prepared.release()
        await self._worker.close()
        await self.index.close()

    # Parts

    async def _hints(self, session_id: str) -> Sequence[Path]:
        """Where the index knows the session, where asking it is quicker than looking into each project."""
        if await asyncio.to_thread(crowded, self._root):
            return await self.index.places(session_id)
        return ()

    def _is_open(self, session_id: str) -> bool:
        return session_id in self._live or session_id in self._prepared or session_id in self._preparing

    async def _prepare(self, session_id: str) -> PreparedSession:
        try:
            opened = await asyncio.to_thread(self._archive.open, session_id, await self._hints(session_id))
            file = await self._repair(opened)
            await self.index.announce(opened.path, anew=opened.log.keep < len(opened.raw))
        finally:
            del self._preparing[session_id]
        log = opened.log
        for note in log.notes:
            _logger.warning("session %s was repaired: %s", session_id, note)
        prepared = PreparedSession(
            log.header, log.lines + log.closers, log.notes, file, lambda: self._release(session_id, file)
        )
        self._prepared[session_id] = prepared
        return prepared

    async def _repair(self, opened: LockedLog) -> LogFile:
        path, encoding, raw, log, lock = opened
        try:
            if log.keep < len(raw):
                await self._worker.run(Urgency.WRITE, lambda: cut_off(path, encoding, raw, log, self._encoder))
            file = LogFile.existing(path, encoding, self._encoder, lock, packed=self._packed)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise unreadable(path, error) from error
            raise
        if log.closers:
            try:
                await self._worker.run(Urgency.WRITE, lambda: file.append(log.closers))
                await self._worker.run(Urgency.SYNC, file.sync)
            except BaseException:
                file.close()
                raise
        return file

    def _release(self, session_id: str, file: LogFile) -> None:
        prepared = self._prepared.get(session_id)
        if prepared is not None and prepared.file is file:
            del self._prepared[session_id]
            file.close()
            self.index.note(file.path)

    async def _retire(self, live: _Live) -> None:
        try:
            await live.writer.close()
        finally:
            await self._worker.run(Urgency.CLOSE, live.file.close)
            del self._live[live.session.id]
            if live.file.exists:
                self.index.note(live.file.path)


def _busy(session_id: str) -> SessionError:
    return SessionError(f"session {session_id!r} is open already in this process", code="SESSION_BUSY")


def _release_late(task: asyncio.Task[PreparedSession]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().release()
