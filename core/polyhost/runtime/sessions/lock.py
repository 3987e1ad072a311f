"""One writer per stored session, over all processes: ``session.lock`` beside the log.

The lock is the kernel's (``flock``), so it is gone when its process is, however it died. The file's content only says
who holds it. The file itself stays as long as the session; whoever locks one that was removed meanwhile is told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from polyhost.interfaces.sessions import SessionError
from polyhost.wire.errors import WireError
from polyhost.wire.json import dumps, loads

LOCK_NAME = "session.lock"
_CONTENT_LIMIT = 4096


class Holder(NamedTuple):
    """Who holds a lock; ``started`` in epoch milliseconds."""

    pid: int
    host: str
    started: int


class SessionLock:
    """A held lock."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def release(self) -> None:
        """Let others write. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)


def acquire(directory: Path, session_id: str) -> SessionLock:
    """Take the lock in an existing directory.

    :raises SessionError: SESSION_LOCKED, naming the holder.
    :raises OSError: the file cannot be opened or locked.
    """
    path = directory / LOCK_NAME
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(fd, session_id)
        if os.fstat(fd).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the session is just being removed", str(path))
    except BaseException:
        os.close(fd)
        raise
    return SessionLock(fd)


def holder_of(directory: Path) -> Holder | None:
    """Who seems to hold the lock of a directory, told without touching it; None when nobody living does."""
    try:
        with open(directory / LOCK_NAME, "rb") as file:
            holder = _parse(file.read(_CONTENT_LIMIT))
    except OSError:
        return None
    if holder is None or (holder.host == socket.gethostname() and not _is_alive(holder.pid)):
        return None
    return holder


def _lock(fd: int, session_id: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _parse(os.pread(fd, _CONTENT_LIMIT, 0))
        who = f"pid {holder.pid} on {holder.host}" if holder is not None else "its pid is not known yet"
        raise SessionError(
            f"session {session_id!r} is open in another process ({who}); close it there first. "
            f"It can still be read and exported here",
            code="SESSION_LOCKED",
        ) from None
    content = dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": time.time_ns() // 1_000_000})
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, content, 0)
    except OSError as error:
        # The lock holds without a name in it, and what frees space, such as deleting the session, needs it.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise


def _parse(content: bytes) -> Holder | None:
    try:
        facts = loads(content)
        return Holder(int(facts["pid"]), str(facts["host"]), int(facts["started"]))
    except (WireError, KeyError, TypeError, ValueError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
