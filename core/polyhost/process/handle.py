"""A supervised child as its owner sees it: streams, result, termination, proof of exit, and the disposal ladder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from polyhost.process.errors import SpawnError
from polyhost.process.lifetime import TreeLifetime
from polyhost.process.spec import AbortSignalLike, SpawnSpec
from polyhost.process.stdio import Collected, Stdio
from polyhost.process.tree import ExitStatus, ProcessTree

#: Seconds that :meth:`ProcessHandle.dispose` gives a child to end by itself after its stdin was closed. Wider than
#: a usual grace, so that a child which has children of its own can take a whole grace for them.
EOF_GRACE: Final = 6.0

Released = Callable[["ProcessHandle"], None]


class ProcessHandle:
    """One child and everything that descends from it. Made by :meth:`ProcessSupervisor.spawn` only.

    When the child could not be started, ``pid`` is -1, ``done`` raises, and the tree counts as gone.
    """

    def __init__(self, spec: SpawnSpec, stdio: Stdio, tree: ProcessTree | SpawnError, on_released: Released) -> None:
        self._spec = spec
        self._stdio = stdio
        self._on_released = on_released
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[ExitStatus] = self._loop.create_future()
        self._status: ExitStatus | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._disposal: asyncio.Task[None] | None = None
        self._undo_abort: Callable[[], None] | None = None
        self._tree: ProcessTree | None = None
        self._lifetime: TreeLifetime | None = None
        stdio.closed.add_done_callback(self._release)
        if isinstance(tree, SpawnError):
            self._done.set_exception(tree)
            self._done.exception()  # ``pid`` tells as well: an owner that does not await ``done`` is no error
            return
        self._tree = tree
        self._lifetime = TreeLifetime(tree, spec.grace, spec.stop_signal)
        self._lifetime.gone.add_done_callback(self._on_gone)
        stdio.drained.add_done_callback(self._on_drained)
        if spec.signal is not None:
            self._undo_abort = spec.signal.on_abort(lambda _: self.terminate())

    def watch(self) -> None:
        """Take up the running child. Called once, by the supervisor."""
        self._stdio.started()
        if self._tree is not None:
            self._tree.watch_leader(self._on_leader_exit)

    @property
    def pid(self) -> int:
        """The direct child, which is also the id of its process group; -1 when it could not be started."""
        return self._tree.pid if self._tree is not None else -1

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments, as asked for."""
        return self._spec.argv

    @property
    def grace(self) -> float:
        """Seconds between the stop signal and SIGKILL."""
        return self._spec.grace

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """The child's input, when it was asked for as a pipe."""
        return self._stdio.stdin

    @property
    def stdout(self) -> asyncio.StreamReader | None:
        """The child's output, when it was asked for as a pipe. The caller must read it, or the child blocks."""
        return self._stdio.stdout

    @property
    def stderr(self) -> asyncio.StreamReader | None:
        """The child's error output, when it was asked for as a pipe. The caller must read it, or the child blocks."""
        return self._stdio.stderr

    @property
    def collected(self) -> Collected:
        """The outputs that were asked for as :class:`Collect`; readable during the run and after it."""
        return self._stdio.collected

    @property
    def exit_status(self) -> ExitStatus | None:
        """How the direct child ended, as soon as that is known; ``done`` may still wait for its output."""
        return self._status

    @property
    def done(self) -> asyncio.Future[ExitStatus]:
        """How the direct child ended, once its collected outputs are complete too.

        Pipes that survivors still hold delay this by at most the grace. Await it as often as you like: cancelling
        one waiter does not touch the others. Says nothing about the rest of the tree: see :meth:`wait_for_exit`.

        :raises SpawnError: when the child could not be started.
        """
        return asyncio.shield(self._done)

    def terminate(self) -> None:
        """End the whole tree: the stop signal now, SIGKILL to what is left after the grace.

        Idempotent, and without effect once the tree is gone. Waiting is :meth:`wait_for_exit`.
        """
        if self._lifetime is not None:
            self._lifetime.terminate()

    def kill_now(self, patience: float = 1.0) -> bool:
        """SIGKILL the whole tree and block up to ``patience`` seconds for its end; whether it is gone.

        For the exit of the host, when no event loop can wait any more; otherwise use :meth:`terminate`.
        """
        return self._lifetime is None or self._lifetime.kill_now(patience)

    async def wait_for_exit(self, timeout: float | None = None, signal: AbortSignalLike | None = None) -> bool:
        """Wait until the whole tree is proven gone.

        :param timeout: seconds to wait at most; None waits without bound.
        :param signal: aborting it ends the wait.
        :returns: False when a bound came first.
        """
        return self._lifetime is None or await self._lifetime.wait_gone(timeout, signal)

    def close_stdin(self) -> None:
        """Send end of file to the child, after what is still buffered. Idempotent."""
        self._stdio.close_stdin()

    async def dispose(self, eof_grace: float = EOF_GRACE) -> None:
        """End the child as gently as it allows, and return when its whole tree is gone and its pipes are closed.

        Close a piped stdin and wait up to ``eof_grace`` seconds for the tree; then :meth:`terminate` and wait
        without bound. Further calls share the first one's work; cancelling one caller does not stop it.
        """
        if self._disposal is None:
            self._disposal = self._loop.create_task(self._dispose(eof_grace), name=f"dispose {self.pid}")
        await asyncio.shield(self._disposal)

    async def close_streams(self) -> None:
        """Close all pipes at once, dropping unread output; ``done`` no longer waits for them."""
        self._stdio.close()
        await asyncio.wait({self._stdio.closed})

    async def _dispose(self, eof_grace: float) -> None:
        if not await self._ended_by_eof(eof_grace):
            self.terminate()
            await self.wait_for_exit()
        await asyncio.wait({self._done})
        await self.close_streams()

    async def _ended_by_eof(self, eof_grace: float) -> bool:
        if self._stdio.stdin is None:
            return False
        self.close_stdin()
        return await self.wait_for_exit(eof_grace)

    def _on_leader_exit(self) -> None:
        if self._tree is None or self._lifetime is None:
            return
        self._status = self._tree.leader_status()
        if self._stdio.drained.done():
            self._settle()
        else:
            self._drain_timer = self._loop.call_later(self._spec.grace, self._settle)
        self._lifetime.leader_ended()

    def _on_drained(self, _: object) -> None:
        if self._status is not None:
            self._settle()

    def _settle(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        if self._done.done() or self._status is None:
            return
        self._stdio.finish()
        self._done.set_result(self._status)
        self._close_unneeded()

    def _on_gone(self, _: object) -> None:
        if self._undo_abort is not None:
            self._undo_abort()
        self._close_unneeded()
        self._release()

    def _close_unneeded(self) -> None:
        """Close what only a stranger to the tree can still hold open. Piped outputs stay: they may be unread."""
        if self._done.done() and self._lifetime is not None and self._lifetime.gone.done():
            self._stdio.close_served()

    def _release(self, _: object = None) -> None:
        if self._stdio.closed.done() and (self._lifetime is None or self._lifetime.gone.done()):
            self._on_released(self)
