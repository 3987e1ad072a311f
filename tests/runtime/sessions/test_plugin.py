"""The built-in plugin: sessions of a started host reach its disk, its bus and its event types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from polyhost.interfaces import HOST, SESSION_HEALTH, SESSIONS, HostInfo, SessionError
from polyhost.interfaces.sessions import SESSION_EVENT_TYPE
from polyhost.kernel import Context, FiberSpec, Kernel
from polyhost.runtime.sessions.config import SessionsConfig
from polyhost.runtime.sessions.plugin import LIVE_SESSIONS, STORAGE, polyhost_plugin, polyhost_start


@pytest.fixture
async def host(kernel: Kernel, tmp_path: Path) -> AsyncIterator[Context]:
    kernel.root.provide(HOST, HostInfo("0", tmp_path, tmp_path, None))
    info = polyhost_plugin()
    fiber = kernel.root.install(
        FiberSpec(name=info.name, start=polyhost_start, requires=info.requires, resolve_config=SessionsConfig)
    )
    await fiber.settled()
    yield kernel.root
    await fiber.dispose()


async def test_sessions_are_published_and_written_under_the_home(host: Context, tmp_path: Path) -> None:
    store, storage = host.get(LIVE_SESSIONS), host.get(STORAGE)
    assert store is not None
    assert storage is not None
    assert host.get(SESSIONS) is store
    session = store.create("a", cwd="/w")
    storage.attach(session)
    session.append("feedback/record", {})
    await store.written(session)
    assert await store.flush(session) is True
    assert storage.locate(session.header) == tmp_path / "sessions" / "--w--" / "a" / "session.jsonl.zstd"
    assert storage.locate(session.header).stat().st_size > 0


async def test_event_types_come_and_go_with_their_mounts(host: Context) -> None:
    store = host.get(LIVE_SESSIONS)
    assert store is not None
    session = store.create("a")
    with pytest.raises(SessionError, match="unknown required type"):
        session.append("weather/report", {})
    token = host.mount(SESSION_EVENT_TYPE, "weather/report", "what the sky looks like")
    session.append("weather/report", {})
    await token.withdraw("over")
    with pytest.raises(SessionError):
        session.append("weather/report", {})


async def test_a_log_that_cannot_be_written_is_said_on_the_bus(host: Context, tmp_path: Path) -> None:
    store, storage = host.get(LIVE_SESSIONS), host.get(STORAGE)
    assert store is not None
    assert storage is not None
    (tmp_path / "sessions").write_text("in the way")
    heard: list[tuple[str, bool]] = []
    host.on(SESSION_HEALTH, lambda session, reason: heard.append((session.id, reason is None)))
    session = store.create("a")
    storage.attach(session)
    session.append("feedback/record", {})
    with pytest.raises(SessionError):
        await store.written(session)
    assert heard == [("a", False)]
    (tmp_path / "sessions").unlink()
    await store.flush(session)
    assert heard == [("a", False), ("a", True)]
