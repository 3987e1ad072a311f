"""Fibers: one running instance of a plugin, started when its services are there and stopped when one goes.

A :class:`Fiber` compares what should be (its requirements, a restart that was asked for, its disposal) with what is,
and runs at most one transition at a time in a driver task that exists only for that transition. What changes meanwhile
is acted on when it ends: start-up code is not interrupted because a requirement flaps. What the start mounts becomes
visible in one step when it has succeeded; a failure unwinds everything.

Not here: what a start may be (``startup``), what a fiber owns and how that is torn down (``scopes``), where its code
comes from (``plugins``).
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from polyhost.kernel.containment import confined, confined_task
from polyhost.kernel.drain import retrieve, wind_down
from polyhost.kernel.errors import InactiveContextError
from polyhost.kernel.events import FIBER_CREATED, FIBER_DISPOSED
from polyhost.kernel.keys import ServiceKey
from polyhost.kernel.scopes import Owner
from polyhost.kernel.services import ServiceToken, interchangeable
from polyhost.kernel.signals import AbortedError
from polyhost.kernel.startup import FiberSpec, current_context, enter

if TYPE_CHECKING:
    from polyhost.kernel.context import Context, Kernel


__all__ = ["Fiber", "FiberSpec", "FiberState", "RootFiber"]


class FiberState(StrEnum):
    """``pending -> loading -> active -> unloading`` and back, or to ``failed`` or, for good, ``disposed``."""

    PENDING = "pending"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    UNLOADING = "unloading"
    DISPOSED = "disposed"


class Fiber:
    """One instance of a plugin; made by :meth:`Context.install`, dies with the context's owner.

    :ivar uid: unique in the host, kept over restarts, None once disposed.
    :ivar error: why it is ``failed``.
    :ivar teardown_errors: what went wrong in the last unloading; already logged.
    """

    def __init__(self, kernel: Kernel, spec: FiberSpec, parent: Context | None) -> None:
        self.kernel = kernel
        self.spec = spec
        self.parent = parent
        self.uid: int | None = kernel.next_uid()
        self.name: str = spec.name or (parent.fiber.name if parent is not None else "root")
        self.state = FiberState.PENDING
        self.error: BaseException | None = None
        self.teardown_errors: list[BaseException] = []
        self.logger = logging.getLogger(f"polyhost.{self.name}" if parent is not None else "polyhost")
        self._requirements: dict[ServiceKey[Any], str] = {}
        self._used: dict[ServiceKey[Any], ServiceToken] = {}
        self._resolve_config = spec.resolve_config
        self._held = True  # until its creation has been announced
        self._disposing = self._restarting = self._lost = False
        self._crash: BaseException | None = None
        self._driver: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._disposal: asyncio.Task[None] | None = None
        self._updating = asyncio.Lock()
        self._handle: object = None
        self._renew()

    def __repr__(self) -> str:
        return f"<Fiber {self.name} {self.uid}: {self.state}>"

    @property
    def missing(self) -> tuple[ServiceKey[Any], ...]:
        """The required services that are not available now."""
        return tuple(key for key in self._requirements if self.kernel.services.available(key, self.context) is None)

    def add_requirement(self, key: ServiceKey[Any]) -> None:
        """Require one more service. Only while pending; for listeners of its creation."""
        if self.state is not FiberState.PENDING:
            raise InactiveContextError(
                f"cannot add requirement {key} to {self.name!r}: it is {self.state}, not pending"
            )
        if key not in self._requirements:
            self._requirements[key] = self.context.label(key)
            self.kernel.services.watch(key, self._requirements[key], self)

    def declares(self, key: ServiceKey[Any], label: str) -> bool:
        """Whether the service of that realm is one of the requirements."""
        return self._requirements.get(key) == label

    def used(self, key: ServiceKey[Any], label: str) -> ServiceToken | None:
        """The provider of a declared requirement that this activation runs with."""
        return self._used.get(key) if self.declares(key, label) else None

    # -- operations

    def launch(self) -> None:
        """Announce a new fiber and let it start. A listener that raises refuses it, and its error propagates."""
        assert self.parent is not None
        assert self.uid is not None
        self.kernel.fibers[self.uid] = self
        self._handle = self.parent.owner.push(f"fiber {self.name}", self.dispose, bounded=False)
        try:
            for key in self.spec.requires:
                self.add_requirement(key)
            self.kernel.events.emit(FIBER_CREATED, self)
        except BaseException:
            self.dispose()
            raise
        self._held = False
        self.evaluate()

    async def settled(self) -> Fiber:
        """Wait for the transition in progress, if any. Raises the stored error of a failed fiber."""
        while self._driver is not None:
            await asyncio.shield(self._driver)
        if self.error is not None:
            raise self.error
        return self

    async def restart(self) -> None:
        """Unload, load again when the requirements hold, and settle. Raises the start-up error."""
        self._check_alive("restart")
        self._restarting = True
        if self._driver is None and self.state is FiberState.FAILED and self._available() is None:
            self.error = None
            self._move(FiberState.PENDING)
        self.evaluate()
        await self.settled()
        self._check_alive("restart")

    async def update(self, resolve_config: Callable[[], object]) -> None:
        """Run on another config: validate it, then restart with it.

        An invalid config changes nothing. When the restart fails, the previous config is restored in this fiber, a
        fiber that was not failed before is started again with it, and the error of the update is raised.
        """
        async with self._updating:
            self._check_alive("update")
            resolve_config()
            had_failed = self.state is FiberState.FAILED
            previous, self._resolve_config = self._resolve_config, resolve_config
            try:
                await self.restart()
            except Exception as error:
                if self._disposing:
                    raise
                self._resolve_config = previous
                if not had_failed:
                    await self._restart_after(error)
                raise

    def dispose(self) -> Awaitable[None]:
        """Unload for good. All callers join one teardown; failures of cleanups are logged, never raised."""
        if self._disposal is None:
            self._disposal = asyncio.get_running_loop().create_task(self._dispose(), name=f"disposing {self.name}")
            self._disposing = True
            if self.uid is not None:
                self.kernel.fibers.pop(self.uid, None)
            self.uid = None
            self.kernel.events.emit(FIBER_DISPOSED, self)
            for key, label in self._requirements.items():
                self.kernel.services.unwatch(key, label, self)
            if self.state is FiberState.LOADING:
                self.owner.seal("disposed")
            self.evaluate()
        return asyncio.shield(self._disposal)

    def crashed(self, error: BaseException) -> None:
        """A background task raised: the fiber fails with its error."""
        if self.state in (FiberState.LOADING, FiberState.ACTIVE) and self._crash is None:
            self._crash = error
            if self.state is FiberState.LOADING:
                self.owner.stop(error)  # the start may be waiting for that task
            self.evaluate()

    # -- the state machine

    def evaluate(self) -> None:
        """Begin the transition that is due, if any, unless one is in progress."""
        if self._driver is None and (state := self._due()) is not None:
            self._driver = asyncio.get_running_loop().create_task(self._drive(), name=f"fiber {self.name}")
            self._begin(state)

    def _due(self) -> FiberState | None:
        """From a state of rest: the transition to begin."""
        if self.state is FiberState.DISPOSED:
            return None
        if self._disposing:
            return FiberState.UNLOADING
        if self.state is FiberState.ACTIVE:
            return None if self._may_go_on() else FiberState.UNLOADING
        available = self._available() is not None
        if self.state is FiberState.FAILED:
            self._lost = self._lost or not available
            if not (self._lost or self._restarting):
                return None
        return FiberState.LOADING if available and self._may_start() else None

    def _available(self) -> dict[ServiceKey[Any], ServiceToken] | None:
        found: dict[ServiceKey[Any], ServiceToken] = {}
        for key in self._requirements:
            token = self.kernel.services.available(key, self.context)
            if token is None:
                return None
            found[key] = token
        return found

    def _may_go_on(self) -> bool:
        if self._disposing or self._restarting or self._crash is not None:
            return False
        return self._provided()

    def _provided(self) -> bool:
        """Whether the providers that this activation began with, or their equals, are there."""
        available = self._available()
        return available is not None and all(
            key in self._used and interchangeable(self._used[key], token) for key, token in available.items()
        )

    def _may_start(self) -> bool:
        """Nothing starts under an owner that is being torn down: its turn to be disposed will come."""
        if self._held:
            return False
        context = self.parent
        while context is not None:
            owner: Owner | None = context.owner
            while owner is not None:
                if owner.sealed:
                    return False
                owner = owner.outer
            context = context.fiber.parent
        return True

    def _begin(self, state: FiberState) -> None:
        previous, self.state = self.state, state
        if state is FiberState.LOADING:
            self.error = self._crash = None
            self._restarting = self._lost = False
            self._used = self._available() or {}
            for token in self._used.values():
                token.value.users[self] = None
        else:
            self.owner.begin_close("disposed" if self._disposing else self._crash or "unloading")
        self.kernel.fiber_status(self, previous)

    def _move(self, state: FiberState) -> None:
        previous, self.state = self.state, state
        self.kernel.fiber_status(self, previous)

    async def _drive(self) -> None:
        while True:
            if self.state is FiberState.LOADING:
                await self._load()
            if self.state is FiberState.UNLOADING:
                await self._unload()
            if self.state in (FiberState.LOADING, FiberState.UNLOADING):
                continue
            state = self._due()
            if state is None:
                self._driver = None
                return
            self._begin(state)

    async def _load(self) -> None:
        if self._may_go_on() and self._may_start():
            error = await self._start() or self._crash
            if error is None and self._may_go_on() and self._may_start():
                error = self._activate()
                if error is None:
                    return
            if error is not None and not self._disposing:
                self.error = error
                if self._crash is None:  # else that is what failed, and is logged
                    self.logger.error("start of %s failed", self.name, exc_info=error)
        self._begin(FiberState.UNLOADING)

    def _activate(self) -> Exception | None:
        """Make the fiber active and its mounts visible, in one synchronous step."""
        previous, self.state = self.state, FiberState.ACTIVE
        try:
            self.owner.commit_pending()
        except Exception as error:
            self.state = previous
            return error
        self.kernel.fiber_status(self, previous)
        return None

    async def _start(self) -> BaseException | None:
        """Run the plugin's start and return its failure. Once ``stopping`` is aborted it has only its grace left."""
        try:
            with confined:
                config = self._resolve_config()
        except Exception as error:
            return error
        context = contextvars.copy_context()
        context.run(current_context.set, self.context)
        task = self._starting = confined_task(
            enter(self.spec, self.context, config), name=f"start of {self.name}", context=context
        )
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda _: None if ready.done() else ready.set_result(None))
        undo = self.owner.stopping.on_abort(lambda _: None if ready.done() else ready.set_result(None))
        await ready
        undo()
        limits = self.kernel.limits
        if not task.done():
            await wind_down((task,), (), grace=limits.start_grace, limits=limits, logger=self.logger)
        self._starting = None
        if not task.done():
            task.add_done_callback(retrieve)
            return TimeoutError(f"the start of {self.name} ignored its cancellation")
        if task.cancelled():
            return AbortedError(self.owner.stopping.cause or "the start cancelled itself")
        return task.exception()

    async def _unload(self) -> None:
        self.teardown_errors = await self.owner.finish_close()
        self._lost = not self._provided()  # what it failed with is gone already: worth another attempt
        for token in self._used.values():
            token.value.release(self)
        self._used = {}
        if self._crash is not None:
            self.error = self._crash
        if self._disposing:
            self._move(FiberState.DISPOSED)
            return
        self._renew()
        if self.error is not None and not self._restarting:
            self._move(FiberState.FAILED)
        elif self._available() is not None and self._may_start():
            self._begin(FiberState.LOADING)
        else:
            self.error = None
            self._move(FiberState.PENDING)

    def _renew(self) -> None:
        """A fresh owner and context: those of an earlier activation stay inactive for ever."""
        self._crash = None
        self.owner = Owner(self.kernel, self, self.name)
        self.owner.pending = []
        self.context = self.kernel.context_for(self)

    async def _dispose(self) -> None:
        while self._driver is not None:
            await asyncio.shield(self._driver)
        assert self.parent is not None
        self.parent.owner.forget(self._handle)

    async def _restart_after(self, error: Exception) -> None:
        try:
            await self.restart()
        except Exception as again:
            message = f"update of {self.name} failed, and so did its restart with the previous config"
            raise ExceptionGroup(message, [error, again]) from error

    def _check_alive(self, what: str) -> None:
        if self._disposing:
            raise InactiveContextError(f"cannot {what} {self.name!r}: it is disposed; install it anew")
        if self._starting is not None and asyncio.current_task() is self._starting:
            raise RuntimeError(f"{self.name} cannot {what} itself from its start: it would wait for itself")


class RootFiber(Fiber):
    """The fiber of the root context: always active. Disposing it unwinds everything and leaves it ready for use."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, FiberSpec("root", lambda context, config: None), None)
        self.state = FiberState.ACTIVE

    def evaluate(self) -> None:
        pass

    def crashed(self, error: BaseException) -> None:
        self.error = error

    def dispose(self) -> Awaitable[None]:
        if self._disposal is None:
            self._disposal = asyncio.get_running_loop().create_task(self._dispose(), name="disposing the root")
            self._begin(FiberState.UNLOADING)
        return asyncio.shield(self._disposal)

    async def restart(self) -> None:
        await self.dispose()

    async def _dispose(self) -> None:
        self.teardown_errors = await self.owner.finish_close()
        self._renew()
        self._disposal = None
        self._move(FiberState.ACTIVE)

    def _renew(self) -> None:
        super()._renew()
        self.owner.pending = None
