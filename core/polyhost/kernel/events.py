"""Events: who hears what, in which order, and what happens when a listener fails.

Listeners are mounts of kind :data:`LISTENER`, so they come and go with everything else that their plugin mounts. An
:class:`EventBus` dispatches in the mode that the event's key declares; :meth:`EventBus.to` gives the same five methods
for one :class:`Target`; an :class:`Emitter` is the prepared form of ``emit`` for hot paths.

Not here: which events exist. Each subsystem declares its own keys; the kernel's are at the end of this module.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Protocol

from polyhost.kernel.containment import confined, ordinary
from polyhost.kernel.errors import EventModeError, EventTargetError, NextCalledTwiceError
from polyhost.kernel.keys import EventKey, EventMode, MountKind
from polyhost.kernel.mounts import KindHandler, MountTable
from polyhost.kernel.tokens import MountState, MountToken

if TYPE_CHECKING:
    from polyhost.kernel.context import Context
    from polyhost.kernel.fibers import Fiber, FiberState
    from polyhost.kernel.scopes import ScopeTree

P = ParamSpec("P")


class Admits(Protocol):
    """A filter on listeners, by the context that they were registered through."""

    def admits(self, context: Context) -> bool: ...


ANY_SCOPE: Final = object()
"""As a target's scope: listeners of every scope are meant."""


class Target:
    """Whom a dispatch is meant for; it says nothing else about its subject.

    :param scope: the tag whose listeners, and whose ancestors' listeners, are reached beside the untagged ones; None
        reaches untagged listeners only.
    :param base: a further filter that is asked first, for example a realm (:meth:`Context.realm_of`).

    Listeners registered with ``everywhere=True`` are always reached.
    """

    __slots__ = ("base", "scope")

    def __init__(self, scope: object | None = ANY_SCOPE, base: Admits | None = None) -> None:
        self.scope = scope
        self.base = base


class Listener:
    """The value of a :data:`LISTENER` mount: a callback and how it is to be called."""

    __slots__ = ("callback", "context", "everywhere", "live", "once", "prepend", "token")

    def __init__(
        self, callback: Callable[..., object], context: Context, *, prepend: bool, everywhere: bool, once: bool
    ) -> None:
        self.callback = callback
        self.context = context
        self.prepend = prepend
        self.everywhere = everywhere
        self.once = once
        self.live = False
        self.token: MountToken[Listener]

    def fire(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, keep: bool = False) -> Any:
        """Call the callback. A ``once`` listener leaves the bus before, and its mount is withdrawn after.

        :param keep: leave the withdrawal to the caller when the callback returned an awaitable.
        """
        if not self.once:
            return self.callback(*args, **kwargs)
        self.live = False
        result: Any = None
        try:
            result = self.callback(*args, **kwargs)
        finally:
            if not (keep and inspect.isawaitable(result)):
                self.token.withdraw("was to be called once")
        return result

    def start(self, result: Awaitable[Any], name: str) -> asyncio.Task[Any] | None:
        """Run what the callback returned as a task of the listener's mount; None when it has too many already."""
        task = self.token.start(_as_coroutine(result), name)
        if task is not None and self.once:
            task.add_done_callback(lambda _: self.token.withdraw("was to be called once"))
        return task


LISTENER: MountKind[Listener] = MountKind("listener", unique=False)


class _Channel:
    """The listeners of one event, in calling order; replaced as a whole, so a dispatch iterates over a snapshot."""

    __slots__ = ("listeners", "version")

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.version = 0


