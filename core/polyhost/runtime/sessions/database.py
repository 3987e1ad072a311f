"""The tables of the session index: one SQLite file, or memory, and the statements on it.

What is in it is derived from the logs; bringing it up to date is in ``freshness``, threads and failures in ``index``.
Everything here blocks, and one object belongs to one thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from polyhost.runtime.sessions.digest import Digest

VERSION = 1
"""Another one means that the tables are made anew."""

BUSY_SECONDS = 2.0
_SIGNATURE = 0x706F6C79

_SCHEMA = """
CREATE TABLE places (name TEXT PRIMARY KEY, mtime INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX places_by_mtime ON places (mtime);
CREATE TABLE positions (name TEXT PRIMARY KEY, position TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE logs (
    key INTEGER PRIMARY KEY, project TEXT NOT NULL, name TEXT NOT NULL, file TEXT, revision TEXT NOT NULL,
    watched INTEGER NOT NULL, problem TEXT, id TEXT, cwd TEXT, origin TEXT, header BLOB, title TEXT, prompt TEXT,
    modified INTEGER NOT NULL, size INTEGER NOT NULL, events INTEGER NOT NULL, turns INTEGER NOT NULL,
    end INTEGER NOT NULL, UNIQUE (project, name)
);
CREATE INDEX logs_by_id ON logs (id);
CREATE INDEX logs_by_change ON logs (modified, id);
CREATE INDEX logs_by_folder ON logs (cwd, modified, id);
CREATE INDEX logs_watched ON logs (key) WHERE watched;
CREATE TABLE messages (key INTEGER PRIMARY KEY, log INTEGER NOT NULL, seq INTEGER NOT NULL, role TEXT NOT NULL);
CREATE INDEX messages_by_log ON messages (log);
CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2');
"""

_COLUMNS = (
    "key, project, name, file, revision, watched, problem, id, header, coalesce(title, prompt), modified, size, "
    "events, turns, end"
)
_LISTED = "l.id IS NOT NULL"
# Of several logs with one id the one that changed last stands for all, as it did before there was an index.
_FIRST_OF_ITS_ID = "NOT EXISTS (SELECT 1 FROM logs d WHERE d.id = l.id AND (d.modified, d.key) > (l.modified, l.key))"


class LogRow(NamedTuple):
    """What is known of one session directory.

    :ivar file: name of the log in it; None while there is none.
    :ivar revision: of the log when it was read.
    :ivar watched: it is looked at each time: somebody writes it, or it cannot be listed yet.
    :ivar problem: why it is not listed.
    :ivar id: None for what is not listed.
    :ivar header: the header line.
    :ivar end: offset up to which the log was read.
    """

    key: int
    project: str
    name: str
    file: str | None
    revision: str
    watched: bool
    problem: str | None
    id: str | None
    header: bytes | None
    title: str | None
    modified: int
    size: int
    events: int
    turns: int
    end: int


class LogFacts(NamedTuple):
    """What is to be stored of one session directory; fields as in :class:`LogRow`.

    :ivar base: the row that ``digest`` goes on from; None when it begins with the header.
    :ivar digest: None for what cannot be listed.
    """

    project: str
    name: str
    file: str | None
    revision: str
    watched: bool
    problem: str | None
    modified: int
    size: int
    base: LogRow | None
    digest: Digest | None
    header: bytes | None


class Found(NamedTuple):
    """A message that a search found; ``key`` is its log's, ``snippet`` the text around the words."""

    key: int
    seq: int
    role: str
    snippet: str


class UnusableIndexError(Exception):
    """The file is no index of this version."""


class IndexDatabase:
    """An open index.

    :param path: None keeps it in memory.
    :raises UnusableIndexError: another version, or somebody else's database.
    :raises sqlite3.Error: it cannot be opened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            _create(path)
        target = ":memory:" if path is None else str(path)
        self._connection = sqlite3.connect(target, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            self._inode = None if path is None else os.stat(path).st_ino
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @property
    def in_place(self) -> bool:
        """False when another process has put a new file in the place of this one."""
        if self._path is None:
            return True
        try:
            return os.stat(self._path).st_ino == self._inode
        except FileNotFoundError:
            return False

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    # The root, under the name "", and its projects

    def places(self) -> dict[str, int]:
        """Modification times in nanoseconds; 0 for what has to be looked into in any case."""
        return dict(self._connection.execute("SELECT name, mtime FROM places"))

    def place(self, name: str) -> int:
        row = self._connection.execute("SELECT mtime FROM places WHERE name = ?", (name,)).fetchone()
        return row[0] if row else 0

    def recent_places(self, limit: int) -> dict[str, int]:
        """The projects that must be looked into, and those that changed last."""
        rows = self._connection.execute(
            "SELECT name, mtime FROM places WHERE mtime = 0 AND name != '' UNION SELECT * FROM "
            "(SELECT name, mtime FROM places WHERE name != '' ORDER BY mtime DESC LIMIT ?)",
            (limit,),
        )
        return dict(rows)

    def places_after(self, name: str, limit: int) -> dict[str, int]:
        """Projects behind ``name``, in order."""
        rows = self._connection.execute(
            "SELECT name, mtime FROM places WHERE name > ? ORDER BY name LIMIT ?", (name, limit)
        )
        return dict(rows)

    def set_place(self, name: str, mtime: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO places VALUES (?, ?)", (name, mtime))

    def drop_place(self, name: str) -> None:
        for (key,) in self._connection.execute("SELECT key FROM logs WHERE project = ?", (name,)).fetchall():
            self.drop(key)
        self._connection.execute("DELETE FROM places WHERE name = ?", (name,))

    def position(self, name: str) -> str:
        """How far a check that goes round in parts has come; empty at the start."""
        row = self._connection.execute("SELECT position FROM positions WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else ""

    def set_position(self, name: str, position: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (name, position))

    # Logs

    def log(self, project: str, name: str) -> LogRow | None:
        return next(self._rows("WHERE project = ? AND name = ?", project, name), None)

    def names(self, project: str) -> dict[str, int]:
        """The session directories that are known of a project, with their keys."""
        return dict(self._connection.execute("SELECT name, key FROM logs WHERE project = ?", (project,)))

    def watched(self, limit: int) -> list[LogRow]:
        return list(self._rows("WHERE watched ORDER BY key DESC LIMIT ?", limit))

    def logs_after(self, key: int, limit: int) -> list[LogRow]:
        return list(self._rows("WHERE key > ? ORDER BY key LIMIT ?", key, limit))

    def logs_of(self, session_id: str) -> list[LogRow]:
        return list(self._rows("WHERE id = ?", session_id))

    def by_key(self, key: int) -> LogRow | None:
        return next(self._rows("WHERE key = ?", key), None)

    def left_out(self) -> int:
        row = self._connection.execute("SELECT count(*) FROM logs WHERE watched AND problem IS NOT NULL").fetchone()
        return int(row[0])

    def set_watched(self, key: int, watched: bool) -> None:
        self._connection.execute("UPDATE logs SET watched = ? WHERE key = ?", (watched, key))

    def store(self, facts: LogFacts) -> None:
        """Insert or replace one log, or go on with it; then nothing happens if somebody else has, meanwhile."""
        current = self.log(facts.project, facts.name)
        if facts.base is None:
            if current is not None:
                self.drop(current.key)
            key = self._insert(facts)
        elif current is not None and (current.key, current.end) == (facts.base.key, facts.base.end):
            key = current.key
            self._extend(key, facts)
        else:
            return
        for text in facts.digest.texts if facts.digest is not None else ():
            message = self._connection.execute(
                "INSERT INTO messages (log, seq, role) VALUES (?, ?, ?)", (key, text.seq, text.role)
            ).lastrowid
            self._connection.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (message, text.text))

    def drop(self, key: int) -> None:
        self._connection.execute("DELETE FROM texts WHERE rowid IN (SELECT key FROM messages WHERE log = ?)", (key,))
        self._connection.execute("DELETE FROM messages WHERE log = ?", (key,))
        self._connection.execute("DELETE FROM logs WHERE key = ?", (key,))

    def forget_deleted(self) -> None:
        """Leave nothing of deleted texts in the file."""
        self._connection.execute("INSERT INTO texts (texts) VALUES ('optimize')")
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # Questions

    def page(self, *, limit: int, after: tuple[int, str] | None, cwd: str | None, subagents: bool) -> list[LogRow]:
        """Listed logs, most recently changed first; ``after`` is the change and id of the row to go on behind."""
        where, values = [_LISTED, _FIRST_OF_ITS_ID], list[Any]()
        if after is not None:
            where.append("(l.modified, l.id) < (?, ?)")
            values.extend(after)
        if cwd is not None:
            where.append("l.cwd = ?")
            values.append(cwd)
        if not subagents:
            where.append("l.origin IS NULL")
        clause = f"l WHERE {' AND '.join(where)} ORDER BY l.modified DESC, l.id DESC LIMIT ?"
        return list(self._rows(clause, *values, limit))

    def ids(self, prefix: str, limit: int) -> list[str]:
        """Listed ids that begin with ``prefix``, in order."""
        rows = self._connection.execute(
            "SELECT DISTINCT id FROM logs WHERE id >= ? AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?",
            (prefix, len(prefix), prefix, limit),
        )
        return [id for (id,) in rows]

    def search(self, words: Sequence[str], *, limit: int, cwd: str | None) -> list[Found]:
        """The best message of each log that has all words, or words that begin so, in one message; best first."""
        query = " ".join(f'"{word.replace(chr(34), chr(34) * 2)}"*' for word in words)
        best: dict[int, int] = {}
        matches = self._connection.execute(
            "SELECT m.log, m.key FROM texts JOIN messages m ON m.key = texts.rowid JOIN logs l ON l.key = m.log "
            f"WHERE texts MATCH ? AND {_LISTED} AND {_FIRST_OF_ITS_ID} AND (?2 IS NULL OR l.cwd = ?2) "
            "ORDER BY texts.rank, l.modified DESC, m.key",
            (query, cwd),
        )
        for log, message in matches:
            best.setdefault(log, message)
            if len(best) == limit:
                break
        matches.close()
        return [self._found(query, log, message) for log, message in best.items()]

    # Parts

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA synchronous = NORMAL")
        execute("PRAGMA secure_delete = ON")
        if self._marks() == (0, 0) and not execute("SELECT 1 FROM sqlite_master").fetchone():
            execute("PRAGMA journal_mode = WAL")
            with self.transaction():
                if not execute("SELECT 1 FROM sqlite_master").fetchone():  # nobody else was faster
                    for statement in _SCHEMA.split(";\n"):
                        execute(statement)
                    execute(f"PRAGMA application_id = {_SIGNATURE}")
                    execute(f"PRAGMA user_version = {VERSION}")
        if self._marks() != (_SIGNATURE, VERSION):
            raise UnusableIndexError(f"{self._path} is no session index of version {VERSION}")

    def _marks(self) -> tuple[int, int]:
        read = self._connection.execute
        return read("PRAGMA application_id").fetchone()[0], read("PRAGMA user_version").fetchone()[0]

    def _rows(self, clause: str, *values: Any) -> Iterator[LogRow]:
        for row in self._connection.execute(f"SELECT {_COLUMNS} FROM logs {clause}", values):
            yield LogRow(*row)

    def _insert(self, facts: LogFacts) -> int:
        digest = facts.digest
        header = digest.header if digest is not None else None
        listed: tuple[Any, ...] = (None,) * 6 + (0, 0, 0)
        if digest is not None and header is not None:
            listed = (header.id, header.cwd, header.origin, facts.header, digest.title, digest.prompt)
            listed += (digest.events, digest.turns, digest.end)
        row = (facts.project, facts.name, facts.file, facts.revision, facts.watched, facts.problem, facts.modified)
        key = self._connection.execute(
            "INSERT INTO logs (project, name, file, revision, watched, problem, modified, size, id, cwd, origin, "
            f"header, title, prompt, events, turns, end) VALUES ({', '.join('?' * 17)})",
            (*row, facts.size, *listed),
        ).lastrowid
        assert key is not None
        return key

    def _extend(self, key: int, facts: LogFacts) -> None:
        digest = facts.digest
        assert digest is not None
        self._connection.execute(
            "UPDATE logs SET revision = ?, watched = ?, modified = ?, size = ?, title = coalesce(?, title), "
            "prompt = coalesce(prompt, ?), events = max(events, ?), turns = turns + ?, end = ? WHERE key = ?",
            (
                *(facts.revision, facts.watched, facts.modified, facts.size, digest.title, digest.prompt),
                *(digest.events, digest.turns, digest.end, key),
            ),
        )

    def _found(self, query: str, log: int, message: int) -> Found:
        seq, role = self._connection.execute("SELECT seq, role FROM messages WHERE key = ?", (message,)).fetchone()
        snippet = self._connection.execute(
            "SELECT snippet(texts, 0, '', '', '…', 16) FROM texts WHERE texts MATCH ? AND rowid = ?", (query, message)
        ).fetchone()[0]
        return Found(log, seq, role, snippet)


def _create(path: Path) -> None:
    """Make the file private; SQLite gives its side files the same mode.

    One that is there must not be opened: closing it would take the locks of every other connection of this process to
    it away, and the next process to close it would remove the side files under them.
    """
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
