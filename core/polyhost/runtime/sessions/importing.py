"""Taking over logs from elsewhere: another home, a backup, an export.

A log is read as strictly as when it is opened, and stands under this root afterwards as if it had been written here:
the same events, in its own encoding, without what a repair would cut off its end. Blocks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from polyhost.interfaces.sessions import SessionError, SessionHeader
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.codec import Encoder, is_compressed
from polyhost.runtime.sessions.files import make_directories, sync_directory, write_new
from polyhost.runtime.sessions.layout import FILE_NAMES, Encoding, directory, find
from polyhost.runtime.sessions.lock import acquire
from polyhost.runtime.sessions.reading import StoredLog, read_log


def logs_at(path: Path) -> list[Path]:
    """``path`` itself if it is a file, else every file below it that is named like a log.

    :raises SessionError: SESSION_NOT_FOUND when there is none.
    """
    found = [path] if path.is_file() else sorted(_below(path))
    if not found:
        names = " or ".join(sorted(FILE_NAMES.values()))
        raise SessionError(f"there is no session log at {path}, and no {names} below it", code="SESSION_NOT_FOUND")
    return found


def import_log(source: Path, root: Path, catalogue: EventCatalogue) -> tuple[SessionHeader, Path]:
    """Copy one log to where it belongs under ``root``; it keeps its time of change.

    :raises SessionError: SESSION_CORRUPT or SESSION_UNSUPPORTED as when it is opened, SESSION_ALREADY_EXISTS,
        SESSION_LOCKED, SESSION_UNREADABLE or SESSION_WRITE_FAILED.
    """
    try:
        raw, status = source.read_bytes(), source.stat()
    except OSError as error:
        raise SessionError(f"{source} cannot be read: {error.strerror}", code="SESSION_UNREADABLE") from error
    encoding: Encoding = "zstd" if is_compressed(raw) else "plain"
    log = read_log(raw, encoding, str(source), catalogue)
    place = directory(root, log.header)
    _refuse_double(root, log.header)  # before anything is made; and once more when nobody else can begin it
    try:
        unsynced = make_directories(place)
        lock = acquire(place, log.header.id)
        try:
            _refuse_double(root, log.header)
            path = place / FILE_NAMES[encoding]
            write_new(path, _sound(raw, encoding, log), times=(status.st_atime_ns, status.st_mtime_ns))
            for made in reversed(unsynced):
                sync_directory(made)
        finally:
            lock.release()
    except OSError as error:
        raise SessionError(f"{place} cannot be written: {error.strerror}", code="SESSION_WRITE_FAILED") from error
    return log.header, path


def _sound(raw: bytes, encoding: Encoding, log: StoredLog) -> bytes:
    rescued = Encoder().encode(b"".join(log.rescued), encoding) if log.rescued else b""
    return raw[: log.keep] + rescued


def _refuse_double(root: Path, header: SessionHeader) -> None:
    found = find(root, header.id)
    if found is not None:
        raise SessionError(
            f"session {header.id!r} is stored already, in {found[0]}; delete that one first to take this one instead",
            code="SESSION_ALREADY_EXISTS",
        )


def _below(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        for name in FILE_NAMES.values():
            if name in names:
                yield Path(folder, name)
