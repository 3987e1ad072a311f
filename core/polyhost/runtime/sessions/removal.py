"""Removing a stored session: its log first, so that it is gone at once or not at all, then all that stands beside it.

Blocks. The caller makes sure that this process has the session not open; the lock says so of all others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from polyhost.interfaces.sessions import SessionError
from polyhost.runtime.sessions.files import sync_directory
from polyhost.runtime.sessions.layout import FILE_NAMES
from polyhost.runtime.sessions.lock import LOCK_NAME, acquire


def remove(log: Path, session_id: str, unchanged_since: int | None = None) -> None:
    """Remove the session directory that ``log`` is in.

    :param unchanged_since: epoch milliseconds; a log that is younger stays.
    :raises SessionError: SESSION_LOCKED, naming the holder; SESSION_CHANGED; SESSION_WRITE_FAILED when something cannot
        be removed.
    """
    place = log.parent
    try:
        lock = acquire(place, session_id)
        try:
            if unchanged_since is not None and log.stat().st_mtime_ns // 1_000_000 > unchanged_since:
                raise SessionError(f"session {session_id!r} was changed meanwhile and stays", code="SESSION_CHANGED")
            _empty(place)
        finally:
            lock.release()
    except OSError as error:
        raise SessionError(
            f"{error.filename or place} cannot be removed ({error.strerror}). Check the permissions of that place, "
            "and that its disk can be written",
            code="SESSION_WRITE_FAILED",
        ) from error


def _empty(place: Path) -> None:
    for name in FILE_NAMES.values():
        (place / name).unlink(missing_ok=True)
    sync_directory(place)
    for entry in list(os.scandir(place)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        elif entry.name != LOCK_NAME:
            os.unlink(entry.path)
    # The lock goes last, and with it the directory: whoever waits for it finds out that it is not in its place.
    (place / LOCK_NAME).unlink()
    if place.is_symlink():
        place.unlink()
    else:
        with contextlib.suppress(OSError):  # somebody begins a session here this very moment
            place.rmdir()
    sync_directory(place.parent)
