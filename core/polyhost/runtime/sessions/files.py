"""Appending to one log file: created in one step, rolled back when a write fails, synced on request.

Everything here blocks and belongs to the disk worker's thread. When to write what is decided in ``writer``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from polyhost.interfaces.sessions import SessionError, SessionHeader
from polyhost.runtime.sessions import header as headers
from polyhost.runtime.sessions.archive import Archive
from polyhost.runtime.sessions.codec import Encoder
from polyhost.runtime.sessions.layout import Encoding
from polyhost.runtime.sessions.lock import SessionLock, acquire
from polyhost.runtime.sessions.packing import pack

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_TURN = 256  # lines packed in well below a millisecond
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


class LogFile:
    """The file of one session. A new one does not exist before its first batch.

    :param packed: store runs of deltas as rows.
    """

    def __init__(self, path: Path, encoding: Encoding, encoder: Encoder, *, packed: bool) -> None:
        self.path = path
        self._encoding: Encoding = encoding
        self._encoder = encoder
        self._packed = packed
        self._fd = -1
        self._end = 0  # of what is known to be written whole
        self._torn = False  # bytes may stand behind the end
        self._lock: SessionLock | None = None
        self._birth: tuple[SessionHeader, Archive] | None = None  # until the file exists
        self._unsynced_directories: list[Path] = []
        self._lost: OSError | None = None

    @classmethod
    def new(
        cls,
        path: Path,
        header: SessionHeader,
        archive: Archive,
        encoding: Encoding,
        encoder: Encoder,
        *,
        packed: bool,
    ) -> LogFile:
        """A file that its first :meth:`append` creates, or takes over if ``archive`` has the session already."""
        file = cls(path, encoding, encoder, packed=packed)
        file._birth = (header, archive)
        return file

    @classmethod
    def existing(cls, path: Path, encoding: Encoding, encoder: Encoder, lock: SessionLock, *, packed: bool) -> LogFile:
        """A file whose lock is held; it is released with the file. Raises OSError."""
        file = cls(path, encoding, encoder, packed=packed)
        file._open(lock)
        return file

    @property
    def exists(self) -> bool:
        """Whether there is a file: a new one begins with its first batch."""
        return self._birth is None

    def append(self, lines: Sequence[bytes]) -> None:
        """Write a batch of event lines, whole or not at all; it has reached the operating system on return.

        :raises SessionError: SESSION_WRITE_FAILED with the path and the way out; SESSION_LOCKED or
            SESSION_ALREADY_EXISTS when a new file turns out to be somebody else's.
        """
        try:
            if self._birth is not None:
                self._begin(*self._birth, lines)
            else:
                self._write_at_end(self._encode(lines))
        except OSError as error:
            raise write_failed(self.path, error) from error

    def sync(self) -> None:
        """Make everything written so far durable.

        After one failure the disk's answers can no longer be believed, so that the file then refuses for good.

        :raises SessionError: SESSION_SYNC_FAILED.
        """
        if self._lost is None:
            try:
                if self._fd >= 0:
                    os.fdatasync(self._fd)
                while self._unsynced_directories:
                    sync_directory(self._unsynced_directories[-1])
                    self._unsynced_directories.pop()
                return
            except OSError as error:
                self._lost = error
        raise SessionError(
            f"{self.path} could not be made durable ({self._lost.strerror}): what was written lately may be lost in a "
            f"power failure. Check the disk and restart the host",
            code="SESSION_SYNC_FAILED",
        ) from self._lost

    def close(self) -> None:
        """Close the file and release its lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write_at_end(self, content: bytes) -> None:
        status = os.fstat(self._fd)
        if status.st_nlink == 0:
            raise OSError(errno.ENOENT, "the log was deleted while the session was open")
        if self._torn:
            os.ftruncate(self._fd, self._end)
            self._torn = False
        elif status.st_size != self._end:
            raise OSError(errno.EBUSY, "the log was changed by somebody else while the session was open")
        try:
            _write_all(self._fd, content, self._end)
        except OSError as error:
            self._roll_back(error)
            raise
        self._end += len(content)

    def _roll_back(self, cause: OSError) -> None:
        self._torn = True  # until it is cut off, now or before the next attempt
        try:
            os.ftruncate(self._fd, self._end)
        except OSError as error:
            reason = f"{cause.strerror}, and the part that was written could not be cut off again: {error.strerror}"
            raise OSError(cause.errno, reason) from error
        self._torn = False

    def _open(self, lock: SessionLock) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._end = os.fstat(self._fd).st_size
        self._lock = lock

    def _encode(self, lines: Sequence[bytes]) -> bytes:
        return self._encoder.encode(b"".join(pack(_in_turns(lines)) if self._packed else lines), self._encoding)

    def _begin(self, header: SessionHeader, archive: Archive, lines: Sequence[bytes]) -> None:
        """Write the first batch, which begins with the session's first event."""
        self._unsynced_directories += make_directories(self.path.parent)
        lock = acquire(self.path.parent, header.id)
        try:
            adopted = archive.adopt(header, lines)
            if adopted is None:
                self._create(headers.encode(header), lines)
                self._lock = lock
            else:
                self.path, self._encoding, stored = adopted
                self._open(lock)
                if len(lines) > stored:
                    self._write_at_end(self._encode(lines[stored:]))
        except BaseException:
            self.close()
            lock.release()
            raise
        self._birth = None

    def _create(self, head: bytes, lines: Sequence[bytes]) -> None:
        content = self._encoder.encode(head, self._encoding) + self._encode(lines)
        write_new(self.path, content)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._end = len(content)


def write_new(path: Path, content: bytes, *, times: tuple[int, int] | None = None) -> None:
    """Write a file that is there whole and durable, or not at all. Raises OSError, also when it is there already.

    :param times: of access and change, in nanoseconds.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, content, 0)
        if times is not None:
            os.utime(fd, ns=times)
        os.fsync(fd)
        os.link(temporary, path)
    finally:
        os.close(fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _in_turns(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Pass lines on, letting the event loop's thread run in between; it would have to wait for 5 ms each time else."""
    for start in range(0, len(lines), _TURN):
        yield from lines[start : start + _TURN]
        time.sleep(0.0001)


def _write_all(fd: int, content: bytes, offset: int) -> None:
    rest = memoryview(content)
    while rest:
        written = os.pwrite(fd, rest, offset)
        rest = rest[written:]
        offset += written


def make_directories(path: Path) -> list[Path]:
    """Create what is missing of ``path``, private to the user. Returns the directories to sync, innermost last."""
    missing: list[Path] = []
    at = path
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for missing_path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            missing_path.mkdir(mode=0o700)
    return [at, *reversed(missing)] if missing else [path]


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_failed(path: Path, error: OSError) -> SessionError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        way_out = "Free some space there"
    elif error.errno in _READ_ONLY:
        way_out = "Make that place writable, or let the host's home point elsewhere"
    else:
        way_out = "Check that place"
    return SessionError(
        f"the log {path} cannot be written ({reason}). {way_out}; the events are kept in memory meanwhile and are "
        f"written at the next attempt",
        code="SESSION_WRITE_FAILED",
    )