class Dispatcher:
    """The five ways to dispatch, for one target (None: every listener). ``EventBus`` is the dispatcher without one."""

    __slots__ = ("_bus", "_target")

    def __init__(self, bus: EventBus, target: Target | None) -> None:
        self._bus = bus
        self._target = target

    def emit(self, key: EventKey[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every listener in order. Returned awaitables become tasks of their listener's mount.

        A failure is logged and the next listener is called; for a key that is not ``contained`` it propagates.
        """
        for listener in self._select(key, EventMode.EMIT, args):
            if listener.live:
                _emit_to(listener, key, args, kwargs)

    async def parallel(self, key: EventKey[P], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every listener in order, then wait for all. Raises an ExceptionGroup of all failures."""
        failures: list[Exception] = []
        tasks: list[asyncio.Task[Any]] = []
        for listener in self._select(key, EventMode.PARALLEL, args):
            if not listener.live:
                continue
            try:
                with confined:
                    result = listener.fire(args, kwargs, keep=True)
            except Exception as error:
                failures.append(error)
                continue
            if inspect.isawaitable(result) and (task := listener.start(result, _describe(listener, key))):
                tasks.append(task)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        failures += [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup(f"{len(failures)} listener(s) of {key} failed", failures)

    async def serial(self, key: EventKey[P], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call and await one listener after the other; the first answer (not None, not False) wins and is returned."""
        for listener in self._select(key, EventMode.SERIAL, args):
            if listener.live:
                with confined:
                    result = listener.fire(args, kwargs)
                    if inspect.isawaitable(result):
                        result = await result
                if result is not None and result is not False:
                    return result
        return None

    def bail(self, key: EventKey[P], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Like :meth:`serial`, for synchronous listeners."""
        for listener in self._select(key, EventMode.BAIL, args):
            if listener.live:
                with confined:
                    result = listener.fire(args, kwargs)
                if result is not None and result is not False:
                    return result
        return None

    def waterfall(self, key: EventKey[Any], *args: Any, inner: Callable[[], Any]) -> Any:
        """Compose the listeners around ``inner``, the first outermost, and return what the outermost returns.

        Each gets ``(*args, next)``; ``next()`` runs the rest and returns its result, which is an awaitable where the
        listeners are coroutine functions. A listener that does not call it hides everything inside.
        """
        listeners = self._select(key, EventMode.WATERFALL, args)

        def run_from(index: int) -> Any:
            while index < len(listeners) and not listeners[index].live:
                index += 1
            if index == len(listeners):
                return inner()
            with confined:
                return listeners[index].fire((*args, _once(lambda: run_from(index + 1), key)), {})

        return run_from(0)

    def _select(self, key: EventKey[Any], mode: EventMode, args: tuple[Any, ...]) -> Sequence[Listener]:
        if key.mode is not mode:
            raise EventModeError(f"event {key} is dispatched with {key.mode}, not with {mode}")
        bus = self._bus
        if bus.strict and key.scoped:
            _check_target(key, self._target, args)
        if bus.announced.listeners and not key.name.startswith("internal/"):
            bus.emit(DISPATCH, mode, key, args, self._target)
        return bus.select(key, self._target)


class Emitter(Generic[P]):
    """``emit`` of one contained event to one target, prepared: no allocation but the call of each listener."""

    __slots__ = ("_announced", "_bus", "_channel", "_key", "_listeners", "_scopes", "_seen", "_seen_scopes", "_target")

    def __init__(self, bus: EventBus, key: EventKey[P], target: Target | None) -> None:
        if key.mode is not EventMode.EMIT:
            raise EventModeError(f"event {key} is dispatched with {key.mode}, not with {EventMode.EMIT}")
        self._bus = bus
        self._key = key
        self._target = target
        self._channel = bus.channel(key)
        self._scopes = bus.scopes
        self._announced = bus.announced if not key.name.startswith("internal/") else _Channel()
        self._seen = self._seen_scopes = -1
        self._listeners: Sequence[Listener] = ()

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every listener in order; see :meth:`Dispatcher.emit`."""
        if self._seen != self._channel.version or self._seen_scopes != self._scopes.version:
            self._listeners = self._bus.select(self._key, self._target)
            self._seen = self._channel.version
            self._seen_scopes = self._scopes.version
        if self._announced.listeners:
            self._bus.emit(DISPATCH, EventMode.EMIT, self._key, args, self._target)
        for listener in self._listeners:
            if listener.live:
                _emit_to(listener, self._key, args, kwargs)

    __call__ = emit


class EventBus(Dispatcher):
    """All listeners of one host.

    :param strict: check that scoped events carry a target that names their subject; for development and tests.
    """

    __slots__ = ("_channels", "announced", "scopes", "strict")

    def __init__(self, mounts: MountTable, scopes: ScopeTree, *, strict: bool = False) -> None:
        super().__init__(self, None)
        self.scopes = scopes
        self.strict = strict
        self._channels: dict[str, _Channel] = {}
        self.announced = self.channel(DISPATCH)
        mounts.handle(LISTENER, _ListenerHandler(self))

    def to(self, target: Target | None) -> Dispatcher:
        """The same methods, for one target."""
        return Dispatcher(self, target)

    def emitter(self, key: EventKey[P], target: Target | None = None) -> Emitter[P]:
        """A prepared ``emit`` for hot paths. Keep it: making one costs more than an ``emit``."""
        return Emitter(self, key, target)

    def listeners(self, key: EventKey[Any]) -> Sequence[Listener]:
        """The live listeners of an event, in calling order."""
        channel = self._channels.get(key.name)
        return channel.listeners if channel is not None else ()

    def channel(self, key: EventKey[Any]) -> _Channel:
        return self._channels.setdefault(key.name, _Channel())

    def select(self, key: EventKey[Any], target: Target | None) -> Sequence[Listener]:
        """The listeners that a dispatch to ``target`` reaches."""
        listeners = self.listeners(key)
        if target is None or not listeners:
            return listeners
        chain = None if target.scope is ANY_SCOPE else self.scopes.chain(target.scope)
        return tuple(
            listener
            for listener in listeners
            if listener.everywhere
            or (
                (target.base is None or target.base.admits(listener.context))
                and (chain is None or listener.token.scope is None or listener.token.scope in chain)
            )
        )


class _ListenerHandler(KindHandler[Listener]):
    def __init__(self, bus: EventBus) -> None:
        self._bus = bus

    def validate(self, key: Hashable, value: Listener) -> None:
        if not isinstance(key, EventKey) or not callable(value.callback):
            raise TypeError(f"a listener needs an EventKey and a callable, not {key!r} and {value.callback!r}")

    def flip(self, token: MountToken[Listener]) -> None:
        assert isinstance(token.key, EventKey)
        listener = token.value
        channel = self._bus.channel(token.key)
        if token.state is MountState.ACTIVE:
            listener.token = token
            listener.live = True
            channel.listeners = (listener, *channel.listeners) if listener.prepend else (*channel.listeners, listener)
        else:
            listener.live = False
            channel.listeners = tuple(other for other in channel.listeners if other is not listener)
        channel.version += 1


def _emit_to(listener: Listener, key: EventKey[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        result = listener.fire(args, kwargs, keep=True) if listener.once else listener.callback(*args, **kwargs)
    except BaseException as error:
        failure = ordinary(error)
        if not key.contained or not isinstance(failure, Exception):
            raise failure  # noqa: B904  (it is the error, or has it as its cause)
        listener.token.owner.logger.error("%s failed", _describe(listener, key), exc_info=failure)
        return
    if result is not None and inspect.isawaitable(result):
        task = listener.start(result, _describe(listener, key))
        if task is not None:
            task.add_done_callback(listener.token.report)


def _describe(listener: Listener, key: EventKey[Any]) -> str:
    name = getattr(listener.callback, "__qualname__", repr(listener.callback))
    return f"listener {name} of {listener.token.owner.name} on {key}"


def _as_coroutine(result: Awaitable[Any]) -> Coroutine[Any, Any, Any]:
    return result if inspect.iscoroutine(result) else _await(result)


async def _await(result: Awaitable[Any]) -> Any:
    return await result


def _once(run: Callable[[], Any], key: EventKey[Any]) -> Callable[[], Any]:
    called = False

    def next() -> Any:
        nonlocal called
        if called:
            raise NextCalledTwiceError(f"a listener of {key} called next() twice; keep its result instead")
        called = True
        return run()

    return next


def _check_target(key: EventKey[Any], target: Target | None, args: tuple[Any, ...]) -> None:
    if target is None or target.scope is ANY_SCOPE:
        raise EventTargetError(f"event {key} is scoped: dispatch it through EventBus.to(Target(scope))")
    if key.subject is not None and (subject := key.subject(*args)) is not target.scope:
        raise EventTargetError(f"event {key} about {subject!r} is targeted at {target.scope!r}")


DISPATCH: EventKey[[EventMode, EventKey[Any], tuple[Any, ...], Target | None]] = EventKey("internal/dispatch")
"""Announces every dispatch of an event whose name does not begin with ``internal/``: mode, key, arguments, target."""

FIBER_CREATED: EventKey[[Fiber]] = EventKey("internal/fiber-created", contained=False)
"""A fiber exists, pending. A listener may add requirements, attach cleanups, dispose it, or raise to refuse it."""

FIBER_DISPOSED: EventKey[[Fiber]] = EventKey("internal/fiber-disposed")
"""A fiber's disposal begins."""

FIBER_STATUS: EventKey[[Fiber, FiberState]] = EventKey("internal/fiber-status")
"""A fiber changed its state; the second argument is the previous one."""

TASK_CRASHED: EventKey[[MountToken[asyncio.Task[Any]], BaseException]] = EventKey("internal/task-crashed")
"""A background task raised, and with it its owner, a fiber or a scope, fails."""

MOUNT_CHANGED: EventKey[[MountToken[Any], MountState, MountState]] = EventKey("mount/changed")
"""A mount went from one state to another."""
