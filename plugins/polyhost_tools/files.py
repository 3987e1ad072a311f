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
from weakref import WeakKeyDictionary, WeakValueDictionary

from polyhost.interfaces import ToolCall
from polyhost.kernel.drain import retrieve
from polyhost.kernel.signals import AbortSignal
from polyhost_tools.errors import ArgumentError, FileError, file_error
from polyhost_tools.fence import Fence
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
    """A change, made or to be made: the path as it is shown, and the text before (None: new or unknown) and after."""

    path: str
    created: bool
    before: str | None
    after: str


class Plan(NamedTuple):
    """What is to become of a file: the change, the file that it starts from, and its new bytes."""

    change: Change
    base: Snapshot
    data: bytes


Edit: TypeAlias = Callable[[Snapshot, str], tuple[str | None, str]]
"""``(the file now, its shown path) -> (text before or None, text after)``; raises to change nothing."""

Check: TypeAlias = Callable[[str], None]
"""Raises when a file of the given version may not be changed."""


def require_plain(text: str, name: str) -> None:
    """Refuse what the operating system takes in neither paths nor arguments.

    :param name: the argument that it came in.
    :raises ArgumentError: a text with NUL or a lone surrogate.
    """
    if "\0" in text:
        raise ArgumentError(f"{name} contains NUL")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"{name} has a lone surrogate at {error.start}") from error


def shown_path(path: str, cwd: str | None, name: str = "file_path") -> str:
    """The absolute path that ``path`` means in a session.

    :param name: the argument that it came in.
    :raises ArgumentError: a path that is blank or no plain text, or a relative one without a working directory.
    """
    require_plain(path, name)
    if not path.strip():
        raise ArgumentError(f"{name} must not be blank")
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
        _require_regular(path, os.stat(path).st_mode)  # opening a device or a pipe can already do something
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except FileError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = "a directory" if stat.S_ISDIR(mode) else "a special file"
        raise FileError(f"{path}: it is {what}, not a regular file", code="FS_NOT_REGULAR_FILE")


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
    """The one way in which tools change files: open to tools, seen, unchanged since, one at a time, in one step.

    :param require_read: False lets a session change files that it has not read.
    """

    def __init__(self, observations: Observations, fence: Fence, *, require_read: bool = True) -> None:
        self._observations = observations
        self._fence = fence
        self._require_read = require_read
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._previewed: WeakKeyDictionary[ToolCall, str] = WeakKeyDictionary()

    async def preview(self, call: ToolCall, path: str, edit: Edit) -> Change:
        """What :meth:`apply` would do now. If the file is another one by then, that will refuse to do it.

        :raises FileError: as :meth:`apply`.
        """
        moment, (shown, target) = self._observations.moment, await self._resolve(call, path)
        plan = await asyncio.to_thread(_plan, shown, target, edit, self._check(call, shown, target, moment))
        self._previewed[call] = plan.base.version
        return plan.change

    async def apply(self, call: ToolCall, path: str, edit: Edit) -> Change:
        """Replace the text of the file at ``path`` by what ``edit`` makes of it.

        :raises FileError: a freshness code, what ``edit`` raises, FS_PERMISSION_DENIED or another I/O code.
        """
        moment = self._observations.moment  # changes that begin together do not see each other's result
        shown, target = await self._resolve(call, path)
        async with self._locks.setdefault(target, asyncio.Lock()):
            if call.signal.aborted:
                raise FileError(f"{shown}: the change was aborted, the file is as it was", code="FS_ABORTED")
            check = self._check(call, shown, target, moment)
            work = asyncio.ensure_future(asyncio.to_thread(_change, shown, target, edit, check, call.signal))
            try:
                change, version = await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])  # the thread goes on, and until it ends the file is nobody else's
                retrieve(work)
                self._observations.changed(target)
                raise
            self._observations.changed(target)
            if call.session_id is not None:
                self._observations.note(call.session_id, target, version)
        return change

    async def _resolve(self, call: ToolCall, path: str) -> tuple[str, str]:
        """The path as it is shown, and where it leads."""
        shown = shown_path(path, call.cwd)
        with os_errors(shown):
            return shown, await asyncio.to_thread(self._fence.resolve, shown, call.cwd, reading=False)

    def _check(self, call: ToolCall, shown: str, target: str, moment: int) -> Check:
        """What the version of the file has to pass before the call may change it."""
        session = call.session_id if self._require_read else None
        seen = self._observations.seen(session, target, moment) if session is not None else None
        previewed = self._previewed.get(call)

        def check(version: str) -> None:
            if session is not None:
                require_current(shown, seen, version)
            if previewed not in (None, version):
                raise FileError(
                    f"{shown}: it has changed since the change was approved; re-read the file, then retry",
                    code="FS_STALE_VERSION",
                )

        return check


def _plan(shown: str, target: str, edit: Edit, check: Check) -> Plan:
    now = take_snapshot(target)
    check(now.version)
    before, after = edit(now, shown)
    return Plan(Change(shown, now.absent, before, after), now, encode(after, shown))


def _change(shown: str, target: str, edit: Edit, check: Check, signal: AbortSignal) -> tuple[Change, str]:
    plan = _plan(shown, target, edit, check)
    write_staged(target, plan.data, plan.base.mode, signal)
    with os_errors(shown):
        version = version_of(os.stat(target), plan.data if len(plan.data) < LARGE else None)
    return plan.change, version
