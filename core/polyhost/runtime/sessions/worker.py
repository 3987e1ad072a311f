"""The one thread of a host that touches log files: jobs in order, writes before syncs.

A write is a system call into the page cache, a sync may wait for a disk; so that nobody's receipt waits for somebody
else's sync longer than the one that runs, waiting writes go first.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from enum import IntEnum
from itertools import count
from queue import PriorityQueue


class Urgency(IntEnum):
    """What a job is, the most urgent first. ``CLOSE`` jobs come when nothing else waits."""

    WRITE = 0
    SYNC = 1
    CLOSE = 2
    _STOP = 3


Job = Callable[[], None]
Done = Callable[[Exception | None], None]


class DiskWorker:
    """Runs blocking jobs in its thread, which starts with the first one, and reports each back to the event loop."""

    def __init__(self) -> None:
        self._jobs: PriorityQueue[tuple[int, int, Job, Done | None, asyncio.AbstractEventLoop | None]] = PriorityQueue()
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, urgency: Urgency, job: Job, done: Done) -> None:
        """Run ``job`` and then, in the running loop, ``done(error)`` with what it raised.

        :raises RuntimeError: the worker is closed.
        """
        if self._closed:
            raise RuntimeError("the disk worker is closed")
        if self._thread is None:
            # A daemon, so that a host that died without closing is not kept alive by its idle worker.
            self._thread = threading.Thread(target=self._run, name="polyhost-disk", daemon=True)
            self._thread.start()
        self._jobs.put((urgency, next(self._numbers), job, done, asyncio.get_running_loop()))

    async def run(self, urgency: Urgency, job: Job) -> None:
        """Run ``job`` and wait for it. It runs to its end even if the caller is cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.submit(urgency, job, done)
        await future

    async def close(self) -> None:
        """Run what was submitted, then end the thread. Idempotent."""
        thread, self._closed = self._thread, True
        if thread is None:
            return
        self._thread = None
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs.put(
            (Urgency._STOP, next(self._numbers), _nothing, lambda _: ended.set_result(None), ended.get_loop())
        )
        await ended
        thread.join()

    def _run(self) -> None:
        while True:
            urgency, _, job, done, loop = self._jobs.get()
            error: Exception | None = None
            try:
                job()
            except Exception as failure:
                error = failure
            if done is not None and loop is not None:
                # A loop that is closed by now has nobody left to tell.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(done, error)
            del job, done, error
            if urgency is Urgency._STOP:
                return


def _nothing() -> None:
    return None
