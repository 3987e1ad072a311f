"""Services: typed objects that plugins publish for each other, one per key and realm.

They stand on a dependency-injector container: a ``Dependency`` provider is the stable slot of one (realm label, name)
and an ``Object`` override is what is published in it. Publications are mounts of kind :data:`SERVICE`; the registry
wakes the fibers that require a key whenever its availability changes. Consumers resolve once, when they start.

Only settled objects are published, never factories or coroutines: a slot that was once used asynchronously would hand
out futures for ever.

Not here: realms (``Context.isolate``), and what a fiber does when a requirement comes or goes (``fibers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from dependency_injector import containers, providers

from polyhost.kernel.containment import confined
from polyhost.kernel.drain import Limits
from polyhost.kernel.errors import ServiceConflictError, ServiceTypeError, ServiceUnavailableError
from polyhost.kernel.keys import MountKind, ServiceKey
from polyhost.kernel.mounts import KindHandler, MountTable
from polyhost.kernel.tokens import MountToken

if TYPE_CHECKING:
    from polyhost.kernel.context import Context
    from polyhost.kernel.fibers import Fiber
    from polyhost.kernel.scopes import Owner

T = TypeVar("T")
Slot = tuple[str, str]
"""A realm label and a service name."""

ROOT_REALM = "root"


class Provision(Generic[T]):
    """The value of a :data:`SERVICE` mount: the implementation, and who uses it.

    :param check: says whether the service is available to the dependant with the given context; a failing check is
        logged and means no. Call :meth:`ServiceRegistry.recheck` when its answer may have changed.
    """

    __slots__ = ("check", "key", "override", "released", "slot", "users")

    def __init__(self, key: ServiceKey[T], value: T, check: Callable[[Context], bool] | None = None) -> None:
        self.key = key
        self.check = check
        self.override: providers.Object[T] = providers.Object(value)
        self.slot: providers.Dependency[T] | None = None  # while it is installed
        self.users: dict[Fiber, None] = {}
        self.released: asyncio.Future[None] | None = None

    @property
    def implementation(self) -> T:
        """What was published."""
        return self.override()

    def resolve(self) -> T:
        """What a consumer gets: the implementation, unless a test has put an override of its own on the slot."""
        return self.implementation if self.slot is None else self.slot()

    def release(self, fiber: Fiber) -> None:
        """``fiber`` no longer uses the service."""
        self.users.pop(fiber, None)
        if not self.users and self.released is not None and not self.released.done():
            self.released.set_result(None)


ServiceToken = MountToken[Provision[Any]]
SERVICE: MountKind[Provision[Any]] = MountKind("service", scoped=False)
"""Services; a mount's key is ``(realm label, service name)``. :meth:`Context.provide` is the short form."""


def interchangeable(one: ServiceToken, other: ServiceToken) -> bool:
    """Whether a consumer of one publication may go on with the other: the same object from the same fiber."""
    return one is other or (
        one.value.implementation is other.value.implementation and one.owner.fiber is other.owner.fiber
    )


