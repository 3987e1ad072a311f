"""Making, resuming and ending agents: all or nothing, one teardown, scopes that die with their agent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    AGENT_CREATED,
    AGENT_SESSION_START,
    AGENT_STATUS,
    PROMPT_SECTION,
    SESSION_CREATED,
    SESSION_DISPOSED,
    SESSION_EVENT,
    PromptSection,
    SessionError,
    plugin_message,
    text_of,
    user_message,
)
from polyhost.kernel.context import Context
from polyhost.kernel.errors import InactiveContextError
from polyhost.kernel.signals import AbortController, AbortedError
from polyhost.runtime.agents.loop import AgentSpec
from polyhost.runtime.agents.registry import AgentRegistryError
from polyhost.runtime.sessions.storage import JsonlStorage
from polyhost.testing.scripted import HANG, call_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

LIFE = {"session/created", "session/disposed", "agent/created", "agent/disposed", "agent/session-start"}


def life(bench: Bench) -> list[str]:
    return [name for name, _ in bench.heard if name in LIFE]


async def ticks() -> None:
    """Let tasks that are ready run to their end."""
    for _ in range(5):
        await asyncio.sleep(0)


async def eventually(resume: Any) -> Any:
    """Resume a session whose abandoned load may still hold it, until it comes in."""
    for _ in range(200):
        with contextlib.suppress(SessionError):
            return await resume()
        await asyncio.sleep(0.01)
    raise AssertionError("the session stays busy")


@pytest.fixture
async def stored(bench: Bench, tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench that keeps its sessions on disk."""
    storage = JsonlStorage(tmp_path / "sessions")
    bench = type(bench)(storage)
    yield bench
    await bench.kernel.aclose()
    await storage.close()


# -- creation


@pytest.mark.contract("AGT-05", "RES-03", "RES-06")
async def test_setup_is_awaited_unpublished_then_all_is_announced_in_order(bench: Bench) -> None:
    seen: list[Any] = []

    async def setup(agent: LiveAgent) -> Any:
        agent.context.mount(PROMPT_SECTION, "own", PromptSection(0, "mine"))
        agent.session.append("permission/preset", {"preset": "ask"})
        await asyncio.sleep(0)
        seen.append((bench.registry.get("s"), bench.sessions.get("s"), life(bench)))
        return lambda: seen.append("committed")

    agent = await bench.agent(text_script("hi"), setup=setup)
    assert seen == [(None, None, []), "committed"]
    assert life(bench) == ["session/created", "agent/created", "agent/session-start"]
    assert bench.registry.get("s") is agent
    assert agent.id == agent.session.id == "s"
    await bench.ask(agent)
    assert bench.model.requests[0].system == "mine"


@pytest.mark.contract("RES-03", "AGT-07")
@pytest.mark.parametrize("where", ["setup", "commit", "session/created", "entered", "agent/created"])
async def test_a_failure_on_the_way_publishes_nothing_or_takes_it_back(bench: Bench, where: str) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError(where)

    async def setup(agent: LiveAgent) -> Any:
        if where == "setup":
            fail()
        return fail if where == "commit" else None

    events = {"session/created": SESSION_CREATED, "agent/created": AGENT_CREATED}
    token = bench.root.on(events[where], fail) if where in events else None
    with pytest.raises(RuntimeError, match=where):
        await bench.handle(setup=setup, entered=fail if where == "entered" else None)
    assert bench.registry.list() == []
    assert bench.sessions.list() == []
    assert life(bench).count("session/created") == life(bench).count("session/disposed")
    assert life(bench).count("agent/created") == life(bench).count("agent/disposed")
    if token is not None:
        await token.withdraw()
    assert (await bench.handle()).agent.status == "idle"


@pytest.mark.contract("AGT-07")
async def test_an_asynchronous_listener_of_the_creation_cannot_veto(bench: Bench, caplog: Any) -> None:
    async def fail(agent: Any) -> None:
        raise RuntimeError("too late")

    bench.root.on(AGENT_CREATED, fail)
    agent = await bench.agent()
    await ticks()
    assert bench.registry.get("s") is agent
    assert "too late" in caplog.text


