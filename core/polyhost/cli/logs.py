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
    """Opens its files with mode 0600, and only once there is something to write."""

    def _open(self):  # type: ignore[no-untyped-def]
        return open(os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8")


def set_up(folder: Path, level: str, redactor: Redactor, *, stderr: bool) -> None:
    """Send the host's records to ``folder``; secrets that ``redactor`` knows never get there.

    :param stderr: also show them on stderr; otherwise only what the logger :data:`TO_PEOPLE` warns of.
    """
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
        handler.setFormatter(logging.Formatter(form))
        handler.addFilter(redactor)
        logger.addHandler(handler)
