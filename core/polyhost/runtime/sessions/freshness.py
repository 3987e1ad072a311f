"""Bringing the session index in line with the disk, with as little looking as possible.

What a listing looks at, whatever the number of stored sessions:

* the names of the projects, and their modification times: a directory changes when a session comes or goes, and only
  then is it read. Of many projects it is those that changed last, and a part of the others each time;
* the logs that somebody writes, which hosts note when they begin and end to, and those that cannot be listed;
* a part of all other logs, going round, for whatever changed behind the hosts' backs.

With up to :data:`PLACES` projects and :data:`ROUND` logs that is everything.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from polyhost.interfaces.sessions import SessionError
from polyhost.runtime.sessions import header as headers
from polyhost.runtime.sessions.archive import check_place, revision_of
from polyhost.runtime.sessions.database import IndexDatabase, LogFacts, LogRow
from polyhost.runtime.sessions.digest import Digest, digest
from polyhost.runtime.sessions.layout import FILE_NAMES, encoding_of
from polyhost.runtime.sessions.lock import holder_of

PLACES = 64
ROUND = 32
WATCHED = 512
_BATCH = 128  # logs per transaction, so that other processes get their turn
_SETTLED_NS = 2_000_000_000  # a directory may change again without another modification time within one clock tick

_logger = logging.getLogger(__name__)


class Freshness:
    """Updates ``database`` from the logs under ``root``.

    :param stopping: asked between two logs; True ends the work with :class:`SessionError`.
    """

    def __init__(self, database: IndexDatabase, root: Path, stopping: Callable[[], bool] = lambda: False) -> None:
        self._database = database
        self._root = root
        self._stopping = stopping

    def refresh(self) -> None:
        """See the module. Raises OSError when the root cannot be read; other directories are left out and logged."""
        database = self._database
        self._check_root()
        position = database.position("places")
        turn = database.places_after(position, PLACES)
        for name, known in {**database.recent_places(PLACES), **turn}.items():
            self._check_project(name, known)
        self._move_on("places", position, max(turn) if len(turn) == PLACES else "")
        self.check(database.watched(WATCHED), locks=True)
        position = database.position("logs")
        rows = database.logs_after(int(position or 0), ROUND)
        self.check(rows)
        self._move_on("logs", position, str(rows[-1].key) if len(rows) == ROUND else "")

    def check(self, rows: Iterable[LogRow], *, locks: bool = False) -> bool:
        """Read again what is no longer as its row says; True when there was any such thing.

        :param locks: look also whether somebody writes them, even if they are unchanged.
        """
        return self._update(((row.project, row.name, row) for row in rows), locks=locks)

    def note(self, project: str, name: str, *, anew: bool = False) -> None:
        """One log was created, opened, closed or removed. ``anew``: what was read of it earlier counts no longer."""
        row = self._database.log(project, name)
        if anew and row is not None:
            row = row._replace(revision="", end=0)
        self._update([(project, name, row)], locks=True)

    # Directories

    def _check_root(self) -> None:
        mtime = _mtime(self._root)
        known = self._database.place("")
        if mtime is not None and mtime == known:
            return
        settled = _settled(mtime)
        present = _subdirectories(self._root)
        places = self._database.places()
        with self._database.transaction():
            for name in places.keys() - present - {""}:
                self._database.drop_place(name)
            for name in present - places.keys():
                self._database.set_place(name, 0)
            self._database.set_place("", settled)

    def _check_project(self, name: str, known: int) -> None:
        path = self._root / name
        mtime = _mtime(path)
        if mtime is not None and mtime == known:
            return
        settled = _settled(mtime)
        try:
            present = _subdirectories(path)
        except OSError as error:
            _logger.warning("the sessions in %s are left out of the list: %s", path, error.strerror)
            return
        rows = self._database.names(name)
        self._update((name, new, None) for new in sorted(present - rows.keys()))
        gone = rows.keys() - present
        if gone or settled != known:
            with self._database.transaction():
                for session in gone:
                    self._database.drop(rows[session])
                self._database.set_place(name, settled)

    def _move_on(self, round: str, position: str, reached: str) -> None:
        if reached != position:
            self._database.set_position(round, reached)

    # Logs

    def _update(self, targets: Iterable[tuple[str, str, LogRow | None]], *, locks: bool = False) -> bool:
        changed = False
        batch: list[LogFacts | LogRow] = []
        for project, name, row in targets:
            if self._stopping():
                raise SessionError("the session storage is closing", code="SESSION_CLOSED")
            facts = self._look_at(project, name, row, locks=locks)
            if facts is not None:
                batch.append(facts)
                changed = True
            if len(batch) == _BATCH:
                self._store(batch)
                batch = []
        self._store(batch)
        return changed

    def _store(self, batch: list[LogFacts | LogRow]) -> None:
        """Store the facts; a row stands for a log that is gone."""
        if not batch:
            return
        with self._database.transaction():
            for facts in batch:
                if isinstance(facts, LogRow):
                    self._database.drop(facts.key)
                else:
                    self._database.store(facts)

    def _look_at(self, project: str, name: str, row: LogRow | None, *, locks: bool) -> LogFacts | LogRow | None:
        """What has to be stored of one session directory; None when its row is right."""
        place = f"{self._root}/{project}/{name}"
        if row is not None and row.file is not None and _revision(f"{place}/{row.file}") == row.revision:
            if locks and row.problem is None and (held := _is_held(place)) != bool(row.watched):
                self._database.set_watched(row.key, held)
            return None
        found = _newest_log(place)
        if found is not None:
            return self._read(project, name, *found, row)
        if not os.path.isdir(place):
            return row
        if row is not None and row.file is None:
            return None
        return LogFacts(project, name, None, "", True, None, 0, 0, None, None, None)

    def _read(self, project: str, name: str, file: str, status: os.stat_result, row: LogRow | None) -> LogFacts:
        path = Path(self._root, project, name, file)
        base = row if row is not None and _goes_on(row, file, status) else None
        problem, result = None, None
        try:
            result = _digest(path, base.end if base is not None else 0)
            if result.header is not None:
                check_place(path, result.header)
                self._warn_of_double(path, result.header.id, status)
        except (SessionError, OSError) as error:
            if base is not None:
                return self._read(project, name, file, status, None)
            problem, result = str(error), None
            _logger.warning("a stored session is left out of the list: %s", error)
        header = headers.encode(result.header) if result is not None and result.header is not None else None
        watched = problem is not None or _is_held(str(path.parent))
        modified = status.st_mtime_ns // 1_000_000
        return LogFacts(
            project, name, file, revision_of(status), watched, problem, modified, status.st_size, base, result, header
        )

    def _warn_of_double(self, path: Path, session_id: str, status: os.stat_result) -> None:
        for row in self._database.logs_of(session_id):
            other = Path(self._root, row.project, row.name, row.file or "")
            if other != path and other.is_file() and not os.path.samestat(other.stat(), status):
                _logger.warning("%s and %s have the same session id; the one that changed last is listed", path, other)


def _newest_log(place: str) -> tuple[str, os.stat_result] | None:
    newest = None
    for file in FILE_NAMES.values():
        try:
            status = os.stat(f"{place}/{file}")
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) and (newest is None or status.st_mtime_ns > newest[1].st_mtime_ns):
            newest = (file, status)
    return newest


def _revision(path: str) -> str | None:
    try:
        return revision_of(os.stat(path))
    except OSError:
        return None


def _digest(path: Path, start: int) -> Digest:
    encoding = encoding_of(path)
    assert encoding is not None
    with open(path, "rb") as file:
        file.seek(start)
        return digest(file.read(), start, encoding, str(path))


def _goes_on(row: LogRow, file: str, status: os.stat_result) -> bool:
    """Whether the log seems to have been appended to since it was read, and nothing else."""
    same = row.revision.startswith(f"{status.st_dev}:{status.st_ino}:")
    grown = 0 < row.end <= status.st_size > row.size
    return same and grown and row.id is not None and row.file == file


def _is_held(place: str) -> bool:
    return holder_of(Path(place)) is not None


def _mtime(path: Path) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return None


def _settled(mtime: int | None) -> int:
    """``mtime``, or 0 when it is so young that the directory may change once more without another one."""
    return mtime if mtime is not None and time.time_ns() - mtime > _SETTLED_NS else 0


def _subdirectories(path: Path) -> set[str]:
    try:
        with os.scandir(path) as entries:
            return {entry.name for entry in entries if entry.is_dir() and _is_text(entry.name)}
    except FileNotFoundError:
        return set()


def _is_text(name: str) -> bool:
    """Whether a database can hold it. No host makes a directory with another name."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
