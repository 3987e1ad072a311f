"""Cancellation as a value: a signal that models, tools and waits share.

An :class:`AbortSignal` is the read side and an :class:`AbortController` the write side. The first cause wins and
never changes. Checking a signal on a hot path is one attribute read (``signal.aborted``); no task and no future
exists until somebody waits. This is cooperative: nothing here calls ``Task.cancel()``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from polyhost.kernel.containment import confined
from polyhost.kernel.errors import PolyhostError

T = TypeVar("T")
Callback = Callable[["AbortSignal"], None]


class AbortedError(PolyhostError):
    """Work was given up because its signal was aborted; ``cause`` is the first cause."""

    default_code = "ABORTED"

    def __init__(self, cause: Any) -> None:
        super().__init__(f"aborted: {cause!r}" if cause is not None else "aborted")
        self.cause = cause


class AbortSignal:
    """Read side. ``aborted`` flips once from False to True; ``cause`` is set before that and then fixed."""

    __slots__ = ("_callbacks", "aborted", "cause")

    def __init__(self) -> None:
        self.aborted = False
        self.cause: Any = None
        self._callbacks: dict[object, Callback] = {}

    def on_abort(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback(signal)`` once, synchronously, when aborted (at once when it already is).

        Returns the idempotent undo. Callbacks run in registration order and must not raise: an exception is
        reported to the running loop's exception handler and the others still run.
        """
        if self.aborted:
            callback(self)
            return _nothing
        key = object()
        self._callbacks[key] = callback
        return lambda: _discard(self._callbacks.pop(key, None))

    def raise_if_aborted(self) -> None:
        """Raise :class:`AbortedError` when aborted."""
        if self.aborted:
            raise AbortedError(self.cause)

    async def wait(self) -> Any:
        """Wait until aborted and return the cause."""
        if self.aborted:
            return self.cause
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        undo = self.on_abort(lambda _: None if future.done() else future.set_result(None))
        try:
            await future
        finally:
            undo()
        return self.cause

    async def race(self, work: Awaitable[T]) -> T:
        """Await ``work``, but raise :class:`AbortedError` as soon as the signal is aborted.

        When the signal wins, ``work`` is cancelled and awaited first, so that nothing is left running.
        """
        task = asyncio.ensure_future(work)
        if self.aborted:
            await _cancel_and_wait(task)
            raise AbortedError(self.cause)
        undo = self.on_abort(lambda _: _discard(task.cancel()))
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if self.aborted and not (current and current.cancelling()):
                raise AbortedError(self.cause) from None
            await _cancel_and_wait(task)
            raise
        finally:
            undo()


class AbortController:
    """Write side of one :class:`AbortSignal`."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, cause: Any = None) -> bool:
        """Abort with ``cause``; False when it had already been aborted (the first cause stays)."""
        signal = self.signal
        if signal.aborted:
            return False
        signal.cause = cause
        signal.aborted = True
        callbacks, signal._callbacks = signal._callbacks, {}
        for callback in callbacks.values():
            try:
                with confined:
                    callback(signal)
            except Exception as error:
                _report(error, callback)
        return True


def any_signal(*signals: AbortSignal | None) -> tuple[AbortSignal, Callable[[], None]]:
    """A signal aborted by the first of ``signals`` to abort (with its cause), and the undo of the link."""
    present = [signal for signal in signals if signal is not None]
    if len(present) == 1:
        return present[0], _nothing
    controller = AbortController()
    undos = [signal.on_abort(lambda source: _discard(controller.abort(source.cause))) for signal in present]

    def undo() -> None:
        for step in undos:
            step()

    return controller.signal, undo


async def _cancel_and_wait(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # retrieved: the signal's error is the one to report


def _report(error: Exception, callback: Callback) -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    loop.call_exception_handler({"message": "abort callback failed", "exception": error, "callback": repr(callback)})


def _nothing() -> None:
    return None


def _discard(_: object) -> None:
    return None
