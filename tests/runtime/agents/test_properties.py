"""Random bursts against one agent: whatever comes, the log is balanced and nothing is lost or repeated."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import SESSION_EVENT, user_message
from polyhost.runtime.agents.inbox import AgentInbox
from polyhost.testing.scripted import HANG, call_script, failure_script, text_script

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

SCRIPTS = {
    "answer": text_script("ok"),
    "tool": call_script("t", {}),
    "hang": HANG,
    "fail": failure_script("AUTH"),
    "cap": text_script("cut", finish="max-tokens"),
}

action = st.one_of(
    st.sampled_from(["followup", "steer", "inject", "cancel", "keep", "resume", "remove", "tick", "tick", "idle"]),
    st.tuples(
        st.sampled_from(["turn/start", "step/start", "assistant/chunk", "assistant/message", "tool/call", "turn/end"]),
        st.sampled_from(["cancel", "keep"]),
    ),
)


class Driver:
    """Plays actions on an agent and keeps count of what was sent."""

    def __init__(self, bench: Bench, agent: LiveAgent) -> None:
        self.bench = bench
        self.agent = agent
        self.sent: list[str] = []

    async def play(self, action: Any) -> None:
        agent = self.agent
        match action:
            case "followup" | "steer" | "inject":
                message = user_message(str(len(self.sent)))
                self.sent.append(message["id"])
                getattr(agent, action)(message)
            case "cancel" | "keep":
                agent.cancel({"kind": "user"}, keep_inbox=action == "keep")
            case "resume":
                agent.resume_queue()
            case "remove":
                for message in agent.inbox.next_turn[:1]:
                    agent.inbox.remove(message["id"])
            case "tick":
                await asyncio.sleep(0)
            case "idle":
                await self.finish()
            case (type, how):
                self.at(type, lambda: agent.cancel({"kind": "user"}, keep_inbox=how == "keep"))

    def at(self, type: str, action: Callable[[], object]) -> None:
        """Do something inside the next publication of an event of a type."""
        armed = True

        def observe(session: Any, event: Any) -> None:
            nonlocal armed
            if armed and event.type == type:
                armed = False
                action()

        self.bench.root.on(SESSION_EVENT, observe)

    async def finish(self) -> None:
        """Let everything run out; what hangs is cancelled."""
        idle = asyncio.ensure_future(self.agent.when_idle())
        while not idle.done():
            for _ in range(20):
                await asyncio.sleep(0)
            self.agent.cancel({"kind": "parent"}, keep_inbox=True)


def check_log(agent: LiveAgent) -> None:
    turn = step = 0
    open_turn = open_step = False
    for seq, event in enumerate(agent.session.events()):
        data = event.data
        assert event.seq == seq
        match event.type:
            case "turn/start":
                assert not open_turn
                assert data["turn"] == turn + 1
                turn, step, open_turn = data["turn"], 0, True
            case "step/start":
                assert open_turn
                assert not open_step
                assert (data["turn"], data["step"]) == (turn, step + 1)
                step, open_step = step + 1, True
            case "step/end":
                assert open_step
                open_step = False
            case "turn/end":
                assert open_turn
                assert not open_step
                open_turn = False
            case "assistant/chunk" | "assistant/message" | "tool/call" | "tool/result":
                assert open_step
                assert (data["turn"], data["step"]) == (turn, step)
    assert not open_turn


def check_messages(driver: Driver) -> None:
    """Every message went in once, and then was claimed, discarded or is pending: exactly one of these."""
    agent, heard = driver.agent, driver.bench.heard
    claimed = [detail[0] for name, detail in heard if name == "agent/inbox/claimed"]
    discarded = [detail for name, detail in heard if name == "agent/inbox/discarded"]
    pending = agent.inbox.ids()
    assert sorted([*claimed, *discarded, *pending]) == sorted(driver.sent)
    rebuilt = AgentInbox(agent.session, agent)
    assert (rebuilt.next_turn, rebuilt.next_step) == (agent.inbox.next_turn, agent.inbox.next_step)


def check_tools(agent: LiveAgent) -> None:
    calls = [event.data["callId"] for event in agent.session.events() if event.type == "tool/call"]
    results = [e.data["message"]["source"]["callId"] for e in agent.session.events() if e.type == "tool/result"]
    assert calls == results


@pytest.mark.contract("LOOP-22", "AGT-14", "CAN-07")
@settings(max_examples=300, deadline=None)
@given(scripts=st.lists(st.sampled_from(sorted(SCRIPTS)), max_size=12), actions=st.lists(action, max_size=20))
def test_random_bursts_keep_the_invariants(bench_type: type[Bench], scripts: list[str], actions: list[Any]) -> None:
    async def run() -> None:
        bench = bench_type()
        bench.tool("t")
        agent = await bench.agent(*[SCRIPTS[name] for name in scripts])
        driver = Driver(bench, agent)
        for action in actions:
            await driver.play(action)
        await driver.finish()
        check_log(agent)
        check_messages(driver)
        check_tools(agent)
        assert agent.status == "idle"
        assert bench.statuses == ["running", "idle"] * (len(bench.statuses) // 2)
        await bench.kernel.aclose()

    asyncio.run(run())


@pytest.mark.contract("LOOP-22")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["send", "send", "settle", "tick"]), max_size=25))
def test_each_message_gets_its_own_strictly_later_turn(bench_type: type[Bench], actions: list[str]) -> None:
    async def run() -> None:
        bench = bench_type()
        agent = await bench.agent(*[text_script("x")] * 25)
        sent: list[str] = []
        for action in actions:
            if action == "send":
                message = user_message("m")
                sent.append(message["id"])
                agent.followup(message)
            elif action == "settle":
                await agent.when_idle()
            else:
                await asyncio.sleep(0)
        await agent.when_idle()
        claims = [detail for name, detail in bench.heard if name == "agent/inbox/claimed"]
        assert claims == [(id, turn) for turn, id in enumerate(sent, 1)]
        assert all(reason == {"kind": "completed"} for reason in bench.reasons(agent))
        await bench.kernel.aclose()

    asyncio.run(run())
