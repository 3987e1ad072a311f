"""Small files that only their owner may read: bounded reads, atomic writes, one lock between processes.

Everything here is plain POSIX file work; what the files mean is the business of the modules that call it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from polyhost.config.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
"""Largest configuration, trust or credential file that is read."""

LOCK_TIMEOUT = 10.0
"""Seconds to wait for another process that is writing."""

_POLL = 0.01


def read_bounded(path: Path) -> bytes | None:
    """The bytes of a regular file, or None when there is none.

    :raises ConfigError: unreadable, not a regular file, or longer than :data:`MAX_FILE_BYTES`.
    """
    try:
        # O_NONBLOCK: a FIFO in the place of a file must be refused, not waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _io_error("cannot read", path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path} is not a regular file; move it away or name another file", file=str(path))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _io_error("cannot read", path, error) from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is larger than the limit of {MAX_FILE_BYTES} bytes", file=str(path))
    return data


def write_atomic(path: Path, data: bytes) -> None:
    """Replace ``path`` (or the file its link points to) in one step; a new file gets 0600, an old one keeps its mode.

    A reader sees the old or the new bytes, never a part; after a power loss too.
    """
    import tempfile

    target = Path(os.path.realpath(path))
    temporary = None
    mode = 0o600
    try:
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(target.stat().st_mode)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(temporary, target)
        temporary = None
        _sync_directory(target.parent)
    except OSError as error:
        raise _io_error("cannot write", target, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def create_exclusive(path: Path, data: bytes) -> None:
    """Write a new 0600 file; :class:`ConfigError` with code ``CONFIG_EXISTS`` when something is there already."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        message = f"{path} exists already and is left as it is; edit it, or move it away first"
        raise ConfigError(message, code="CONFIG_EXISTS", file=str(path)) from error
    except OSError as error:
        raise _io_error("cannot create", path, error) from error
    with open(descriptor, "wb") as file:
        file.write(data)


def private_directory(path: Path) -> None:
    """Make ``path`` a directory of ours: created 0700 (with its parents), or already there and owned by this user.

    :raises ConfigError: it belongs to somebody else, is not a directory, or cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            status = path.stat()
        else:
            return
    except OSError as error:
        raise _io_error("cannot create the directory", path, error) from error
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{path} is not a directory; move it away or choose another --home", file=str(path))
    if status.st_uid != os.geteuid():
        message = f"{path} belongs to user id {status.st_uid}; choose a directory of your own with --home"
        raise ConfigError(message, file=str(path))


@contextlib.contextmanager
def locked(path: Path, *, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Hold the exclusive lock ``path`` (made 0600 when absent) against other writers, threads included.

    :param timeout: seconds to wait for the holder.
    :raises ConfigError: with code ``CONFIG_BUSY`` when the holder does not let go in time.
    """
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _io_error("cannot open the lock", path, error) from error
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    message = (
                        f"another process has been writing for {timeout:g} s (lock {path}); try again when it ends"
                    )
                    raise ConfigError(message, code="CONFIG_BUSY", file=str(path)) from None
                time.sleep(_POLL)  # flock has no wait with a bound
        yield
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _io_error(what: str, path: Path, error: OSError) -> ConfigError:
    reason = error.strerror or str(error)
    hint = "; check its owner and mode" if isinstance(error, PermissionError) else ""
    return ConfigError(f"{what} {path}: {reason}{hint}", code="CONFIG_IO", file=str(path))
