"""Looking after stored sessions: the service ``STORED_SESSIONS`` on top of storage and index.

What each operation does to the disk is in ``storage``, ``removal`` and ``importing``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from polyhost.interfaces.sessions import (
    SessionDiagnosis,
    SessionError,
    SessionHeader,
    SessionImport,
    SessionMatch,
    SessionPage,
)
from polyhost.interfaces.titles import TitleError
from polyhost.runtime.sessions.importing import logs_at
from polyhost.runtime.sessions.storage import JsonlStorage
from polyhost.runtime.sessions.store import LiveSessions
from polyhost.runtime.sessions.title_text import title_of


class SessionManagement:
    """See :class:`polyhost.interfaces.sessions.StoredSessions`.

    :param on_deleted: told the id of each session that was removed.
    """

    def __init__(self, storage: JsonlStorage, live: LiveSessions, on_deleted: Callable[[str], object]) -> None:
        self._storage = storage
        self._live = live
        self._on_deleted = on_deleted

    async def page(
        self, *, limit: int = 50, cursor: str | None = None, cwd: str | None = None, subagents: bool = True
    ) -> SessionPage:
        return await self._storage.index.page(limit=limit, cursor=cursor, cwd=cwd, subagents=subagents)

    async def search(self, words: str, *, limit: int = 20, cwd: str | None = None) -> Sequence[SessionMatch]:
        return await self._storage.index.search(words, limit=limit, cwd=cwd)

    async def matching(self, prefix: str, *, limit: int = 2) -> Sequence[str]:
        try:
            await self._storage.find(prefix)
        except SessionError as error:
            if error.code in ("SESSION_NOT_FOUND", "SESSION_ID"):
                return await self._storage.index.ids(prefix, limit)
        return [prefix]

    async def locate(self, session_id: str) -> Path:
        return await self._storage.find(session_id)

    async def export(self, session_id: str) -> tuple[SessionHeader, str, bytes]:
        return await self._storage.export(session_id)

    async def rename(self, session_id: str, title: str) -> str:
        chosen = title_of(title)
        if not chosen:
            raise TitleError("a title must contain visible characters", code="TITLE_INVALID")
        title_event = {"title": chosen, "messageSeqs": [], "source": {"kind": "user"}}
        live = self._live.get(session_id)
        if live is None:
            await self._storage.append(session_id, "session/title", title_event)
        else:
            live.append("session/title", title_event)
            await self._live.flush(live)
        return chosen

    async def delete(self, session_id: str, *, unchanged_since: int | None = None) -> None:
        await self._storage.delete(session_id, unchanged_since=unchanged_since)
        self._on_deleted(session_id)

    async def diagnose(self, session_id: str | None = None) -> Sequence[SessionDiagnosis]:
        return await self._storage.diagnose(session_id)

    async def repair(self, session_id: str) -> Sequence[str]:
        prepared = await self._storage.prepare(session_id)
        prepared.release()
        return prepared.notes

    async def rebuild_index(self) -> None:
        await self._storage.index.rebuild()

    async def add(self, path: Path) -> Sequence[SessionImport]:
        outcomes = []
        for source in await asyncio.to_thread(logs_at, path):
            try:
                outcomes.append(SessionImport(str(source), await self._storage.add(source), None))
            except SessionError as error:
                outcomes.append(SessionImport(str(source), None, error))
        return outcomes