@pytest.mark.contract("RES-05", "SCP-04")
async def test_the_signal_governs_the_creation_only(bench: Bench) -> None:
    controller = AbortController()
    reached = asyncio.Event()

    async def setup(agent: LiveAgent) -> None:
        reached.set()
        await asyncio.Event().wait()

    creating = asyncio.ensure_future(
        bench.loop.create(AgentSpec(setup=setup), "s", signal=controller.signal, cwd="/project")
    )
    await reached.wait()
    controller.abort("changed my mind")
    with pytest.raises(AbortedError) as caught:
        await creating
    assert caught.value.cause == "changed my mind"
    with pytest.raises(AbortedError, match="changed my mind"):
        await bench.loop.create(AgentSpec(), "s", signal=controller.signal, cwd="/project")
    assert bench.heard == []

    controller = AbortController()
    bench.script(text_script("alive"))
    handle = await bench.loop.create(AgentSpec(model="scripted/m"), "s", signal=controller.signal, cwd="/project")
    controller.abort("no matter")
    await bench.ask(handle.agent)
    assert bench.reasons(handle.agent) == [{"kind": "completed"}]


@pytest.mark.contract("RES-04")
async def test_the_end_of_the_owner_aborts_a_creation(bench: Bench) -> None:
    parent = await bench.handle("parent")
    reached = asyncio.Event()

    async def setup(agent: LiveAgent) -> None:
        reached.set()
        await asyncio.Event().wait()

    creating = asyncio.ensure_future(bench.handle("child", owner=parent.agent, setup=setup))
    await reached.wait()
    await parent.dispose()
    with pytest.raises(AbortedError):
        await creating
    assert bench.registry.list() == []
    with pytest.raises(InactiveContextError):
        await bench.handle("late", owner=parent.agent)


@pytest.mark.contract("SCP-03")
async def test_of_two_concurrent_creations_one_wins(bench: Bench) -> None:
    async def setup(agent: LiveAgent) -> None:
        await asyncio.sleep(0)

    outcomes = await asyncio.gather(bench.handle(setup=setup), bench.handle(setup=setup), return_exceptions=True)
    (lost,) = [outcome for outcome in outcomes if isinstance(outcome, SessionError)]
    (won,) = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert lost.code == "SESSION_ALREADY_EXISTS"
    assert bench.registry.get("s") is won.agent
    assert life(bench) == ["session/created", "agent/created", "agent/session-start"]
    bench.script(text_script("hi"))
    await bench.ask(won.agent)


# -- scopes and ownership


@pytest.mark.contract("SCP-01", "AGT-09")
async def test_what_is_registered_in_an_agents_scope_is_its_own_and_dies_with_it(bench: Bench) -> None:
    one = await bench.handle("one")
    two = await bench.handle("two")
    heard: list[Any] = []
    one.agent.context.on(AGENT_STATUS, lambda agent, status: heard.append((agent.id, status)))
    one.agent.context.on(SESSION_EVENT, lambda session, event: heard.append((session.id, event.type)))
    bench.tool("own", context=one.agent.context)
    bench.script(call_script("own", {}), text_script("1"), call_script("own", {}), text_script("2"))
    await bench.ask(one.agent)
    await bench.ask(two.agent)
    assert {id for id, _ in heard} == {"one"}
    assert ("one", "running") in heard
    assert ("one", "turn/end") in heard
    assert [tool["name"] for tool in bench.model.requests[0].tools] == ["own"]
    assert list(bench.model.requests[2].tools) == []
    assert bench.data(two.agent, "tool/result")[0]["error"]["code"] == "UNKNOWN_TOOL"
    await one.dispose()
    with pytest.raises(InactiveContextError):
        one.agent.context.on(AGENT_STATUS, lambda *_: None)
    assert bench.services.tools.get("own", one.agent) is None


@pytest.mark.contract("SCP-02", "AGT-06")
async def test_agents_made_through_an_agent_are_its_children_and_die_with_it(bench: Bench) -> None:
    child_first = await bench.handle("root")
    parent = await bench.handle("parent")
    child = await bench.handle("child", owner=parent.agent)
    grandchild = await bench.handle("grandchild", owner=child.agent)
    registry = bench.registry
    assert [agent.id for agent in registry.roots()] == ["root", "parent"]
    assert registry.owner(grandchild.agent) is child.agent
    assert registry.is_owned_by(grandchild.agent, parent.agent)
    assert not registry.is_owned_by(parent.agent, child_first.agent)
    heard: list[str] = []
    parent.agent.context.on(AGENT_STATUS, lambda agent, status: heard.append(agent.id))
    bench.script(text_script("hi"))
    await bench.ask(child.agent)
    assert heard == ["child", "child"], "an ancestor's scope hears its descendants"
    await parent.dispose()
    assert [agent.id for agent in registry.list()] == ["root"]
    assert [detail for name, detail in bench.heard if name == "agent/disposed"] == ["grandchild", "child", "parent"]


