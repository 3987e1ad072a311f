"""Fibers: the state machine, start-up and teardown in every order, and what an owner runs when it closes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from polyhost.kernel import (
    FIBER_CREATED,
    FIBER_DISPOSED,
    FIBER_STATUS,
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
    MountToken,
    ServiceKey,
)
from polyhost.kernel.errors import InactiveContextError

FOO: ServiceKey[Any] = ServiceKey("foo")
BAR: ServiceKey[Any] = ServiceKey("bar")
NOTED: EventKey[[int]] = EventKey("test/noted")
TOOL: MountKind[str] = MountKind("tool")
PENDING, LOADING, ACTIVE = FiberState.PENDING, FiberState.LOADING, FiberState.ACTIVE
FAILED, UNLOADING, DISPOSED = FiberState.FAILED, FiberState.UNLOADING, FiberState.DISPOSED


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel(limits=Limits(start_grace=0.02, abort_grace=0.01, cancel_grace=0.05, cleanup_grace=0.1))
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []
    assert kernel.fibers == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Statuses:
    """The states that fibers go through, as announced."""

    def __init__(self, kernel: Kernel) -> None:
        self.paths: dict[Fiber, list[str]] = {}
        kernel.root.on(FIBER_STATUS, self.note)

    def note(self, fiber: Fiber, previous: FiberState) -> None:
        path = self.paths.setdefault(fiber, [previous.value])
        assert path[-1] == previous
        path.append(fiber.state.value)

    def of(self, fiber: Fiber) -> str:
        return " ".join(self.paths.get(fiber, []))


class Gate:
    """A start that waits for the test, and counts."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0
        self.cleanups = 0
        self.cleaning = asyncio.Event()
        self.clean = asyncio.Event()
        self.clean.set()

    async def start(self, context: Context, config: object) -> AsyncIterator[None]:
        self.runs += 1
        self.entered.set()
        await self.open.wait()
        yield
        self.cleaning.set()
        await self.clean.wait()
        self.cleanups += 1


def nothing(context: Context, config: object) -> None:
    pass


class TestForms:
    @pytest.mark.contract("FIB-1")
    async def test_functions_get_context_and_config_once(self, kernel: Kernel) -> None:
        calls: list[tuple[Context, object]] = []

        async def coroutine(context: Context, config: object) -> None:
            calls.append((context, config))

        for start in (lambda context, config: calls.append((context, config)), coroutine):
            fiber = await kernel.root.install(FiberSpec("plugin", start, (), lambda: {"a": 1})).settled()
            assert calls.pop() == (fiber.context, {"a": 1})
            assert calls == []

    @pytest.mark.contract("FIB-6", "EFF-4")
    async def test_generator_and_context_manager_start_and_end_once(self, kernel: Kernel) -> None:
        order: list[str] = []

        async def generator(context: Context, config: object) -> AsyncIterator[None]:
            order.append("up")
            yield
            order.append("down")

        @contextlib.asynccontextmanager
        async def manager(context: Context, config: object) -> AsyncIterator[None]:
            order.append("enter")
            yield
            order.append("exit")

        for start, expected in ((generator, ["up", "down"]), (manager, ["enter", "exit"])):
            order.clear()
            fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
            assert order == expected[:1]
            await fiber.dispose()
            await fiber.dispose()
            assert order == expected

    @pytest.mark.contract("FIB-2")
    @pytest.mark.parametrize("start", [None, object(), "start"])
    async def test_what_cannot_be_called_is_refused_at_once(self, kernel: Kernel, start: Any) -> None:
        with pytest.raises(TypeError, match="must be callable"):
            kernel.root.install(FiberSpec("plugin", start))
        assert kernel.fibers == {}

    @pytest.mark.parametrize("result", [1, "no"])
    async def test_another_result_fails_the_start(self, kernel: Kernel, result: Any) -> None:
        fiber = kernel.root.install(FiberSpec("plugin", lambda context, config: result))
        with pytest.raises(TypeError, match="must return None"):
            await fiber.settled()

    async def test_a_generator_yields_exactly_once(self, kernel: Kernel) -> None:
        async def never(context: Context, config: object) -> AsyncIterator[None]:
            for _ in ():
                yield

        async def twice(context: Context, config: object) -> AsyncIterator[None]:
            yield
            yield

        with pytest.raises(TypeError, match="must yield once"):
            await kernel.root.install(FiberSpec("never", never)).settled()
        fiber = await kernel.root.install(FiberSpec("twice", twice)).settled()
        await fiber.dispose()
        assert "only once" in str(fiber.teardown_errors)


