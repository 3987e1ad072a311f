"""The end of one tree: escalation from the stop signal to SIGKILL, and the watch that proves that nothing is left.

What belongs to a tree and how it is signalled is known to :mod:`polyhost.process.tree`; streams and results are the
handle's. The first confirmed absence is final: after it the tree is neither looked at nor signalled.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Final

from polyhost.process.spec import AbortSignalLike
from polyhost.process.tree import ProcessTree

#: Seconds between two looks at a tree whose end somebody waits for.
LIVENESS_POLL: Final = 0.015

#: Seconds between two looks at what an ended child left behind, while nobody waits.
IDLE_POLL: Final = 1.0


class TreeLifetime:
    """Watches and ends one tree. ``gone`` is done once the absence of the whole tree is confirmed."""

    def __init__(self, tree: ProcessTree, grace: float, stop_signal: int = signal.SIGTERM) -> None:
        self._tree = tree
        self._stop_signal = stop_signal
        self._grace = grace
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._absent = False
        self._leader_ended = False
        self._terminating = False
        self._killing = False
        self._waiters = 0
        self._kill_timer: asyncio.TimerHandle | None = None
        self._poll_timer: asyncio.TimerHandle | None = None

    def leader_ended(self) -> None:
        """The direct child has ended: from now on the tree may be gone."""
        self._leader_ended = True
        self._look()

    def terminate(self) -> None:
        """The stop signal to the tree, and after the grace SIGKILL to what is left. Later calls do nothing."""
        if self._absent or self._terminating:
            return
        self._terminating = True
        self._kill_timer = self._loop.call_later(self._grace, self._kill)
        self._tree.signal(self._stop_signal)
        self._look()

    def kill_now(self, patience: float) -> bool:
        """SIGKILL the tree and wait, blocking, up to ``patience`` seconds for its end; whether it is gone.

        Needs no event loop: this is for the exit of the host.
        """
        deadline = time.monotonic() + patience
        while not self._absent:
            self._tree.signal(signal.SIGKILL)
            if self._tree.leader_status() is not None and not self._tree.alive():
                self._settle()
            elif time.monotonic() >= deadline:
                return False
            else:
                time.sleep(0.002)
        return True

    async def wait_gone(self, timeout: float | None, abort: AbortSignalLike | None) -> bool:
        """Wait until the tree is gone (True), or ``timeout`` seconds passed or ``abort`` was aborted (False)."""
        aborted: asyncio.Future[None] = self._loop.create_future()
        undo = abort.on_abort(lambda _: _resolve(aborted)) if abort is not None else None
        self._waiters += 1
        try:
            self._look()
            await asyncio.wait({self.gone, aborted}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters -= 1
            aborted.cancel()
            if undo is not None:
                undo()
        return self._absent

    def _look(self) -> None:
        if self._absent or not self._leader_ended:
            return
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        if not self._tree.alive():
            self._settle()
            return
        if self._killing:
            self._tree.signal(signal.SIGKILL)  # reaches what was forked since the last look
        interval = LIVENESS_POLL if self._waiters or self._terminating else IDLE_POLL
        self._poll_timer = self._loop.call_later(interval, self._look)

    def _kill(self) -> None:
        self._killing = True
        self._tree.signal(signal.SIGKILL)
        self._look()

    def _settle(self) -> None:
        self._absent = True
        for timer in (self._kill_timer, self._poll_timer):
            if timer is not None:
                timer.cancel()
        if not self._loop.is_closed():
            _resolve(self.gone)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
