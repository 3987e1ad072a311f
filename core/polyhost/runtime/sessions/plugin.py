"""Built-in plugin ``runtime-sessions``: publishes the live sessions and the storage that keeps them written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from polyhost.interfaces import HOST, SESSION_DELETED, SESSION_HEALTH, SESSIONS, STORED_SESSIONS
from polyhost.interfaces.sessions import SESSION_EVENT_TYPE
from polyhost.kernel.hookspecs import hookimpl
from polyhost.kernel.keys import ServiceKey
from polyhost.kernel.plugins import PluginInfo
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.management import SessionManagement
from polyhost.runtime.sessions.storage import JsonlStorage
from polyhost.runtime.sessions.store import LiveSessions

if TYPE_CHECKING:
    from polyhost.kernel.context import Context
    from polyhost.runtime.sessions.config import SessionsConfig

STORAGE = ServiceKey[JsonlStorage]("session-storage")
"""The storage as such; front ends go through ``SESSION_DIRECTORY``."""

LIVE_SESSIONS: ServiceKey[LiveSessions] = ServiceKey(SESSIONS.name)
"""The service ``SESSIONS`` with all that the runtime's own parts may do with it."""

SESSIONS_FOLDER = "sessions"


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="runtime-sessions",
        summary="Session logs, live and stored",
        requires=(HOST,),
        provides=(SESSIONS, STORAGE, STORED_SESSIONS),
        config="polyhost.runtime.sessions.config:SessionsConfig",
    )


@hookimpl
async def polyhost_start(ctx: Context, config: SessionsConfig) -> AsyncIterator[None]:
    catalogue = EventCatalogue(lambda type: ctx.mounts.token(SESSION_EVENT_TYPE, type) is not None)
    storage = JsonlStorage(
        ctx.require(HOST).home / SESSIONS_FOLDER,
        catalogue=catalogue,
        encoding=config.encoding,
        packed=config.packed,
        durable=config.durable,
        on_health=lambda session, reason: ctx.kernel.events.emit(SESSION_HEALTH, session, reason),
    )
    live = LiveSessions(ctx.kernel.events, storage, catalogue=catalogue)
    ctx.provide(STORAGE, storage)
    ctx.provide(LIVE_SESSIONS, live)
    ctx.provide(
        STORED_SESSIONS,
        SessionManagement(storage, live, lambda session_id: ctx.kernel.events.emit(SESSION_DELETED, session_id)),
    )
    yield
    await storage.close()