class TestStateMachine:
    @pytest.mark.contract("FIB-7")
    async def test_a_requirement_lost_during_a_start_and_back_during_unloading(self, kernel: Kernel) -> None:
        statuses = Statuses(kernel)
        gate = Gate()
        gate.clean.clear()
        available = Switch(kernel)
        fiber = kernel.root.install(FiberSpec("slow", gate.start, (FOO,)))
        await gate.entered.wait()
        available(False)
        await asyncio.sleep(0)
        assert fiber.state is LOADING
        gate.open.set()
        await gate.cleaning.wait()
        assert fiber.state is UNLOADING
        available(True)
        assert fiber.state is UNLOADING
        gate.clean.set()
        await fiber.settled()
        assert statuses.of(fiber) == "pending loading unloading loading active"
        assert gate.runs == 2

    @pytest.mark.contract("FIB-8")
    async def test_a_requirement_lost_and_back_during_a_start_changes_nothing(self, kernel: Kernel) -> None:
        statuses = Statuses(kernel)
        gate = Gate()
        available = Switch(kernel)
        fiber = kernel.root.install(FiberSpec("slow", gate.start, (FOO,)))
        await gate.entered.wait()
        available(False)
        await asyncio.sleep(0)
        available(True)
        gate.open.set()
        await fiber.settled()
        assert statuses.of(fiber) == "pending loading active"
        assert gate.runs == 1

    @pytest.mark.contract("FIB-10")
    async def test_a_failed_start_leaves_nothing_and_touches_no_other_instance(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        def start(context: Context, config: Any) -> None:
            context.on(NOTED, lambda value: None)
            if config:
                raise ValueError("broken")

        good = await kernel.root.install(FiberSpec("plugin", start, (), lambda: False)).settled()
        bad = kernel.root.install(FiberSpec("plugin", start, (), lambda: True))
        with pytest.raises(ValueError, match="broken"):
            await bad.settled()
        assert (good.state, bad.state) == (ACTIVE, FAILED)
        assert len(kernel.events.listeners(NOTED)) == 1
        assert len(caplog.records) == 1

    @pytest.mark.contract("FIB-11")
    async def test_a_failing_cleanup_is_logged_once_and_disposal_succeeds(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        def start(context: Context, config: object) -> None:
            context.defer(fail)

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        await fiber.dispose()
        assert fiber.state is DISPOSED
        assert len(caplog.records) == 1
        assert [str(error) for error in fiber.teardown_errors] == ["broken"]

    @pytest.mark.contract("FIB-12")
    async def test_the_path_of_a_failing_start(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        statuses = Statuses(kernel)
        fiber = kernel.root.install(FiberSpec("failing", lambda context, config: fail()))
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        path = "pending loading unloading failed"
        assert statuses.of(fiber) == path
        with pytest.raises(ValueError, match="broken"):
            await fiber.restart()
        path += " loading unloading failed"
        assert statuses.of(fiber) == path
        await fiber.dispose()
        assert statuses.of(fiber) == path + " unloading disposed"

    @pytest.mark.contract("FIB-13")
    async def test_a_failed_fiber_is_tried_again_when_its_requirement_comes_back(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        runs: list[int] = []

        def start(context: Context, config: object) -> None:
            runs.append(1)
            if len(runs) == 1:
                fail()

        available = Switch(kernel)
        fiber = kernel.root.install(FiberSpec("failing", start, (FOO,)))
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        kernel.services.recheck(FOO)
        assert fiber.state is FAILED
        available(False)
        assert fiber.state is FAILED
        available(True)
        await fiber.settled()
        assert (fiber.state, fiber.error, len(runs)) == (ACTIVE, None, 2)

    async def test_a_failed_fiber_is_tried_again_when_its_provider_was_replaced_meanwhile(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        failing = [True]

        async def start(context: Context, config: object) -> None:
            gate.entered.set()
            await gate.open.wait()
            if failing:
                failing.pop()
                fail()

        available = Switch(kernel)
        fiber = kernel.root.install(FiberSpec("failing", start, (FOO,)))
        await gate.entered.wait()
        available(False)
        kernel.root.set(FOO, "another")
        gate.open.set()
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        available(True)
        await fiber.settled()
        assert fiber.state is ACTIVE

    async def test_restarting_a_failed_fiber_without_its_requirements_parks_it(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        available = Switch(kernel)
        fiber = kernel.root.install(FiberSpec("failing", lambda context, config: fail(), (FOO,)))
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        available(False)
        await fiber.restart()
        assert (fiber.state, fiber.error) == (PENDING, None)

    @pytest.mark.parametrize("steps", [0, 1])
    async def test_a_disposal_before_its_code_runs_means_it_never_runs(self, kernel: Kernel, steps: int) -> None:
        gate = Gate()
        fiber = kernel.root.install(FiberSpec("early", gate.start))
        for _ in range(steps):
            await asyncio.sleep(0)
        assert (fiber.state, gate.runs) == (LOADING, 0)
        await fiber.dispose()
        assert gate.runs == 0

    async def test_an_operation_on_a_disposed_fiber_is_refused(self, kernel: Kernel) -> None:
        fiber = await kernel.root.install(FiberSpec("gone", nothing)).settled()
        await fiber.dispose()
        assert fiber.uid is None
        with pytest.raises(InactiveContextError):
            await fiber.restart()
        with pytest.raises(InactiveContextError):
            await fiber.update(lambda: 1)
        with pytest.raises(InactiveContextError):
            fiber.add_requirement(FOO)

    async def test_a_start_cannot_wait_for_its_own_restart(self, kernel: Kernel) -> None:
        async def start(context: Context, config: object) -> None:
            await context.fiber.restart()

        with pytest.raises(RuntimeError, match="wait for itself"):
            await kernel.root.install(FiberSpec("self", start)).settled()

    async def test_a_restart_keeps_the_uid_and_replaces_the_context(self, kernel: Kernel) -> None:
        fiber = await kernel.root.install(FiberSpec("plugin", nothing)).settled()
        uid, context = fiber.uid, fiber.context
        await fiber.restart()
        assert fiber.uid == uid
        assert fiber.context is not context
        with pytest.raises(InactiveContextError):
            context.mount(TOOL, "late", "x")
        fiber.context.mount(TOOL, "now", "x")


class TestTree:
    @pytest.mark.contract("FIB-3", "EFF-12")
    @pytest.mark.parametrize("what", ["install", "mount", "on", "defer", "scope", "mount_set", "spawn"])
    async def test_a_cleanup_cannot_register_anything(self, kernel: Kernel, what: str) -> None:
        refused: list[str] = []

        def start(context: Context, config: object) -> None:
            async def cleanup() -> None:
                with pytest.raises(InactiveContextError, match="inactive context"):
                    await attempt(context, what)
                refused.append(what)

            context.defer(cleanup)

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        await fiber.restart()
        assert (fiber.state, refused) == (ACTIVE, [what])
        await fiber.dispose()
        assert refused == [what, what]

    async def test_who_hears_of_its_withdrawals_cannot_register_on_a_closing_owner(self, kernel: Kernel) -> None:
        outcomes: list[bool] = []

        def observe(token: MountToken[Any], old: MountState, new: MountState) -> None:
            if token.key == "mine" and new is MountState.WITHDRAWING:
                with pytest.raises(InactiveContextError):
                    token.owner.fiber.context.mount(TOOL, "another", "x")
                outcomes.append(True)

        kernel.root.on(MOUNT_CHANGED, observe)
        fiber = await kernel.root.install(
            FiberSpec("plugin", lambda context, config: void(context.mount(TOOL, "mine", "x")))
        ).settled()
        await fiber.dispose()
        assert outcomes == [True]

    @pytest.mark.contract("FIB-4")
    async def test_a_disposal_takes_nested_fibers_along(self, kernel: Kernel) -> None:
        order: list[str] = []

        def nest(depth: int) -> Callable[[Context, object], None]:
            def start(context: Context, config: object) -> None:
                context.defer(lambda: order.append(f"end {depth}"))
                if depth < 3:
                    context.install(FiberSpec(f"level {depth + 1}", nest(depth + 1)))

            return start

        fiber = await kernel.root.install(FiberSpec("level 1", nest(1))).settled()
        await settle(kernel)
        assert len(kernel.fibers) == 3
        await fiber.dispose()
        assert order == ["end 3", "end 2", "end 1"]
        assert kernel.fibers == {}
        await fiber.dispose()
        assert order == ["end 3", "end 2", "end 1"]

    @pytest.mark.contract("FIB-5")
    async def test_the_root_unwinds_and_is_ready_again(self, kernel: Kernel) -> None:
        cleanups: list[str] = []
        kernel.root.defer(lambda: cleanups.append("root"))
        fiber = await kernel.root.install(FiberSpec("plugin", nothing)).settled()
        old = kernel.root
        root = old.fiber
        await asyncio.gather(kernel.aclose(), kernel.aclose())
        await kernel.aclose()
        assert (cleanups, fiber.uid, fiber.state) == (["root"], None, DISPOSED)
        assert (root.uid, root.state, kernel.root.fiber) == (0, ACTIVE, root)
        with pytest.raises(InactiveContextError):
            old.mount(TOOL, "late", "x")
        kernel.root.mount(TOOL, "now", "x")

    @pytest.mark.contract("FIB-20")
    async def test_one_spec_installed_twice_gives_two_independent_fibers(self, kernel: Kernel) -> None:
        spec = FiberSpec("plugin", lambda context, config: void(context.on(NOTED, lambda value: None)))
        first, second = kernel.root.install(spec), kernel.root.install(spec)
        await first.settled()
        await second.settled()
        assert first.uid != second.uid
        await first.dispose()
        assert (second.state, len(kernel.events.listeners(NOTED))) == (ACTIVE, 1)

    @pytest.mark.contract("FIB-22")
    async def test_a_pending_child_dies_with_its_parent(self, kernel: Kernel) -> None:
        children: list[Fiber] = []

        def start(context: Context, config: object) -> None:
            children.append(context.install(FiberSpec("child", nothing, (FOO,))))

        fiber = await kernel.root.install(FiberSpec("parent", start)).settled()
        assert children[0].state is PENDING
        await fiber.dispose()
        assert (children[0].state, children[0].uid) == (DISPOSED, None)
        kernel.root.provide(FOO, 1)
        assert children[0].state is DISPOSED

    @pytest.mark.contract("FIB-23")
    @pytest.mark.parametrize("how", ["sync", "async", "publication"])
    async def test_an_installer_that_fails_releases_its_name(
        self, kernel: Kernel, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        broken = [True]
        blocker = kernel.root.mount(TOOL, "other", "x")

        async def install(context: Context, config: object) -> None:
            context.on(NOTED, lambda value: None)
            context.mount(TOOL, "name", "x")
            if broken and how == "async":
                await asyncio.sleep(0)
                fail()
            context.mount(TOOL, "other", "x")

        def start(context: Context, config: object) -> Any:
            if broken and how == "sync":
                context.mount(TOOL, "name", "x")
                fail()
            return install(context, config)

        if how != "publication":
            await blocker.withdraw()
        fiber = kernel.root.install(FiberSpec("installer", start))
        with pytest.raises(Exception, match=r"broken|already mounted"):
            await fiber.settled()
        assert kernel.events.listeners(NOTED) == ()
        assert kernel.mounts.holder(TOOL, "name") is None
        await blocker.withdraw()
        broken.clear()
        await fiber.restart()
        assert {key for key, _ in kernel.mounts.items(TOOL)} == {"name", "other"}

    async def test_children_outlive_nothing_but_end_in_reverse_one_at_a_time(self, kernel: Kernel) -> None:
        order: list[str] = []

        def child(name: str) -> Callable[[Context, object], AsyncIterator[None]]:
            async def start(context: Context, config: object) -> AsyncIterator[None]:
                yield
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

            return start

        def parent(context: Context, config: object) -> None:
            context.install(FiberSpec("one", child("one")))
            context.defer(lambda: order.append("between"))
            context.install(FiberSpec("two", child("two")))

        fiber = await kernel.root.install(FiberSpec("parent", parent)).settled()
        await settle(kernel)
        await fiber.dispose()
        assert order == ["two begins", "two ends", "between", "one begins", "one ends"]


class TestNotifications:
    @pytest.mark.contract("FIB-14")
    async def test_a_creation_observer_sees_it_pending_and_may_add_requirements(self, kernel: Kernel) -> None:
        seen: list[FiberState] = []

        def observe(fiber: Fiber) -> None:
            kernel.services.recheck(BAR)  # what it had required until now is there
            seen.append(fiber.state)
            fiber.add_requirement(FOO)

        kernel.root.provide(BAR, 1)
        kernel.root.on(FIBER_CREATED, observe)
        fiber = await kernel.root.install(FiberSpec("plugin", nothing, (BAR,))).settled()
        assert (seen, fiber.state, fiber.missing) == ([PENDING], PENDING, (FOO,))
        kernel.root.provide(FOO, 1)
        await fiber.settled()
        assert (fiber.state, fiber.context.require(FOO)) == (ACTIVE, 1)

    @pytest.mark.contract("FIB-15")
    @pytest.mark.parametrize("dispose_while", ["pending", "active"])
    async def test_what_is_attached_while_pending_or_loading_is_cleaned_up(
        self, kernel: Kernel, dispose_while: str
    ) -> None:
        cleaned: list[str] = []
        gate = Gate()

        def observe(fiber: Fiber) -> None:
            fiber.context.defer(lambda: cleaned.append("pending"))
            fiber.context.mount(TOOL, "early", "x")

        kernel.root.on(FIBER_CREATED, observe)
        fiber = kernel.root.install(FiberSpec("plugin", gate.start, (FOO,)))
        if dispose_while == "active":
            kernel.root.provide(FOO, 1)
            await gate.entered.wait()
            fiber.context.defer(lambda: cleaned.append("loading"))
            gate.open.set()
            await fiber.settled()
            assert kernel.mounts.get(TOOL, "early") == "x"
        await fiber.dispose()
        assert cleaned == (["loading", "pending"] if dispose_while == "active" else ["pending"])
        assert kernel.mounts.items(TOOL) == ()

    @pytest.mark.contract("FIB-16")
    async def test_a_raising_creation_observer_refuses_the_fiber(self, kernel: Kernel) -> None:
        gate = Gate()
        fibers: list[Fiber] = []

        def refuse(fiber: Fiber) -> None:
            fibers.append(fiber)
            fail()

        observer = kernel.root.on(FIBER_CREATED, refuse)
        with pytest.raises(ValueError, match="broken"):
            kernel.root.install(FiberSpec("refused", gate.start, (FOO,)))
        assert kernel.fibers == {}
        await fibers[0].dispose()
        assert (fibers[0].state, gate.runs, kernel.services._watchers) == (DISPOSED, 0, {})
        assert kernel.root.owner.info().cleanups == []
        await observer.withdraw()

    @pytest.mark.contract("FIB-17")
    async def test_a_raising_disposal_observer_stops_nobody(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        heard: list[Any] = []
        kernel.root.on(FIBER_DISPOSED, lambda fiber: fail())
        kernel.root.on(FIBER_DISPOSED, lambda fiber: heard.append(fiber.uid))
        kernel.root.on(FIBER_STATUS, lambda fiber, previous: fail())
        fiber = kernel.root.install(
            FiberSpec("plugin", lambda context, _: context.defer(lambda: heard.append("cleanup")))
        )
        await fiber.settled()
        await fiber.dispose()
        assert heard == [None, "cleanup"]
        assert "broken" in caplog.text

    @pytest.mark.contract("FIB-18")
    async def test_a_loading_parents_disposal_joins_a_childs_cleanup_under_way(self, kernel: Kernel) -> None:
        parent_gate, child_gate = Gate(), Gate()
        child_gate.open.set()
        child_gate.clean.clear()
        children: list[Fiber] = []

        async def start(context: Context, config: object) -> None:
            children.append(context.install(FiberSpec("child", child_gate.start)))
            await children[0].settled()
            parent_gate.entered.set()
            await context.stopping.wait()

        parent = kernel.root.install(FiberSpec("parent", start))
        await parent_gate.entered.wait()
        children[0].dispose()
        await child_gate.cleaning.wait()
        ending = asyncio.ensure_future(wait(parent.dispose()))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ending.done()
        child_gate.clean.set()
        await ending
        assert child_gate.cleanups == 1

    @pytest.mark.contract("FIB-19")
    async def test_a_parent_disposed_by_the_childs_creation_observer(self, kernel: Kernel) -> None:
        gate = Gate()
        release = asyncio.Event()
        cleaned: list[str] = []
        children: list[Fiber] = []

        async def slow_removal() -> None:
            for _ in range(5):  # the parent comes to its children only after its mounts
                await asyncio.sleep(0)

        async def cleanup() -> None:
            await release.wait()
            cleaned.append("child")

        def observe(fiber: Fiber) -> None:
            if fiber.name == "child":
                children.append(fiber)
                fiber.context.defer(cleanup)
                parent.dispose()

        kernel.root.on(FIBER_CREATED, observe)
        parent = await kernel.root.install(FiberSpec("parent", nothing)).settled()
        parent.context.mount(TOOL, "slow", "x").defer(slow_removal)
        parent.context.install(FiberSpec("child", gate.start))
        ending = asyncio.ensure_future(wait(parent.dispose()))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not ending.done()
        release.set()
        await ending
        assert (cleaned, gate.runs, children[0].state) == (["child"], 0, DISPOSED)


class TestDisposalDuringStart:
    @pytest.mark.contract("FIB-21", "EFF-3", "EFF-5")
    async def test_it_waits_for_the_start_refuses_registrations_and_undoes_what_it_returns(
        self, kernel: Kernel
    ) -> None:
        order: list[str] = []
        entered = asyncio.Event()

        async def start(context: Context, config: object) -> AsyncIterator[None]:
            scope = context.scope("agent")
            entered.set()
            await context.stopping.wait()
            with pytest.raises(InactiveContextError):
                context.mount(TOOL, "late", "x")
            assert scope.stopping.aborted
            order.append("start returns")
            yield
            order.append("after the yield")

        fiber = kernel.root.install(FiberSpec("slow", start))
        await entered.wait()
        ending = fiber.dispose()
        assert fiber.state is LOADING
        await ending
        assert order == ["start returns", "after the yield"]

    async def test_a_start_that_ignores_the_signal_is_cancelled_after_its_grace(self, kernel: Kernel) -> None:
        unwound: list[str] = []
        gate = Gate()

        async def start(context: Context, config: object) -> None:
            context.defer(lambda: unwound.append("deferred"))
            try:
                gate.entered.set()
                await gate.open.wait()
            finally:
                unwound.append("finally")

        fiber = kernel.root.install(FiberSpec("slow", start))
        await gate.entered.wait()
        await fiber.dispose()
        assert (unwound, fiber.state) == (["finally", "deferred"], DISPOSED)

    async def test_a_start_that_ignores_cancellation_is_abandoned_by_name(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()

        async def start(context: Context, config: object) -> None:
            gate.entered.set()
            while not gate.open.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await gate.open.wait()
            gate.cleaning.set()

        fiber = kernel.root.install(FiberSpec("deaf", start))
        await gate.entered.wait()
        await fiber.dispose()
        assert fiber.state is DISPOSED
        assert "start of deaf ignored its cancellation" in caplog.text
        gate.open.set()
        await gate.cleaning.wait()
        await asyncio.sleep(0)

    async def test_a_cancelled_waiter_does_not_stop_the_disposal(self, kernel: Kernel) -> None:
        gate = Gate()
        gate.open.set()
        gate.clean.clear()
        fiber = await kernel.root.install(FiberSpec("slow", gate.start)).settled()
        waiter = asyncio.ensure_future(wait(fiber.dispose()))
        await gate.cleaning.wait()
        waiter.cancel()
        await asyncio.wait({waiter})
        gate.clean.set()
        await fiber.dispose()
        assert gate.cleanups == 1


class TestTeardown:
    @pytest.mark.contract("EFF-2", "EFF-13", "DEF-4")
    async def test_mounts_go_first_then_cleanups_strictly_in_reverse(self, kernel: Kernel) -> None:
        order: list[str] = []

        def cleanup(name: str) -> Callable[[], Any]:
            async def run() -> None:
                assert kernel.mounts.items(TOOL) == ()
                order.append(f"{name} begins")
                await asyncio.sleep(0)
                order.append(f"{name} ends")

            return run

        async def start(context: Context, config: object) -> AsyncIterator[None]:
            context.defer(cleanup("one"))
            context.mount(TOOL, "read", "x")
            nested = context.scope("nested").context
            nested.defer(cleanup("two"))
            nested.defer(cleanup("three"))
            yield
            order.append("after the yield")

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        fiber.context.defer(lambda: order.append("late"))
        await fiber.dispose()
        names = ("three", "two", "one")
        assert order == ["late", "after the yield"] + [f"{n} {what}" for n in names for what in ("begins", "ends")]

    @pytest.mark.contract("EFF-1", "EFF-14")
    async def test_every_cleanup_runs_once_whatever_fails(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        order: list[int] = []

        def start(context: Context, config: object) -> None:
            for index in range(4):
                context.defer(
                    lambda index=index: (order.append(index), fail() if index % 2 else None), label=f"n{index}"
                )

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        assert fiber.owner.info().cleanups == ["n0", "n1", "n2", "n3"]
        await asyncio.gather(wait(fiber.dispose()), wait(fiber.dispose()))
        assert order == [3, 2, 1, 0]
        assert [str(error) for error in fiber.teardown_errors] == ["broken", "broken"]

    @pytest.mark.contract("EFF-1")
    async def test_an_unlabelled_cleanup_shows_its_name(self, kernel: Kernel) -> None:
        class Unnamed:
            def __call__(self) -> None: ...

        kernel.root.defer(fail_quietly)
        kernel.root.defer(Unnamed())
        assert kernel.root.owner.info().cleanups == ["fail_quietly", "anonymous"]

    @pytest.mark.contract("EFF-7", "EFF-9")
    @pytest.mark.parametrize("form", ["function", "coroutine", "generator", "manager"])
    async def test_a_failing_start_undoes_what_it_had_deferred(
        self, kernel: Kernel, form: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        order: list[str] = []

        def body(context: Context) -> None:
            context.defer(lambda: order.append("one"))
            context.defer(lambda: order.append("two"))
            fail()

        async def coroutine(context: Context, config: object) -> None:
            body(context)

        async def generator(context: Context, config: object) -> AsyncIterator[None]:
            body(context)
            yield

        forms: dict[str, Any] = {
            "function": lambda context, config: body(context),
            "coroutine": coroutine,
            "generator": generator,
            "manager": contextlib.asynccontextmanager(generator),
        }
        fiber = kernel.root.install(FiberSpec("failing", forms[form]))
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        assert order == ["two", "one"]
        assert fiber.owner.info().cleanups == []

    @pytest.mark.contract("EFF-6")
    async def test_settling_waits_for_the_end_of_the_start(self, kernel: Kernel) -> None:
        gate = Gate()
        fiber = kernel.root.install(FiberSpec("slow", gate.start))
        waiter = asyncio.ensure_future(fiber.settled())
        await gate.entered.wait()
        assert not waiter.done()
        gate.open.set()
        assert await waiter is fiber
        assert fiber.state is ACTIVE

    @pytest.mark.contract("EFF-8")
    async def test_a_restart_during_a_start_waits_for_its_end_and_cleanup(self, kernel: Kernel) -> None:
        gate = Gate()
        fiber = kernel.root.install(FiberSpec("slow", gate.start))
        await gate.entered.wait()
        restart = asyncio.ensure_future(fiber.restart())
        await asyncio.sleep(0)
        assert (gate.runs, fiber.state) == (1, LOADING)
        assert not fiber.owner.stopping.aborted, "the start is given the time that it takes"
        gate.clean.clear()
        gate.open.set()
        await gate.cleaning.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (gate.runs, gate.cleanups) == (1, 0)
        gate.clean.set()
        await restart
        assert (gate.runs, gate.cleanups, fiber.state) == (2, 1, ACTIVE)

    @pytest.mark.contract("EFF-10")
    async def test_a_restart_racing_a_failure_waits_for_its_rollback(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        runs: list[str] = []

        def start(context: Context, config: object) -> None:
            async def rollback() -> None:
                gate.cleaning.set()
                await gate.open.wait()
                runs.append("rolled back")

            runs.append("run")
            context.defer(rollback)
            if len(runs) == 1:
                fail()

        fiber = kernel.root.install(FiberSpec("failing", start))
        await gate.cleaning.wait()
        restart = asyncio.ensure_future(fiber.restart())
        await asyncio.sleep(0)
        gate.open.set()
        await restart
        assert (runs, fiber.state) == (["run", "rolled back", "run"], ACTIVE)

    async def test_a_cleanup_that_hangs_is_given_up_and_the_others_run(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        order: list[str] = []

        def start(context: Context, config: object) -> None:
            context.defer(lambda: order.append("first"))
            context.defer(lambda: asyncio.Event().wait())

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        await fiber.dispose()
        assert order == ["first"]
        assert isinstance(fiber.teardown_errors[0], TimeoutError)


class TestBackgroundTasks:
    async def test_a_task_is_cancelled_before_the_cleanups(self, kernel: Kernel) -> None:
        order: list[str] = []

        async def tick() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append("task")

        async def start(context: Context, config: object) -> AsyncIterator[None]:
            context.spawn(tick(), name="tick")
            yield
            order.append("after the yield")

        fiber = await kernel.root.install(FiberSpec("clock", start)).settled()
        await fiber.dispose()
        assert order == ["task", "after the yield"]

    async def test_a_finished_task_leaves_nothing(self, kernel: Kernel) -> None:
        fiber = await kernel.root.install(FiberSpec("plugin", nothing)).settled()
        token = fiber.context.spawn(asyncio.sleep(0), name="short")
        await token.value
        await token.withdraw()
        assert fiber.owner.info().mounts == []
        assert fiber.state is ACTIVE

    @pytest.mark.parametrize("when", ["loading", "active"])
    async def test_a_crashed_task_fails_its_fiber(
        self, kernel: Kernel, when: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        gate = Gate()
        unwound: list[str] = []

        async def crash() -> None:
            await gate.open.wait()
            fail()

        async def start(context: Context, config: object) -> None:
            context.defer(lambda: unwound.append("deferred"))
            context.spawn(crash(), name="crash")
            gate.entered.set()
            if when == "loading":
                await context.stopping.wait()

        fiber = kernel.root.install(FiberSpec("fragile", start))
        await gate.entered.wait()
        if when == "active":
            await fiber.settled()
        gate.open.set()
        await reach(fiber, FAILED)
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        assert (fiber.state, unwound) == (FAILED, ["deferred"])
        assert [record.getMessage() for record in caplog.records] == ["background task crash of fragile crashed"]

    async def test_a_task_may_dispose_its_own_fiber(self, kernel: Kernel) -> None:
        def start(context: Context, config: object) -> None:
            async def leave() -> None:
                await context.fiber.dispose()

            context.spawn(leave(), name="leave")

        fiber = kernel.root.install(FiberSpec("mayfly", start))
        await reach(fiber, DISPOSED)


class TestUpdate:
    @pytest.mark.contract("LDR-16")
    async def test_a_failed_update_restores_the_old_config_in_the_same_fiber(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        started: list[object] = []

        def start(context: Context, config: object) -> None:
            started.append(config)
            context.mount(TOOL, "tool", str(config))
            if config == "bad":
                fail()

        fiber = await kernel.root.install(FiberSpec("plugin", start, (), lambda: "old")).settled()
        uid = fiber.uid
        with pytest.raises(ValueError, match="broken"):
            await fiber.update(lambda: "bad")
        assert (started, fiber.state, fiber.uid) == (["old", "bad", "old"], ACTIVE, uid)
        assert kernel.mounts.get(TOOL, "tool") == "old"
        await fiber.update(lambda: "new")
        await fiber.restart()
        assert started == ["old", "bad", "old", "new", "new"]

    async def test_an_invalid_config_touches_nothing(self, kernel: Kernel) -> None:
        started: list[object] = []
        fiber = kernel.root.install(FiberSpec("plugin", lambda context, c: started.append(c), (), lambda: "old"))
        await fiber.settled()
        with pytest.raises(ValueError, match="broken"):
            await fiber.update(fail)
        assert (started, fiber.state) == (["old"], ACTIVE)
        await fiber.restart()
        assert started == ["old", "old"]

    async def test_an_update_of_a_pending_fiber_counts_at_its_activation(self, kernel: Kernel) -> None:
        started: list[object] = []
        fiber = kernel.root.install(FiberSpec("plugin", lambda context, c: started.append(c), (FOO,), lambda: "old"))
        await fiber.update(lambda: "new")
        assert (fiber.state, started) == (PENDING, [])
        kernel.root.provide(FOO, 1)
        await fiber.settled()
        assert started == ["new"]

    async def test_a_failed_fiber_stays_failed_with_its_old_config(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        started: list[object] = []

        def start(context: Context, config: object) -> None:
            started.append(config)
            if config != "good":
                fail()

        fiber = kernel.root.install(FiberSpec("plugin", start, (), lambda: "old"))
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                await (fiber.update(lambda: "bad") if started else fiber.settled())
        assert (started, fiber.state) == (["old", "bad"], FAILED)
        await fiber.update(lambda: "good")
        assert fiber.state is ACTIVE

    async def test_an_update_whose_rollback_fails_too_reports_both(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        runs: list[object] = []

        def start(context: Context, config: object) -> None:
            runs.append(config)
            if len(runs) > 1:
                raise ValueError(f"run {len(runs)}")

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        with pytest.raises(ExceptionGroup, match="update of plugin failed") as caught:
            await fiber.update(lambda: 1)
        assert [str(error) for error in caught.value.exceptions] == ["run 2", "run 3"]
        assert fiber.state is FAILED

    async def test_a_config_that_cannot_be_resolved_fails_the_fiber(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        resolved: list[bool] = []

        def resolve() -> object:
            resolved.append(True)
            return fail()

        fiber = kernel.root.install(FiberSpec("plugin", nothing, (FOO,), resolve))
        assert resolved == []
        kernel.root.provide(FOO, 1)
        with pytest.raises(ValueError, match="broken"):
            await fiber.settled()
        assert fiber.state is FAILED

    async def test_updates_are_serialised(self, kernel: Kernel) -> None:
        started: list[object] = []

        async def start(context: Context, config: object) -> None:
            await asyncio.sleep(0)
            started.append(config)

        fiber = await kernel.root.install(FiberSpec("plugin", start, (), lambda: 0)).settled()
        await asyncio.gather(fiber.update(lambda: 1), fiber.update(lambda: 2))
        assert started == [0, 1, 2]


class Switch:
    """A root service whose availability the test turns on and off."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.on = True
        kernel.root.provide(FOO, "service", check=lambda context: self.on)

    def __call__(self, on: bool) -> None:
        self.on = on
        self.kernel.services.recheck(FOO)


async def attempt(context: Context, what: str) -> None:
    match what:
        case "install":
            context.install(FiberSpec("late", nothing))
        case "mount":
            context.mount(TOOL, "late", "x")
        case "on":
            context.on(NOTED, lambda value: None)
        case "defer":
            context.defer(fail)
        case "scope":
            context.scope("late")
        case "mount_set":
            async with context.mount_set():
                pass
        case "spawn":
            context.spawn(asyncio.sleep(0), name="late")


async def reach(fiber: Fiber, state: FiberState) -> None:
    """Wait until the fiber has come to a state."""
    reached = asyncio.Event()
    watch = fiber.kernel.root.on(
        FIBER_STATUS, lambda changed, previous: reached.set() if fiber.state is state else None
    )
    if fiber.state is not state:
        await asyncio.wait_for(reached.wait(), 1)
    await watch.withdraw()


async def settle(kernel: Kernel) -> None:
    """Wait until no fiber is in a transition; a start may install further ones."""
    settled: set[Fiber] = set()
    while todo := set(kernel.fibers.values()) - settled:
        for fiber in todo:
            await fiber.settled()
        settled |= todo


async def wait(ending: Any) -> None:
    await ending


def fail() -> None:
    raise ValueError("broken")


def fail_quietly() -> None: ...


def void(_: object) -> None:
    return None
