"""Which tool calls of a step overlap, and the order in which their results are committed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    SESSION_EVENT,
    TOOL_POST_EXECUTE,
    TOOL_PRE_EXECUTE,
    plugin_message,
    text_of,
    user_message,
)
from polyhost.testing.scripted import calls_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

USER = {"kind": "user"}


class Bodies:
    """Tools ``p`` (parallel) and ``x`` (exclusive) whose bodies end when they are told to."""

    def __init__(self, bench: Bench) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.order: list[str] = []
        self.running = 0
        self.most = 0
        self.changed = asyncio.Condition()
        bench.tool("p", self.body, concurrency_safe=lambda arguments: arguments.get("safe", True))
        bench.tool("x", self.body)

    def gate(self, call_id: str) -> asyncio.Event:
        return self.gates.setdefault(call_id, asyncio.Event())

    async def body(self, arguments: Any, call: Any) -> str:
        await self.note(f"+{call.call_id}", 1)
        try:
            await self.gate(call.call_id).wait()
        finally:
            await self.note(f"-{call.call_id}", -1)
        if arguments.get("context"):
            call.defer_context(plugin_message("test", f"context {call.call_id}"))
        return call.call_id

    async def note(self, what: str, change: int) -> None:
        self.order.append(what)
        self.running += change
        self.most = max(self.most, self.running)
        async with self.changed:
            self.changed.notify_all()

    async def until(self, *whats: str) -> None:
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: set(whats) <= set(self.order))

    def release(self, *call_ids: str) -> None:
        for call_id in call_ids:
            self.gate(call_id).set()


def results(bench: Bench, agent: LiveAgent) -> list[str]:
    return [data["message"]["source"]["callId"] for data in bench.data(agent, "tool/result")]


async def start(bench: Bench, *calls: tuple[str, str, Any]) -> LiveAgent:
    agent = await bench.agent(calls_script(*calls), text_script("done"))
    agent.followup(user_message("go"))
    return agent


@pytest.mark.contract("SCH-01", "SCH-03")
async def test_parallel_siblings_overlap_and_commit_in_model_order(bench: Bench) -> None:
    bodies = Bodies(bench)
    agent = await start(bench, ("a", "p", {}), ("b", "p", {}), ("c", "p", {}))
    await bodies.until("+a", "+b", "+c")
    bodies.release("c", "b")
    await bodies.until("-c", "-b")
    assert results(bench, agent) == []
    bodies.release("a")
    await agent.when_idle()
    assert results(bench, agent) == ["a", "b", "c"]
    assert [m["source"].get("callId") for m in bench.model.requests[1].messages[2:]] == ["a", "b", "c"]


@pytest.mark.contract("SCH-01")
async def test_an_exclusive_call_between_makes_three_groups(bench: Bench) -> None:
    bodies = Bodies(bench)
    agent = await start(bench, ("a", "p", {}), ("b", "p", {}), ("c", "x", {}), ("d", "p", {}), ("e", "p", {}))
    await bodies.until("+a", "+b")
    bodies.release("b")
    await bodies.until("-b")
    assert "+c" not in bodies.order
    bodies.release("a")
    await bodies.until("+c")
    assert "+d" not in bodies.order
    assert results(bench, agent) == ["a", "b"]
    bodies.release("c")
    await bodies.until("+d", "+e")
    bodies.release("d", "e")
    await agent.when_idle()
    assert results(bench, agent) == ["a", "b", "c", "d", "e"]


@pytest.mark.contract("SCH-02")
async def test_calls_are_classified_right_before_they_start(bench: Bench) -> None:
    bodies = Bodies(bench)
    safe = False
    bench.tool("q", bodies.body, concurrency_safe=lambda arguments: safe)
    agent = await start(bench, ("a", "x", {}), ("b", "q", {}), ("c", "q", {}))
    await bodies.until("+a")
    safe = True
    bodies.release("a")
    await bodies.until("+b", "+c")
    bodies.release("b", "c")
    await agent.when_idle()
    assert bodies.most == 2


@pytest.mark.contract("SCH-04", "CFG-03")
@pytest.mark.parametrize("cap", [1, 3])
async def test_at_most_the_cap_is_in_flight(bench: Bench, cap: int) -> None:
    bodies = Bodies(bench)
    bench.services.parallel_tools = cap
    names = [f"c{n}" for n in range(7)]
    agent = await start(bench, *((name, "p", {}) for name in names))
    await bodies.until(*(f"+{name}" for name in names[:cap]))
    bodies.release(*names)
    await agent.when_idle()
    assert bodies.most == cap
    assert results(bench, agent) == names
    for invalid in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="at least 1"):
            bench.services.parallel_tools = invalid  # type: ignore[assignment]
    assert bench.services.parallel_tools == cap


@pytest.mark.contract("SCH-04")
async def test_the_pool_rolls_on_while_an_early_call_is_slow(bench: Bench) -> None:
    bodies = Bodies(bench)
    bench.services.parallel_tools = 2
    agent = await start(bench, ("a", "p", {}), ("b", "p", {}), ("c", "p", {}))
    await bodies.until("+a", "+b")
    bodies.release("b")
    await bodies.until("+c")
    bodies.release("a", "c")
    await agent.when_idle()
    assert bodies.most == 2


@pytest.mark.contract("SCH-05")
async def test_hooks_and_contexts_follow_model_order(bench: Bench) -> None:
    bodies = Bodies(bench)
    order: list[str] = []

    async def pre(call: Any, next: Any) -> Any:
        order.append(f"pre {call.call_id}")
        await asyncio.sleep(0.005 if call.call_id == "a" else 0)
        order.append(f"decided {call.call_id}")
        return await next()

    async def post(call: Any, result: Any, next: Any) -> Any:
        order.append(f"post {call.call_id}")
        return await next()

    bench.root.on(TOOL_PRE_EXECUTE, pre)
    bench.root.on(TOOL_POST_EXECUTE, post)
    agent = await start(bench, *((name, "p", {"context": True}) for name in "abc"))
    await bodies.until("+a", "+b", "+c")
    bodies.release("c", "b", "a")
    await agent.when_idle()
    assert order == [
        *("pre a", "decided a", "pre b", "decided b", "pre c", "decided c"),
        *("post a", "post b", "post c"),
    ]
    contexts = [text_of(m["content"]) for m in bench.model.requests[1].messages if m["source"]["kind"] == "plugin"]
    assert contexts == ["context a", "context b", "context c"]


@pytest.mark.contract("SCH-06")
async def test_an_abort_drains_what_runs_and_skips_the_rest(bench: Bench) -> None:
    bodies = Bodies(bench)
    agent = await start(bench, ("a", "p", {}), ("b", "p", {}), ("c", "x", {}), ("d", "p", {}))
    await bodies.until("+a", "+b")
    agent.cancel(USER)
    bodies.release("b", "a")
    await agent.when_idle()
    assert "+c" not in bodies.order
    assert results(bench, agent) == ["a", "b", "c", "d"]
    codes = [data["error"]["code"] for data in bench.data(agent, "tool/result")]
    assert codes == ["ABORTED", "ABORTED", "ABORTED_BEFORE_DISPATCH", "ABORTED_BEFORE_DISPATCH"]
    assert bench.reasons(agent) == [{"kind": "aborted", "reason": USER}]


@pytest.mark.contract("SCH-06")
async def test_an_abort_during_policy_starts_no_body(bench: Bench) -> None:
    bodies = Bodies(bench)

    async def pre(call: Any, next: Any) -> Any:
        if call.call_id == "b":
            agent.cancel(USER)
        return await next()

    bench.root.on(TOOL_PRE_EXECUTE, pre)
    agent = await start(bench, ("a", "p", {}), ("b", "p", {}), ("c", "p", {}))
    bodies.release("a")
    await agent.when_idle()
    assert "+b" not in bodies.order
    assert results(bench, agent) == ["a", "b", "c"]


@pytest.mark.contract("SCH-07")
async def test_a_scheduler_failure_waits_for_started_bodies_and_invents_no_results(bench: Bench) -> None:
    bodies = Bodies(bench)
    idle: list[str] = []

    def refuse(event: Any) -> None:
        if event.type == "tool/call" and event.data["callId"] == "c":
            raise RuntimeError("no more calls")

    agent = await bench.agent(calls_script(("a", "p", {}), ("b", "p", {}), ("c", "p", {})))
    agent.session.validate(refuse)
    agent.followup(user_message("go"))
    await bodies.until("+a", "+b")
    waiter = asyncio.ensure_future(agent.when_idle())
    waiter.add_done_callback(lambda _: idle.append("idle"))
    bodies.release("a")
    await bodies.until("-a")
    assert idle == []
    bodies.release("b")
    await waiter
    assert results(bench, agent) == []
    assert bench.reasons(agent) == [{"kind": "error", "error": {"message": "no more calls", "code": "UNKNOWN"}}]


async def test_finished_calls_are_committed_while_later_ones_run(bench: Bench) -> None:
    bodies = Bodies(bench)
    agent = await start(bench, ("a", "p", {}), ("b", "p", {}))
    await bodies.until("+a", "+b")
    committed = asyncio.Event()
    bench.root.on(SESSION_EVENT, lambda session, event: event.type == "tool/result" and committed.set())
    bodies.release("a")
    await asyncio.wait_for(committed.wait(), 5)
    assert results(bench, agent) == ["a"]
    bodies.release("b")
    await agent.when_idle()
