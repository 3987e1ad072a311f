"""The context: what a plugin holds, and the host's kernel that ties the registries together.

A :class:`Context` says on whose behalf something is done: which owner (lifetime), which realm (services) and which
scope (visibility). Contexts derived from one share its owner. :class:`Kernel` is one host: its registries and root.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
from collections.abc import Callable, Coroutine, Hashable, Mapping
from typing import Any, ParamSpec, TypeVar

from polyhost.kernel.containment import confined_task
from polyhost.kernel.drain import Cleanup, Limits
from polyhost.kernel.errors import ServiceUnavailableError
from polyhost.kernel.events import FIBER_STATUS, LISTENER, MOUNT_CHANGED, Dispatcher, EventBus, Listener, Target
from polyhost.kernel.fibers import Fiber, RootFiber
from polyhost.kernel.keys import EventKey, MountKind, ServiceKey
from polyhost.kernel.mounts import MountSet, MountTable
from polyhost.kernel.scopes import Owner, Scope, ScopeTree
from polyhost.kernel.services import ROOT_REALM, SERVICE, Provision, ServiceRegistry
from polyhost.kernel.signals import AbortSignal
from polyhost.kernel.startup import FiberSpec, current_context
from polyhost.kernel.tokens import TASK, MountToken

T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")

_realms = itertools.count(1)


class Context:
    """A node of the tree, owned by one fiber activation or scope; inactive for ever once that has closed."""

    __slots__ = ("_labels", "kernel", "owner", "scope_tag")

    def __init__(
        self, kernel: Kernel, owner: Owner, labels: Mapping[str, str] | None = None, scope_tag: object | None = None
    ) -> None:
        self.kernel = kernel
        self.owner = owner
        self.scope_tag = scope_tag
        self._labels: Mapping[str, str] = labels or {}

    def __repr__(self) -> str:
        return f"Context <{self.owner.name}>"

    @staticmethod
    def current() -> Context | None:
        """The context on whose behalf the running code works: that of the start, task or :meth:`run` it is part of."""
        return current_context.get(None)

    @property
    def fiber(self) -> Fiber:
        return self.owner.fiber

    @property
    def logger(self) -> logging.Logger:
        return self.owner.logger

    @property
    def stopping(self) -> AbortSignal:
        """Aborted when the owner begins to close."""
        return self.owner.stopping

    @property
    def mounts(self) -> MountTable:
        return self.kernel.mounts

    @property
    def events(self) -> Dispatcher:
        """Dispatch to this context's scope; from an untagged context, to every listener."""
        return self.kernel.events if self.scope_tag is None else self.kernel.events.to(Target(self.scope_tag))

    # -- services

    def require(self, key: ServiceKey[T]) -> T:
        """A service that this fiber, or an ancestor, declared or provides.

        Raises :class:`ServiceUnavailableError` for one that is not declared, and from the context of a closed owner.
        """
        if self.owner.closed:
            raise ServiceUnavailableError(
                f"cannot get required service {key} in the inactive context of {self.owner.name!r}"
            )
        label = self.label(key)
        holder = self.kernel.services.holder(key, label)
        context: Context | None = self
        while context is not None:
            fiber = context.fiber
            token = fiber.used(key, label)
            if token is None and holder is not None and holder.owner.fiber is fiber:
                token = holder
            if token is not None:
                resolved: T = token.value.resolve()
                return resolved
            if fiber.declares(key, label):
                raise ServiceUnavailableError(f"cannot get required service {key}: {fiber.name!r} is {fiber.state}")
            context = fiber.parent
        raise ServiceUnavailableError(
            f"cannot get service {key}: {self.owner.name!r} does not require it;"
            " declare it, or use get() when it is optional"
        )

    def get(self, key: ServiceKey[T]) -> T | None:
        """A service of this realm when its provider is active, whoever that is; else None."""
        token = self.kernel.services.get(key, self.label(key))
        return None if token is None else token.value.resolve()

    def provide(
        self, key: ServiceKey[T], value: T, check: Callable[[Context], bool] | None = None
    ) -> MountToken[Provision[Any]]:
        """Publish a service in this realm; see :class:`Provision` for ``check``.

        Raises :class:`ServiceConflictError` when the realm has a provider, :class:`ServiceTypeError` for a wrong value.
        """
        return self.mount(SERVICE, (self.label(key), key.name), Provision(key, value, check))

    def set(self, key: ServiceKey[T], value: T) -> None:
        """Replace the value of a service that this fiber provides, without telling anybody."""
        self.kernel.services.set(key, self.label(key), value, self.owner)

    def label(self, key: ServiceKey[Any]) -> str:
        """The realm in which this context resolves ``key``."""
        return self._labels.get(key.name, ROOT_REALM)

    def realm_of(self, key: ServiceKey[Any]) -> Realm:
        """The filter for a :class:`Target` that means everyone who resolves ``key`` as this context does."""
        return Realm(key, self.label(key))

    # -- mounts

    def mount(self, kind: MountKind[V], key: Hashable, value: V) -> MountToken[V]:
        """Publish ``value`` under ``key`` in this scope: at once, or when the start that it belongs to has succeeded.

        Raises :class:`MountConflictError` for a taken key, what the kind's owner refuses, and
        :class:`InactiveContextError`; a mount that raised has left nothing behind.
        """
        self.owner.check_open()
        token = self.kernel.mounts.reserve(kind, key, value, owner=self.owner, scope=self.scope_tag)
        try:
            self.owner.commit([token])
        except BaseException:
            token.withdraw("its installation failed")
            raise
        return token

    def mount_set(self) -> MountSet:
        """An async context manager that mounts what is added to it together, or not at all."""
        return MountSet(self.owner, self.scope_tag, self.kernel.mounts)

    def on(
        self,
        event: EventKey[P],
        listener: Callable[P, object],
        *,
        prepend: bool = False,
        everywhere: bool = False,
        once: bool = False,
    ) -> MountToken[Listener]:
        """Listen to an event.

        :param prepend: before the listeners that are there.
        :param everywhere: hear it whatever its target.
        :param once: withdraw before the first call.
        """
        return self.mount(LISTENER, event, Listener(listener, self, prepend=prepend, everywhere=everywhere, once=once))

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str) -> MountToken[asyncio.Task[Any]]:
        """Run a background task that is cancelled when its owner closes; a crash is the owner's failure."""
        try:
            self.owner.check_open()
        except BaseException:
            coro.close()
            raise
        inherited = contextvars.copy_context()
        inherited.run(current_context.set, self)
        task = confined_task(coro, name=f"{self.owner.name}: {name}", context=inherited)
        token = self.mount(TASK, name, task)
        token.own(task)
        task.add_done_callback(lambda ended: self.owner.task_ended(token, ended))
        return token

    def defer(self, cleanup: Cleanup, *, label: str = "") -> None:
        """Run a synchronous or asynchronous ``cleanup`` at teardown: in reverse order, after the mounts are gone."""
        self.owner.check_open()
        self.owner.push(label or getattr(cleanup, "__qualname__", "anonymous"), cleanup)

    # -- the tree

    def derive(self, *, scope: object | None = None) -> Context:
        """The same owner and realm, in another scope when one is given. Lifetime does not change."""
        return Context(self.kernel, self.owner, self._labels, self.scope_tag if scope is None else scope)

    def isolate(self, key: ServiceKey[Any], label: str | None = None) -> Context:
        """A context in which ``key`` resolves in a realm of its own, or in the one that ``label`` names."""
        realm = label if label is not None else f"~{next(_realms)}"
        return Context(self.kernel, self.owner, {**self._labels, key.name: realm}, self.scope_tag)

    def scope(self, tag: object, parent: object | None = None) -> Scope:
        """An owner of its own inside this one, whose mounts only ``tag`` and the scopes under it see.

        :param parent: another scope's tag to put it under. Raises :class:`ScopeLinkError` when ``tag`` has a parent.
        """
        self.owner.check_open()
        link = None if parent is None else self.kernel.scopes.bind(tag, parent)
        scope = Scope(self.owner, tag, link)
        scope.context = Context(self.kernel, scope, self._labels, tag)
        return scope

    def install(self, spec: FiberSpec) -> Fiber:
        """Start a child fiber, which dies with this owner. Await its ``settled()`` for the outcome."""
        if not callable(spec.start):
            raise TypeError(f"the start of {spec.name!r} must be callable, not {type(spec.start).__name__}")
        self.owner.check_open()
        fiber = Fiber(self.kernel, spec, self)
        fiber.launch()
        return fiber

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn`` with this context as :meth:`current`: what it registers there belongs to this owner."""
        inherited = contextvars.copy_context()
        inherited.run(current_context.set, self)
        return inherited.run(fn, *args, **kwargs)


class Realm:
    """Admits listeners whose context resolves a service in one realm; see :meth:`Context.realm_of`."""

    __slots__ = ("_key", "_label")

    def __init__(self, key: ServiceKey[Any], label: str) -> None:
        self._key = key
        self._label = label

    def admits(self, context: Context) -> bool:
        return context.label(self._key) == self._label


class Kernel:
    """The registries of one host. Everything runs on one event loop; nothing is thread-safe.

    :param strict: check the targets of scoped events; for development and tests.
    """

    def __init__(self, *, limits: Limits | None = None, strict: bool = False) -> None:
        self.limits = limits or Limits()
        self.scopes = ScopeTree()
        self.mounts = MountTable(self.scopes, self.limits)
        self.events = EventBus(self.mounts, self.scopes, strict=strict)
        self.services = ServiceRegistry(self.mounts, self.limits)
        self.mounts.on_changed = self.events.emitter(MOUNT_CHANGED)
        self.fiber_status = self.events.emitter(FIBER_STATUS)
        self.fibers: dict[int, Fiber] = {}
        self._uids = itertools.count()
        self._root = RootFiber(self)

    @property
    def root(self) -> Context:
        """The root context. It is another one after :meth:`aclose`."""
        return self._root.context

    async def aclose(self) -> None:
        """Unwind everything, last installed first, and wait for it. The kernel may be used again afterwards."""
        await self._root.dispose()

    def next_uid(self) -> int:
        return next(self._uids)

    def context_for(self, fiber: Fiber) -> Context:
        """The context of a fiber's present owner: realm and scope are those that it was installed in."""
        if fiber.parent is None:
            return Context(self, fiber.owner)
        return Context(self, fiber.owner, fiber.parent._labels, fiber.parent.scope_tag)
