"""Which turn answered which prompt."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    AGENT_ERROR,
    AGENT_INBOX_CLAIMED,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
    TOOL_EXECUTE,
    TOOL_RESULT,
    Reject,
    TurnOutcome,
    user_message,
)
from polyhost.runtime.agents.inbox import InboxError
from polyhost.runtime.agents.turn import Turn
from polyhost.testing.scripted import HANG, call_script, failure_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

COMPLETED = {"kind": "completed"}
UNRUN = TurnOutcome(None, None, "", {})


@pytest.mark.contract("DEF-3")
async def test_each_prompt_gets_the_outcome_of_its_own_turn(bench: Bench) -> None:
    bench.tool("t")
    agent = await bench.agent(
        call_script("t", {}), text_script("one"), failure_script("AUTH", "no key"), text_script("three")
    )
    tickets = [bench.registry.prompt(agent, user_message(text)) for text in "abc"]
    agent.steer(user_message("joins the first turn"))
    assert await tickets[0].claimed() == 1
    first = await tickets[0].outcome()
    assert first == TurnOutcome(1, COMPLETED, "one", {"inputTokens": 20, "outputTokens": 4})
    assert agent.status == "idle"
    second = await tickets[1].outcome()
    assert (second.turn, second.reason) == (2, {"kind": "error", "error": {"message": "no key", "code": "AUTH"}})
    pending = asyncio.ensure_future(tickets[2].outcome())
    await asyncio.sleep(0)
    assert not pending.done(), "parked behind the failure"
    agent.resume_queue()
    assert (await pending).turn == 3


@pytest.mark.parametrize("how", ["cancel", "remove", "replace", "dispose"])
async def test_a_prompt_that_never_runs_says_so(bench: Bench, how: str) -> None:
    handle = await bench.handle()
    agent = handle.agent
    bench.script(HANG)
    agent.followup(user_message("busy"))
    await bench.streaming(agent)
    ticket = bench.registry.prompt(agent, user_message("queued"))
    if how == "remove":
        agent.inbox.remove(ticket.message_id)
    elif how == "replace":
        agent.inbox.replace(ticket.message_id, user_message("another"))
    if how != "dispose":
        agent.cancel({"kind": "user"})
    else:
        await handle.dispose()
    assert await ticket.claimed() is None
    assert await ticket.outcome() == UNRUN
    assert agent.status == "idle"


async def test_an_edited_prompt_is_still_the_same_one(bench: Bench) -> None:
    agent = await bench.agent(HANG, text_script("answer to the edited one"))
    agent.followup(user_message("busy"))
    await bench.streaming(agent)
    message = user_message("draft")
    ticket = bench.registry.prompt(agent, message)
    assert agent.inbox.replace(message["id"], user_message("final") | {"id": message["id"]})
    agent.cancel({"kind": "user"}, keep_inbox=True)
    agent.resume_queue()
    outcome = await ticket.outcome()
    assert (outcome.turn, outcome.text) == (2, "answer to the edited one")


async def test_a_cancelled_or_blocked_turn_is_the_outcome(bench: Bench) -> None:
    agent = await bench.agent(HANG)
    ticket = bench.registry.prompt(agent, user_message("x"))
    await bench.streaming(agent)
    agent.cancel({"kind": "user"})
    assert (await ticket.outcome()).reason == {"kind": "aborted", "reason": {"kind": "user"}}

    async def reject(proposal: Any, next: Any) -> Reject:
        return Reject()

    bench.root.on(AGENT_PRE_STEP, reject)
    assert (await bench.registry.prompt(agent, user_message("y")).outcome()).reason == {"kind": "blocked"}


async def test_a_refused_prompt_leaves_no_ticket_behind(bench: Bench) -> None:
    agent = await bench.agent(HANG, text_script("fine"))
    agent.followup(user_message("busy"))
    message = user_message("twice")
    ticket = bench.registry.prompt(agent, message)
    with pytest.raises(InboxError, match="already pending"):
        bench.registry.prompt(agent, message)
    with pytest.raises(InboxError):
        bench.registry.prompt(agent, {"id": "x", "role": "assistant"})
    await bench.streaming(agent)
    agent.cancel({"kind": "user"}, keep_inbox=True)
    agent.resume_queue()
    assert (await ticket.outcome()).text == "fine"


async def test_giving_up_on_a_ticket_does_not_disturb_others(bench: Bench) -> None:
    agent = await bench.agent(text_script("one"))
    ticket = bench.registry.prompt(agent, user_message("x"))
    impatient = asyncio.ensure_future(ticket.outcome())
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await ticket.outcome()).text == "one"


@pytest.mark.case("CASE-06")
@pytest.mark.parametrize(
    "event",
    [
        AGENT_STATUS,
        AGENT_INBOX_CLAIMED,
        AGENT_PRE_STEP,
        AGENT_REQUEST,
        AGENT_TURN_STOPPING,
        AGENT_ERROR,
        TOOL_EXECUTE,
        TOOL_RESULT,
    ],
    ids=str,
)
@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseExceptionGroup("g", [SystemExit(1)])], ids=repr)
async def test_no_exception_of_a_listener_keeps_a_prompt_waiting(
    bench: Bench, event: Any, error: BaseException
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    bench.tool("t")
    first = failure_script("AUTH", "no key") if event is AGENT_ERROR else call_script("t", {})
    agent = await bench.agent(first, text_script("one"), text_script("two"), text_script("three"))
    token = bench.root.on(event, fail)
    message, ticket = user_message("hello"), None
    try:
        ticket = agent.prompt(message)
    except type(error):
        assert event is AGENT_STATUS  # the caller of the listener hears of it, too
    async with asyncio.timeout(5):
        if ticket is not None:
            assert (await ticket.outcome()).turn == 1
        await agent.when_idle()
    token.withdraw()
    async with asyncio.timeout(5):
        assert (await agent.prompt(user_message("again")).outcome()).reason == COMPLETED


@pytest.mark.case("CASE-06")
async def test_a_driver_that_fails_settles_its_prompt_and_becomes_idle(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: Turn) -> bool:
        raise RuntimeError("a defect")

    agent = await bench.agent(text_script("one"))
    monkeypatch.setattr(Turn, "run", broken)
    async with asyncio.timeout(5):
        outcome = await agent.prompt(user_message("hello")).outcome()
    assert outcome.reason == {"kind": "error", "error": {"message": "a defect", "code": "UNKNOWN"}}
    assert bench.statuses == ["running", "idle"]
    assert "agent s stopped unexpectedly" in caplog.text
