"""The stored sessions under a root, as readers see them: find, inspect, export, diagnose, and open under the lock.

Everything here blocks and belongs in a thread. What a log's bytes mean is in ``reading``; changing them is the business
of ``storage``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyhost.interfaces.sessions import SessionDiagnosis, SessionError, SessionHeader, StoredSession
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.codec import frames
from polyhost.runtime.sessions.layout import FILE_NAMES, Encoding, directory, find, logs, project, segment
from polyhost.runtime.sessions.lock import SessionLock, acquire, holder_of
from polyhost.runtime.sessions.reading import StoredLog, read_header, read_log


class InspectedSession(NamedTuple):
    """A stored session as a reader sees it.

    :ivar lines: its events; an interrupted turn is closed in memory, unless somebody is still writing it.
    :ivar notes: what a repair would change, in words.
    """

    stored: StoredSession
    lines: Sequence[bytes]
    notes: Sequence[str]


class LockedLog(NamedTuple):
    """A stored log under its lock, before any repair."""

    path: Path
    encoding: Encoding
    raw: bytes
    log: StoredLog
    lock: SessionLock


class Archive:
    """Reads what is stored under ``root``. Its methods raise :class:`SessionError`: SESSION_NOT_FOUND,
    SESSION_CORRUPT, SESSION_UNSUPPORTED or SESSION_UNREADABLE.
    """

    def __init__(self, root: Path, catalogue: EventCatalogue) -> None:
        self._root = root
        self._catalogue = catalogue

    def open(self, session_id: str, hints: Sequence[Path] = ()) -> LockedLog:
        """Lock and read a log. Raises also SESSION_LOCKED."""
        path, encoding = self.find(session_id, hints)
        try:
            lock = acquire(path.parent, session_id)
        except OSError as error:
            raise unreadable(path.parent, error) from error
        try:
            return LockedLog(path, encoding, *self._read(path, encoding), lock)
        except BaseException:
            lock.release()
            raise

    def inspect(self, session_id: str, hints: Sequence[Path] = ()) -> InspectedSession:
        """Read a log that may be open elsewhere."""
        path, encoding = self.find(session_id, hints)
        held = holder_of(path.parent) is not None
        _, log = self._read(path, encoding)
        lines = log.lines if held else log.lines + log.closers
        return InspectedSession(stored_row(log.header, path), lines, log.notes)

    def read_from(self, session_id: str, seq: int, hints: Sequence[Path] = ()) -> Sequence[bytes]:
        """The stored events from ``seq`` on, unrepaired."""
        _, log = self._read(*self.find(session_id, hints))
        return log.lines[seq:]

    def export(self, session_id: str, hints: Sequence[Path] = ()) -> tuple[SessionHeader, str, bytes]:
        """Header, file name and decompressed text, just as it is stored."""
        path, encoding = self.find(session_id, hints)
        try:
            header, raw = read_header(str(path), encoding), path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        text = b"".join(frame.content for frame in frames(raw, encoding, str(path)))
        return header, FILE_NAMES["plain"], text

    def diagnose(self) -> Sequence[SessionDiagnosis]:
        """Read every log whole and say what is wrong with it."""
        rows = [self._diagnose(path, encoding) for path, encoding in logs(self._root)]
        ids = Counter(row.header.id for row in rows if row.header is not None)
        return [self._check_unique(row) if row.header is not None and ids[row.header.id] > 1 else row for row in rows]

    def diagnose_one(self, session_id: str, hints: Sequence[Path] = ()) -> SessionDiagnosis:
        """The same for one log."""
        return self._check_unique(self._diagnose(*self.find(session_id, hints)))

    def adopt(self, header: SessionHeader, lines: Sequence[bytes]) -> tuple[Path, Encoding, int] | None:
        """The stored log that a live session has grown out of, with its number of events; None when nothing is stored.

        :raises SessionError: SESSION_ALREADY_EXISTS when what is stored is not this session's beginning.
        """
        found = find(self._root, header.id)
        if found is None:
            return None
        raw, log = self._read(*found)
        if log.header != header or log.keep < len(raw) or log.lines != list(lines[: len(log.lines)]):
            raise SessionError(
                f"session {header.id!r} is stored already in {found[0]}; resume it or choose another id",
                code="SESSION_ALREADY_EXISTS",
            )
        return (*found, len(log.lines))

    def find(self, session_id: str, hints: Sequence[Path] = ()) -> tuple[Path, Encoding]:
        """Where a log is. One of ``hints`` that is right saves looking into every project.

        :raises SessionError: also SESSION_CORRUPT when it is stored more than once.
        """
        places = {path.parent for path in hints}
        right = [(place / name, encoding) for place in places for encoding, name in FILE_NAMES.items()]
        right = [(path, encoding) for path, encoding in right if path.is_file()]
        if len(right) == 1:
            return right[0]
        found = find(self._root, session_id)
        if found is None:
            raise SessionError(f'session "{session_id}" not found', code="SESSION_NOT_FOUND")
        return found

    def _diagnose(self, path: Path, encoding: Encoding) -> SessionDiagnosis:
        holder = holder_of(path.parent)
        held = f"pid {holder.pid} on {holder.host}" if holder is not None else None
        header = None
        try:
            header = read_header(str(path), encoding)
            _, log = self._read(path, encoding)
        except SessionError as error:
            return SessionDiagnosis(str(path), header, 0, (), error, held)
        except OSError as error:
            return SessionDiagnosis(str(path), header, 0, (), unreadable(path, error), held)
        return SessionDiagnosis(str(path), header, len(log.lines), log.notes, None, held)

    def _check_unique(self, row: SessionDiagnosis) -> SessionDiagnosis:
        try:
            if row.problem is None and row.header is not None:
                find(self._root, row.header.id)
        except SessionError as error:
            return row._replace(problem=error)
        return row

    def _read(self, path: Path, encoding: Encoding) -> tuple[bytes, StoredLog]:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        log = read_log(raw, encoding, str(path), self._catalogue)
        check_place(path, log.header)
        return raw, log


def stored_row(header: SessionHeader, path: Path) -> StoredSession:
    """The row of one log for listings."""
    try:
        status = path.stat()
    except FileNotFoundError:  # live, and not written yet
        return StoredSession(header, str(path), header.created_at, 0)
    return StoredSession(
        header, str(path), status.st_mtime_ns // 1_000_000, status.st_size, revision=revision_of(status)
    )


def revision_of(status: os.stat_result) -> str:
    """Another one for each change of a log, and for another file in its place."""
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, facts))


def check_place(path: Path, header: SessionHeader) -> None:
    """A header must belong to the directories that it stands in, by name or by another name of the same place."""
    place = path.parent
    if place.name == segment(header.id) and place.parent.name == project(header.cwd):
        return
    rightful = directory(place.parent.parent, header)
    if rightful.exists() and os.path.samefile(place, rightful):
        return
    raise SessionError(
        f"{path}: its header says session {header.id!r} of {header.cwd!r}, which belongs elsewhere. "
        f"Move it to {rightful} or away",
        code="SESSION_CORRUPT",
    )


def unreadable(path: Path, error: OSError) -> SessionError:
    """The error for a log that the operating system does not let us open."""
    return SessionError(f"{path} cannot be opened: {error.strerror}", code="SESSION_UNREADABLE")
