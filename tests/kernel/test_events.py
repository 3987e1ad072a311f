"""The event bus: order, the five modes, failures, targets, and listeners that come and go during a dispatch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from polyhost.kernel import (
    DISPATCH,
    Context,
    EventKey,
    EventMode,
    FiberSpec,
    Kernel,
    Limits,
    MountState,
    ServiceKey,
    Target,
)
from polyhost.kernel.errors import EventModeError, EventTargetError, NextCalledTwiceError

NOTED: EventKey[[int]] = EventKey("test/noted")
VETO: EventKey[[int]] = EventKey("test/veto", contained=False)
GATHER: EventKey[[int]] = EventKey("test/gather", EventMode.PARALLEL)
ASK: EventKey[[int]] = EventKey("test/ask", EventMode.SERIAL)
BAIL: EventKey[[int]] = EventKey("test/bail", EventMode.BAIL)
WRAP: EventKey[[int, Callable[[], Any]]] = EventKey("test/wrap", EventMode.WATERFALL)
SCOPED: EventKey[[str]] = EventKey("test/scoped", scoped=True, subject=lambda subject: subject)


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel(limits=Limits(abort_grace=0.01, cancel_grace=0.05, listener_runs=3))
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []


async def dispatch(kernel: Kernel, key: EventKey[Any], value: Any, target: Target | None = None) -> Any:
    """Dispatch in whatever mode the key has."""
    to = kernel.events.to(target)
    match key.mode:
        case EventMode.EMIT:
            return to.emit(key, value)
        case EventMode.BAIL:
            return to.bail(key, value)
        case EventMode.PARALLEL:
            return await to.parallel(key, value)
        case EventMode.SERIAL:
            return await to.serial(key, value)
        case EventMode.WATERFALL:
            return to.waterfall(key, value, inner=lambda: None)


@pytest.mark.contract("EVB-1")
async def test_a_listener_hears_until_withdrawn_and_once_hears_once(kernel: Kernel) -> None:
    heard: list[tuple[str, int]] = []
    token = kernel.root.on(NOTED, lambda value: heard.append(("on", value)))
    once = kernel.root.on(NOTED, lambda value: heard.append(("once", value)), once=True)
    kernel.events.emit(NOTED, 1)
    kernel.events.emit(NOTED, 2)
    await token.withdraw()
    kernel.events.emit(NOTED, 3)
    assert heard == [("on", 1), ("once", 1), ("on", 2)]
    assert once.state is MountState.WITHDRAWN
    await once.withdraw()
    assert kernel.events.listeners(NOTED) == ()


async def test_once_is_not_called_again_by_a_nested_dispatch(kernel: Kernel) -> None:
    heard: list[int] = []

    def again(value: int) -> None:
        if value == 1:
            kernel.events.emit(NOTED, 2)

    kernel.root.on(NOTED, again)
    kernel.root.on(NOTED, heard.append, once=True)
    kernel.events.emit(NOTED, 1)
    assert heard == [2]


async def test_a_once_listener_does_not_hear_what_it_dispatches_itself(kernel: Kernel) -> None:
    heard: list[int] = []

    def repeat(value: int) -> None:
        heard.append(value)
        if value < 5:
            kernel.events.emit(NOTED, value + 1)

    kernel.root.on(NOTED, repeat, once=True)
    kernel.events.emit(NOTED, 1)
    assert heard == [1]


async def test_an_asynchronous_once_listener_runs_to_its_end(kernel: Kernel) -> None:
    done = asyncio.Event()
    release = asyncio.Event()

    async def slow(value: int) -> None:
        await release.wait()
        done.set()

    token = kernel.root.on(NOTED, slow, once=True)
    kernel.events.emit(NOTED, 1)
    await asyncio.sleep(0)
    release.set()
    await asyncio.wait_for(done.wait(), 1)
    await asyncio.sleep(0)
    assert token.state is MountState.WITHDRAWN


@pytest.mark.contract("EVB-2", "EVB-8")
@pytest.mark.parametrize("key", [NOTED, GATHER, ASK, BAIL], ids=str)
async def test_a_target_filters_listeners_in_every_mode(kernel: Kernel, key: EventKey[Any]) -> None:
    heard: list[str] = []
    for tag in ("a", "b"):
        context = kernel.root.scope(tag).context
        context.on(key, lambda value, tag=tag: heard.append(tag))
        context.on(key, lambda value, tag=tag: heard.append(f"{tag} everywhere"), everywhere=True)
    await dispatch(kernel, key, 1, Target("a"))
    assert heard == ["a", "a everywhere", "b everywhere"]
    heard.clear()
    await dispatch(kernel, key, 1)
    assert heard == ["a", "a everywhere", "b", "b everywhere"]


class TestFailures:
    @pytest.mark.contract("EVB-3", "DEF-5")
    async def test_emit_logs_a_failure_and_goes_on(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        """A subscriber cannot break its dispatcher, unless the event's contract says that it may veto."""
        heard: list[int] = []
        kernel.root.on(NOTED, fail)
        kernel.root.on(NOTED, heard.append)
        kernel.events.emit(NOTED, 1)
        kernel.events.emitter(NOTED).emit(2)
        assert heard == [1, 2]
        assert [record.exc_info is not None for record in caplog.records] == [True, True]
        assert "test/noted" in caplog.text

    @pytest.mark.contract("EVB-3")
    @pytest.mark.parametrize("key", [VETO, BAIL, ASK], ids=str)
    async def test_a_failure_propagates_and_hides_later_listeners(self, kernel: Kernel, key: EventKey[Any]) -> None:
        heard: list[int] = []
        kernel.root.on(key, fail)
        kernel.root.on(key, heard.append)
        with pytest.raises(ValueError, match="broken"):
            await dispatch(kernel, key, 1)
        assert heard == []

    @pytest.mark.contract("EVB-4")
    async def test_parallel_lets_all_settle_and_reports_every_failure(self, kernel: Kernel) -> None:
        finished: list[int] = []

        async def fail_later(value: int) -> None:
            await asyncio.sleep(0)
            raise KeyError("later")

        async def work(value: int) -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            finished.append(value)

        for listener in (fail, fail_later, work):
            kernel.root.on(GATHER, listener)
        with pytest.raises(ExceptionGroup) as caught:
            await kernel.events.parallel(GATHER, 1)
        assert [type(error) for error in caught.value.exceptions] == [ValueError, KeyError]
        assert finished == [1]

    async def test_what_an_emit_listener_awaits_is_its_own_tracked_work(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        cancelled = asyncio.Event()

        async def crash(value: int) -> None:
            raise ValueError("in the background")

        async def hang(value: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        kernel.root.on(NOTED, crash)
        token = kernel.root.on(NOTED, hang)
        kernel.events.emit(NOTED, 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert "in the background" in caplog.text
        await token.withdraw()
        assert cancelled.is_set()

    async def test_runs_of_one_listener_are_bounded(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        started: list[int] = []

        async def hang(value: int) -> None:
            started.append(value)
            await asyncio.Event().wait()

        kernel.root.on(NOTED, hang)
        for value in range(5):
            kernel.events.emit(NOTED, value)
        await asyncio.sleep(0)
        assert started == [0, 1, 2]
        assert caplog.text.count("refused") == 2


class TestWaterfall:
    @pytest.mark.contract("EVB-5")
    async def test_the_first_is_outermost_and_next_returns_the_inner_result(self, kernel: Kernel) -> None:
        kernel.root.on(WRAP, lambda value, next: f"a({next()})")
        kernel.root.on(WRAP, lambda value, next: f"b{value}({next()})")
        assert kernel.events.waterfall(WRAP, 7, inner=lambda: "inner") == "a(b7(inner))"

    @pytest.mark.contract("EVB-5")
    async def test_not_calling_next_hides_the_rest(self, kernel: Kernel) -> None:
        reached: list[str] = []
        kernel.root.on(WRAP, lambda value, next: "short")
        kernel.root.on(WRAP, lambda value, next: reached.append("later"))
        assert kernel.events.waterfall(WRAP, 1, inner=lambda: reached.append("inner")) == "short"
        assert reached == []

    async def test_asynchronous_listeners_compose(self, kernel: Kernel) -> None:
        async def double(value: int, next: Callable[[], Any]) -> int:
            inner: int = await next()
            return 2 * inner

        async def inner() -> int:
            return 21

        kernel.root.on(WRAP, double)
        assert await kernel.events.waterfall(WRAP, 1, inner=inner) == 42

    async def test_next_runs_the_rest_once(self, kernel: Kernel) -> None:
        kernel.root.on(WRAP, lambda value, next: (next(), next()))
        with pytest.raises(NextCalledTwiceError):
            kernel.events.waterfall(WRAP, 1, inner=lambda: None)


@pytest.mark.contract("EVB-6")
@pytest.mark.parametrize("key", [ASK, BAIL], ids=str)
@pytest.mark.parametrize(("answers", "result"), [((None, False, 0, 1), 0), (("", 1), ""), ((None, False), None)])
async def test_the_first_answer_ends_the_dispatch(
    kernel: Kernel, key: EventKey[Any], answers: tuple[object, ...], result: object
) -> None:
    called: list[object] = []
    for answer in answers:
        kernel.root.on(key, lambda value, answer=answer: (called.append(answer), answer)[1])
    assert await dispatch(kernel, key, 1) == result
    expected = answers if result is None else answers[: answers.index(result) + 1]
    if result == 0 and answers[1] is False:  # False equals 0, but is not an answer
        expected = answers[:3]
    assert tuple(called) == expected


async def test_serial_awaits_each_listener_before_the_next(kernel: Kernel) -> None:
    order: list[str] = []

    async def first(value: int) -> None:
        await asyncio.sleep(0)
        order.append("first")

    kernel.root.on(ASK, first)
    kernel.root.on(ASK, lambda value: order.append("second"))
    await kernel.events.serial(ASK, 1)
    assert order == ["first", "second"]


@pytest.mark.contract("EVB-7")
async def test_prepend_puts_a_listener_first(kernel: Kernel) -> None:
    heard: list[str] = []
    kernel.root.on(NOTED, lambda value: heard.append("second"))
    kernel.root.on(NOTED, lambda value: heard.append("first"), prepend=True)
    kernel.events.emit(NOTED, 1)
    assert heard == ["first", "second"]


@pytest.mark.contract("EVB-9")
@pytest.mark.parametrize("key", [NOTED, GATHER, ASK, BAIL, WRAP], ids=str)
async def test_a_listener_withdrawn_during_a_dispatch_is_not_called_any_more(
    kernel: Kernel, key: EventKey[Any]
) -> None:
    """The list is that of the dispatch's beginning, but each listener must still be alive when its turn comes."""
    heard: list[str] = []

    def withdraw_and_add(*args: Any) -> Any:
        second.withdraw()
        kernel.root.on(key, lambda *args: heard.append("added"))
        return args[1]() if key.mode is EventMode.WATERFALL else None

    kernel.root.on(key, withdraw_and_add)
    second = kernel.root.on(key, lambda *args: heard.append("withdrawn"))
    kernel.root.on(key, lambda *args: heard.append("third"))
    await dispatch(kernel, key, 1)
    assert heard == ["third"]


class TestAnnouncement:
    @pytest.mark.contract("EVB-10")
    @pytest.mark.parametrize("key", [NOTED, GATHER, ASK, BAIL, WRAP], ids=str)
    async def test_a_dispatch_is_announced_before_it_happens(self, kernel: Kernel, key: EventKey[Any]) -> None:
        seen: list[Any] = []
        kernel.root.on(DISPATCH, lambda *announced: seen.append(announced))
        kernel.root.on(key, lambda *args: seen.append("dispatched"))
        seen.clear()
        target = Target(None)
        await dispatch(kernel, key, 5, target)
        assert seen == [(key.mode, key, (5,), target), "dispatched"]

    @pytest.mark.contract("EVB-10")
    async def test_an_emitter_announces_too_and_internal_events_are_not_announced(self, kernel: Kernel) -> None:
        seen: list[EventKey[Any]] = []
        emitter = kernel.events.emitter(NOTED)
        kernel.root.on(DISPATCH, lambda mode, key, args, target: seen.append(key))
        emitter.emit(1)
        kernel.events.emit(EventKey("internal/test"))
        assert [key for key in seen if key.name != "mount/changed"] == [NOTED]


class TestEmitter:
    async def test_follows_listeners_that_come_and_go_and_scopes_that_move(self, kernel: Kernel) -> None:
        heard: list[str] = []
        emitter = kernel.events.emitter(NOTED, Target("child"))
        emitter.emit(0)
        kernel.root.scope("parent").context.on(NOTED, lambda value: heard.append(f"parent {value}"))
        emitter.emit(1)
        child = kernel.root.scope("child", parent="parent")
        emitter.emit(2)
        token = kernel.root.on(NOTED, lambda value: heard.append(f"root {value}"))
        emitter.emit(3)
        token.withdraw()
        await child.dispose()
        emitter.emit(4)
        assert heard == ["parent 2", "parent 3", "root 3"]

    async def test_is_for_emit_only(self, kernel: Kernel) -> None:
        with pytest.raises(EventModeError):
            kernel.events.emitter(BAIL)


async def test_another_mode_than_the_declared_one_is_refused(kernel: Kernel) -> None:
    with pytest.raises(EventModeError, match="bail"):
        kernel.events.emit(BAIL, 1)
    with pytest.raises(EventModeError):
        await kernel.events.parallel(NOTED, 1)


async def test_a_listener_must_be_callable_and_its_event_a_key(kernel: Kernel) -> None:
    with pytest.raises(TypeError):
        kernel.root.on(NOTED, "not callable")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        kernel.root.on("test/noted", print)  # type: ignore[arg-type]


class TestTargets:
    @pytest.mark.contract("SCO-5", "SCO-9")
    async def test_routing_by_scope(self, kernel: Kernel) -> None:
        """Untagged listeners and those of the scope and its ancestors hear; siblings and descendants do not."""
        heard: list[str] = []
        kernel.root.on(NOTED, lambda value: heard.append("untagged"))
        for tag, parent in (("parent", None), ("child", "parent"), ("other", None)):
            kernel.root.scope(tag, parent).context.on(NOTED, lambda value, tag=tag: heard.append(tag))

        def routed(target: Target | None) -> list[str]:
            heard.clear()
            kernel.events.to(target).emit(NOTED, 1)
            return list(heard)

        assert routed(Target("child")) == ["untagged", "parent", "child"]
        assert routed(Target("parent")) == ["untagged", "parent"]
        assert routed(Target("other")) == ["untagged", "other"]
        assert routed(Target(None)) == ["untagged"]
        assert routed(None) == ["untagged", "parent", "child", "other"]

    @pytest.mark.contract("SCO-6")
    async def test_the_base_filter_is_asked_first_as_itself(self, kernel: Kernel) -> None:
        class Base:
            def __init__(self) -> None:
                self.asked: list[Context] = []

            def admits(self, context: Context) -> bool:
                self.asked.append(context)
                return context is not refused

        base = Base()
        heard: list[str] = []
        refused = kernel.root.derive()
        refused.on(NOTED, lambda value: heard.append("refused"))
        refused.on(NOTED, lambda value: heard.append("everywhere"), everywhere=True)
        other = kernel.root.scope("other").context
        other.on(NOTED, lambda value: heard.append("other scope"))
        admitted = kernel.root.scope("a").context
        admitted.on(NOTED, lambda value: heard.append("admitted"))
        kernel.events.to(Target("a", base)).emit(NOTED, 1)
        assert heard == ["everywhere", "admitted"]
        assert base.asked == [refused, other, admitted]

    @pytest.mark.contract("SCO-7")
    def test_a_target_says_nothing_of_its_subject(self) -> None:
        class Subject:
            secret = "value"

        subject = Subject()
        target = Target(subject)
        assert isinstance(target, Target)
        assert target.scope is subject
        assert not hasattr(target, "secret")
        assert not hasattr(target, "__dict__")

    @pytest.mark.contract("SCO-15")
    async def test_strict_mode_rejects_missing_and_mismatched_targets(self) -> None:
        kernel = Kernel(strict=True)
        heard: list[str] = []
        kernel.root.on(SCOPED, heard.append)
        with pytest.raises(EventTargetError, match="scoped"):
            kernel.events.emit(SCOPED, "agent")
        with pytest.raises(EventTargetError, match="agent"):
            kernel.events.to(Target("other")).emit(SCOPED, "agent")
        kernel.events.to(Target("agent")).emit(SCOPED, "agent")
        assert heard == ["agent"]
        await kernel.aclose()

    @pytest.mark.contract("CTX-11")
    async def test_a_realm_target_reaches_those_who_resolve_the_service_there(self, kernel: Kernel) -> None:
        database: ServiceKey[object] = ServiceKey("database")
        heard: list[str] = []
        isolated = kernel.root.isolate(database)
        kernel.root.on(NOTED, lambda value: heard.append("root"))
        isolated.on(NOTED, lambda value: heard.append("isolated"))
        kernel.events.to(Target(base=isolated.realm_of(database))).emit(NOTED, 1)
        assert heard == ["isolated"]
        kernel.events.to(Target(base=kernel.root.realm_of(database))).emit(NOTED, 1)
        assert heard == ["isolated", "root"]


async def test_a_context_dispatches_to_its_own_scope(kernel: Kernel) -> None:
    heard: list[str] = []
    first, second = kernel.root.scope("first"), kernel.root.scope("second")
    first.context.on(NOTED, lambda value: heard.append("first"))
    second.context.on(NOTED, lambda value: heard.append("second"))
    first.context.events.emit(NOTED, 1)
    assert heard == ["first"]
    kernel.root.events.emit(NOTED, 1)
    assert heard == ["first", "first", "second"]


async def test_a_failure_is_logged_under_the_name_of_the_listeners_fiber(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    def start(context: Context, config: object) -> None:
        context.on(NOTED, fail)

    await kernel.root.install(FiberSpec("clumsy", start)).settled()
    kernel.events.emit(NOTED, 1)
    assert [(record.name, record.levelno) for record in caplog.records] == [("polyhost.clumsy", logging.ERROR)]


def fail(value: int) -> None:
    raise ValueError("broken")
