"""Where whole outputs are kept: one private directory per host, and what hosts that were killed have left of theirs.

A directory is locked as long as its host lives. The system takes the lock away with the process, however that ends, so
that a directory whose lock can be had belongs to nobody. What goes into the files is in :mod:`polyhost.process.output`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from typing import Final

_PREFIX: Final = "polyhost-spill-"

#: Seconds after which :func:`sweep` begins with no further directory.
SWEEP_TIME: Final = 0.2


class SpillDirectory:
    """A directory of mode 0700 with an unguessable name, made on first use, for files of mode 0600."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._lock = -1

    def create(self) -> tuple[int, str]:
        """A new, empty file, exclusively created: its descriptor, open for writing, and its path."""
        while self._path is None:
            self._path = self._make()
        path = os.path.join(self._path, os.urandom(16).hex())
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), path

    def remove(self) -> None:
        """Remove the directory and the files in it, by unlinking only: no link is followed, no subtree entered."""
        path, self._path = self._path, None
        if path is not None:
            _remove(path)
            os.close(self._lock)

    def _make(self) -> str | None:
        """The path of a new directory; None when another host has swept it away before it was locked."""
        from tempfile import mkdtemp  # slow to import, and most children never spill

        path = mkdtemp(prefix=_PREFIX)
        lock = _locked(path)
        if lock is None or not os.path.exists(path):
            if lock is not None:
                os.close(lock)
            return None
        self._lock = lock
        return path


def sweep(seconds: float = SWEEP_TIME) -> None:
    """Remove this user's spill directories of hosts that are dead, as many as fit into the time. Blocking."""
    from tempfile import gettempdir

    deadline = time.monotonic() + seconds
    with contextlib.suppress(OSError), os.scandir(gettempdir()) as entries:
        for entry in entries:
            if time.monotonic() > deadline:
                return
            if entry.name.startswith(_PREFIX):
                _sweep_one(entry.path)


def _sweep_one(path: str) -> None:
    lock = _locked(path)
    if lock is not None:
        _remove(path)
        os.close(lock)


def _locked(path: str) -> int | None:
    """A descriptor that holds the lock of a directory of this user; None when it is another's, or locked."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove(path: str) -> None:
    try:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    except OSError:
        return  # somebody else put something there, or took it away: theirs to deal with
