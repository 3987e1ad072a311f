"""Questions: preconditions, routing, and what answers them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polyhost.interfaces import QuestionError
from polyhost.runtime.interaction.questions import check_answers

COLOURS: dict[str, Any] = {
    "id": "q1",
    "question": "Which?",
    "options": [{"label": "red"}, {"label": "blue", "description": "calm"}],
}
ANSWER = [{"id": "q1", "selected": ["red"]}]


async def failing(work: Any) -> str:
    with pytest.raises(QuestionError) as caught:
        await work
    return caught.value.code


@pytest.mark.contract("ASK-01")
async def test_the_surface_of_the_session_answers(bench: Any) -> None:
    agent = bench.agent()
    other = bench.surface("other", ("s2",), answer=ANSWER)
    surface = bench.surface(answer=ANSWER)
    assert await bench.broker.ask(agent, [COLOURS], bench.caller.signal) == ANSWER
    (request,) = surface.requests
    assert request.questions == [COLOURS]
    assert request.agent is agent
    assert not other.requests


@pytest.mark.contract("ASK-01")
async def test_without_anybody_there_is_no_provider(bench: Any) -> None:
    agent = bench.agent()
    assert await failing(bench.broker.ask(agent, [COLOURS], bench.caller.signal)) == "NO_PROVIDER"
    surface = bench.surface(answer=None)
    assert await failing(bench.broker.ask(agent, [COLOURS], bench.caller.signal)) == "NO_PROVIDER"
    surface.answer = ANSWER
    assert await bench.broker.ask(None, [COLOURS], bench.caller.signal) == ANSWER
    await surface.token.withdraw()
    assert await failing(bench.broker.ask(agent, [COLOURS], bench.caller.signal)) == "NO_PROVIDER"


@pytest.mark.contract("ASK-02")
async def test_aborted_and_empty_batches_ask_nobody(bench: Any) -> None:
    agent = bench.agent()
    surface = bench.surface(answer=ANSWER)
    assert await failing(bench.broker.ask(agent, [], bench.caller.signal)) == "EMPTY_QUESTIONS"
    bench.caller.abort()
    assert await failing(bench.broker.ask(agent, [], bench.caller.signal)) == "ASK_ABORTED"
    assert not surface.requests


@pytest.mark.contract("ASK-03")
async def test_only_live_agents_that_nobody_owns_may_ask(bench: Any) -> None:
    parent = bench.agent()
    child = bench.agent("child", parent)
    bench.surface("ui", ("s1", "child"), answer=ANSWER)
    assert await failing(bench.broker.ask(child, [COLOURS], bench.caller.signal)) == "DELEGATED_CALLER"
    resumed_as_root = bench.agent("child")
    assert await bench.broker.ask(resumed_as_root, [COLOURS], bench.caller.signal) == ANSWER
    assert await failing(bench.broker.ask(child, [COLOURS], bench.caller.signal)) == "CALLER_NOT_LIVE"
    del bench.agents["s1"]
    assert await failing(bench.broker.ask(parent, [COLOURS], bench.caller.signal)) == "CALLER_NOT_LIVE"


@pytest.mark.contract("ASK-04")
@pytest.mark.parametrize(
    ("change", "sound"),
    [
        ({"intent": {"kind": "plan-review", "approve": "red"}, "detail": "the plan"}, True),
        ({"intent": {"kind": "plan-review", "approve": "red"}}, False),
        ({"intent": {"kind": "plan-review", "approve": "red"}, "detail": ""}, False),
        ({"intent": {"kind": "plan-review", "approve": "green"}, "detail": "the plan"}, False),
        ({"intent": {"kind": "plan-review"}, "detail": "the plan", "options": []}, False),
    ],
)
async def test_intents_are_checked(bench: Any, change: Any, sound: bool) -> None:
    agent = bench.agent()
    bench.surface(answer=ANSWER)
    work = bench.broker.ask(agent, [{**COLOURS, **change}], bench.caller.signal)
    if sound:
        assert await work == ANSWER
    else:
        assert await failing(work) == "BAD_INTENT"


async def test_the_first_valid_answer_wins(bench: Any, spin: Any, caplog: Any) -> None:
    agent = bench.agent()
    wrong = bench.surface("wrong", answer=[{"id": "q1", "selected": ["green"]}])
    slow, quick = bench.surface("slow"), bench.surface("quick")
    waiting = asyncio.ensure_future(bench.broker.ask(agent, [COLOURS], bench.caller.signal))
    await spin()
    assert [request.id for request in bench.broker.pending("s1")] == [wrong.requests[0].id]
    quick.reply.set_result(ANSWER)
    assert await waiting == ANSWER
    assert slow.withdrawn
    slow.reply.set_result(ANSWER)
    assert "unknown labels: green" in caplog.text


async def test_waiting_ends_by_cancellation_or_by_closing(bench: Any, spin: Any) -> None:
    agent = bench.agent()
    surface = bench.surface(answer=QuestionError("closed", code="ASK_CANCELLED"))
    assert await failing(bench.broker.ask(agent, [COLOURS], bench.caller.signal)) == "ASK_CANCELLED"
    surface.answer = ...
    waiting = asyncio.ensure_future(bench.broker.ask(agent, [COLOURS], bench.caller.signal))
    await spin()
    bench.caller.abort({"kind": "user"})
    assert await failing(waiting) == "ASK_ABORTED"
    assert surface.withdrawn[-1] == {"kind": "user"}
    surface.reply.set_result(ANSWER)
    assert bench.broker.pending("s1") == ()


MANY = {**COLOURS, "multiSelect": True}


@pytest.mark.parametrize(
    ("question", "answer", "problem"),
    [
        (COLOURS, {"id": "q1", "selected": []}, None),
        (COLOURS, {"id": "q1", "selected": [], "custom": "green"}, None),
        (MANY, {"id": "q1", "selected": ["red", "blue"], "custom": "and green"}, None),
        (COLOURS, {"id": "q2", "selected": []}, "ids of the questions"),
        (COLOURS, {"id": "q1"}, "list of labels"),
        (COLOURS, {"id": "q1", "selected": [1]}, "list of labels"),
        (COLOURS, {"id": "q1", "selected": ["green"]}, "unknown labels: green"),
        (COLOURS, {"id": "q1", "selected": ["red", "blue"]}, "only one"),
        (MANY, {"id": "q1", "selected": ["red", "red"]}, "twice"),
        (COLOURS, {"id": "q1", "selected": [], "custom": "  "}, "not be blank"),
        (COLOURS, {"id": "q1", "selected": ["red"], "custom": "x"}, "exclude each other"),
        (COLOURS, {"id": "q1", "selected": [], "note": "x"}, "only id"),
    ],
)
def test_answers_are_checked(question: Any, answer: Any, problem: str | None) -> None:
    if problem is None:
        check_answers([question], [answer])
        return
    with pytest.raises(QuestionError, match=problem) as caught:
        check_answers([question], [answer])
    assert caught.value.code == "BAD_ANSWER"


@pytest.mark.parametrize("answers", [None, {}, [1], [ANSWER[0], ANSWER[0]], []])
def test_answers_come_one_for_each_question_in_order(answers: Any) -> None:
    with pytest.raises(QuestionError):
        check_answers([COLOURS], answers)
