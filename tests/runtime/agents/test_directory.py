from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import SESSION_CREATED, SESSION_EVENT, SessionError, user_message
from polyhost.kernel.signals import AbortController, AbortedError
from polyhost.runtime.agents.directory import Directory
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
