"""What foreign code raises ends at most what it is a part of: ``SystemExit`` and its like become ordinary failures.

An event loop lets :class:`SystemExit` through from any task or callback and stops; here, a plugin's is a failure of
that plugin. Who reports a failure, and what follows from it, is the caller's business.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

from polyhost.kernel.errors import PolyhostError

_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


class EscapedError(PolyhostError):
    """Foreign code raised what is no :class:`Exception`, such as :class:`SystemExit`; it is the ``__cause__``."""

    default_code = "ESCAPED"


def ordinary(error: BaseException) -> BaseException:
    """``error``, or an :class:`EscapedError` caused by it when it is neither an exception, a cancellation nor ^C."""
    if isinstance(error, _PASSING):
        return error
    failure = EscapedError(f"{type(error).__name__} was raised: {error}")
    failure.__cause__ = error
    return failure


class _Confined:
    """``with confined:`` around foreign code raises what :func:`ordinary` makes of its error."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and (failure := ordinary(error)) is not error:
            raise failure


confined = _Confined()


def confined_task(
    work: Coroutine[Any, Any, Any], *, name: str, context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    """Run foreign ``work``, a coroutine, in a task whose error is always an ordinary one."""
    if not asyncio.iscoroutine(work):
        raise TypeError(f"a coroutine is needed for {name!r}, not {type(work).__name__}")
    task = asyncio.get_running_loop().create_task(_confine(work), name=name, context=context)
    task.add_done_callback(lambda _: work.close())  # it never began if the task was cancelled before its first step
    return task


async def _confine(work: Coroutine[Any, Any, Any]) -> Any:
    with confined:
        return await work
