"""The events of one agent, dispatched so that global listeners and those of its own scope hear them, nobody else's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from polyhost.kernel.context import Context
from polyhost.kernel.keys import EventKey

T = TypeVar("T")


class AgentEvents:
    """Dispatch for the agent whose own context is ``context``."""

    __slots__ = ("_to",)

    def __init__(self, context: Context) -> None:
        self._to = context.events

    def emit(self, key: EventKey[Any], *args: Any) -> None:
        """Tell every listener; failures of contained events are logged."""
        self._to.emit(key, *args)

    async def serial(self, key: EventKey[Any], *args: Any) -> Any:
        """Await one listener after the other, up to the first answer."""
        return await self._to.serial(key, *args)

    async def around(self, key: EventKey[Any], *args: Any, inner: Callable[[], Awaitable[T]]) -> T:
        """Run ``inner`` inside the listeners, the first registered outermost, and return what comes out."""
        result: T = await self._to.waterfall(key, *args, inner=inner)
        return result
