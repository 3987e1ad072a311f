"""Running a tool's body to its end: a started body is awaited, also after its signal was aborted.

Only a body that ignores its signal is, after a grace, cancelled, and if it ignores that too, abandoned by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, NamedTuple

from polyhost.kernel.drain import retrieve
from polyhost.kernel.signals import AbortedError, AbortSignal
from polyhost.runtime.tools.results import ToolAbandonedError

_log = logging.getLogger(__name__)


class DrainLimits(NamedTuple):
    """How long a body may go on, in seconds: after its signal was aborted, and after it was cancelled on top."""

    abort_grace: float = 10.0
    cancel_grace: float = 2.0


DEFAULT_LIMITS = DrainLimits()


async def run_to_end(body: Awaitable[Any], signal: AbortSignal, *, tool: str, limits: DrainLimits) -> Any:
    """Await ``body`` and return its value or raise its error.

    :raises AbortedError: the body had to be cancelled.
    :raises ToolAbandonedError: it survived even that and goes on unobserved.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(body)
    task.set_name(f"tool {tool}")
    late: asyncio.Future[None] = loop.create_future()
    timers: list[asyncio.TimerHandle] = []
    undo = signal.on_abort(lambda _: timers.append(loop.call_later(limits.abort_grace, late.set_result, None)))
    try:
        await asyncio.wait([task, late], return_when=asyncio.FIRST_COMPLETED)
    finally:  # the body is over, or its time is, or whoever runs the call is being cancelled
        undo()
        for timer in timers:
            timer.cancel()
        if not task.done():
            task.add_done_callback(retrieve)
            task.cancel()
            await asyncio.wait([task], timeout=limits.cancel_grace)
    if not task.done():
        _log.error('tool "%s" ignored its cancellation and is abandoned', tool)
        raise ToolAbandonedError(f'tool "{tool}" did not stop when it was cancelled and was abandoned')
    if task.cancelled():
        raise AbortedError(signal.cause)
    return task.result()
