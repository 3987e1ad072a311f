"""The stored sessions under a root, as readers see them: find, list, inspect, export, and open under the lock.

Everything here blocks and belongs in a thread. What a log's bytes mean is in ``reading``; changing them is the business
of ``storage``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyhost.interfaces.sessions import SessionError, SessionHeader, StoredSession
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.codec import frames
from polyhost.runtime.sessions.layout import FILE_NAMES, Encoding, directory, find, logs, project, segment
from polyhost.runtime.sessions.lock import SessionLock, acquire, holder_of
from polyhost.runtime.sessions.reading import StoredLog, read_header, read_log

_logger = logging.getLogger(__name__)


class InspectedSession(NamedTuple):
    """A stored session as a reader sees it.

    :ivar lines: its events; an interrupted turn is closed in memory, unless somebody is still writing it.
    :ivar notes: what a repair would change, in words.
    """

    stored: StoredSession
    lines: Sequence[bytes]
    notes: Sequence[str]


class Diagnosis(NamedTuple):
    """What is to be said about one stored log, without having changed it.

    :ivar notes: what opening it would repair.
    :ivar problem: why it cannot be opened; None when it can.
    """

    path: str
    header: SessionHeader | None
    events: int
    notes: Sequence[str]
    problem: SessionError | None


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

    def open(self, session_id: str) -> LockedLog:
        """Lock and read a log. Raises also SESSION_LOCKED."""
        path, encoding = self._find(session_id)
        try:
            lock = acquire(path.parent, session_id)
        except OSError as error:
            raise unreadable(path.parent, error) from error
        try:
            return LockedLog(path, encoding, *self._read(path, encoding), lock)
        except BaseException:
            lock.release()
            raise

    def inspect(self, session_id: str) -> InspectedSession:
        """Read a log that may be open elsewhere."""
        path, encoding = self._find(session_id)
        held = holder_of(path.parent) is not None
        _, log = self._read(path, encoding)
        lines = log.lines if held else log.lines + log.closers
        return InspectedSession(stored_row(log.header, path), lines, log.notes)

    def read_from(self, session_id: str, seq: int) -> Sequence[bytes]:
        """The stored events from ``seq`` on, unrepaired."""
        _, log = self._read(*self._find(session_id))
        return log.lines[seq:]

    def export(self, session_id: str) -> tuple[SessionHeader, str, bytes]:
        """Header, file name and decompressed text, just as it is stored."""
        path, encoding = self._find(session_id)
        try:
            header, raw = read_header(str(path), encoding), path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        text = b"".join(frame.content for frame in frames(raw, encoding, str(path)))
        return header, FILE_NAMES["plain"], text

    def list(self, limit: int | None) -> Sequence[StoredSession]:
        """Rows of the readable logs, most recently changed first."""
        found = sorted(logs(self._root), key=lambda log: _modified(log[0]), reverse=True)
        rows: dict[str, StoredSession] = {}
        for path, encoding in found:
            if limit is not None and len(rows) >= limit:
                break
            try:
                header = read_header(str(path), encoding)
                _check_place(path, header)
                if header.id in rows:
                    raise SessionError(f"{path}: another log has its id too", code="SESSION_CORRUPT")
                rows[header.id] = stored_row(header, path)
            except (SessionError, OSError) as error:
                _logger.warning("a stored session is left out of the list: %s", error)
        return list(rows.values())

    def diagnose(self) -> Sequence[Diagnosis]:
        """Read every log whole and say what is wrong with it."""
        return [self._diagnose(path, encoding) for path, encoding in logs(self._root)]

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

    def _diagnose(self, path: Path, encoding: Encoding) -> Diagnosis:
        header = None
        try:
            header = read_header(str(path), encoding)
            _, log = self._read(path, encoding)
            find(self._root, header.id)
        except SessionError as error:
            return Diagnosis(str(path), header, 0, (), error)
        except OSError as error:
            return Diagnosis(str(path), header, 0, (), unreadable(path, error))
        return Diagnosis(str(path), header, len(log.lines), log.notes, None)

    def _find(self, session_id: str) -> tuple[Path, Encoding]:
        found = find(self._root, session_id)
        if found is None:
            raise SessionError(f'session "{session_id}" not found', code="SESSION_NOT_FOUND")
        return found

    def _read(self, path: Path, encoding: Encoding) -> tuple[bytes, StoredLog]:
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error
        log = read_log(raw, encoding, str(path), self._catalogue)
        _check_place(path, log.header)
        return raw, log


def stored_row(header: SessionHeader, path: Path) -> StoredSession:
    """The row of one log for listings."""
    try:
        status = path.stat()
    except FileNotFoundError:  # live, and not written yet
        return StoredSession(header, str(path), header.created_at, 0)
    facts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    revision = ":".join(map(str, facts))
    return StoredSession(header, str(path), status.st_mtime_ns // 1_000_000, status.st_size, revision=revision)


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _check_place(path: Path, header: SessionHeader) -> None:
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
