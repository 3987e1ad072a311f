"""One mount: its token, its state, and the work in flight on it.

A :class:`MountToken` is reserved (its key is taken, nobody sees it), committed (visible), withdrawn (invisible at once,
then its work in flight is ended and its traces removed), and only then is its key free again. The transitions
themselves are made by the table that issued the token (``mounts``).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from polyhost.kernel.containment import confined_task
from polyhost.kernel.drain import Cleanup, retrieve
from polyhost.kernel.errors import MountWithdrawnError
from polyhost.kernel.keys import MountKind
from polyhost.kernel.signals import AbortController, AbortedError, AbortSignal

if TYPE_CHECKING:
    from polyhost.kernel.mounts import Kind, MountTable
    from polyhost.kernel.scopes import Owner

T = TypeVar("T")
V = TypeVar("V")


TASK: MountKind[asyncio.Task[Any]] = MountKind("task", unique=False)
"""Background tasks; the value is the task and withdrawing the token cancels it."""


class MountState(StrEnum):
    """``mounting -> active -> withdrawing -> withdrawn``, or ``failed`` when the installation failed."""

    MOUNTING = "mounting"
    ACTIVE = "active"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"
    FAILED = "failed"


class Run:
    """One piece of work in flight on a token: a call, an asynchronous listener, a background task."""

    __slots__ = ("released", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.released: asyncio.Future[None] | None = None  # what the caller waits for

    def release(self) -> None:
        if self.released is not None and not self.released.done():
            self.released.set_result(None)


# The cells of the runs that the current code is part of, so that a withdrawal asked for from inside does not wait for
# itself. A cell is emptied when its run ends: contexts are inherited by whatever a run starts.
inside_runs: contextvars.ContextVar[tuple[list[Run], ...]] = contextvars.ContextVar("polyhostinside_runs", default=())


class MountToken(Generic[V]):
    """One published value: who owns it, who sees it, whether it is live, and what is in flight on it.

    :ivar id: ``<fiber uid>/<serial>``.
    :ivar scope: the tag that sees it; None is everybody.
    :ivar error: why the installation, the removal or the background task failed.
    :ivar reason: why it was withdrawn.

    ``entry``, ``runs``, ``undo``, ``installed``, ``begun``, ``claimed`` and ``removed`` are its table's bookkeeping.
    """

    __slots__ = (
        "_aborted",
        "_aborter",
        "_waiter",
        "begun",
        "claimed",
        "entry",
        "error",
        "id",
        "installed",
        "key",
        "kind",
        "owner",
        "reason",
        "removed",
        "runs",
        "scope",
        "state",
        "table",
        "undo",
        "value",
    )

    def __init__(
        self,
        table: MountTable,
        entry: Kind,
        kind: MountKind[V],
        key: Hashable,
        value: V,
        owner: Owner,
        scope: object | None,
        serial: int,
    ) -> None:
        self.table = table
        self.kind = kind
        self.key = key
        self.value = value
        self.owner = owner
        self.scope = scope
        self.id = f"{owner.fiber.uid}/{serial}"
        self.state = MountState.MOUNTING
        self.error: BaseException | None = None
        self.reason = ""
        self.entry = entry
        self._aborter: AbortController | None = None
        self.runs: dict[Run, None] = {}
        self.undo: list[tuple[str, Cleanup]] = []
        self._aborted = self.installed = self.begun = self.claimed = self.removed = False
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<MountToken {self.id} {self.kind} {self.key!s} of {self.owner.name}: {self.state}>"

    @property
    def active(self) -> bool:
        return self.state is MountState.ACTIVE

    @property
    def aborted(self) -> AbortSignal:
        """Aborted when the mount is withdrawn; hand it to whatever works on the mount's behalf."""
        if self._aborter is None:
            self._aborter = AbortController()
            if self._aborted:
                self._aborter.abort(self.reason)
        return self._aborter.signal

    def withdraw(self, reason: str = "") -> Awaitable[None]:
        """Make the mount invisible now, then end its calls and remove it; the result may be awaited or not.

        All callers join one withdrawal; cancelling one of them does not cancel it. A call may withdraw the mount that
        it runs on: that call is not waited for. Failures are logged and kept in ``error``, never raised.
        """
        return self.table.withdraw((self,), reason)

    def defer(self, cleanup: Cleanup, label: str = "") -> None:
        """Run ``cleanup`` when the mount is removed, in reverse order of the calls; for installers."""
        self.undo.append((label or f"removing {self.kind} {self.key!s}", cleanup))

    def require_active(self) -> None:
        """Raise :class:`MountWithdrawnError` unless the mount is active."""
        if self.state is not MountState.ACTIVE:
            raise self._not_mounted()

    async def call(self, fn: Callable[..., Coroutine[Any, Any, T]], *args: Any, signal: AbortSignal | None = None) -> T:
        """Run ``fn(*args)`` as one call in flight on this mount and return its result.

        It runs in a task that the token owns. A withdrawal aborts ``aborted``, waits ``abort_grace``, cancels, and the
        caller gets :class:`MountWithdrawnError`, whatever the call returned. When ``signal`` aborts and the call does
        not end within ``abort_grace`` it is cancelled and the caller gets :class:`AbortedError`. The caller's own
        cancellation cancels the call and stays ``CancelledError``.
        """
        self.require_active()
        loop = asyncio.get_running_loop()
        run = self._start(fn(*args), f"{self.kind} {self.key!s} of {self.owner.name}")
        task = run.task
        run.released = loop.create_future()
        timers: list[asyncio.TimerHandle] = []
        undo = signal and signal.on_abort(
            lambda _: timers.append(loop.call_later(self.table.limits.abort_grace, task.cancel))
        )
        try:
            await run.released
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(retrieve)
            await asyncio.wait({task}, timeout=self.table.limits.cancel_grace)
            raise
        finally:
            if undo:
                undo()
            for timer in timers:
                timer.cancel()
        if self.state is not MountState.ACTIVE:
            task.add_done_callback(retrieve)
            raise self._not_mounted()
        if task.cancelled() and signal is not None and signal.aborted:
            raise AbortedError(signal.cause)
        return cast("T", task.result())

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any] | None:
        """Run ``work`` on this mount in a task of its own; None, with an error logged, when too many run already.

        Who starts it looks at its outcome, or adds :meth:`report` as a done callback.
        """
        if len(self.runs) >= self.table.limits.listener_runs:
            work.close()
            self.owner.logger.error("%s: %d runs are under way already; this one is refused", name, len(self.runs))
            return None
        return self._start(work, name).task

    def report(self, task: asyncio.Task[Any]) -> None:
        """Done callback for work that nobody waits for: log its failure."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.owner.logger.error("%s failed", task.get_name(), exc_info=error)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Count an existing task among the work that a withdrawal ends."""
        run = Run(task)
        self.runs[run] = None
        task.add_done_callback(lambda _: self.runs.pop(run, None))

    def _start(self, work: Coroutine[Any, Any, Any], name: str) -> Run:
        context = contextvars.copy_context()
        cell: list[Run] = []
        context.run(inside_runs.set, (*(other for other in inside_runs.get() if other), cell))
        run = Run(confined_task(work, name=name, context=context))
        cell.append(run)
        self.runs[run] = None

        def ended(_: asyncio.Task[Any]) -> None:
            cell.clear()
            self.runs.pop(run, None)
            run.release()

        run.task.add_done_callback(ended)
        return run

    def _not_mounted(self) -> MountWithdrawnError:
        when = "not mounted yet" if self.state is MountState.MOUNTING else "no longer mounted"
        because = f": {self.reason}" if self.reason else ""
        return MountWithdrawnError(f"{self.kind} {self.key!s} of {self.owner.name!r} is {when}{because}")

    def abort(self) -> None:
        """Abort ``aborted``; for the table."""
        self._aborted = True
        if self._aborter is not None:
            self._aborter.abort(self.reason)

    def mark_removed(self) -> None:
        """Wake those who wait for the removal; for the table."""
        self.removed = True
        if self._waiter is not None:
            self._waiter.set_result(None)

    def waiter(self) -> asyncio.Future[None]:
        """Done when the mount is removed; shield it."""
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter


class Joined:
    """Awaits the removal of tokens; unlike a coroutine it may be dropped without being awaited."""

    __slots__ = ("_tokens",)

    def __init__(self, tokens: Sequence[MountToken[Any]]) -> None:
        self._tokens = tokens

    def __await__(self) -> Generator[Any, None, None]:
        for token in self._tokens:
            while not token.removed:
                yield from asyncio.shield(token.waiter()).__await__()
