"""Approvals: who is asked, what counts as an answer, and what the log says of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polyhost.interfaces import APPROVAL_REQUEST, ApprovalAnswer, SessionError
from polyhost.kernel.events import MOUNT_CHANGED
from polyhost.kernel.signals import AbortController
from polyhost.runtime.interaction.broker import Broker

YES, NO = ApprovalAnswer(True), ApprovalAnswer(False)


def outcomes(bench: Any, agent: Any) -> list[str]:
    asked = [data["id"] for type_, data in bench.log(agent, "approval/asked")]
    decided = [(data["id"], data["outcome"]) for type_, data in bench.log(agent, "approval/decided")]
    assert asked == [request_id for request_id, _ in decided]
    return [outcome for _, outcome in decided]


@pytest.mark.contract("APR-01")
async def test_asking_outside_a_turn_raises_and_logs_nothing(bench: Any) -> None:
    agent = bench.agent(turn=False)
    with pytest.raises(Exception, match="outside a turn") as caught:
        await bench.approve(agent)
    assert caught.value.code == "NO_OPEN_TURN"  # type: ignore[attr-defined]
    assert bench.log(agent) == []


@pytest.mark.contract("APR-02", "APR-03")
async def test_nobody_to_ask_is_unavailable_with_the_audit_pair(bench: Any) -> None:
    agent = bench.agent()
    bench.surface("elsewhere", ("other",), answer=YES)
    assert await bench.approve(agent, call_id=None) == "unavailable"
    assert await bench.approve(agent, reason="risky") == "unavailable"
    (_, first), (_, second) = bench.log(agent, "approval/asked")
    assert first == {"id": first["id"], "toolName": "bash"}
    assert second == {"id": second["id"], "toolName": "bash", "callId": "call_1", "reason": "risky"}
    assert first["id"] != second["id"]
    assert outcomes(bench, agent) == ["unavailable", "unavailable"]


@pytest.mark.contract("APR-04")
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(YES, "allowed-once"), (NO, "rejected"), (ApprovalAnswer(None), "cancelled"), (None, "unavailable")],
)
async def test_the_surface_that_serves_the_session_decides(bench: Any, answer: Any, outcome: str) -> None:
    agent = bench.agent()
    surface = bench.surface(answer=answer)
    assert await bench.approve(agent, arguments={"command": "rm"}, reason="why") == outcome
    (request,) = surface.requests
    assert (request.tool, request.arguments, request.call_id, request.reason) == (
        "bash",
        {"command": "rm"},
        "call_1",
        "why",
    )
    assert request.id == bench.log(agent, "approval/asked")[0][1]["id"]
    assert outcomes(bench, agent) == [outcome]


@pytest.mark.contract("APR-04")
async def test_the_first_answer_wins_and_the_others_are_withdrawn(bench: Any, spin: Any) -> None:
    agent = bench.agent()
    slow, silent, quick = bench.surface("slow"), bench.surface("silent", answer=None), bench.surface("quick")
    waiting = asyncio.ensure_future(bench.approve(agent))
    await spin()
    assert len(bench.broker.pending("s1")) == 1
    assert not slow.withdrawn
    quick.reply.set_result(NO)
    assert await waiting == "rejected"
    assert slow.withdrawn == [{"kind": "answered"}]
    assert len(silent.requests) == 1
    assert bench.broker.pending("s1") == ()
    slow.reply.set_result(ApprovalAnswer(True, remember=True))
    await spin()
    assert outcomes(bench, agent) == ["rejected"]
    again = asyncio.ensure_future(bench.approve(agent))
    await spin()
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    assert outcomes(bench, agent) == ["rejected", "cancelled"]


@pytest.mark.contract("APR-04", "APR-05")
async def test_listeners_of_the_request_come_before_surfaces(bench: Any) -> None:
    agent, other = bench.agent(), bench.agent("s2")
    heard: list[str] = []

    def listener(name: str, answer: Any = None) -> Any:
        async def listen(request: Any, next: Any) -> Any:
            heard.append(name)
            return answer or await next()

        return listen

    bench.kernel.root.on(APPROVAL_REQUEST, listener("global"))
    other.context.on(APPROVAL_REQUEST, listener("other scope", "rejected"))
    own = agent.context.on(APPROVAL_REQUEST, listener("own scope", "allowed-once"))
    surface = bench.surface(answer=NO)
    assert await bench.approve(agent) == "allowed-once"
    assert heard == ["global", "own scope"]
    assert not surface.requests
    await own.withdraw()
    assert await bench.approve(agent) == "rejected"


@pytest.mark.contract("APR-05")
@pytest.mark.parametrize("answer", [RuntimeError("broken"), True, "allowed-once", ApprovalAnswer("yes")])  # type: ignore[arg-type]
async def test_failing_and_rogue_surfaces_are_passed_over(bench: Any, answer: Any, caplog: Any) -> None:
    agent = bench.agent()
    bench.surface("broken", answer=answer)
    assert await bench.approve(agent) == "unavailable"
    assert "surface broken failed" in caplog.text
    bench.surface("sound", answer=YES)
    assert await bench.approve(agent) == "allowed-once"


@pytest.mark.contract("APR-05")
async def test_failing_and_rogue_listeners_are_unavailable(bench: Any) -> None:
    agent = bench.agent()
    verdicts = ["yes please", None, True, {"outcome": "allowed-once"}, RuntimeError("broken")]

    async def listen(request: Any, next: Any) -> Any:
        verdict: Any = verdicts.pop()
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    def listen_at_once(request: Any, next: Any) -> Any:
        raise RuntimeError("synchronously")

    token = bench.kernel.root.on(APPROVAL_REQUEST, listen)
    while verdicts:
        assert await bench.approve(agent) == "unavailable"
    await token.withdraw()
    bench.kernel.root.on(APPROVAL_REQUEST, listen_at_once)
    assert await bench.approve(agent) == "unavailable"
    assert outcomes(bench, agent) == ["unavailable"] * 6


@pytest.mark.contract("APR-05")
async def test_a_surface_that_goes_away_drops_out(bench: Any, spin: Any) -> None:
    agent = bench.agent()
    surface = bench.surface()
    waiting = asyncio.ensure_future(bench.approve(agent))
    await spin()
    surface.reply.cancel()
    await surface.token.withdraw("gone")
    assert await waiting == "unavailable"


@pytest.mark.contract("APR-06")
async def test_cancellation_comes_at_once_and_late_answers_are_discarded(bench: Any, spin: Any) -> None:
    agent = bench.agent()
    surface = bench.surface()
    waiting = asyncio.ensure_future(bench.approve(agent))
    await spin()
    bench.caller.abort({"kind": "user"})
    assert await waiting == "cancelled"
    assert surface.withdrawn == [{"kind": "user"}]
    surface.reply.set_result(ApprovalAnswer(True, remember=True))
    await spin()
    assert await bench.approve(agent) == "cancelled"
    assert len(surface.requests) == 1
    assert outcomes(bench, agent) == ["cancelled", "cancelled"]


@pytest.mark.contract("APR-06")
async def test_an_answer_that_comes_together_with_the_cancellation_is_late(bench: Any) -> None:
    def answer(request: Any) -> ApprovalAnswer:
        bench.caller.abort({"kind": "user"})
        return ApprovalAnswer(True, remember=True)

    agent = bench.agent()
    surface = bench.surface(answer=answer)
    assert await bench.approve(agent) == "cancelled"
    bench.caller, surface.answer = AbortController(), NO
    assert await bench.approve(agent) == "rejected"


@pytest.mark.contract("APR-07")
async def test_observers_do_not_break_the_pair_but_failed_appends_do(bench: Any) -> None:
    agent = bench.agent()
    bench.surface(answer=YES)

    def break_down(event: Any) -> None:
        raise RuntimeError("observer")

    agent.session.observe(break_down)
    assert await bench.approve(agent) == "allowed-once"

    def refuse(event: Any) -> None:
        if event.type == "approval/decided":
            raise SessionError("disk full")

    agent.session.validate(refuse)
    with pytest.raises(SessionError, match="disk full"):
        await bench.approve(agent)


@pytest.mark.contract("APR-08")
async def test_never_rejects_before_anybody_is_asked(bench: Any) -> None:
    agent = bench.agent()
    heard = []

    async def listen(request: Any, next: Any) -> Any:
        heard.append(request)
        return "allowed-once"

    bench.kernel.root.on(APPROVAL_REQUEST, listen, prepend=True)
    bench.broker.set_policy(agent, "never")
    bench.kernel.root.on(APPROVAL_REQUEST, listen)
    surface = bench.surface(answer=YES)
    assert await bench.approve(agent) == "rejected"
    assert not heard
    assert not surface.requests
    bench.broker.set_policy(agent, "ask")
    assert await bench.approve(agent) == "allowed-once"


@pytest.mark.contract("APR-08")
async def test_the_session_outranks_the_default_both_ways(bench: Any) -> None:
    strict = Broker(bench.kernel, agents=lambda: None, default_mode="full")
    agent = bench.agent()
    assert strict.policy(agent) == "never"
    agent.session.append("approval/policy", {"policy": "ask"})
    assert strict.policy(agent) == "ask"
    agent.session.append("approval/policy", {"policy": "never"})
    assert bench.broker.policy(agent) == "never"


@pytest.mark.contract("APR-09")
async def test_a_policy_switch_is_logged_once_and_told_to_the_model(bench: Any) -> None:
    agent = bench.agent()
    bench.broker.set_policy(agent, "ask")
    assert bench.log(agent, "approval/policy") == []
    bench.broker.set_policy(agent, "never")
    bench.broker.set_policy(agent, "never")
    assert bench.log(agent, "approval/policy") == [("approval/policy", {"policy": "never"})]
    (message,) = agent.injected
    assert message["source"]["plugin"] == "user-approval"
    assert "never" in message["content"][0]["text"]
    with pytest.raises(ValueError, match="unknown approval policy"):
        bench.broker.set_policy(agent, "always")
    assert len(bench.log(agent, "approval/policy")) == 1


@pytest.mark.contract("APR-10")
async def test_audit_events_out_of_order_are_refused_by_the_log(bench: Any) -> None:
    agent = bench.agent()
    append = agent.session.append
    with pytest.raises(SessionError):
        append("approval/decided", {"id": "x", "outcome": "rejected"})
    append("approval/asked", {"id": "x", "toolName": "bash"})
    with pytest.raises(SessionError):
        append("approval/asked", {"id": "x", "toolName": "bash"})
    with pytest.raises(SessionError):
        append("approval/decided", {"outcome": "rejected"})
    append("approval/decided", {"id": "x", "outcome": "rejected"})
    with pytest.raises(SessionError):
        append("approval/decided", {"id": "x", "outcome": "rejected"})
    append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    with pytest.raises(SessionError):
        append("approval/asked", {"id": "y", "toolName": "bash"})


async def test_always_in_this_session_is_remembered_for_that_tool_and_session(bench: Any) -> None:
    agent, other = bench.agent(), bench.agent("s2")
    surface = bench.surface("ui", ("s1", "s2"), answer=ApprovalAnswer(True, remember=True))
    assert await bench.approve(agent) == "allowed-once"
    surface.answer = NO
    assert await bench.approve(agent, arguments={"command": "something else"}) == "allowed-once"
    assert await bench.approve(agent, tool="write") == "rejected"
    assert await bench.approve(other) == "rejected"
    assert outcomes(bench, agent) == ["allowed-once", "allowed-once", "rejected"]
    bench.broker.set_policy(agent, "never")
    assert await bench.approve(agent) == "rejected"
    bench.broker.set_policy(agent, "ask")
    bench.broker.forget(agent.session)
    assert await bench.approve(agent) == "rejected"


async def test_an_unanswered_approval_can_time_out(bench: Any) -> None:
    agent = bench.agent()
    surface = bench.surface()
    impatient = Broker(bench.kernel, agents=lambda: None, approval_timeout=0.01)
    outcome = await impatient.approve(agent, "bash", {}, call_id=None, reason=None, signal=bench.caller.signal)
    assert outcome == "cancelled"
    assert surface.withdrawn
    surface.reply.set_result(YES)
    await impatient.aclose()


async def test_what_is_pending_is_offered_to_surfaces_that_come_later(bench: Any, spin: Any) -> None:
    bench.kernel.root.on(MOUNT_CHANGED, bench.broker.mount_changed)
    agent = bench.agent()
    first = bench.surface("first")
    waiting = asyncio.ensure_future(bench.approve(agent))
    await spin()
    late, sleeping = bench.surface("late"), bench.surface("sleeping", ())
    await spin()
    assert late.requests[0].id == first.requests[0].id
    sleeping.sessions.add("s1")
    bench.broker.reoffer("s1")
    bench.broker.reoffer("s1")
    await spin()
    assert len(first.requests) == len(late.requests) == len(sleeping.requests) == 1
    sleeping.reply.set_result(YES)
    assert await waiting == "allowed-once"
    for surface in (first, late):
        assert surface.withdrawn
        surface.reply.set_result(None)


async def test_each_surface_gets_arguments_and_preview_of_its_own(bench: Any) -> None:
    agent = bench.agent()
    arguments, preview = {"command": "ls"}, {"diffs": [{"path": "f", "oldText": None, "newText": "x"}]}

    def meddle(request: Any) -> None:
        request.arguments["command"] = "rm -rf /"
        request.preview["diffs"].clear()

    bench.surface("one", answer=meddle)
    two = bench.surface("two", answer=YES)
    assert await bench.approve(agent, arguments=arguments, preview=preview) == "allowed-once"
    assert two.requests[0].arguments == arguments == {"command": "ls"}
    assert two.requests[0].preview == preview == {"diffs": [{"path": "f", "oldText": None, "newText": "x"}]}
    assert "preview" not in bench.log(agent, "approval/asked")[0][1]
