"""Services: who sees which provider, what waits for it, and what happens when it comes, goes or is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, runtime_checkable

import pytest
from dependency_injector import providers

from polyhost.kernel import (
    MOUNT_CHANGED,
    Context,
    EventKey,
    Fiber,
    FiberSpec,
    FiberState,
    Kernel,
    Limits,
    MountKind,
    MountState,
    ServiceKey,
)
from polyhost.kernel.errors import ServiceConflictError, ServiceTypeError, ServiceUnavailableError

FOO: ServiceKey[Any] = ServiceKey("foo")
BAR: ServiceKey[Any] = ServiceKey("bar")
QUX: ServiceKey[Any] = ServiceKey("qux")
NOTED: EventKey[[int]] = EventKey("test/noted")
TOOL: MountKind[str] = MountKind("tool")


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel(limits=Limits(abort_grace=0.01, cancel_grace=0.05, dependants_grace=0.2))
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []
    assert not any(slot.overridden for slot in kernel.services._slots.values())
    assert kernel.services._watchers == {}


class Consumer:
    """A plugin that notes each run with the value it got, and each end."""

    def __init__(self, *keys: ServiceKey[Any]) -> None:
        self.keys = keys
        self.log: list[Any] = []
        self.release = asyncio.Event()
        self.release.set()
        self.started = asyncio.Event()

    async def start(self, context: Context, config: object) -> AsyncIterator[None]:
        self.log.append(tuple(context.require(key) for key in self.keys))
        context.on(NOTED, self.log.append)
        context.mount(TOOL, f"tool of {context.fiber.name}", "x")
        self.started.set()
        await self.release.wait()
        yield
        self.log.append(("end", *(context.require(key) for key in self.keys)))

    def install(self, context: Context, name: str = "consumer") -> Fiber:
        return context.install(FiberSpec(name, self.start, self.keys))


def provider(key: ServiceKey[Any], value: object, before: Callable[[], Any] | None = None) -> FiberSpec:
    async def start(context: Context, config: object) -> None:
        if before is not None:
            await before()
        context.provide(key, value)

    return FiberSpec(f"{key} provider", start)


@pytest.mark.contract("SVC-1")
async def test_a_dependant_starts_when_its_providers_start_has_finished(kernel: Kernel) -> None:
    release = asyncio.Event()
    consumer = Consumer(FOO)
    fiber = consumer.install(kernel.root)

    async def start(context: Context, config: object) -> None:
        context.provide(FOO, 1)
        assert context.require(FOO) == 1
        await release.wait()

    providing = kernel.root.install(FiberSpec("provider", start))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (fiber.state, providing.state) == (FiberState.PENDING, FiberState.LOADING)
    assert kernel.root.get(FOO) is None
    release.set()
    await providing.settled()
    await fiber.settled()
    assert consumer.log == [(1,)]


@pytest.mark.contract("SVC-2")
async def test_a_chain_starts_each_plugin_once(kernel: Kernel) -> None:
    started: list[str] = []

    def link(name: str, provides: ServiceKey[Any], *requires: ServiceKey[Any]) -> Fiber:
        def start(context: Context, config: object) -> None:
            started.append(name)
            context.provide(provides, name)

        return kernel.root.install(FiberSpec(name, start, requires))

    bar = link("bar", BAR, FOO, QUX)
    foo = link("foo", FOO, QUX)
    assert (await bar.settled()).state is FiberState.PENDING
    qux = link("qux", QUX)
    for fiber in (qux, foo, bar):
        await fiber.settled()
    assert started == ["qux", "foo", "bar"]


@pytest.mark.contract("SVC-3")
async def test_a_service_plugin_leaves_the_listener_table_as_it_was(kernel: Kernel) -> None:
    before = kernel.events.listeners(NOTED)

    def start(context: Context, config: object) -> None:
        context.provide(FOO, 1)
        context.on(NOTED, lambda value: None)

    for _ in range(2):
        fiber = await kernel.root.install(FiberSpec("provider", start)).settled()
        assert len(kernel.events.listeners(NOTED)) == 1
        await fiber.dispose()
        assert kernel.events.listeners(NOTED) == before


@pytest.mark.contract("SVC-4")
async def test_a_part_of_a_plugin_may_wait_for_a_service_of_its_own(kernel: Kernel) -> None:
    part = Consumer(FOO)

    def start(context: Context, config: object) -> None:
        part.install(context, "part")

    whole = await kernel.root.install(FiberSpec("whole", start)).settled()
    assert (whole.state, part.log) == (FiberState.ACTIVE, [])
    providing = await kernel.root.install(provider(FOO, 1)).settled()
    await part.started.wait()
    await providing.dispose()
    assert part.log == [(1,), ("end", 1)]
    assert whole.state is FiberState.ACTIVE


class TestComingAndGoing:
    @pytest.mark.contract("SVC-5")
    async def test_a_consumer_before_its_provider_parks_and_says_what_it_misses(self, kernel: Kernel) -> None:
        consumer = Consumer(FOO, BAR)
        kernel.root.provide(BAR, 2)
        fiber = await consumer.install(kernel.root).settled()
        assert (fiber.state, fiber.missing) == (FiberState.PENDING, (FOO,))
        await kernel.root.install(provider(FOO, 1)).settled()
        await fiber.settled()
        assert (fiber.state, fiber.missing, consumer.log) == (FiberState.ACTIVE, (), [(1, 2)])

    @pytest.mark.contract("SVC-6", "SVC-14", "FIB-9")
    async def test_stopping_the_provider_unwinds_the_consumer_first(self, kernel: Kernel) -> None:
        consumer = Consumer(FOO)
        fiber = consumer.install(kernel.root)
        providing = await kernel.root.install(provider(FOO, 1)).settled()
        await fiber.settled()
        await providing.dispose()
        assert fiber.state is FiberState.PENDING
        assert consumer.log == [(1,), ("end", 1)]
        assert kernel.events.listeners(NOTED) == ()
        assert kernel.mounts.items(TOOL) == ()
        await kernel.root.install(provider(FOO, 2)).settled()
        await fiber.settled()
        assert consumer.log == [(1,), ("end", 1), (2,)]

    @pytest.mark.contract("SVC-7", "SVC-10")
    async def test_stopping_the_consumer_leaves_the_provider_and_nothing_of_itself(self, kernel: Kernel) -> None:
        providing = await kernel.root.install(provider(FOO, 1)).settled()
        consumer = Consumer(FOO)
        fiber = await consumer.install(kernel.root).settled()
        await fiber.dispose()
        assert kernel.events.listeners(NOTED) == ()
        assert kernel.mounts.items(TOOL) == ()
        assert (providing.state, kernel.root.get(FOO)) == (FiberState.ACTIVE, 1)

    @pytest.mark.contract("SVC-8")
    async def test_a_second_provider_fails_and_the_first_keeps_the_service(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        await kernel.root.install(provider(FOO, "first")).settled()
        second = kernel.root.install(provider(FOO, "second"))
        with pytest.raises(ServiceConflictError, match="foo provider"):
            await second.settled()
        assert second.state is FiberState.FAILED
        assert kernel.root.get(FOO) == "first"

    @pytest.mark.contract("SVC-14")
    async def test_a_withdrawal_settles_after_the_dependants_have_unloaded(self, kernel: Kernel) -> None:
        token = kernel.root.provide(FOO, 1)
        release = asyncio.Event()
        seen: list[Any] = []

        def start(context: Context, config: object) -> None:
            async def cleanup() -> None:
                await release.wait()
                seen.append(context.require(FOO))

            context.defer(cleanup)

        fiber = await kernel.root.install(FiberSpec("slow", start, (FOO,))).settled()
        ending = asyncio.ensure_future(wait(token.withdraw()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (fiber.state, ending.done()) == (FiberState.UNLOADING, False)
        assert kernel.root.get(FOO) is None
        with pytest.raises(ServiceConflictError, match="withdrawing"):
            kernel.root.provide(FOO, 2)
        release.set()
        await ending
        assert (fiber.state, seen) == (FiberState.PENDING, [1])

    async def test_a_provider_keeps_its_resources_until_its_dependants_have_ended(self, kernel: Kernel) -> None:
        order: list[str] = []

        async def start(context: Context, config: object) -> AsyncIterator[None]:
            context.defer(lambda: order.append("resource 1"))
            context.provide(FOO, 1)
            context.defer(lambda: order.append("resource 2"))
            yield
            order.append("provider")

        def depend(context: Context, config: object) -> None:
            context.defer(lambda: order.append("dependant"))

        providing = await kernel.root.install(FiberSpec("provider", start)).settled()
        await kernel.root.install(FiberSpec("dependant", depend, (FOO,))).settled()
        await providing.dispose()
        assert order == ["dependant", "provider", "resource 2", "resource 1"]

    async def test_a_dependant_that_never_leaves_is_named_and_left(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        token = kernel.root.provide(FOO, 1)
        consumer = Consumer(FOO)
        consumer.release.clear()
        fiber = consumer.install(kernel.root, "stubborn")
        await consumer.started.wait()
        await token.withdraw()
        assert "stubborn still uses it" in caplog.text
        kernel.root.provide(FOO, 2)
        consumer.release.set()
        await fiber.settled()
        assert consumer.log == [(1,), ("end", 1), (2,)]


class TestReplacement:
    @pytest.mark.parametrize("phase", ["before", "starting", "running", "stopping"])
    async def test_a_consumer_ends_up_with_the_new_provider(self, kernel: Kernel, phase: str) -> None:
        consumer = Consumer(FOO)
        first = await kernel.root.install(provider(FOO, "old")).settled()
        fiber: Fiber | None = None
        if phase != "before":
            if phase == "starting":
                consumer.release.clear()
            fiber = consumer.install(kernel.root)
            await consumer.started.wait()
        if phase == "stopping":
            await fiber.settled()  # type: ignore[union-attr]
            asyncio.get_running_loop().create_task(wait(fiber.restart()), name="restart")  # type: ignore[union-attr]
            await asyncio.sleep(0)
        ending = asyncio.ensure_future(wait(first.dispose()))
        await asyncio.sleep(0)
        consumer.release.set()
        await ending
        await kernel.root.install(provider(FOO, "new")).settled()
        fiber = fiber or consumer.install(kernel.root)
        await fiber.settled()
        assert consumer.log[-1] == ("new",)
        assert fiber.state is FiberState.ACTIVE

    async def test_another_object_from_the_same_fiber_is_a_replacement(self, kernel: Kernel) -> None:
        """What counts is the implementation, not who provides it."""
        available = [True]
        token = kernel.root.provide(FOO, "old", check=lambda context: available[0])
        consumer = Consumer(FOO)
        consumer.release.clear()
        fiber = consumer.install(kernel.root)
        await consumer.started.wait()
        available[0] = False
        kernel.services.recheck(FOO)
        kernel.root.set(FOO, "new")
        available[0] = True
        kernel.services.recheck(FOO)
        consumer.release.set()
        await fiber.settled()
        assert token.active
        assert (fiber.state, consumer.log) == (FiberState.ACTIVE, [("old",)])
        assert fiber.context.require(FOO) == "new"


@pytest.mark.contract("SVC-9")
@pytest.mark.parametrize("value", [None, 0, "", False])
async def test_any_value_is_a_service(kernel: Kernel, value: object) -> None:
    kernel.root.provide(FOO, value)
    consumer = Consumer(FOO)
    fiber = await consumer.install(kernel.root).settled()
    assert consumer.log == [(value,)]
    assert fiber.context.get(FOO) == value


class TestChecks:
    @pytest.mark.contract("SVC-11")
    async def test_a_check_holds_dependants_back(self, kernel: Kernel) -> None:
        admitted: set[str] = set()
        asked: list[str] = []

        def check(context: Context) -> bool:
            asked.append(context.fiber.name)
            return context.fiber.name in admitted

        kernel.root.provide(FOO, 1, check=check)
        first, second = Consumer(FOO).install(kernel.root, "first"), Consumer(FOO).install(kernel.root, "second")
        assert (first.state, second.state) == (FiberState.PENDING, FiberState.PENDING)
        admitted.add("second")
        kernel.services.recheck(FOO)
        await second.settled()
        assert (first.state, second.state) == (FiberState.PENDING, FiberState.ACTIVE)
        admitted.clear()
        kernel.services.recheck(FOO)
        await second.settled()
        assert (first.missing, second.state) == ((FOO,), FiberState.PENDING)
        assert set(asked) == {"first", "second"}

    @pytest.mark.contract("SVC-12")
    async def test_a_failing_check_means_no(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        def start(context: Context, config: object) -> None:
            context.provide(FOO, 1, check=lambda context: 1 / 0 > 1)

        await kernel.root.install(FiberSpec("careless", start)).settled()
        fiber = await Consumer(FOO).install(kernel.root).settled()
        assert fiber.state is FiberState.PENDING
        assert {record.name for record in caplog.records} == {"polyhost.careless"}


@pytest.mark.contract("SVC-13")
async def test_only_the_provider_may_set_its_value_and_nobody_restarts(kernel: Kernel) -> None:
    contexts: list[Context] = []

    def start(context: Context, config: object) -> None:
        contexts.append(context)
        context.provide(FOO, 1)
        context.set(FOO, 2)

    await kernel.root.install(FiberSpec("provider", start)).settled()
    consumer = Consumer(FOO)
    fiber = await consumer.install(kernel.root).settled()
    contexts[0].set(FOO, 3)
    assert (kernel.root.get(FOO), fiber.context.require(FOO), consumer.log) == (3, 3, [(2,)])
    with pytest.raises(ServiceConflictError, match="'provider'"):
        kernel.root.set(FOO, 4)
    with pytest.raises(ServiceUnavailableError):
        kernel.root.set(BAR, 4)


class TestTypes:
    async def test_an_implementation_must_be_an_instance_of_the_interface(self, kernel: Kernel) -> None:
        @runtime_checkable
        class Store(Protocol):
            def load(self) -> str: ...

        class Disk:
            def load(self) -> str:
                return "data"

        key = ServiceKey("store", Store)
        assert key == ServiceKey("store")
        with pytest.raises(ServiceTypeError, match=r"store must be an instance of .*Store, not int"):
            kernel.root.provide(key, 1)  # type: ignore[arg-type]
        kernel.root.provide(key, Disk())
        with pytest.raises(ServiceTypeError):
            kernel.root.set(key, "no store")  # type: ignore[arg-type]


class TestReading:
    @pytest.mark.contract("CTX-18")
    async def test_a_siblings_service_must_be_declared_or_asked_for(self, kernel: Kernel) -> None:
        providing = await kernel.root.install(provider(FOO, 1)).settled()
        other = await kernel.root.install(FiberSpec("other", lambda context, config: None)).settled()
        with pytest.raises(ServiceUnavailableError, match="does not require it"):
            other.context.require(FOO)
        assert other.context.get(FOO) == 1
        await providing.dispose()
        assert other.context.get(FOO) is None

    async def test_ancestors_services_are_there_without_declaration(self, kernel: Kernel) -> None:
        seen: list[Any] = []
        kernel.root.provide(FOO, "of the root")
        kernel.root.provide(QUX, "of a sibling")

        def parent(context: Context, config: object) -> None:
            context.provide(BAR, "of the parent")
            context.install(FiberSpec("child", child))

        def child(context: Context, config: object) -> None:
            seen.extend(context.require(key) for key in (FOO, BAR, QUX))

        await kernel.root.install(FiberSpec("parent", parent, (QUX,))).settled()
        for fiber in list(kernel.fibers.values()):  # the parent has installed the child by now
            await fiber.settled()
        assert seen == ["of the root", "of the parent", "of a sibling"]

    async def test_isolation_hides_what_an_ancestor_provides_elsewhere(self, kernel: Kernel) -> None:
        kernel.root.provide(FOO, 1)
        isolated = kernel.root.isolate(FOO)
        with pytest.raises(ServiceUnavailableError):
            isolated.require(FOO)
        fiber = await isolated.install(FiberSpec("inside", lambda context, config: None)).settled()
        with pytest.raises(ServiceUnavailableError):
            fiber.context.require(FOO)

    async def test_isolation_hides_what_an_ancestor_requires_elsewhere(self, kernel: Kernel) -> None:
        kernel.root.provide(FOO, 1)
        refused: list[bool] = []

        def child(context: Context, config: object) -> None:
            with pytest.raises(ServiceUnavailableError, match="does not require it"):
                context.require(FOO)
            refused.append(True)

        def parent(context: Context, config: object) -> None:
            assert context.require(FOO) == 1
            context.isolate(FOO).install(FiberSpec("child", child))

        await kernel.root.install(FiberSpec("parent", parent, (FOO,))).settled()
        for fiber in list(kernel.fibers.values()):
            await fiber.settled()
        assert refused == [True]

    @pytest.mark.contract("CTX-6")
    async def test_a_retained_context_of_a_stopped_dependant_is_inactive(self, kernel: Kernel) -> None:
        contexts: list[Context] = []
        token = kernel.root.provide(FOO, 1)
        fiber = kernel.root.install(FiberSpec("user", lambda context, _: contexts.append(context), (FOO,)))
        await fiber.settled()
        await token.withdraw()
        with pytest.raises(ServiceUnavailableError, match="inactive context"):
            contexts[0].require(FOO)
        with pytest.raises(ServiceUnavailableError, match="is pending"):
            fiber.context.require(FOO)
        kernel.root.provide(FOO, 2)
        await fiber.settled()
        with pytest.raises(ServiceUnavailableError):
            contexts[0].require(FOO)

    @pytest.mark.contract("CTX-17")
    async def test_what_a_service_registers_belongs_to_the_context_it_is_called_for(self, kernel: Kernel) -> None:
        class Registrar:
            def register(self, value: str) -> None:
                context = Context.current()
                assert context is not None
                context.mount(TOOL, value, "x")

        kernel.root.provide(FOO, Registrar())

        def start(context: Context, config: object) -> None:
            registrar = context.require(FOO)
            registrar.register("mine")
            kernel.root.run(registrar.register, "root's")

        fiber = await kernel.root.install(FiberSpec("user", start, (FOO,))).settled()
        assert {key for key, _ in kernel.mounts.items(TOOL)} == {"mine", "root's"}
        await fiber.dispose()
        assert {key for key, _ in kernel.mounts.items(TOOL)} == {"root's"}


class TestRealms:
    @pytest.mark.contract("CTX-9")
    async def test_isolated_contexts_are_independent(self, kernel: Kernel) -> None:
        contexts = [kernel.root, kernel.root.isolate(FOO), kernel.root.isolate(FOO)]
        fibers = [Consumer(FOO).install(context, f"user {n}") for n, context in enumerate(contexts)]

        async def states() -> list[bool]:
            for fiber in fibers:
                await fiber.settled()
            return [fiber.state is FiberState.ACTIVE for fiber in fibers]

        first = contexts[1].provide(FOO, 1)
        assert await states() == [False, True, False]
        contexts[0].provide(FOO, 0)
        assert await states() == [True, True, False]
        await first.withdraw()
        assert await states() == [True, False, False]
        assert [context.get(FOO) for context in contexts] == [0, None, None]

    @pytest.mark.contract("CTX-10")
    async def test_isolations_with_one_label_share_a_realm(self, kernel: Kernel) -> None:
        first, second = kernel.root.isolate(FOO, "shared"), kernel.root.isolate(FOO, "shared")
        contexts = (kernel.root, first, second)
        fibers = [Consumer(FOO).install(context, f"user {n}") for n, context in enumerate(contexts)]
        token = first.provide(FOO, 1)
        for fiber in fibers:
            await fiber.settled()
        assert [fiber.state.value for fiber in fibers] == ["pending", "active", "active"]
        await token.withdraw()
        assert [fiber.state.value for fiber in fibers] == ["pending", "pending", "pending"]

    async def test_a_private_realm_leaves_no_slot(self, kernel: Kernel) -> None:
        for _ in range(3):
            context = kernel.root.isolate(FOO)
            fiber = Consumer(FOO).install(context)
            token = context.provide(FOO, 1)
            await fiber.settled()
            await token.withdraw()
            await fiber.dispose()
        assert [name for name in kernel.services.container.providers if name.startswith("svc:~")] == []


class TestSlots:
    async def test_a_slot_is_stable_and_defined_while_provided(self, kernel: Kernel) -> None:
        slot = kernel.services.slot(FOO)
        assert kernel.services.container.providers["svc:root:foo"] is slot
        assert not slot.is_defined
        token = kernel.root.provide(FOO, 1)
        assert slot() == 1
        await token.withdraw()
        assert not slot.is_defined
        assert kernel.services.slot(FOO) is slot

    async def test_a_name_of_the_container_is_an_ordinary_service_name(self, kernel: Kernel) -> None:
        key: ServiceKey[int] = ServiceKey("override")
        kernel.root.provide(key, 1)
        assert kernel.root.get(key) == 1
        assert callable(kernel.services.container.override)

    async def test_an_override_made_by_a_test_stays_on_top(self, kernel: Kernel) -> None:
        slot = kernel.services.slot(FOO)
        token = kernel.root.provide(FOO, "real")
        fake = providers.Object("fake")
        slot.override(fake)
        assert kernel.root.get(FOO) == "fake"
        await token.withdraw()
        assert (slot(), kernel.root.get(FOO)) == ("fake", None)
        kernel.root.provide(FOO, "second")
        assert kernel.root.get(FOO) == "fake"
        slot.reset_last_overriding()
        assert kernel.root.get(FOO) == "second"

    async def test_publication_and_withdrawal_are_announced_as_mounts(self, kernel: Kernel) -> None:
        seen: list[tuple[Any, MountState]] = []
        kernel.root.on(MOUNT_CHANGED, lambda token, old, new: seen.append((token.key, new)))
        seen.clear()
        await kernel.root.provide(FOO, 1).withdraw()
        assert seen == [(("root", "foo"), state) for state in ("active", "withdrawing", "withdrawn")]


async def wait(ending: Any) -> None:
    await ending
