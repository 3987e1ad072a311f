"""What each session has seen of files: it may change an existing file only at the version that it has read.

Versions are those of ``files``. Nothing here touches the disk.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from polyhost_tools.errors import FileError

MAX_FILES = 10_000
"""Files remembered for one session; the one seen longest ago is forgotten first and has to be read again."""

ABSENT: Final = "absent"
"""The version of a file that is not there."""

SUPERSEDED: Final = "superseded"
"""The version of no file: what was seen is known to be out of date."""


class Observations:
    """Last seen versions, by session and resolved path.

    :ivar moment: grows with every change and everything that is seen anew; tells before from after.
    """

    def __init__(self) -> None:
        self.moment = 0
        self._changes: OrderedDict[str, int] = OrderedDict()
        self._sessions: dict[str, OrderedDict[str, tuple[str, int]]] = {}

    def changed(self, path: str) -> None:
        """The file was changed, even if to what it was before."""
        self.moment += 1
        self._changes[path] = self.moment
        self._changes.move_to_end(path)
        if len(self._changes) > MAX_FILES:
            self._changes.popitem(last=False)

    def note(self, session_id: str, path: str, version: str) -> None:
        seen = self._sessions.setdefault(session_id, OrderedDict())
        if path not in seen or seen[path][0] != version:
            self.moment += 1
            seen[path] = (version, self.moment)
        seen.move_to_end(path)
        if len(seen) > MAX_FILES:
            seen.popitem(last=False)

    def seen(self, session_id: str, path: str, moment: int) -> str | None:
        """The version that the session had seen at ``moment``, None when it had seen none.

        When the file was changed later, by whatever session, or another version of it was seen later, that one is no
        longer current.
        """
        seen = self._sessions.get(session_id)
        if seen is None or path not in seen:
            return None
        version, since = seen[path]
        return version if max(since, self._changes.get(path, 0)) <= moment else SUPERSEDED

    def forget(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)


def require_current(path: str, seen: str | None, current: str) -> None:
    """Refuse to change a file that the session has not seen as it is now. New files need not have been seen.

    :raises FileError: FS_NOT_OBSERVED or FS_STALE_VERSION, each with its remedy.
    """
    if seen == current or (seen is None and current == ABSENT):
        return
    if seen is None:
        raise FileError(
            f"{path}: it was not read in this session; read the file first, then retry", code="FS_NOT_OBSERVED"
        )
    raise FileError(
        f"{path}: it has changed since it was last read; re-read the file, then retry", code="FS_STALE_VERSION"
    )