@pytest.mark.contract("AGT-11")
async def test_the_driver_works_on_behalf_of_its_agent_whoever_woke_it(bench: Bench) -> None:
    seen: dict[str, list[Any]] = {}

    async def body(arguments: Any, call: Any) -> str:
        for _ in range(3):
            await asyncio.sleep(0)
            seen.setdefault(call.agent.id, []).append(bench.registry.current())
        return "ok"

    bench.tool("t", body)
    one, two = await bench.agent(session_id="one"), await bench.agent(session_id="two")
    bench.script(*[call_script("t", {})] * 2, *[text_script("done")] * 2)
    one.followup(user_message("go"))
    one.context.run(two.followup, user_message("go"))
    assert bench.registry.current() is None
    await asyncio.gather(one.when_idle(), two.when_idle())
    assert seen == {"one": [one] * 3, "two": [two] * 3}
    assert Context.current() is None


# -- the end


@pytest.mark.contract("SCP-05", "LOOP-24")
async def test_teardown_drains_unregisters_and_detaches_once_for_all_owners(bench: Bench) -> None:
    handle = await bench.handle()
    agent = handle.agent
    bench.script(HANG)
    agent.followup(user_message("hello"))
    agent.followup(user_message("queued"))
    await asyncio.sleep(0)
    disposals = [asyncio.ensure_future(handle.dispose()) for _ in range(3)]
    disposals[0].cancel()
    await asyncio.gather(*disposals[1:])
    await handle.dispose()
    assert bench.reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    order = [name for name, _ in bench.heard if name in LIFE | {"turn/end"} or name == "agent/status"]
    assert order[-4:] == ["turn/end", "agent/status", "agent/disposed", "session/disposed"]
    assert len(bench.data(agent, "turn/start")) == 1
    again = await bench.handle()
    assert bench.registry.get("s") is again.agent


@pytest.mark.contract("SCP-05")
async def test_an_agents_own_tools_and_listeners_see_its_turn_end(bench: Bench) -> None:
    handle = await bench.handle()
    agent = handle.agent
    heard: list[str] = []
    running = asyncio.Event()

    async def body(arguments: Any, call: Any) -> str:
        running.set()
        await call.signal.wait()
        heard.append(call.signal.cause["kind"])
        return "too late"

    bench.tool("own", body, context=agent.context)
    agent.context.on(SESSION_EVENT, lambda session, event: heard.append(event.type))
    bench.script(call_script("own", {}))
    agent.followup(user_message("go"))
    await running.wait()
    await handle.dispose()
    assert heard[-4:] == ["disposed", "tool/result", "step/end", "turn/end"]


@pytest.mark.contract("SCP-05")
async def test_the_end_of_the_host_takes_the_same_path(bench: Bench) -> None:
    agent = await bench.agent(HANG)
    agent.followup(user_message("hello"))
    await asyncio.sleep(0)
    disposed: list[str] = []
    bench.root.on(SESSION_DISPOSED, lambda session: disposed.append(session.id))
    ending = asyncio.ensure_future(bench.kernel.aclose())
    await asyncio.sleep(0)
    assert agent.closing, "told at once, before anything is torn down"
    await ending
    assert bench.reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    assert bench.registry.list() == []
    assert bench.sessions.list() == []


@pytest.mark.contract("AGT-05", "AGT-08")
async def test_the_registry_enters_and_announces_once_and_detaches_only_its_own(bench: Bench) -> None:
    handle = await bench.handle()
    agent, registry = handle.agent, bench.registry
    with pytest.raises(AgentRegistryError, match="live already"):
        registry.enter(agent)
    with pytest.raises(AgentRegistryError, match="announced already"):
        registry.announce(agent)
    await handle.dispose()
    replacement = await bench.handle()
    registry.detach(agent)
    assert registry.get("s") is replacement.agent
    assert life(bench).count("agent/disposed") == 1
    with pytest.raises(AgentRegistryError, match="not live"):
        registry.prompt(agent, user_message("x"))


