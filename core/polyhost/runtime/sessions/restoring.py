"""Cutting the damaged end off a log file, so that neither the cut nor a crash during it loses anything.

What is to be cut is decided in ``reading``. Blocks; the caller holds the session's lock.
"""

from __future__ import annotations

import os
from pathlib import Path

from polyhost.runtime.sessions.codec import Encoder
from polyhost.runtime.sessions.files import sync_directory, write_failed
from polyhost.runtime.sessions.layout import Encoding
from polyhost.runtime.sessions.reading import StoredLog


def cut_off(path: Path, encoding: Encoding, raw: bytes, log: StoredLog, encoder: Encoder) -> None:
    """Bring the file to what ``log`` says can be kept. The bytes cut off stay beside it, as ``<name>.cut-<offset>``.

    :param raw: the file's content.
    :raises SessionError: SESSION_WRITE_FAILED.
    """
    try:
        _save(_free_name(path.with_name(f"{path.name}.cut-{log.keep}")), raw[log.keep :])
        if log.rescued:
            # Not in place: a crash between cutting and writing again would lose them.
            temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            _save(temporary, raw[: log.keep] + encoder.encode(b"".join(log.rescued), encoding))
            os.replace(temporary, path)
        else:
            os.truncate(path, log.keep)
        sync_directory(path.parent)
    except OSError as error:
        raise write_failed(path, error) from error


def _save(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)


def _free_name(path: Path) -> Path:
    free, number = path, 1
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
