"""The event loop of one command: it outlives what plugins do in it, hears signals at any time, and ends in time.

Not here: what is run (``hosting``), and the process's own end (``process``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from polyhost.cli.process import CANCELLED, abandon, leave

T = TypeVar("T")

REPEAT = 0.3
"""Seconds within which further signals are taken for the same wish: a terminal and a parent may both send one."""

ORDERLY_END = 60.0
"""Seconds after a signal that ends the command until the process leaves, whatever is in the way."""

LEFTOVER_GRACE = 1.0
"""Seconds that tasks still get which outlived the shutdown of the host."""

logger = logging.getLogger("polyhost.host")


class CommandLoop:
    """Runs a command and its shutdown. For the main thread; used once.

    :ivar interrupt: what the next SIGINT calls instead of ending the command; it is taken when it is called.
    """

    def __init__(self) -> None:
        self.interrupt: Callable[[], object] | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._report)
        self._work: asyncio.Task[Any] | None = None
        self._ending = False
        self._signalled: float | None = None  # since when a signal is unheard, or ends the command
        self._deadline: threading.Timer | None = None

    def run(self, work: Coroutine[Any, Any, T], close: Callable[[], Coroutine[Any, Any, None]]) -> T:
        """Run ``work``, then ``close`` whatever happened, then end the tasks that are left.

        SIGTERM, SIGHUP, and SIGINT without :attr:`interrupt`, cancel ``work``, whose CancelledError is raised; they
        do not cancel ``close``. Another one after that, or while the loop does not react, ends the process at once.
        """
        task = self._loop.create_task(work, name="the command")
        self._work = task
        with self._signals():
            try:
                return self._complete(task)
            finally:
                try:
                    self._complete(self._loop.create_task(close(), name="the shutdown"))
                finally:
                    if self._complete(self._loop.create_task(self._end_tasks(), name="the end of tasks")):
                        self._loop.close()

    def _complete(self, task: asyncio.Task[T]) -> T:
        while True:
            try:
                return self._loop.run_until_complete(task)
            except SystemExit as error:
                if task.done():
                    raise
                # From a task or callback that a plugin made without the host; the loop has merely stopped.
                logger.warning("a plugin raised SystemExit(%s) in a task of its own; the host goes on", error)

    async def _end_tasks(self) -> bool:
        """Whether all have ended."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        pending = await _wait(tasks)
        if not pending:  # else one of them may be running in what does not end
            pending = await _wait({self._loop.create_task(self._loop.shutdown_asyncgens(), name="generators")})
        if pending:
            logger.warning("leaving without what does not end: %s", ", ".join(sorted(t.get_name() for t in pending)))
            abandon(pending)
        return not pending

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What nobody waited for, such as the failure of a task that a plugin made without the host."""
        error = context.get("exception")
        work = context.get("task") or context.get("future")
        name = f" ({work.get_name()})" if isinstance(work, asyncio.Task) else ""
        logging.getLogger("polyhost.loop").error("%s%s", context["message"], name, exc_info=error)
        logger.warning("%s%s%s", context["message"], name, f": {type(error).__name__}: {error}" if error else "")

    # -- signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        # Not loop.add_signal_handler: that cannot be heard while a plugin blocks the loop.
        handled = [
            number
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(number) not in (signal.SIG_IGN, None)  # ignored: `nohup`, or a job in the background
        ]
        previous = {number: signal.signal(number, self._caught) for number in handled}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._forget_signal()

    def _caught(self, number: int, frame: object) -> None:
        """Runs between any two instructions of the main thread, also when a plugin never returns to the loop."""
        if self._signalled is None:
            self._signalled = time.monotonic()
            self._deadline = threading.Timer(ORDERLY_END, leave, (CANCELLED,))
            self._deadline.daemon = True
            self._deadline.start()
        elif time.monotonic() - self._signalled >= REPEAT:
            leave(CANCELLED)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._heard, number)

    def _heard(self, number: int) -> None:
        callback, self.interrupt = self.interrupt, None
        if number == signal.SIGINT and callback is not None:
            self._forget_signal()
            callback()
        elif self._work is not None and not self._ending:
            self._ending = True
            self._work.cancel()

    def _forget_signal(self) -> None:
        self._signalled = None
        if self._deadline is not None:
            self._deadline.cancel()


async def _wait(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Those that are not done after the grace."""
    return (await asyncio.wait(tasks, timeout=LEFTOVER_GRACE))[1] if tasks else set()
