"""Cancellation: what it ends, what it keeps, and what runs afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    AGENT_PRE_STEP,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
    SESSION_EVENT,
    SessionError,
    plugin_message,
    text_of,
    user_message,
)
from polyhost.kernel.signals import AbortedError
from polyhost.runtime.agents.agent import AgentDisposedError
from polyhost.testing.scripted import HANG, HANG_SLOW, call_script, calls_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

USER = {"kind": "user"}
ABORTED = {"kind": "aborted", "reason": USER}
COMPLETED = {"kind": "completed"}


def when(bench: Bench, type: str, action: Any) -> None:
    """Do ``action`` inside the first publication of an event of a type."""
    done = False

    def observe(session: Any, event: Any) -> None:
        nonlocal done
        if event.type == type and not done:
            done = True
            action()

    bench.root.on(SESSION_EVENT, observe)


@pytest.mark.contract("CAN-01")
async def test_cancelling_an_idle_agent_does_nothing(bench: Bench) -> None:
    agent = await bench.agent(text_script("hi"))
    agent.cancel(USER)
    assert len(agent.session) == 0
    await bench.ask(agent)
    assert bench.reasons(agent) == [COMPLETED]


@pytest.mark.contract("LOOP-17", "CAN-10")
async def test_cancel_in_mid_stream_aborts_the_turn_with_the_first_cause(bench: Bench) -> None:
    agent = await bench.agent(HANG)
    agent.followup(user_message("hello"))
    await bench.streaming(agent)
    agent.cancel(USER)
    agent.cancel({"kind": "parent"})
    await agent.close()
    assert bench.reasons(agent) == [ABORTED]
    assert bench.types(agent)[-2:] == ["step/end", "turn/end"]
    assert "assistant/message" not in bench.types(agent)
    assert bench.errors == []


@pytest.mark.contract("CAN-02", "CAN-03")
@pytest.mark.parametrize("script", [HANG, HANG_SLOW])
async def test_a_wake_between_abort_and_idle_is_replayed(bench: Bench, script: Any) -> None:
    agent = await bench.agent(script, text_script("one"), text_script("two"))
    agent.followup(user_message("claimed"))
    agent.followup(user_message("queued"))
    await bench.streaming(agent)
    agent.cancel(USER, keep_inbox=True)
    agent.steer(user_message("late"))
    assert [text_of(m["content"]) for m in agent.inbox.next_turn] == ["queued", "late"]
    assert agent.inbox.next_step == ()
    await agent.when_idle()
    asked = [text_of(request.messages[-1]["content"]) for request in bench.model.requests]
    assert asked == ["claimed", "queued", "late"]
    assert bench.reasons(agent) == [ABORTED, COMPLETED, COMPLETED]
    assert bench.statuses == ["running", "idle", "running", "idle"]


@pytest.mark.contract("CAN-02")
async def test_a_kept_queue_is_parked_until_the_next_wake(bench: Bench) -> None:
    agent = await bench.agent(HANG, text_script("one"), text_script("two"))
    agent.followup(user_message("claimed"))
    agent.followup(user_message("queued"))
    await bench.streaming(agent)
    agent.cancel(USER, keep_inbox=True)
    await agent.when_idle()
    assert [text_of(m["content"]) for m in agent.inbox.next_turn] == ["queued"]
    assert agent.status == "idle"
    await bench.ask(agent, "woken")
    assert bench.reasons(agent) == [ABORTED, COMPLETED, COMPLETED]


@pytest.mark.contract("CAN-03")
@pytest.mark.parametrize("how", ["cancel again", "remove"])
async def test_a_latched_wake_goes_with_its_message(bench: Bench, how: str) -> None:
    agent = await bench.agent(HANG_SLOW)
    agent.followup(user_message("claimed"))
    await bench.streaming(agent)
    agent.cancel(USER)
    late = user_message("late")
    agent.followup(late)
    if how == "remove":
        assert agent.inbox.remove(late["id"])
    else:
        agent.cancel(USER)
    await agent.when_idle()
    assert bench.reasons(agent) == [ABORTED]
    assert not agent.inbox.pending


@pytest.mark.contract("CAN-03")
async def test_a_cancelled_wake_stays_cancelled_when_context_arrives_later(bench: Bench) -> None:
    agent = await bench.agent(HANG_SLOW)
    agent.followup(user_message("claimed"))
    await bench.streaming(agent)
    agent.cancel(USER, keep_inbox=True)
    agent.followup(user_message("late"))
    agent.cancel(USER)
    agent.inject(plugin_message("test", "context"))
    await agent.when_idle()
    assert bench.reasons(agent) == [ABORTED]
    assert len(agent.inbox.next_step) == 1


@pytest.mark.contract("CAN-04", "LOOP-24", "LOOP-27")
async def test_after_disposal_began_nothing_starts(bench: Bench) -> None:
    agent = await bench.agent(HANG_SLOW)
    agent.followup(user_message("claimed"))
    agent.followup(user_message("queued"))
    await bench.streaming(agent)
    closing = asyncio.ensure_future(agent.close())
    await asyncio.sleep(0)
    chunks = bench.types(agent).count("assistant/chunk")
    agent.followup(user_message("late"))
    agent.inject(plugin_message("test", "context"))
    await closing
    assert bench.reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    assert bench.types(agent).count("assistant/chunk") == chunks
    assert [text_of(m["content"]) for m in agent.inbox.next_turn] == ["queued", "late"]
    assert [text_of(m["content"]) for m in agent.inbox.next_step] == ["context"]
    agent.resume_queue()
    assert agent.status == "idle"
    with pytest.raises(AgentDisposedError):
        agent.followup(user_message("too late"))


@pytest.mark.contract("CAN-05")
async def test_cancel_right_after_the_prompt_closes_the_turn_without_a_step(bench: Bench) -> None:
    agent = await bench.agent()
    agent.followup(user_message("hello"))
    agent.cancel(USER)
    await agent.when_idle()
    assert bench.types(agent) == ["agent/inbox/spliced", "turn/start", "agent/inbox/spliced", "turn/end"]
    assert bench.reasons(agent) == [ABORTED]


@pytest.mark.contract("CAN-06")
async def test_cancel_from_a_running_listener_starts_no_turn(bench: Bench) -> None:
    agent = await bench.agent(text_script("after"))
    once = True

    def listener(a: LiveAgent, status: str) -> None:
        nonlocal once
        if status == "running" and once:
            once = False
            a.cancel(USER)
            a.followup(user_message("replacement"))

    bench.root.on(AGENT_STATUS, listener)
    await bench.ask(agent)
    assert bench.reasons(agent) == [COMPLETED]
    assert text_of(bench.model.requests[0].messages[-1]["content"]) == "replacement"
    assert bench.statuses == ["running", "idle", "running", "idle"]


@pytest.mark.contract("CAN-06", "SCP-06")
async def test_work_from_an_idle_listener_runs_after_everybody_heard_idle(bench: Bench) -> None:
    agent = await bench.agent(text_script("one"), text_script("two"))
    once = True

    def listener(a: LiveAgent, status: str) -> None:
        nonlocal once
        if status == "idle" and once:
            once = False
            a.followup(user_message("dropped"))
            a.cancel(USER)
            a.followup(user_message("again"))

    bench.root.on(AGENT_STATUS, listener, prepend=True)
    await bench.ask(agent)
    assert bench.statuses == ["running", "idle", "running", "idle"]
    assert [text_of(r.messages[-1]["content"]) for r in bench.model.requests] == ["hello", "again"]
    assert bench.reasons(agent) == [COMPLETED, COMPLETED]


@pytest.mark.contract("CAN-06", "CAN-08")
@pytest.mark.parametrize(
    ("type", "rest"),
    [
        ("turn/start", ["agent/inbox/spliced", "turn/end"]),
        ("step/start", ["user/message", "step/end", "turn/end"]),
        ("assistant/message", ["tool/call", "tool/result", "tool/call", "tool/result", "step/end", "turn/end"]),
        ("tool/call", ["tool/result", "tool/call", "tool/result", "step/end", "turn/end"]),
        ("tool/result", ["tool/call", "tool/result", "step/end", "turn/end"]),
        ("step/end", ["turn/end"]),
    ],
)
async def test_cancel_from_a_log_observer_balances_the_log(bench: Bench, type: str, rest: list[str]) -> None:
    bench.tool("t")
    agent = await bench.agent(calls_script(("c1", "t", {}), ("c2", "t", {})), text_script("unused"))
    when(bench, type, lambda: agent.cancel(USER))
    await bench.ask(agent)
    types = bench.types(agent)
    assert types[types.index(type) + 1 :] == rest
    assert bench.reasons(agent) == [ABORTED]
    skipped = [data for data in bench.data(agent, "tool/result") if "error" in data]
    for data in skipped:
        assert data["error"] == {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"}
        assert text_of(data["message"]["content"][0]["content"]) == "Error: tool call aborted before dispatch"
    assert len(skipped) == {"assistant/message": 2, "tool/call": 2, "tool/result": 1}.get(type, 0)


@pytest.mark.contract("CAN-07")
async def test_cancel_from_a_log_observer_drops_the_queue_too(bench: Bench) -> None:
    agent = await bench.agent(HANG, text_script("replacement"))
    agent.followup(user_message("hello"))
    agent.followup(user_message("queued"))
    agent.steer(user_message("steering"))

    def cancel() -> None:
        agent.cancel(USER)
        asyncio.get_running_loop().call_soon(agent.followup, user_message("replacement"))

    when(bench, "assistant/chunk", cancel)
    await agent.when_idle()
    await asyncio.sleep(0)
    await agent.when_idle()
    assert not agent.inbox.pending
    assert bench.reasons(agent) == [ABORTED, COMPLETED]
    assert [text_of(m["content"]) for m in bench.data(agent, "user/message")] == ["hello", "replacement"]
    canceled = [data for data in bench.data(agent, "agent/inbox/spliced") if data.get("outcome") == "canceled"]
    assert [data["target"] for data in canceled] == ["next-step", "next-turn"]


@pytest.mark.contract("CAN-07", "AGT-04")
async def test_cancel_drops_everything_queued_next_step_first(bench: Bench) -> None:
    agent = await bench.agent(HANG)
    agent.followup(user_message("hello"))
    await bench.streaming(agent)
    for text in ("q1", "q2"):
        agent.followup(user_message(text))
    agent.steer(user_message("s1"))
    agent.cancel(USER)
    await agent.when_idle()
    assert not agent.inbox.pending
    assert agent.session.last_turn == 1
    canceled = [data for data in bench.data(agent, "agent/inbox/spliced") if data.get("outcome") == "canceled"]
    assert canceled == [
        {"target": "next-step", "start": 0, "removedCount": 1, "inserted": [], "outcome": "canceled"},
        {"target": "next-turn", "start": 0, "removedCount": 2, "inserted": [], "outcome": "canceled"},
    ]


@pytest.mark.contract("CAN-06")
async def test_work_from_an_abort_callback_survives_the_clearing_and_runs_next(bench: Bench) -> None:
    agent = await bench.agent(HANG, text_script("next"))

    async def listener(proposal: Any, next: Any) -> Any:
        if proposal.turn == 1:
            proposal.signal.on_abort(lambda _: agent.followup(user_message("replacement")))
        return await next()

    bench.root.on(AGENT_PRE_STEP, listener)
    agent.followup(user_message("hello"))
    agent.followup(user_message("dropped"))
    await bench.streaming(agent)
    agent.cancel(USER)
    await agent.when_idle()
    assert [text_of(r.messages[-1]["content"]) for r in bench.model.requests] == ["hello", "replacement"]


@pytest.mark.contract("CAN-09")
async def test_cancel_while_the_turn_is_stopping_aborts_it(bench: Bench) -> None:
    async def stopping(agent: LiveAgent, turn: int, signal: Any) -> None:
        agent.cancel(USER)

    bench.root.on(AGENT_TURN_STOPPING, stopping)
    agent = await bench.agent(text_script("hi"))
    await bench.ask(agent)
    assert bench.reasons(agent) == [ABORTED]


@pytest.mark.contract("CAN-11", "LOOP-34")
async def test_waiters_resolve_when_a_stuck_listener_is_cancelled(bench: Bench) -> None:
    stuck = asyncio.Event()

    async def listener(proposal: Any, next: Any) -> Any:
        stuck.set()
        await asyncio.Event().wait()  # ignores its signal: ended after the grace

    bench.root.on(AGENT_PRE_STEP, listener)
    agent = await bench.agent()
    agent.followup(user_message("hello"))
    waiters = [asyncio.ensure_future(agent.when_idle()) for _ in range(3)]
    await stuck.wait()
    waiters[0].cancel()
    agent.cancel(USER)
    await asyncio.gather(*waiters[1:])
    assert bench.reasons(agent) == [ABORTED]
    assert agent.status == "idle"


@pytest.mark.case("CASE-15")
async def test_an_adapter_that_ignores_the_abort_is_ended_after_the_grace(bench: Bench) -> None:
    stalled = asyncio.Event()

    class Deaf(type(bench.model)):  # type: ignore[misc]
        async def stream(self, request: Any) -> Any:
            if not stalled.is_set():
                stalled.set()
                await asyncio.Event().wait()
            for chunk in text_script("usable again"):
                yield chunk

    deaf = Deaf()
    from polyhost.interfaces import MODEL_ADAPTER

    bench.root.mount(MODEL_ADAPTER, "deaf", deaf)
    agent = await bench.agent(model="deaf/one")
    agent.followup(user_message("hello"))
    await stalled.wait()
    agent.cancel(USER)
    await asyncio.wait_for(agent.when_idle(), 2)
    assert bench.reasons(agent) == [ABORTED]
    await bench.ask(agent)
    assert bench.reasons(agent)[-1] == COMPLETED


async def test_cancel_while_a_tool_runs_waits_for_its_body(bench: Bench) -> None:
    running, order = asyncio.Event(), []

    async def body(arguments: Any, call: Any) -> str:
        running.set()
        await call.signal.wait()
        await asyncio.sleep(0.01)
        order.append("body ended")
        return "late"

    bench.tool("t", body)
    agent = await bench.agent(call_script("t", {}))
    agent.followup(user_message("hello"))
    await running.wait()
    agent.cancel(USER)
    await agent.when_idle()
    order.append("idle")
    assert order == ["body ended", "idle"]
    (result,) = bench.data(agent, "tool/result")
    assert result["error"]["code"] == "ABORTED"
    assert bench.reasons(agent) == [ABORTED]


async def test_the_end_of_the_drivers_task_closes_the_turn_as_disposed(bench: Bench) -> None:
    agent = await bench.agent(HANG)
    agent.followup(user_message("hello"))
    await bench.streaming(agent)
    (driver,) = [task for task in asyncio.all_tasks() if task.get_name() == "agent s"]
    driver.cancel()
    await agent.when_idle()
    assert bench.reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]


async def test_a_driver_that_is_cancelled_before_it_began_leaves_a_closed_turn_too(bench: Bench) -> None:
    agent = await bench.agent(text_script("next"))
    agent.followup(user_message("hello"))
    (driver,) = [task for task in asyncio.all_tasks() if task.get_name() == "agent s"]
    driver.cancel()
    await asyncio.wait_for(agent.when_idle(), 5)
    await bench.ask(agent)
    assert bench.reasons(agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}, COMPLETED]
    assert bench.statuses == ["running", "idle", "running", "idle"]


async def test_a_queue_whose_cancellation_cannot_be_logged_does_not_keep_the_agent_from_idle(bench: Bench) -> None:
    agent = await bench.agent(HANG, text_script("one"), text_script("two"))
    agent.followup(user_message("hello"))
    agent.followup(user_message("queued"))

    def refuse(event: Any) -> None:
        if b'"canceled"' in event.line:
            raise SessionError("disk full")

    undo = agent.session.validate(refuse)
    when(bench, "assistant/chunk", lambda: agent.cancel(USER))
    await asyncio.wait_for(agent.when_idle(), 5)
    assert [str(error) for _, _, error in bench.errors] == ["disk full"]
    undo()
    await bench.ask(agent, "later")
    assert bench.reasons(agent) == [ABORTED, COMPLETED, COMPLETED]


async def test_maintenance_that_ignores_its_signal_is_ended_after_the_grace(bench: Bench) -> None:
    handle = await bench.handle()
    started = asyncio.Event()

    async def deaf(signal: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    work = asyncio.ensure_future(handle.agent.maintain(deaf))
    await started.wait()
    await asyncio.wait_for(handle.dispose(), 5)
    with pytest.raises(AbortedError):
        await work


async def test_an_unknown_cause_is_refused(bench: Bench) -> None:
    agent = await bench.agent()
    with pytest.raises(ValueError, match="kind must be one of"):
        agent.cancel({"kind": "boredom"})
