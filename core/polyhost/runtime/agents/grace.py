"""Ending waits that ignore their signal: after a grace, an aborted block of code is cancelled.

Cancellation is a signal, and well-behaved adapters and listeners follow it. This is for the others.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from polyhost.kernel.signals import AbortedError, AbortSignal

ABORT_GRACE = 2.0
"""Seconds that a model adapter or a listener has to follow an aborted signal before its await is cancelled."""


class AbortGrace:
    """``with AbortGrace(signal, seconds):`` bounds how long the block outlives an abort of ``signal``.

    When the time is up the current await is cancelled, and the block raises :class:`AbortedError`. Costs one callback
    for the whole block, nothing for each await inside it. For use inside a task.
    """

    __slots__ = ("_fired", "_seconds", "_signal", "_task", "_timer", "_undo")

    def __init__(self, signal: AbortSignal, seconds: float = ABORT_GRACE) -> None:
        self._signal = signal
        self._seconds = seconds
        self._fired = False
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._undo = self._signal.on_abort(self._start)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._undo()
        if self._timer is not None:
            self._timer.cancel()
        if self._fired and self._task is not None:
            still_cancelling = self._task.uncancel()
            if kind is asyncio.CancelledError and not still_cancelling:
                raise AbortedError(self._signal.cause) from error

    def _start(self, _: AbortSignal) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fire)

    def _fire(self) -> None:
        if self._task is not None:
            self._fired = True
            self._task.cancel()
