from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import SESSION_CREATED, SESSION_DISPOSED, SESSION_EVENT, SessionError, user_message
from polyhost.kernel.signals import AbortController, AbortedError
from polyhost.runtime.agents.directory import Directory
from polyhost.runtime.agents.loop import AgentSpec
from polyhost.runtime.agents.requests import NoModelError
from polyhost.runtime.sessions.storage import JsonlStorage
from polyhost.testing.scripted import HANG, text_script

if TYPE_CHECKING:
    from conftest import Bench

CWD = "/project"
MODEL = "scripted/one"


class Broker:
    """Notes adoptions and logs one fact, as the real one does."""

    def __init__(self) -> None:
        self.adopted: list[Any] = []
        self.left = 0

    def adopt(self, session: Any, *, surface: str | None = None, mode: Any = None, pin: bool = True) -> Any:
        self.adopted.append((session.id, surface, mode))
        session.append("permission/preset", {"preset": mode or "ask"})

        def undo() -> None:
            self.left += 1

        return undo


@pytest.fixture
async def stored(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    storage = JsonlStorage(tmp_path / "sessions")
    bench = type(bench)(storage)
    yield bench
    await bench.kernel.aclose()
    await storage.close()


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def directory(stored: Bench, broker: Broker) -> Directory:
    return Directory(stored.loop, stored.registry, storage=stored.storage, interactions=lambda: broker)  # type: ignore[arg-type,return-value]


async def conversation(bench: Bench, directory: Directory, session_id: str = "s") -> None:
    """One turn, stored and closed."""
    opened = await directory.open(session_id, cwd=CWD, model=MODEL)
    bench.script(text_script("one"))
    await bench.ask(opened.agent)
    await opened.close()


async def test_a_new_session_is_created_adopted_and_heard_from_its_first_event(
    stored: Bench, directory: Directory, broker: Broker
) -> None:
    heard: list[Any] = []
    stored.root.on(SESSION_CREATED, lambda session: heard.append("created"))
    stored.root.on(SESSION_EVENT, lambda session, event: heard.append((event.type, event.seq)))
    opened = await directory.open(cwd=CWD, model=MODEL, surface="sdk", mode="full")
    assert heard == ["created", ("permission/preset", 0)]
    assert not opened.resumed
    assert opened.agent.session.header.cwd == CWD
    assert broker.adopted == [(opened.agent.id, "sdk", "full")]
    await opened.close()
    assert broker.left == 1
    assert stored.registry.list() == []


@pytest.mark.case("CASE-14")
async def test_concurrent_opens_of_a_stored_session_share_one_agent(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory)
    opened = await asyncio.gather(*[directory.open("s", create=False) for _ in range(5)])
    assert len({id(one.agent) for one in opened}) == 1
    assert all(one.resumed for one in opened)
    again = await directory.open("s")
    assert again.agent is opened[0].agent
    for one in opened:
        await one.close()
        await one.close()
    assert stored.registry.get("s") is again.agent, "somebody still uses it"
    await again.close()
    assert stored.registry.get("s") is None


@pytest.mark.case("CASE-14")
async def test_concurrent_opens_of_a_new_id_share_one_creation(stored: Bench, directory: Directory) -> None:
    first, second = await asyncio.gather(*[directory.open("new", cwd=CWD, model=MODEL) for _ in range(2)])
    assert first.agent is second.agent
    assert [first.resumed, second.resumed] == [False, True]


@pytest.mark.case("CASE-14")
@pytest.mark.parametrize("stay", [False, True])
async def test_a_refusal_or_an_early_close_does_not_end_the_session_of_the_others(
    stored: Bench, directory: Directory, stay: bool
) -> None:
    await conversation(stored, directory)

    async def visit() -> None:
        await (await directory.open("s")).close()

    first = visit() if stay else directory.open("s", cwd="/elsewhere")
    outcome, opened = await asyncio.gather(first, directory.open("s", cwd=CWD), return_exceptions=True)
    assert stay or code(outcome) == "SESSION_CWD"
    assert not isinstance(opened, BaseException)
    assert stored.registry.get("s") is opened.agent
    assert not opened.agent.closing  # type: ignore[attr-defined]
    await opened.close()
    assert stored.registry.list() == []


async def test_an_opener_cancelled_when_its_session_has_just_come_leaves_nothing_open(
    stored: Bench, directory: Directory
) -> None:
    gone = asyncio.Event()
    stored.root.on(SESSION_DISPOSED, lambda session: gone.set())
    opener = asyncio.create_task(directory.open("new", cwd=CWD, model=MODEL))
    await asyncio.sleep(0)
    directory._openings["new"].task.add_done_callback(lambda _: opener.cancel())
    with pytest.raises(asyncio.CancelledError):
        await opener
    await asyncio.wait_for(gone.wait(), 5)
    assert stored.registry.list() == []


@pytest.mark.parametrize("first", ["no creation", "no directory", "fork"])
async def test_who_joins_an_opening_does_not_fail_for_what_another_one_asked(
    stored: Bench, directory: Directory, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    await conversation(stored, directory)
    begun, begin = asyncio.Event(), directory._begin

    def beginning(*args: Any) -> Any:
        begun.set()
        return begin(*args)

    monkeypatch.setattr(directory, "_begin", beginning)
    openings = {
        "no creation": lambda: directory.open("new", create=False),
        "no directory": lambda: directory.open("new"),
        "fork": lambda: directory.fork("s", child_id="new", boundary=10**6),
    }
    failing = asyncio.create_task(openings[first]())
    await begun.wait()
    outcomes = await asyncio.gather(
        failing, *[directory.open("new", cwd=CWD, model=MODEL) for _ in range(3)], return_exceptions=True
    )
    assert code(outcomes[0]) in ("SESSION_NOT_FOUND", "SESSION_HEADER", "INVALID_BOUNDARY")
    assert {getattr(one, "agent", one) for one in outcomes[1:]} == {stored.registry.get("new")}


async def test_an_agent_made_elsewhere_during_the_look_into_the_storage_is_busy(
    stored: Bench, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, made = stored.storage, []
    assert storage is not None
    prepare = storage.prepare

    async def slowly(*args: Any) -> Any:
        try:
            return await prepare(*args)
        finally:
            made.append(await stored.handle("child"))

    monkeypatch.setattr(storage, "prepare", slowly)
    with pytest.raises(SessionError) as caught:
        await directory.open("child", cwd=CWD)
    assert code(caught) == "SESSION_BUSY"
    assert stored.registry.get("child") is made[0].agent


async def test_an_empty_id_is_not_taken_for_none(stored: Bench, directory: Directory) -> None:
    with pytest.raises(SessionError):
        await directory.open("", cwd=CWD, model=MODEL)
    assert stored.registry.list() == []


async def test_an_open_during_the_end_waits_for_it_and_resumes(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory)
    opened = await directory.open("s")
    stored.script(HANG)
    opened.agent.followup(user_message("slow"))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(opened.close())
    await asyncio.sleep(0)
    again = await directory.open("s")
    await closing
    assert again.agent is not opened.agent
    assert again.agent.session.last_turn == 2


@pytest.mark.parametrize(
    ("session_id", "wishes", "code"),
    [
        ("nobody", {"create": False}, "SESSION_NOT_FOUND"),
        ("nobody", {}, "SESSION_HEADER"),
        (None, {"cwd": "relative"}, "SESSION_HEADER"),
        (None, {"cwd": CWD, "mode": "yolo"}, "SESSION_MODE"),
        ("s", {"cwd": "/elsewhere"}, "SESSION_CWD"),
        ("broken", {"create": True, "cwd": CWD}, "SESSION_CORRUPT"),
        ("future", {"create": True, "cwd": CWD}, "SESSION_UNSUPPORTED"),
    ],
)
async def test_refusals_have_codes_and_leave_nothing_open(
    stored: Bench, directory: Directory, tmp_path: Path, session_id: str | None, wishes: Any, code: str
) -> None:
    await conversation(stored, directory)
    for name, version in (("broken", 0), ("future", 99)):
        place = tmp_path / "sessions" / "--project--" / name
        place.mkdir()
        header = f'{{"type":"session","version":{version},"id":"{name}","createdAt":1,"cwd":"/project"}}\n'
        bad = '{"type":"turn/start","seq":7}\n{"type":"turn/end","seq":1,"time":1,"data":{}}\n'
        (place / "session.jsonl").write_text(header + bad)
    with pytest.raises(SessionError) as caught:
        await directory.open(session_id, **wishes)
    assert caught.value.code == code
    assert stored.registry.list() == []
    assert (await directory.open("s", cwd=CWD + "/")).agent.session.last_turn == 1


async def test_a_session_in_another_process_is_locked(stored: Bench, directory: Directory, tmp_path: Path) -> None:
    await conversation(stored, directory)
    other = JsonlStorage(tmp_path / "sessions")
    prepared = await other.prepare("s")
    with pytest.raises(SessionError) as caught:
        await directory.open("s")
    assert caught.value.code == "SESSION_LOCKED"
    _, lines = await directory.read("s")
    assert len(lines) == len(prepared.lines)
    prepared.release()
    await other.close()
    assert (await directory.open("s")).resumed


@pytest.mark.parametrize(
    ("facts", "code"),
    [({"origin": "subagent", "parent_session": "p", "cwd": CWD}, "SESSION_BUSY"), ({}, "SESSION_CWD")],
)
async def test_what_is_no_conversation_of_its_own_can_be_read_but_not_opened(
    facts: dict[str, Any], code: str, stored: Bench, directory: Directory
) -> None:
    handle = await stored.loop.create(AgentSpec(model=MODEL), "child", **facts)
    handle.agent.session.append("session/title", {"title": "x", "messageSeqs": [], "source": {"kind": "user"}})
    await handle.dispose()
    for _ in range(2):
        with pytest.raises(SessionError) as caught:
            await directory.open("child", cwd=CWD)
        assert caught.value.code == code
    assert stored.registry.list() == []
    assert len((await directory.read("child"))[1]) == 1


async def test_a_fork_of_a_subagent_is_a_conversation_of_its_own(stored: Bench, directory: Directory) -> None:
    handle = await stored.loop.create(AgentSpec(model=MODEL), "child", origin="subagent", cwd=CWD)
    stored.script(text_script("one"))
    await stored.ask(handle.agent)
    await handle.dispose()
    fork = await directory.fork("child", child_id="fork")
    await fork.close()
    again = await directory.open("fork")
    assert again.agent.session.header.parent_session == "child"
    await again.close()


async def test_an_agent_that_was_not_opened_here_is_busy(stored: Bench, directory: Directory) -> None:
    await stored.handle("child")
    with pytest.raises(SessionError) as caught:
        await directory.open("child", cwd=CWD)
    assert caught.value.code == "SESSION_BUSY"


async def test_who_gives_up_waiting_harms_nobody_else(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory)
    controller = AbortController()
    impatient = asyncio.ensure_future(directory.open("s", signal=controller.signal))
    patient = asyncio.ensure_future(directory.open("s"))
    await asyncio.sleep(0)
    controller.abort("bored")
    with pytest.raises(AbortedError):
        await impatient
    opened = await patient
    await opened.close()
    assert stored.registry.list() == []


async def test_an_opening_that_nobody_waits_for_is_given_up(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory)
    controller = AbortController()
    impatient = asyncio.ensure_future(directory.open("s", signal=controller.signal))
    await asyncio.sleep(0)
    controller.abort("bored")
    with pytest.raises(AbortedError):
        await impatient
    opened = await _eventually(directory, "s")
    await opened.close()
    assert stored.registry.list() == []


async def test_a_load_that_hangs_is_aborted_when_nobody_waits_any_more(stored: Bench, tmp_path: Path) -> None:
    aborted = asyncio.Event()

    class Hanging(JsonlStorage):
        async def prepare(self, session_id: str, signal: Any = None) -> Any:
            await signal.wait()
            aborted.set()
            raise AbortedError(signal.cause)

    storage = Hanging(tmp_path / "hanging")
    stored.loop._storage = storage
    directory = Directory(stored.loop, stored.registry, storage=storage)
    controller = AbortController()
    waiting = asyncio.ensure_future(directory.open("s", signal=controller.signal))
    await asyncio.sleep(0)
    controller.abort("bored")
    with pytest.raises(AbortedError):
        await waiting
    await asyncio.wait_for(aborted.wait(), 5)
    await storage.close()


async def _eventually(directory: Directory, session_id: str) -> Any:
    """Open a session whose abandoned load may still hold it."""
    for _ in range(200):
        try:
            return await directory.open(session_id)
        except (SessionError, AbortedError):
            await asyncio.sleep(0.01)
    raise AssertionError("the session stays busy")


async def test_the_model_of_a_live_session_can_be_changed_by_opening_it(stored: Bench, directory: Directory) -> None:
    opened = await directory.open("s", cwd=CWD, model=MODEL)
    await directory.open("s", model="scripted/two")
    assert opened.agent.model == "scripted/two"
    with pytest.raises(NoModelError):
        await directory.open("s", model="nonsense")


async def test_stored_sessions_are_listed(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory, "a")
    await conversation(stored, directory, "b")
    assert {row.header.id for row in await directory.stored()} == {"a", "b"}
    assert len(await directory.stored(limit=1)) == 1


async def test_without_storage_sessions_live_in_memory(bench: Bench) -> None:
    directory = Directory(bench.loop, bench.registry)
    opened = await directory.open("s", cwd=CWD)
    assert not opened.resumed
    assert await directory.stored() == ()
    await opened.close()
    for attempt in (directory.open("s", create=False), directory.read("s")):
        with pytest.raises(SessionError) as caught:
            await attempt
        assert caught.value.code == "SESSION_NOT_FOUND"


# Forks


def code(error: Any) -> str:
    """The code of an error, or of one that pytest caught."""
    return str(getattr(error, "value", error).code)


async def lines_of(directory: Directory, session_id: str) -> list[bytes]:
    return list((await directory.read(session_id))[1])


def files_of(root: Path, session_id: str) -> dict[str, bytes]:
    """What is on the disk of a session, repaired by nobody."""
    return {file.name: file.read_bytes() for file in root.glob(f"sessions/*/{session_id}/session*")}


@pytest.mark.contract("FRK-01", "FRK-02", "FRK-07", "LOOP-28")
@pytest.mark.parametrize("live", [True, False])
async def test_a_fork_goes_on_from_its_source(stored: Bench, directory: Directory, broker: Broker, live: bool) -> None:
    await conversation(stored, directory)
    before = await lines_of(directory, "s")
    source = await directory.open("s") if live else None
    inherited = list(source.agent.session.lines()) if source else before
    forked = await directory.fork("s", surface="sdk", child_id="child")
    agent = forked.agent
    assert (agent.id, forked.resumed, agent.model) == ("child", False, MODEL)
    assert broker.adopted[-1] == ("child", "sdk", None)
    header = agent.session.header
    assert (header.cwd, header.parent_session, header.seed_length) == (CWD, "s", len(inherited))
    assert agent.session.lines()[: len(inherited)] == inherited
    assert stored.storage is not None
    assert await stored.storage.read_from("child", 0) == list(agent.session.lines()), "it is written"
    stored.script(text_script("two"))
    await stored.ask(agent, "again")  # type: ignore[arg-type]
    assert agent.session.last_turn == 2
    assert [message["role"] for message in stored.model.requests[-1].messages] == ["user", "assistant", "user"]
    await forked.close()
    if source:
        await source.close()
    assert (await lines_of(directory, "s"))[: len(before)] == before
    again = await directory.open("child", create=False)
    assert again.agent.session.last_turn == 2
    await again.close()


@pytest.mark.contract("FRK-01")
async def test_an_empty_stored_session_can_be_forked(stored: Bench, directory: Directory, broker: Broker) -> None:
    await (await directory.open("s", cwd=CWD)).close()
    forked = await directory.fork("s", boundary=0)
    assert forked.agent.session.header.seed_length == 1
    assert not forked.agent.inbox.pending
    await forked.close()


@pytest.mark.contract("FRK-03", "FRK-04")
@pytest.mark.parametrize("live", [True, False])
async def test_a_fork_ends_where_a_turn_has_ended(stored: Bench, directory: Directory, live: bool) -> None:
    await conversation(stored, directory)
    source = await directory.open("s")
    end = next(event.seq for event in source.agent.session.events() if event.type == "turn/end")
    start = source.agent.session.append("turn/start", {"turn": 2}).seq
    if live:
        boundaries = [start, None]
    else:
        await source.close()
        boundaries = [start]
    for boundary in boundaries:
        with pytest.raises(SessionError, match=f"ended at event {end}") as caught:
            await directory.fork("s", boundary=boundary)
        assert code(caught) == "OPEN_TURN"
    for boundary in (-1, 10**6):
        with pytest.raises(SessionError) as caught:
            await directory.fork("s", boundary=boundary)
        assert code(caught) == "INVALID_BOUNDARY"
    assert [row.header.id for row in await directory.stored()] == ["s"], "nothing was created"
    assert [agent.id for agent in stored.registry.list()] == ["s"] * live
    forked = await directory.fork("s", boundary=end)
    assert forked.agent.session.header.seed_length == end + 1
    await forked.close()
    if live:
        source.agent.session.append("turn/end", {"turn": 2, "reason": {"kind": "completed"}})
        await source.close()


@pytest.mark.contract("FRK-03")
async def test_an_interrupted_turn_is_closed_in_the_child_alone(
    stored: Bench, directory: Directory, tmp_path: Path
) -> None:
    await conversation(stored, directory)
    source = await directory.open("s")
    source.agent.session.append("turn/start", {"turn": 2})
    await source.close()
    before = files_of(tmp_path, "s")
    assert any(before.values())
    assert source.agent.session.turn_open
    forked = await directory.fork("s")
    reasons = [event.data["reason"]["kind"] for event in forked.agent.session.events() if event.type == "turn/end"]
    assert reasons == ["completed", "interrupted"]
    assert files_of(tmp_path, "s") == before
    await forked.close()


@pytest.mark.contract("FRK-05", "FRK-06")
async def test_what_a_fork_needs(stored: Bench, directory: Directory) -> None:
    with pytest.raises(SessionError) as caught:
        await directory.fork("unknown")
    assert code(caught) == "SESSION_NOT_FOUND"
    await conversation(stored, directory, "a")
    await conversation(stored, directory, "b")
    live = await directory.open("b")
    for taken in ("a", "b"):
        with pytest.raises(SessionError) as caught:
            await directory.fork("a", boundary=10**6, child_id=taken)
        assert code(caught) == "SESSION_ALREADY_EXISTS"
    await live.close()


@pytest.mark.contract("FRK-06")
async def test_forks_of_one_id_at_the_same_time_make_one_session(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory)
    outcomes = await asyncio.gather(*[directory.fork("s", child_id="c") for _ in range(3)], return_exceptions=True)
    (forked,) = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert [getattr(outcome, "code", None) for outcome in outcomes].count("SESSION_ALREADY_EXISTS") == 2
    also = await directory.open("c")
    assert also.agent is forked.agent
    await forked.close()
    await also.close()


async def test_a_fork_that_cannot_be_written_is_ended(
    stored: Bench, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conversation(stored, directory)

    async def full(session: Any) -> None:
        raise SessionError("no space left", code="SESSION_WRITE_FAILED")

    monkeypatch.setattr(stored.storage, "written", full)
    with pytest.raises(SessionError) as caught:
        await directory.fork("s")
    assert code(caught) == "SESSION_WRITE_FAILED"
    assert stored.registry.list() == []


async def test_a_fork_can_be_called_off(stored: Bench, directory: Directory) -> None:
    await conversation(stored, directory)
    controller = AbortController()
    controller.abort("enough")
    with pytest.raises(AbortedError):
        await directory.fork("s", child_id="c", signal=controller.signal)
    again = await directory.open("c", cwd=CWD)
    assert not again.resumed
    await again.close()


async def test_without_storage_a_live_session_can_be_forked(bench: Bench) -> None:
    directory = Directory(bench.loop, bench.registry)
    opened = await directory.open("s", cwd=CWD, model=MODEL)
    forked = await directory.fork("s")
    assert forked.agent.session.header.parent_session == "s"
    await opened.close()
    with pytest.raises(SessionError) as caught:
        await directory.fork("s")
    assert code(caught) == "SESSION_NOT_FOUND"
    await forked.close()
