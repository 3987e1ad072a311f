"""The time budget of tools that declare one: a wrapper around their bodies.

The body's signal becomes the earlier of the caller's and the deadline. Once the deadline has come first, the outcome
is a timeout, whatever the body still does. Tools without a budget pass untouched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from polyhost.interfaces.tools import Tool, ToolCall
from polyhost.kernel.signals import AbortController, any_signal
from polyhost.runtime.tools.results import ToolTimeoutError

DEADLINE = {"kind": "timeout"}
"""Cause of a signal that was aborted by the deadline."""


class TimeoutPolicy:
    """A ``tools/execute`` listener.

    :param find: the tool that a call is for, or None.
    """

    def __init__(self, find: Callable[[ToolCall], Tool | None]) -> None:
        self._find = find

    async def __call__(self, call: ToolCall, next: Callable[[], Awaitable[Any]]) -> Any:
        tool = self._find(call)
        if tool is None or tool.timeout_ms is None:
            return await next()
        caller, budget = call.signal, AbortController()
        timer = asyncio.get_running_loop().call_later(tool.timeout_ms / 1000, budget.abort, DEADLINE)
        call.signal, unlink = any_signal(caller, budget.signal)
        fused = call.signal
        try:
            value = await next()
        except Exception as error:
            if fused.cause is DEADLINE:
                raise ToolTimeoutError(tool.timeout_ms) from error
            raise
        finally:
            timer.cancel()
            unlink()
            call.signal = caller
        if fused.cause is DEADLINE:
            raise ToolTimeoutError(tool.timeout_ms)
        return value