@pytest.mark.contract("AGT-08")
async def test_a_detach_during_the_announcement_waits_for_its_end(bench: Bench) -> None:
    order: list[str] = []

    def first(agent: LiveAgent) -> None:
        bench.registry.detach(agent)
        order.append("still there" if bench.registry.get("s") is agent else "gone")

    bench.root.on(AGENT_CREATED, first)
    await bench.handle()
    assert order == ["still there"]
    assert bench.registry.get("s") is None
    assert life(bench).count("agent/disposed") == 1


@pytest.mark.contract("AGT-09")
async def test_one_failing_listener_does_not_silence_the_others(bench: Bench, caplog: Any) -> None:
    heard: list[str] = []

    def fail(*_: Any) -> None:
        raise RuntimeError("sync listener")

    async def fail_later(*_: Any) -> None:
        raise RuntimeError("async listener")

    for listener in (fail, fail_later, lambda agent, source: heard.append(agent.id)):
        bench.root.on(AGENT_SESSION_START, listener)
    caplog.set_level(logging.ERROR)
    await bench.handle()
    await ticks()
    assert heard == ["s"]
    assert "sync listener" in caplog.text
    assert "async listener" in caplog.text


# -- resume


@pytest.mark.contract("RES-01", "RES-06")
async def test_resume_restores_history_turns_and_what_was_pending(stored: Bench) -> None:
    bench = stored
    handle = await bench.handle()
    bench.script(text_script("one"), HANG)
    await bench.ask(handle.agent, "first")
    handle.agent.followup(user_message("second"))
    handle.agent.followup(user_message("queued"))
    handle.agent.inject(plugin_message("p", "context"))
    await bench.streaming(handle.agent)
    await handle.dispose()
    header = handle.agent.session.header
    before = len(handle.agent.session)

    bench.heard.clear()
    resumed = (await bench.loop.resume(AgentSpec(), "s")).agent
    assert ("agent/session-start", "resume") in bench.heard
    assert resumed.session.header == header
    assert [event.seq for event in resumed.session.events()] == list(range(len(resumed.session)))
    assert len(resumed.session) == before + 1  # the end of the seed
    assert resumed.status == "idle"
    assert resumed.model == "scripted/one"
    assert [text_of(m["content"]) for m in resumed.inbox.next_turn] == ["queued"]
    assert [text_of(m["content"]) for m in resumed.inbox.next_step] == ["context"]
    bench.script(text_script("three"), text_script("four"))
    await bench.ask(resumed, "woken")
    assert [data["turn"] for data in bench.data(resumed, "turn/start")] == [1, 2, 3, 4]
    history = [text_of(m["content"]) for m in bench.model.requests[2].messages]
    assert history == ["first", "one", "second", "context", "queued"]


@pytest.mark.contract("RES-02")
async def test_a_live_session_is_not_resumed(stored: Bench) -> None:
    agent = await stored.agent(HANG)
    agent.followup(user_message("hello"))
    await asyncio.sleep(0)
    with pytest.raises(SessionError) as caught:
        await stored.loop.resume(AgentSpec(), "s")
    assert caught.value.code == "SESSION_ALREADY_EXISTS"


@pytest.mark.contract("RES-07")
async def test_without_persistence_nothing_is_resumed(bench: Bench) -> None:
    with pytest.raises(SessionError, match="session persistence is not configured"):
        await bench.loop.resume(AgentSpec(), "s")


@pytest.mark.contract("RES-03", "RES-04")
async def test_a_failed_resume_gives_the_session_back(stored: Bench) -> None:
    handle = await stored.handle()
    stored.script(text_script("one"))
    await stored.ask(handle.agent)
    await handle.dispose()

    async def fail(agent: LiveAgent) -> None:
        raise RuntimeError("setup")

    with pytest.raises(RuntimeError, match="setup"):
        await stored.loop.resume(AgentSpec(setup=fail), "s")
    controller = AbortController()
    controller.abort("no")
    with pytest.raises(AbortedError):
        await stored.loop.resume(AgentSpec(), "s", signal=controller.signal)
    resumed = await eventually(lambda: stored.loop.resume(AgentSpec(), "s"))
    assert resumed.agent.session.last_turn == 1
