"""The waiting that approvals and questions share: what comes first, and what becomes of the rest."""

from __future__ import annotations

import asyncio

import pytest

from polyhost.kernel.signals import AbortController, AbortedError
from polyhost.runtime.interaction.offers import Stragglers, first


@pytest.mark.contract("APR-06")
async def test_an_abort_in_the_same_turn_of_the_loop_wins() -> None:
    async def quick() -> int:
        return 1

    controller = AbortController()
    work = asyncio.ensure_future(quick())
    asyncio.get_running_loop().call_soon(controller.abort, {"kind": "user"})
    with pytest.raises(AbortedError):
        await first(work, controller.signal, Stragglers())
    assert work.result() == 1


async def test_what_is_left_gets_a_grace_and_is_then_cancelled() -> None:
    stragglers = Stragglers(grace=0.01)
    stuck = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(AbortedError) as caught:
        await first(stuck, AbortController().signal, stragglers, timeout=0.01)
    assert caught.value.cause == {"kind": "timeout"}
    assert not stuck.cancelled()
    await asyncio.wait([stuck])
    assert stuck.cancelled()
    await stragglers.aclose()


async def test_closing_does_not_wait_for_the_grace() -> None:
    stragglers = Stragglers(grace=600)
    stuck: asyncio.Task[object] = asyncio.ensure_future(asyncio.Event().wait())
    stragglers.take(stuck)
    await stragglers.aclose()
    assert stuck.cancelled()
