"""The live table: entering, announcing, leaving, events on the bus, forks, barriers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polyhost.interfaces import (
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    SESSION_FLUSH,
    Session,
    SessionError,
)
from polyhost.kernel import Kernel
from polyhost.runtime.sessions import LiveSession, LiveSessions


@pytest.fixture
def heard(kernel: Kernel) -> list[tuple[Any, ...]]:
    """What the bus said, as (event, session id, ...)."""
    heard: list[tuple[Any, ...]] = []
    kernel.root.on(SESSION_CREATED, lambda session: heard.append(("created", session.id)))
    kernel.root.on(SESSION_EVENT, lambda session, event: heard.append(("event", session.id, event.seq)))
    kernel.root.on(SESSION_DISPOSED, lambda session: heard.append(("disposed", session.id)))
    return heard


def code_of(caught: pytest.ExceptionInfo[SessionError]) -> str:
    return caught.value.code


@pytest.mark.contract("EVT-16")
async def test_a_live_id_is_taken(store: LiveSessions) -> None:
    session = store.create("a")
    with pytest.raises(SessionError) as caught:
        store.create("a")
    assert code_of(caught) == "SESSION_ALREADY_EXISTS"
    with pytest.raises(SessionError) as caught:
        store.enter(store.prepare("a"))
    assert code_of(caught) == "SESSION_ALREADY_EXISTS"
    assert store.get("a") is session
    assert store.list() == [session]


@pytest.mark.contract("EVT-01", "EVT-17")
async def test_prepare_enter_announce(store: LiveSessions, kernel: Kernel, heard: list[Any]) -> None:
    session = store.prepare("a", cwd="/w")
    assert store.get("a") is None
    store.enter(session)
    assert (store.get("a"), heard) == (session, [])
    errors: list[str] = []

    def again(session: Session) -> None:
        with pytest.raises(SessionError) as caught:
            store.announce(session)  # type: ignore[arg-type]
        errors.append(code_of(caught))

    kernel.root.on(SESSION_CREATED, again)
    store.announce(session)
    with pytest.raises(SessionError) as caught:
        store.announce(session)
    assert [*errors, code_of(caught)] == ["SESSION_ANNOUNCED"] * 2
    session.append("feedback/record", {})
    assert heard == [("created", "a"), ("event", "a", 0)]
    assert session.header.cwd == "/w"


async def test_ids_are_minted_around_live_ones(store: LiveSessions) -> None:
    store.create("session-1")
    assert [store.create().id, store.create().id] == ["session-2", "session-3"]


@pytest.mark.contract("EVT-18")
async def test_one_object_belongs_to_one_store(store: LiveSessions, kernel: Kernel) -> None:
    other = LiveSessions(kernel.events)
    session = store.prepare("a")
    detach = store.enter(session)
    with pytest.raises(SessionError) as caught:
        other.enter(session)
    assert code_of(caught) == "SESSION_ATTACHED"
    detach()
    other.enter(session)
    detach()
    assert (store.get("a"), other.get("a")) == (None, session)


@pytest.mark.contract("EVT-19")
async def test_leaving_during_the_announcement_waits_for_its_end(
    store: LiveSessions, kernel: Kernel, heard: list[Any]
) -> None:
    session = store.prepare("a")
    detach = store.enter(session)
    live: list[bool] = []

    def leave(_: Session) -> None:
        detach()
        live.append(store.get("a") is session)

    kernel.root.on(SESSION_CREATED, leave)
    kernel.root.on(SESSION_CREATED, lambda session: heard.append(("later", session.id)))
    store.announce(session)
    assert live == [True]
    assert heard == [("created", "a"), ("later", "a"), ("disposed", "a")]
    assert store.get("a") is None


@pytest.mark.contract("EVT-20")
async def test_a_veto_undoes_the_creation_and_is_paired(store: LiveSessions, kernel: Kernel, heard: list[Any]) -> None:
    def veto(session: Session) -> None:
        if session.id == "bad":
            raise PermissionError("not here")

    async def fails_later(session: Session) -> None:
        raise PermissionError("too late")

    kernel.root.on(SESSION_CREATED, veto)
    with pytest.raises(PermissionError):
        store.create("bad")
    assert store.get("bad") is None
    assert heard == [("created", "bad"), ("disposed", "bad")]
    kernel.root.on(SESSION_CREATED, fails_later)
    store.create("good")
    await asyncio.sleep(0)
    assert store.get("good") is not None


@pytest.mark.contract("EVT-21")
async def test_a_session_leaves_with_its_owner(store: LiveSessions, kernel: Kernel, heard: list[Any]) -> None:
    scope = kernel.root.scope("owner")
    session = store.prepare("a")
    scope.context.defer(store.enter(session, scope="owner"))
    store.announce(session)
    await scope.dispose()
    assert store.get("a") is None
    assert ("disposed", "a") in heard


@pytest.mark.contract("EVT-25")
async def test_disposal_reaches_everybody_whoever_fails(store: LiveSessions, kernel: Kernel) -> None:
    reached: list[str] = []
    kernel.root.on(SESSION_DISPOSED, lambda session: 1 / 0)
    kernel.root.on(SESSION_DISPOSED, lambda session: reached.append(session.id))
    store.detach(store.create("a"))
    assert reached == ["a"]


@pytest.mark.contract("EVT-22")
async def test_a_failing_listener_harms_nobody(store: LiveSessions, kernel: Kernel, heard: list[Any]) -> None:
    kernel.root.on(SESSION_EVENT, lambda session, event: 1 / 0, prepend=True)
    session = store.create("a")
    session.append("feedback/record", {})
    assert len(session) == 1
    assert ("event", "a", 0) in heard


@pytest.mark.contract("INV-05")
async def test_events_of_a_scoped_session_stay_in_its_scope(store: LiveSessions, kernel: Kernel) -> None:
    heard: list[str] = []
    for name in ("one", "two"):
        scope = kernel.root.scope(name)
        scope.context.on(SESSION_EVENT, lambda session, event, name=name: heard.append(name))
        scope.context.on(SESSION_CREATED, lambda session, name=name: heard.append(f"created {name}"))
    session = store.prepare("a")
    store.enter(session, scope="one")
    store.announce(session)
    session.append("feedback/record", {})
    assert heard == ["created one", "one"]


@pytest.mark.contract("INV-06")
async def test_flush_waits_for_all_and_raises_the_first_failure(store: LiveSessions, kernel: Kernel) -> None:
    session = store.create("a")
    assert await store.flush(session) is False
    gate = asyncio.Event()
    done: list[str] = []

    async def slow(_: Session) -> None:
        await gate.wait()
        done.append("slow")

    async def fails(_: Session) -> None:
        raise OSError("first")

    kernel.root.on(SESSION_FLUSH, slow)
    flush = asyncio.create_task(store.flush(session))
    await asyncio.sleep(0)
    assert not flush.done()
    gate.set()
    assert await flush is True
    kernel.root.on(SESSION_FLUSH, fails)
    with pytest.raises(OSError, match="first"):
        await store.flush(session)
    assert done == ["slow", "slow"]


@pytest.mark.contract("INV-06")
@pytest.mark.parametrize("barrier", ["flush", "written"])
async def test_barriers_are_for_live_sessions(store: LiveSessions, barrier: str) -> None:
    never = store.prepare("never")
    gone = store.create("gone")
    store.detach(gone)
    for session in (never, gone):
        with pytest.raises(SessionError) as caught:
            await getattr(store, barrier)(session)
        assert code_of(caught) == "SESSION_NOT_LIVE"


class FakePersistence:
    def __init__(self) -> None:
        self.failure: SessionError | None = None
        self.calls: list[str] = []

    async def written(self, session: Session) -> None:
        self.calls.append("written")

    async def flush(self, session: Session) -> bool:
        self.calls.append("flush")
        if self.failure is not None:
            raise self.failure
        return True


@pytest.mark.contract("INV-06")
async def test_the_persistence_takes_part_in_barriers(kernel: Kernel) -> None:
    persistence = FakePersistence()
    store = LiveSessions(kernel.events, persistence)
    session = store.create("a")
    await store.written(session)
    assert await store.flush(session) is True
    assert persistence.calls == ["written", "flush"]
    persistence.failure = SessionError("disk full")
    with pytest.raises(SessionError, match="disk full"):
        await store.flush(session)


@pytest.mark.contract("FRK-01", "FRK-02")
async def test_a_fork_copies_the_whole_log_by_default(store: LiveSessions, talk_to: Any, clock: Any) -> None:
    source = store.prepare("a", cwd="/w")
    store.enter(source)
    empty = store.fork(source, child_id="empty")
    assert [event.type for event in empty.events()] == ["session/end-seed"]
    assert empty.header == source.header._replace(id="empty", parent_session="a", seed_length=0)
    talk_to(source).whole_turn()
    source.append("feedback/record", {})
    clock.now = 2000
    child = store.fork("a")
    assert child.header == source.header._replace(
        id=child.id, created_at=2000, parent_session="a", seed_length=len(source)
    )
    assert child.lines()[: len(source)] == source.lines()
    assert child.messages() == source.messages()
    assert store.get(child.id) is child


@pytest.mark.contract("FRK-03", "FRK-04")
async def test_a_fork_ends_where_a_turn_has_ended(store: LiveSessions, talk_to: Any) -> None:
    source = store.create("a")
    talk = talk_to(source)
    ends = []
    for kind in ("completed", "blocked", "interrupted"):
        talk.start_turn()
        ends.append(talk.end_turn(kind))
    opened = talk.start_turn()
    inside = talk.start_step()
    live = len(store.list())
    for boundary in (opened, inside, None):
        with pytest.raises(SessionError) as caught:
            store.fork(source, boundary)
        assert code_of(caught) == "OPEN_TURN"
    for boundary in (-1, len(source), 10**6):
        with pytest.raises(SessionError) as caught:
            store.fork(source, boundary)
        assert code_of(caught) == "INVALID_BOUNDARY"
    assert len(store.list()) == live
    for end in ends:
        assert len(store.fork(source, end)) == end + 2


@pytest.mark.contract("FRK-05", "FRK-06")
async def test_what_a_fork_needs(store: LiveSessions) -> None:
    source = store.create("a")
    stale = store.create("b")
    store.detach(stale)
    with pytest.raises(SessionError) as caught:
        store.fork("unknown")
    assert code_of(caught) == "SESSION_NOT_FOUND"
    with pytest.raises(SessionError) as caught:
        store.fork(stale)
    assert code_of(caught) == "SESSION_NOT_LIVE"
    with pytest.raises(SessionError) as caught:
        store.fork(source, 10**6, child_id="a")
    assert code_of(caught) == "SESSION_ALREADY_EXISTS"


@pytest.mark.contract("FRK-07")
async def test_a_fork_goes_its_own_way(store: LiveSessions, talk_to: Any) -> None:
    source = store.create("a")
    talk_to(source).whole_turn()
    child: LiveSession = store.fork(source)
    before = source.lines()
    talk_to(child).whole_turn("other")
    child.event(0).data["turn"] = 9
    assert source.lines() == before
    assert child.event(0).data == {"turn": 1}
