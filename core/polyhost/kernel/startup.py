"""What a fiber runs: the forms that a plugin's start may take, and how each is entered and left.

Not here: when a start is run (``fibers``).
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from polyhost.kernel.keys import ServiceKey

if TYPE_CHECKING:
    from polyhost.kernel.context import Context

Started = Coroutine[Any, Any, None] | AsyncIterator[None] | AbstractAsyncContextManager[Any] | None

current_context: contextvars.ContextVar[Context] = contextvars.ContextVar("polyhost_context")


def _no_config() -> None:
    return None


class FiberSpec(NamedTuple):
    """What a fiber runs.

    :param name: for people; an empty name shows as the parent's.
    :param start: called with the context and the resolved config. It is a plain or coroutine function, an async
        generator function with one ``yield`` (what follows is teardown, after the mounts are gone), or returns an
        async context manager. The two halves run in different tasks, so no task group may span the yield.
    :param requires: services that must be there before, and as long as, it runs.
    :param resolve_config: called at each activation, once the requirements are there; raising fails the fiber.
    """

    name: str
    start: Callable[[Context, Any], Started]
    requires: tuple[ServiceKey[Any], ...] = ()
    resolve_config: Callable[[], object] = _no_config


async def enter(spec: FiberSpec, context: Context, config: object) -> None:
    """Run a start up to the point where it is running, and leave what ends it with the context's owner."""
    context.owner.check_open()  # disposed since this task was made: none of its code runs
    started: object = spec.start(context, config)
    name = context.owner.name
    if started is None:
        return
    if isinstance(started, AsyncIterator):
        if not await _advance(started):
            raise TypeError(f"the start of {name} must yield once")
        context.owner.push(f"{name} after its yield", lambda: _resume(started, name))
    elif isinstance(started, AbstractAsyncContextManager):
        await started.__aenter__()
        context.owner.push(f"{name} leaving {started!r}", lambda: started.__aexit__(None, None, None))
    elif not inspect.isawaitable(started) or await started is not None:
        raise TypeError(
            f"the start of {name} must return None or a coroutine of None, be an async generator, or return an async"
            " context manager"
        )


async def _advance(iterator: AsyncIterator[None]) -> bool:
    try:
        await anext(iterator)
    except StopAsyncIteration:
        return False
    return True


async def _resume(iterator: AsyncIterator[None], name: str) -> None:
    if await _advance(iterator):
        if isinstance(iterator, AsyncGenerator):
            await iterator.aclose()
        raise TypeError(f"the start of {name} must yield only once")
