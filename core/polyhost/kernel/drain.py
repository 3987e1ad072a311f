"""Ending work that is under way, within bounds: limits, winding tasks down, running one cleanup.

Everything here waits for a limited time and then goes on, saying by name what it left behind. Who has to be ended,
and in which order, is decided by the owners in ``scopes`` and the tokens in ``mounts``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, NamedTuple

from polyhost.kernel.containment import confined

Cleanup = Callable[[], Awaitable[Any] | Any]


class Limits(NamedTuple):
    """Bounds of the kernel's waits, in seconds, and of its counts."""

    start_grace: float = 5.0
    """How long a start may go on, once its fiber is disposed, before it is cancelled."""
    abort_grace: float = 1.0
    """How long an in-flight call may take to follow its signal before it is cancelled. Background tasks get none."""
    cancel_grace: float = 5.0
    """How long a cancelled task may take to end before it is abandoned."""
    cleanup_grace: float = 30.0
    """How long one asynchronous cleanup may take before it is cancelled."""
    dependants_grace: float = 60.0
    """How long a withdrawn service waits for the fibers that use it to unload."""
    listener_runs: int = 1024
    """How many asynchronous runs of one listener may be under way; further ones are refused and logged."""


async def wind_down(
    polite: Collection[asyncio.Task[Any]],
    abrupt: Collection[asyncio.Task[Any]],
    *,
    grace: float,
    limits: Limits,
    logger: logging.Logger,
) -> None:
    """End tasks: wait ``grace`` seconds for the polite ones, cancel what is left, wait again, abandon by name."""
    for task in abrupt:
        task.cancel()
    pending = set(polite)
    if pending and grace > 0:
        _, pending = await asyncio.wait(pending, timeout=grace)
    for task in pending:
        task.cancel()
    pending |= set(abrupt)
    if pending:
        _, pending = await asyncio.wait(pending, timeout=limits.cancel_grace)
    for task in pending:
        logger.error("%s ignored its cancellation for %g s and is abandoned", task.get_name(), limits.cancel_grace)


async def run_cleanup(
    cleanup: Cleanup, label: str, *, limits: Limits, logger: logging.Logger, bounded: bool = True
) -> BaseException | None:
    """Run one synchronous or asynchronous cleanup and return its failure instead of raising it.

    The asynchronous part runs in a task of its own, so that whoever is cancelled meanwhile does not take it along.
    """
    try:
        with confined:
            result = cleanup()
            if not inspect.isawaitable(result):
                return None
            if not bounded:
                await result
                return None
    except Exception as error:
        return error
    task = asyncio.ensure_future(_finish(result))
    task.set_name(label)
    await asyncio.wait({task}, timeout=limits.cleanup_grace)
    if not task.done():
        await wind_down((), (task,), grace=0, limits=limits, logger=logger)
        return TimeoutError(f"{label}: cleanup took longer than {limits.cleanup_grace:g} s and was cancelled")
    return asyncio.CancelledError(f"{label}: cleanup was cancelled") if task.cancelled() else task.exception()


async def _finish(result: Awaitable[Any]) -> Any:
    with confined:
        return await result


def retrieve(task: asyncio.Future[Any]) -> None:
    """Done callback that marks a failure as seen, for tasks whose outcome is reported elsewhere or discarded."""
    if not task.cancelled():
        task.exception()
