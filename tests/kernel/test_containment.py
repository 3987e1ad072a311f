"""``SystemExit`` from foreign code: a failure of what raised it, never the end of the loop and its host."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polyhost.kernel import (
    FIBER_STATUS,
    TASK_CRASHED,
    AbortController,
    Context,
    EventKey,
    EventMode,
    FiberSpec,
    FiberState,
    Kernel,
    KindHandler,
    MountKind,
    MountToken,
    ServiceKey,
)
from polyhost.kernel.containment import EscapedError

TOOL: MountKind[str] = MountKind("tool")
NOTED: EventKey[[int]] = EventKey("test/noted")
STRICT: EventKey[[int]] = EventKey("test/strict", contained=False)


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel()
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []


def leave(*args: Any) -> Any:
    sys.exit("bye")


async def leave_later(*args: Any) -> Any:
    sys.exit("bye")


class Unmountable(KindHandler[str]):
    def install(self, token: MountToken[str]) -> None:
        leave()


async def test_a_background_task_that_exits_fails_its_fiber_and_is_announced(kernel: Kernel) -> None:
    crashed: list[tuple[str, object]] = []
    failed = asyncio.Event()
    kernel.root.on(TASK_CRASHED, lambda token, error: crashed.append((token.owner.name, token.key)), everywhere=True)
    kernel.root.on(FIBER_STATUS, lambda fiber, _: failed.set() if fiber.state is FiberState.FAILED else None)

    def start(context: Context, config: object) -> None:
        context.spawn(leave_later(), name="tick")

    fiber = kernel.root.install(FiberSpec("fragile", start))
    await failed.wait()
    assert isinstance(fiber.error, EscapedError)
    assert isinstance(fiber.error.__cause__, SystemExit)
    assert crashed == [("fragile", "tick")]


async def test_a_task_that_is_withdrawn_before_its_first_step_leaves_no_coroutine_behind(kernel: Kernel) -> None:
    token = kernel.root.spawn(leave_later(), name="tick")
    token.value.cancel()
    await token.withdraw()
    assert token.value.cancelled()


@pytest.mark.parametrize("start", [leave, leave_later])
async def test_a_start_that_exits_fails_its_fiber(kernel: Kernel, start: Any) -> None:
    with pytest.raises(EscapedError, match="SystemExit was raised: bye"):
        await kernel.root.install(FiberSpec("fragile", start)).settled()


@pytest.mark.parametrize("listener", [leave, leave_later])
async def test_a_listener_that_exits_is_logged_and_the_next_is_called(
    kernel: Kernel, listener: Any, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []
    token = kernel.root.on(NOTED, listener)
    kernel.root.on(NOTED, heard.append)
    kernel.events.emit(NOTED, 1)
    await asyncio.gather(*(run.task for run in token.runs), return_exceptions=True)
    assert heard == [1]
    assert "SystemExit was raised: bye" in caplog.text


async def test_a_listener_that_exits_vetoes_where_failures_do(kernel: Kernel) -> None:
    kernel.root.on(STRICT, leave)
    with pytest.raises(EscapedError):
        kernel.events.emit(STRICT, 1)


@pytest.mark.parametrize("listener", [leave, leave_later])
async def test_listeners_that_are_waited_for_raise_an_ordinary_error(kernel: Kernel, listener: Any) -> None:
    gather: EventKey[[int]] = EventKey("test/gather", EventMode.PARALLEL)
    ask: EventKey[[int]] = EventKey("test/ask", EventMode.SERIAL)
    kernel.root.on(gather, listener)
    kernel.root.on(ask, listener)
    with pytest.raises(ExceptionGroup) as caught:
        await kernel.events.parallel(gather, 1)
    assert [type(error) for error in caught.value.exceptions] == [EscapedError]
    with pytest.raises(EscapedError):
        await kernel.events.serial(ask, 1)


def bail(kernel: Kernel) -> None:
    key: EventKey[[int]] = EventKey("test/bail", EventMode.BAIL)
    kernel.root.on(key, leave)
    kernel.events.bail(key, 1)


def waterfall(kernel: Kernel) -> None:
    key: EventKey[[int]] = EventKey("test/waterfall", EventMode.WATERFALL)
    kernel.root.on(key, leave)
    kernel.events.waterfall(key, 1, inner=lambda: None)


def install(kernel: Kernel) -> None:
    kernel.mounts.handle(TOOL, Unmountable())
    kernel.root.mount(TOOL, "x", "x")


@pytest.mark.parametrize("step", [bail, waterfall, install])
async def test_callers_of_foreign_code_get_an_ordinary_error(kernel: Kernel, step: Any) -> None:
    with pytest.raises(EscapedError):
        step(kernel)


@pytest.mark.parametrize("cleanup", [leave, leave_later])
async def test_a_cleanup_that_exits_is_a_failure_and_the_others_run(kernel: Kernel, cleanup: Any) -> None:
    done: list[str] = []

    def start(context: Context, config: object) -> None:
        context.defer(lambda: done.append("first"))
        context.defer(cleanup)

    fiber = kernel.root.install(FiberSpec("fragile", start))
    await fiber.settled()
    await fiber.dispose()
    assert done == ["first"]
    assert [type(error) for error in fiber.teardown_errors] == [EscapedError]


async def test_a_teardown_after_the_yield_that_exits_is_a_failure(kernel: Kernel) -> None:
    async def start(context: Context, config: object) -> AsyncIterator[None]:
        yield
        leave()

    fiber = kernel.root.install(FiberSpec("fragile", start))
    await fiber.settled()
    await fiber.dispose()
    assert [type(error) for error in fiber.teardown_errors] == [EscapedError]


async def test_a_call_on_a_mount_that_exits_raises_an_ordinary_error(kernel: Kernel) -> None:
    with pytest.raises(EscapedError):
        await kernel.root.mount(TOOL, "x", "x").call(leave_later)


async def test_an_abort_callback_that_exits_does_not_keep_the_others_from_hearing(kernel: Kernel) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    heard: list[object] = []
    controller = AbortController()
    controller.signal.on_abort(leave)
    controller.signal.on_abort(lambda signal: heard.append(signal.cause))
    controller.abort("stop")
    assert heard == ["stop"]
    assert [type(error) for error in reported] == [EscapedError]


async def test_an_availability_check_that_exits_makes_the_service_unavailable(kernel: Kernel) -> None:
    key: ServiceKey[str] = ServiceKey("test/text", str)
    kernel.root.provide(key, "text", leave)
    assert kernel.services.available(key, kernel.root) is None


async def test_the_interrupt_of_the_user_is_no_failure_of_the_plugin(kernel: Kernel) -> None:
    def interrupted(value: int) -> None:
        raise KeyboardInterrupt

    kernel.root.on(NOTED, interrupted)
    with pytest.raises(KeyboardInterrupt):
        kernel.events.emit(NOTED, 1)
