"""Trying a failed model request again: whether, when, and its durable record.

One listener of ``agent/request-error``. A retry stays inside the step that failed; the request itself is the turn
loop's business, and which codes an adapter raises is the adapter's.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

from polyhost.interfaces import Agent, JsonObject, RequestFailure, RetryPolicy, new_id
from polyhost.kernel.signals import AbortedError

Sleep = Callable[[float], Awaitable[object]]
Next = Callable[[], Awaitable[bool]]

_MAX_DOUBLINGS = 62


class _Chain:
    """The retries of one step with one provider under one policy. ``count`` is how many were scheduled."""

    __slots__ = ("count", "id")

    def __init__(self) -> None:
        self.id = new_id()
        self.count = 0


class _StepChains(NamedTuple):
    turn: int
    step: int
    chains: dict[tuple[str, str], _Chain]


class Retry:
    """Backs off and retries as the failed route's :class:`RetryPolicy` says.

    ``llm/retry`` is logged before the wait and ``llm/retry-started`` after it. The wait ends at once when the turn is
    cancelled, and a cancelled turn is never retried.

    :param sleep: waits for so many seconds.
    :param jitter: a number in [0, 1), drawn once for each delay.
    """

    def __init__(self, *, sleep: Sleep = asyncio.sleep, jitter: Callable[[], float] = random.random) -> None:
        self._sleep = sleep
        self._jitter = jitter
        self._steps: WeakKeyDictionary[Agent, _StepChains] = WeakKeyDictionary()

    async def __call__(self, failure: RequestFailure, next: Next) -> bool:
        """Answer one failed attempt: True asks for a retry."""
        policy = failure.retry_policy
        if policy is None:
            return await next()
        if policy.mode == "always":
            # Specialised recovery, such as compaction of an overlong history, knows better than waiting does.
            return await next() or await self._retry(failure, policy)
        if failure.failure.get("code") not in policy.retryable_codes:
            return await next()
        return await self._retry(failure, policy) or await next()

    async def _retry(self, failure: RequestFailure, policy: RetryPolicy) -> bool:
        if failure.signal.aborted:
            return False
        chain = self._chain(failure, policy)
        delay_ms = self._delay(chain.count + 1, policy, failure.failure)
        if delay_ms is None:
            return False
        chain.count += 1
        session = failure.agent.session
        session.append("llm/retry", _record(failure, policy, chain, delay_ms))
        try:
            await failure.signal.race(self._sleep(delay_ms / 1000))
        except AbortedError:
            return False
        session.append(
            "llm/retry-started",
            {"retryId": chain.id, "turn": failure.turn, "step": failure.step, "retry": chain.count},
        )
        return True

    def _chain(self, failure: RequestFailure, policy: RetryPolicy) -> _Chain:
        """The chain of this step; a new step of the agent starts afresh."""
        step = self._steps.get(failure.agent)
        if step is None or (step.turn, step.step) != (failure.turn, failure.step):
            step = self._steps[failure.agent] = _StepChains(failure.turn, failure.step, {})
        key = (failure.provider, policy_key(policy))
        return step.chains.setdefault(key, _Chain())

    def _delay(self, attempt: int, policy: RetryPolicy, facts: JsonObject) -> float | None:
        """Milliseconds to wait before retry number ``attempt``; None when there shall be none."""
        if policy.mode == "normal" and attempt > policy.max_retries:
            return None
        asked = facts.get("providerRetryAfterMs")
        if isinstance(asked, int):
            if asked <= policy.max_delay_ms:
                return float(asked)
            if policy.mode == "normal":
                return None  # the provider asks for more patience than this policy has
        backoff: float = min(policy.max_delay_ms, policy.initial_delay_ms * 2 ** min(attempt - 1, _MAX_DOUBLINGS))
        return backoff * (1 + policy.jitter_ratio * (2 * self._jitter() - 1))


def policy_key(policy: RetryPolicy) -> str:
    """A stable text that tells policies apart in the log."""
    timing = [policy.initial_delay_ms, policy.max_delay_ms, policy.jitter_ratio]
    if policy.mode == "always":
        return json.dumps(["always", *timing], separators=(",", ":"))
    return json.dumps(["normal", policy.max_retries, sorted(policy.retryable_codes), *timing], separators=(",", ":"))


def _record(failure: RequestFailure, policy: RetryPolicy, chain: _Chain, delay_ms: float) -> JsonObject:
    record: JsonObject = {
        "retryId": chain.id,
        "turn": failure.turn,
        "step": failure.step,
        "provider": failure.provider,
        "mode": policy.mode,
        "policyKey": policy_key(policy),
        "retry": chain.count,
    }
    if policy.mode == "normal":
        record["maxRetries"] = policy.max_retries
    record["delayMs"] = int(delay_ms) if delay_ms.is_integer() else delay_ms
    record["failure"] = failure.failure
    return record
