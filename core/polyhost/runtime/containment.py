"""What foreign code may raise without ending more than itself: nearly everything, ``SystemExit`` included."""

from __future__ import annotations

import asyncio


def ends_task(error: BaseException) -> bool:
    """Whether ``error`` must go on up: the cancellation of the current task itself, or the user's interrupt.

    A ``CancelledError`` that nobody asked of this task is a failure of what was awaited, like any other.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt)