class ServiceRegistry:
    """The services of one host: slots, publications, and the fibers that wait for them."""

    def __init__(self, mounts: MountTable, limits: Limits) -> None:
        self.container = containers.DynamicContainer()
        self._mounts = mounts
        self._slots: dict[Slot, providers.Dependency[Any]] = {}
        self._watchers: dict[Slot, dict[Fiber, None]] = {}
        mounts.handle(SERVICE, _ServiceHandler(self, limits))

    def slot(self, key: ServiceKey[T], label: str = ROOT_REALM) -> providers.Dependency[T]:
        """The stable provider of a service: undefined while nobody provides it. Tests may override it.

        Slots of private realms last only while something uses them.
        """
        where = (label, key.name)
        slot = self._slots.get(where)
        if slot is None:
            slot = self._slots[where] = providers.Dependency(instance_of=object)
            # The prefix keeps a service name from replacing a method of the container.
            self.container.set_provider(f"svc:{label}:{key.name}", slot)
        return slot

    def holder(self, key: ServiceKey[Any], label: str = ROOT_REALM) -> ServiceToken | None:
        """The publication in a slot, in whatever state: for its own fiber, and for cleanups of its users."""
        return self._mounts.holder(SERVICE, (label, key.name))

    def get(self, key: ServiceKey[Any], label: str = ROOT_REALM) -> ServiceToken | None:
        """The publication in a slot when its provider is active."""
        return self._mounts.token(SERVICE, (label, key.name))

    def available(self, key: ServiceKey[Any], context: Context) -> ServiceToken | None:
        """Like :meth:`get`, for a dependant: the publication's check has its say."""
        token = self.get(key, context.label(key))
        if token is None or token.value.check is None:
            return token
        try:
            with confined:
                return token if token.value.check(context) else None
        except Exception:
            token.owner.logger.exception("availability check of service %s failed", key)
            return None

    def recheck(self, key: ServiceKey[Any], label: str = ROOT_REALM) -> None:
        """The availability of a service may have changed: let its dependants look again."""
        for fiber in list(self._watchers.get((label, key.name), ())):
            fiber.evaluate()

    def watch(self, key: ServiceKey[Any], label: str, fiber: Fiber) -> None:
        """Call ``fiber.evaluate()`` whenever the service comes, goes or is rechecked."""
        self._watchers.setdefault((label, key.name), {})[fiber] = None

    def unwatch(self, key: ServiceKey[Any], label: str, fiber: Fiber) -> None:
        """Undo :meth:`watch`."""
        watchers = self._watchers.get((label, key.name), {})
        watchers.pop(fiber, None)
        if not watchers:
            self._watchers.pop((label, key.name), None)
            if self.holder(key, label) is None:
                self.drop_slot((label, key.name))

    def set(self, key: ServiceKey[T], label: str, value: T, owner: Owner) -> None:
        """Change the published object in place; nobody is restarted or told.

        Raises :class:`ServiceUnavailableError` when nothing is published and :class:`ServiceConflictError` when
        another fiber published it.
        """
        token = self.holder(key, label)
        if token is None:
            raise ServiceUnavailableError(f"cannot set service {key}: {owner.name!r} has not provided it")
        if token.owner.fiber is not owner.fiber:
            raise ServiceConflictError(
                f"cannot set service {key} from {owner.name!r}: it is provided by {token.owner.name!r}"
            )
        _check_type(key, value)
        provision = token.value
        old, provision.override = provision.override, providers.Object(value)
        if provision.slot is not None:
            stack = [provision.override if item is old else item for item in provision.slot.overridden]
            _restack(provision.slot, stack)

    def drop_slot(self, where: Slot) -> None:
        """Forget the slot of a private realm that nobody provides, awaits or overrides: realms come and go."""
        slot = self._slots.get(where)
        if slot is not None and where[0] != ROOT_REALM and where not in self._watchers and not slot.overridden:
            del self._slots[where]
            delattr(self.container, f"svc:{where[0]}:{where[1]}")


class _ServiceHandler(KindHandler[Provision[Any]]):
    """Publishes on commit; withdraws by identity, after the dependants have unloaded."""

    def __init__(self, registry: ServiceRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits

    def validate(self, key: Hashable, value: Provision[Any]) -> None:
        _check_type(value.key, value.implementation)

    def conflict(self, key: Hashable, holder: ServiceToken, owner: Owner) -> Exception:
        return ServiceConflictError(
            f"service {holder.value.key} cannot be provided by {owner.name!r}: it is provided by {holder.owner.name!r}"
            f" ({holder.state}); disable one of the two or isolate the service"
        )

    def install(self, token: ServiceToken) -> None:
        slot = token.value.slot = self._registry.slot(token.value.key, _label(token))
        _restack(slot, [token.value.override, *slot.overridden])

    def announce(self, token: ServiceToken) -> None:
        self._registry.recheck(token.value.key, _label(token))

    async def drain(self, token: ServiceToken) -> None:
        provision = token.value
        if not provision.users:
            return
        provision.released = asyncio.get_running_loop().create_future()
        await asyncio.wait({provision.released}, timeout=self._limits.dependants_grace)
        if provision.users:
            names = ", ".join(fiber.name for fiber in provision.users)
            token.owner.logger.error("service %s is removed while %s still uses it", provision.key, names)

    def uninstall(self, token: ServiceToken) -> None:
        slot, token.value.slot = token.value.slot, None
        assert slot is not None
        _restack(slot, [item for item in slot.overridden if item is not token.value.override])
        self._registry.drop_slot((_label(token), token.value.key.name))


def _label(token: ServiceToken) -> str:
    label, _ = cast("Slot", token.key)
    return label


def _check_type(key: ServiceKey[Any], value: object) -> None:
    if key.interface is not None and not isinstance(value, key.interface):
        raise ServiceTypeError(
            f"service {key} must be an instance of {key.interface.__qualname__}, not {type(value).__qualname__}"
        )


def _restack(slot: providers.Dependency[Any], stack: list[providers.Provider[Any]]) -> None:
    """Replace a slot's overrides, bottom first. Ours goes below, so that an override made by a test stays on top."""
    with providers.Provider.overriding_lock:  # type: ignore[attr-defined]  # missing in the stubs
        slot.reset_override()
        for provider in stack:
            slot.override(provider)
