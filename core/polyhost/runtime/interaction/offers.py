"""One request before several surfaces: the first valid answer settles it, the others are withdrawn.

Knows neither approvals nor questions, only how to ask and what counts as an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from polyhost.interfaces.interaction import QuestionError, Surface
from polyhost.kernel.drain import retrieve
from polyhost.kernel.errors import MountWithdrawnError
from polyhost.kernel.mounts import MountToken
from polyhost.kernel.signals import AbortedError, AbortSignal

A = TypeVar("A")
T = TypeVar("T")

_log = logging.getLogger(__name__)

ANSWERED = {"kind": "answered"}
"""Cause of the signal of a request that was settled elsewhere."""

LEAVE_GRACE = 2.0
"""Seconds that a surface has to put away a withdrawn request before its task is cancelled."""


class Stragglers:
    """Tasks whose outcome nobody waits for any more, until they have ended."""

    def __init__(self, grace: float = LEAVE_GRACE) -> None:
        self._grace = grace
        self._tasks: dict[asyncio.Task[Any], asyncio.TimerHandle] = {}

    def take(self, task: asyncio.Task[Any]) -> None:
        """Give ``task`` a grace, then cancel it. Its outcome is discarded."""
        if task.done():
            retrieve(task)
            return
        self._tasks[task] = asyncio.get_running_loop().call_later(self._grace, task.cancel)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task).cancel()
        retrieve(task)

    async def aclose(self) -> None:
        """Cancel what is left and wait for it, within the grace."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=self._grace)


async def first(
    work: asyncio.Task[Any], signal: AbortSignal, stragglers: Stragglers, *, timeout: float | None = None
) -> Any:
    """Await ``work``, but no longer than until ``signal`` is aborted or ``timeout`` seconds have passed.

    :raises AbortedError: one of them came first; what becomes of ``work`` is discarded.
    """
    given_up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    undo = signal.on_abort(lambda _: given_up.set_result(None))
    try:
        await asyncio.wait({given_up, work}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        undo()
        if not work.done() or signal.aborted:
            stragglers.take(work)
    if signal.aborted or not work.done():
        raise AbortedError(signal.cause if signal.aborted else {"kind": "timeout"})
    return work.result()


class Offer(Generic[A, T]):
    """A request that is open before surfaces.

    :param put: puts it before one surface and returns what it says; None leaves the request to others.
    :param accept: the outcome that a surface's words amount to; raises when they are no valid answer.
    :param withdrawn: aborted when the request is settled.
    """

    def __init__(
        self,
        put: Callable[[Surface], Awaitable[A | None]],
        accept: Callable[[A], T],
        withdrawn: AbortSignal,
        stragglers: Stragglers,
    ) -> None:
        self._put = put
        self._accept = accept
        self._withdrawn = withdrawn
        self._stragglers = stragglers
        self._outcome: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._asked: dict[MountToken[Surface], None] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def to(self, surfaces: Iterable[MountToken[Surface]]) -> None:
        """Ask those surfaces that were not asked yet."""
        for token in surfaces:
            if token in self._asked or self._outcome.done():
                continue
            self._asked[token] = None
            task = asyncio.get_running_loop().create_task(self._ask(token), name=f"asking {token.value.name}")
            self._tasks[task] = None
            task.add_done_callback(self._left)

    async def outcome(self) -> T | None:
        """What the first valid answer amounts to; None when there is nobody to answer any more.

        :raises QuestionError: a surface closed the request.
        """
        if not self._asked:
            return None
        try:
            return await self._outcome
        finally:
            for task in self._tasks:
                self._stragglers.take(task)

    async def _ask(self, token: MountToken[Surface]) -> None:
        surface = token.value
        try:
            answer = await token.call(self._put_before, surface)
        except QuestionError as error:
            if not self._outcome.done():
                self._outcome.set_exception(error)
                self._outcome.exception()  # seen: nobody may be waiting any more
        except MountWithdrawnError:
            return
        except Exception:
            if not self._withdrawn.aborted:
                _log.exception("surface %s failed to answer and is passed over", surface.name)
        else:
            self._answered(surface, answer)

    def _answered(self, surface: Surface, answer: A | None) -> None:
        if answer is None or self._outcome.done():
            return
        try:
            self._outcome.set_result(self._accept(answer))
        except Exception:
            _log.exception("surface %s failed to answer properly and is passed over", surface.name)

    async def _put_before(self, surface: Surface) -> A | None:
        return await self._put(surface)

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not self._tasks and not self._outcome.done():
            self._outcome.set_result(None)
