"""Where log records go: a rotating private file under the home, and stderr when a level was asked for."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyhost.config.mask import Redactor

LOG_FILE = "polyhost.log"
TO_PEOPLE = "polyhost.host"
MAX_BYTES = 4 * 1024 * 1024
BACKUPS = 3

_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


class _PrivateHandler(logging.handlers.RotatingFileHandler):
    """Opens its files with mode 0600, and only once there is something to write. The first failure to write is told."""

    _failed = False

    def _open(self):  # type: ignore[no-untyped-def]
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and not self._failed:
            self._failed = True
            logging.getLogger(TO_PEOPLE).warning(
                "the log file %s cannot be written: %s", self.baseFilename, error.strerror
            )


class _PeopleFormatter(logging.Formatter):
    """Without control characters, which errors and names of foreign origin may hold."""

    def format(self, record: logging.LogRecord) -> str:
        from polyhost.config.errors import printable

        return "\n".join(printable(line) for line in super().format(record).split("\n"))


def hush() -> None:
    """Until :func:`set_up`, records go nowhere; without this, errors would go to stderr with their tracebacks."""
    logger = logging.getLogger("polyhost")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def ready() -> bool:
    """Whether :func:`set_up` was called, so that records are kept."""
    return any(isinstance(handler, _PrivateHandler) for handler in logging.getLogger("polyhost").handlers)


def set_up(folder: Path, level: str, redactor: Redactor, *, stderr: bool) -> None:
    """Send the host's records to ``folder``; secrets that ``redactor`` knows never get there.

    From now on nothing that goes wrong while logging, in a plugin's handlers too, is printed with its traceback.

    :param stderr: also show them on stderr; otherwise only what the logger :data:`TO_PEOPLE` warns of.
    """
    logging.raiseExceptions = False
    logger = logging.getLogger("polyhost")
    logger.setLevel(level.upper())
    logger.propagate = False
    for handler in logger.handlers[:]:
        logger.removeHandler(handler)
        handler.close()
    file = _PrivateHandler(folder / LOG_FILE, maxBytes=MAX_BYTES, backupCount=BACKUPS, delay=True)
    screen = logging.StreamHandler(sys.stderr)
    if not stderr:
        screen.addFilter(logging.Filter(TO_PEOPLE))
        screen.setLevel(logging.WARNING)
    for handler, form in ((file, _FORMAT), (screen, _FORMAT if stderr else "hostctl: %(message)s")):
        handler.setFormatter(_PeopleFormatter(form) if handler is screen else logging.Formatter(form))
        handler.addFilter(redactor)
        logger.addHandler(handler)
