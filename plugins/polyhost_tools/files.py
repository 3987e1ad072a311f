"""Reading and changing files: paths, versions, staged writes, and the door that every change goes through.

Blocking work runs in threads. What may be changed is decided by ``observation``, how text is treated by ``text``, what
the model reads by the tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from polyhost.interfaces import ToolCall
from polyhost.kernel.signals import AbortSignal
from polyhost_tools.errors import ArgumentError, FileError, file_error
from polyhost_tools.observation import ABSENT, Observations, require_current
from polyhost_tools.text import encode

if TYPE_CHECKING:
    from hashlib import blake2b

LARGE = 10 * 1024 * 1024
"""Bytes from which on a file is streamed, not edited, and its content not kept."""


class Snapshot(NamedTuple):
    """A file as it was at one moment. ``data`` is None when it is absent or large."""

    version: str
    data: bytes | None
    mode: int = 0o600

    @property
    def absent(self) -> bool:
        return self.version == ABSENT


class Change(NamedTuple):
    """A change that was made: the path as it is shown, and the text before (None: new or unknown) and after."""

    path: str
    created: bool
    before: str | None
    after: str


Edit: TypeAlias = Callable[[Snapshot, str], tuple[str | None, str]]
"""``(the file now, its shown path) -> (text before or None, text after)``; raises to change nothing."""


def shown_path(path: str, cwd: str | None, name: str = "file_path") -> str:
    """The absolute path that ``path`` means in a session.

    :param name: the argument that it came in.
    :raises ArgumentError: a blank path, one with NUL, or a relative one without a working directory.
    """
    if not path.strip() or "\0" in path:
        raise ArgumentError(f"{name} contains NUL" if "\0" in path else f"{name} must not be blank")
    if cwd is None and not os.path.isabs(path):
        raise ArgumentError(f"the relative path {path} needs a session with a working directory")
    joined = os.path.join(cwd or "/", path)
    return joined if ".." in joined.split("/") else os.path.normpath(joined)  # what ".." means depends on links


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Turn the operating system's errors about ``path`` into file errors."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path) from error


def open_regular(path: str) -> int:
    """A descriptor for reading a regular file; never waits for one that is not.

    :raises FileError: FS_NOT_REGULAR_FILE for anything else, or what the system says.
    """
    with os_errors(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        what = "a directory" if stat.S_ISDIR(kind) else "a special file"
        raise FileError(f"{path}: it is {what}, not a regular file", code="FS_NOT_REGULAR_FILE")
    return descriptor


def content_hash(data: bytes = b"") -> blake2b:
    """The hash whose hexadecimal digest is the version of a file below :data:`LARGE`."""
    from hashlib import blake2b  # slow to import, and not needed before the first file is touched

    return blake2b(data, digest_size=16)


def version_of(status: os.stat_result, data: bytes | None) -> str:
    """Identifies a content: by its hash, or for a large file (None) by what the file system says of it."""
    if data is not None:
        return content_hash(data).hexdigest()
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def take_snapshot(path: str) -> Snapshot:
    """The file at ``path`` now."""
    try:
        descriptor = open_regular(path)
    except FileError as error:
        if error.code == "FS_NOT_FOUND":
            return Snapshot(ABSENT, None)
        raise
    with os_errors(path), open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        data = file.read(LARGE) if status.st_size < LARGE else None
    if data is not None and len(data) == LARGE:
        data = None
    return Snapshot(version_of(status, data), data, stat.S_IMODE(status.st_mode))


def write_staged(path: str, data: bytes, mode: int, signal: AbortSignal) -> None:
    """Put ``data`` at ``path`` in one step, through a private file beside it; parents are created.

    :raises FileError: FS_ABORTED when ``signal`` was aborted before the step; nothing is left behind then.
    """
    directory, name = os.path.split(path)
    staging = os.path.join(directory, f".{name[:100]}.{os.urandom(6).hex()}.tmp")
    with os_errors(path):
        os.makedirs(directory, exist_ok=True)
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(descriptor, mode)
            if signal.aborted:
                raise FileError(f"{path}: the change was aborted, the file is as it was", code="FS_ABORTED")
            os.replace(staging, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(staging)
            raise


class FileChanges:
    """The one way in which tools change files: seen, unchanged since, one at a time, in one step.

    :param require_read: False lets a session change files that it has not read.
    """

    def __init__(self, observations: Observations, *, require_read: bool = True) -> None:
        self.observations = observations
        self._require_read = require_read
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(self, call: ToolCall, path: str, edit: Edit) -> Change:
        """Replace the text of the file at ``path`` by what ``edit`` makes of it.

        :raises FileError: a freshness code, what ``edit`` raises, or an I/O code.
        """
        shown = shown_path(path, call.cwd)
        moment = self.observations.moment  # changes that begin together do not see each other's result
        with os_errors(shown):
            target = await asyncio.to_thread(os.path.realpath, shown)
        seen = self.observations.seen(call.session_id, target, moment) if call.session_id else None
        lock = self._locks.setdefault(target, asyncio.Lock())
        checked = self._require_read and call.session_id is not None
        async with lock:
            if call.signal.aborted:
                raise FileError(f"{shown}: the change was aborted, the file is as it was", code="FS_ABORTED")
            made, version = await asyncio.to_thread(_change, shown, target, edit, seen, checked, call.signal)
        if call.session_id is not None:
            self.observations.note(call.session_id, target, version)
        return made


def _change(
    shown: str, target: str, edit: Edit, seen: str | None, checked: bool, signal: AbortSignal
) -> tuple[Change, str]:
    now = take_snapshot(target)
    if checked:
        require_current(shown, seen, now.version)
    before, after = edit(now, shown)
    data = encode(after, shown)
    write_staged(target, data, now.mode, signal)
    with os_errors(shown):
        version = version_of(os.stat(target), data if len(data) < LARGE else None)
    return Change(shown, now.absent, before, after), version
