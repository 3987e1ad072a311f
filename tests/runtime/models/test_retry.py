"""Retries: the decision, the wait, and the record, on a failing adapter's behalf."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polyhost.interfaces import RequestFailure, RetryPolicy, SessionHeader
from polyhost.kernel.signals import AbortController
from polyhost.runtime.models.retry import Retry, policy_key
from polyhost.runtime.sessions.log import LiveSession

NORMAL = RetryPolicy()
ALWAYS = RetryPolicy(mode="always")


class Bench:
    """One agent with a log, a clock that jumps, and a jitter of choice."""

    def __init__(self, *, jitter: float = 0.5) -> None:
        self.session = LiveSession(SessionHeader("s", 0))
        self.agent = Agent(self.session)
        self.controller = AbortController()
        self.waited: list[float] = []
        self.order: list[str] = []
        self.retry = Retry(sleep=self.sleep, jitter=lambda: jitter)
        self.declined = 0

    async def sleep(self, seconds: float) -> None:
        self.order += [event.type for event in self.session.events(len(self.session) - 1)] + ["sleep"]
        self.waited.append(round(seconds * 1000, 3))

    async def next(self) -> bool:
        self.declined += 1
        return False

    async def fail(
        self,
        code: str = "SERVER",
        policy: RetryPolicy | None = NORMAL,
        *,
        step: int = 1,
        provider: str = "p",
        **facts: Any,
    ) -> bool:
        failure = {"message": "m", "code": code, **facts}
        request = RequestFailure(self.agent, 1, step, provider, failure, policy, self.controller.signal)  # type: ignore[arg-type]
        return await self.retry(request, self.next)

    def records(self, type: str = "llm/retry") -> list[Any]:
        return [event.data for event in self.session.events() if event.type == type]


class Agent(SimpleNamespace):
    def __init__(self, session: LiveSession) -> None:
        super().__init__(id="s", session=session)

    __hash__ = object.__hash__


@pytest.mark.contract("RTY-01", "RTY-09")
async def test_the_record_precedes_the_wait_and_a_chain_counts_from_one() -> None:
    bench = Bench()
    assert await bench.fail(status=503)
    assert await bench.fail("TIMEOUT")
    assert not await bench.fail()
    assert bench.order == ["llm/retry", "sleep"] * 2
    first, second = bench.records()
    assert first == {
        "retryId": first["retryId"],
        "turn": 1,
        "step": 1,
        "provider": "p",
        "mode": "normal",
        "policyKey": '["normal",2,["EMPTY_RESPONSE","RATE_LIMIT","SERVER","TIMEOUT","TRANSPORT"],500,10000,0.1]',
        "retry": 1,
        "maxRetries": 2,
        "delayMs": 500,
        "failure": {"message": "m", "code": "SERVER", "status": 503},
    }
    assert (second["retry"], second["retryId"]) == (2, first["retryId"])
    assert bench.records("llm/retry-started") == [
        {"retryId": first["retryId"], "turn": 1, "step": 1, "retry": n} for n in (1, 2)
    ]


@pytest.mark.contract("RTY-02")
@pytest.mark.parametrize(("jitter", "factor"), [(0.0, 0.9), (0.5, 1.0), (0.999999, 1.1)])
async def test_backoff_doubles_up_to_its_bound_with_jitter(jitter: float, factor: float) -> None:
    bench = Bench(jitter=jitter)
    policy = NORMAL._replace(max_retries=7)
    while await bench.fail(policy=policy):
        pass
    expected = [500, 1000, 2000, 4000, 8000, 10_000, 10_000]
    assert bench.waited == pytest.approx([delay * factor for delay in expected], rel=1e-4)
    exact = Bench(jitter=0.9)
    await exact.fail(policy=NORMAL._replace(jitter_ratio=0))
    assert exact.waited == [500]


@pytest.mark.contract("RTY-03")
async def test_the_providers_delay_is_used_when_it_is_bearable() -> None:
    bench = Bench(jitter=0)
    assert await bench.fail(providerRetryAfterMs=10_000)
    assert await bench.fail(policy=ALWAYS, providerRetryAfterMs=7)
    assert not await bench.fail(providerRetryAfterMs=10_001)
    assert await bench.fail(policy=ALWAYS, providerRetryAfterMs=10_001)
    assert bench.waited == [10_000, 7, 900]


@pytest.mark.contract("RTY-04", "POL-01")
@pytest.mark.parametrize("code", ["AUTH", "QUOTA", "INVALID_REQUEST", "STREAM_CLOSED", "UNKNOWN"])
async def test_other_codes_are_not_retried_nor_is_a_route_without_policy(code: str) -> None:
    bench = Bench()
    assert not await bench.fail(code)
    assert not await bench.fail("SERVER", None)
    assert bench.waited == []
    assert bench.declined == 2
    assert bench.records() == []


@pytest.mark.contract("RTY-05")
async def test_budgets_are_per_step_provider_and_policy() -> None:
    bench = Bench()
    for facts in ({}, {"provider": "q"}, {"policy": NORMAL._replace(initial_delay_ms=1)}, {"step": 2}):
        assert await bench.fail(**facts)
        assert await bench.fail(**facts)
        assert not await bench.fail(**facts)
    assert len({record["retryId"] for record in bench.records()}) == 4


@pytest.mark.contract("RTY-06", "POL-01")
async def test_specialised_recovery_precedes_the_always_fallback() -> None:
    bench = Bench()
    recovered = True

    async def recovery() -> bool:
        return recovered

    bench.next = recovery  # type: ignore[method-assign]
    assert await bench.fail("CONTEXT_WINDOW_EXCEEDED", ALWAYS)
    assert bench.waited == []
    recovered = False
    for _ in range(70):
        assert await bench.fail("AUTH", ALWAYS)
    assert bench.waited[-1] == 10_000
    record = bench.records()[-1]
    assert (record["mode"], record["retry"]) == ("always", 70)
    assert "maxRetries" not in record
    assert record["policyKey"] == policy_key(ALWAYS) == '["always",500,10000,0.1]'


@pytest.mark.contract("RTY-07")
async def test_cancel_ends_the_wait_at_once_and_wins() -> None:
    bench = Bench()
    waiting = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waiting.set()
        await asyncio.Event().wait()

    bench.retry = Retry(sleep=sleep)
    attempt = asyncio.ensure_future(bench.fail())
    await waiting.wait()
    bench.controller.abort({"kind": "user"})
    assert await attempt is False
    assert bench.records("llm/retry-started") == []
    assert await bench.fail() is False
    assert len(bench.records()) == 1
