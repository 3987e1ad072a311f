"""The stream of one answer: what it costs, what it leaves for others, and how retries fit in."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    AGENT_REQUEST_ERROR,
    BlockStart,
    Finish,
    RetryPolicy,
    TextDelta,
    user_message,
)
from polyhost.runtime.models.retry import Retry
from polyhost.testing.scripted import call_script, failure_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

COMPLETED = {"kind": "completed"}


async def test_a_stream_without_pauses_leaves_the_loop_to_others(bench: Bench) -> None:
    count = 20_000
    agent = await bench.agent([BlockStart(0, "text"), *[TextDelta(0, "word ")] * count, Finish({"kind": "stop"})])
    agent.followup(user_message("go"))
    turns_of_others = 0
    while agent.status == "running":
        await asyncio.sleep(0)
        turns_of_others += 1
    assert turns_of_others > 5, "the stream took several milliseconds and gave the loop away in between"
    assert bench.types(agent).count("assistant/chunk") == count + 2
    assert len(bench.data(agent, "assistant/message")[0]["message"]["content"][0]["text"]) == 5 * count


async def test_a_delta_costs_a_fraction_of_the_budget(bench: Bench) -> None:
    count = 20_000
    bench.heard = type("Deaf", (list,), {"append": lambda self, item: None})()
    agent = await bench.agent([*[TextDelta(0, "word ")] * count, Finish({"kind": "stop"})])
    started = time.process_time()
    await bench.ask(agent)
    assert (time.process_time() - started) / count < 50e-6


@pytest.mark.contract("RTY-01")
async def test_a_retry_stays_in_its_step_and_leaves_no_trace_in_what_the_model_sees(bench: Bench) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    bench.tool("t")
    bench.model._retry = RetryPolicy()
    bench.root.on(AGENT_REQUEST_ERROR, Retry(sleep=sleep, jitter=lambda: 0.5))
    broken = failure_script("TRANSPORT", partial="half an ans")
    agent = await bench.agent(broken, broken, call_script("t", {}), broken, text_script("done"))
    await bench.ask(agent)
    assert bench.reasons(agent) == [COMPLETED]
    assert waited == [0.5, 1.0, 0.5]
    assert [(d["turn"], d["step"], d["retry"]) for d in bench.data(agent, "llm/retry")] == [
        (1, 1, 1),
        (1, 1, 2),
        (1, 2, 1),
    ]
    assert len(bench.data(agent, "llm/retry-started")) == 3
    assert len(bench.data(agent, "request/header")) == 1
    assert len(bench.data(agent, "tool/call")) == 1
    seen = [[block.get("text") for m in request.messages for block in m["content"]] for request in bench.model.requests]
    assert not any("half" in str(texts) for texts in seen)
    types = bench.types(agent)
    assert types.index("llm/retry") < types.index("llm/retry-started")
    cited = [event.envelope["sourceEventSeqs"] for event in agent.session.events() if event.type == "assistant/message"]
    assert not any("half" in str(agent.session.event(seq).data) for seqs in cited for seq in seqs)


@pytest.mark.contract("RTY-07")
@pytest.mark.parametrize("how", ["cancel", "dispose"])
async def test_cancel_and_disposal_end_a_retrys_wait(bench: Bench, how: str) -> None:
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    bench.model._retry = RetryPolicy(mode="always")
    bench.root.on(AGENT_REQUEST_ERROR, Retry(sleep=sleep))
    handle = await bench.handle()
    bench.script(failure_script("SERVER"))
    handle.agent.followup(user_message("x"))
    await waiting.wait()
    if how == "cancel":
        handle.agent.cancel({"kind": "user"})
        await handle.agent.when_idle()
    else:
        await handle.dispose()
    cause = {"cancel": "user", "dispose": "disposed"}[how]
    assert bench.reasons(handle.agent) == [{"kind": "aborted", "reason": {"kind": cause}}]
    assert len(bench.model.requests) == 1


@pytest.mark.contract("RTY-04")
async def test_a_route_without_an_adapter_is_not_retried(bench: Bench) -> None:
    def sleep(seconds: float) -> Any:
        raise AssertionError("no timer")

    bench.root.on(AGENT_REQUEST_ERROR, Retry(sleep=sleep))
    agent = await bench.agent(model="nowhere/m")
    await bench.ask(agent)
    assert bench.reasons(agent)[0]["error"]["code"] == "NO_ADAPTER"
    assert bench.data(agent, "llm/retry") == []
