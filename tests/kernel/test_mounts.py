"""Mount tokens: every kind of mount against every situation in which it may be withdrawn, and calls on them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from polyhost.kernel import (
    LISTENER,
    MOUNT_CHANGED,
    SERVICE,
    TASK,
    AbortController,
    AbortedError,
    Context,
    EventKey,
    FiberSpec,
    Kernel,
    KindHandler,
    Limits,
    MountKind,
    MountState,
    MountToken,
    Provision,
    ServiceKey,
)
from polyhost.kernel.errors import InactiveContextError, MountConflictError, MountWithdrawnError

TOOL: MountKind[str] = MountKind("tool")
ROUTE: MountKind[str] = MountKind("route")
NOTE: MountKind[str] = MountKind("note", unique=False)
NOTED: EventKey[[int]] = EventKey("test/noted")
STORE: ServiceKey[object] = ServiceKey("store")

Mount = Callable[[Context], MountToken[Any]]


class Routes(KindHandler[str]):
    """A kind with an asynchronous installation to undo, like a router table with open sockets."""

    def __init__(self) -> None:
        self.table: dict[Any, MountToken[str]] = {}

    def validate(self, key: Any, value: str) -> None:
        if not str(key).startswith("/"):
            raise ValueError(f"{key} must begin with /")

    def install(self, token: MountToken[str]) -> None:
        self.table[token.key] = token

    async def uninstall(self, token: MountToken[str]) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        assert self.table.pop(token.key) is token


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel(limits=Limits(abort_grace=0.01, cancel_grace=0.05, cleanup_grace=0.1))
    kernel.mounts.handle(ROUTE, Routes())
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []
    left = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
    assert {task.get_name() for task in left} <= {"deaf"}


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def spawn(context: Context) -> MountToken[Any]:
    return context.spawn(wait_for_ever(), name="idle")


KINDS: dict[str, Mount] = {
    "service": lambda context: context.provide(STORE, "store"),
    "route": lambda context: context.mount(ROUTE, "/a", "page"),
    "tool": lambda context: context.mount(TOOL, "read", "tool"),
    "note": lambda context: context.mount(NOTE, None, "note"),
    "listener": lambda context: context.on(NOTED, lambda value: None),
    "task": spawn,
}
UNIQUE = {"service", "route", "tool"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Call:
    """A call in flight on a token, with what became of it."""

    def __init__(self, token: MountToken[Any], work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.entered = asyncio.Event()

        async def body() -> Any:
            self.entered.set()
            return await work()

        self.task = asyncio.ensure_future(token.call(body))

    async def started(self) -> Call:
        await asyncio.wait_for(self.entered.wait(), 1)
        return self

    async def outcome(self) -> type[BaseException] | Any:
        await asyncio.wait({self.task}, timeout=1)
        assert self.task.done()
        return asyncio.CancelledError if self.task.cancelled() else type(self.task.exception())


class Deaf:
    """A call that ignores its cancellation until the test lets it go."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self) -> str:
        current = asyncio.current_task()
        assert current is not None
        current.set_name("deaf")
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                pass
        return "too late"


class Path:
    """The states that a token goes through, as announced."""

    def __init__(self, kernel: Kernel) -> None:
        self.changes: list[tuple[MountToken[Any], MountState, MountState]] = []
        kernel.root.on(MOUNT_CHANGED, lambda token, old, new: self.changes.append((token, old, new)))

    def of(self, token: MountToken[Any]) -> str:
        mine = [(old, new) for changed, old, new in self.changes if changed is token]
        assert all(new == old for (_, new), (old, _) in itertools.pairwise(mine))
        return " ".join([mine[0][0], *(new for _, new in mine)]) if mine else ""


LIFE = "mounting active withdrawing withdrawn"


async def check_gone(kernel: Kernel, kind: str, token: MountToken[Any]) -> None:
    """Nothing is left of the token, and its key can be used again."""
    assert token.state is MountState.WITHDRAWN
    assert token not in kernel.root.owner.tokens
    assert token.id not in [info.id for info in kernel.mounts.snapshot()]
    assert token.aborted.aborted
    with pytest.raises(MountWithdrawnError, match="no longer mounted"):
        await token.call(wait_for_ever)
    again = KINDS[kind](kernel.root)
    assert again.state is MountState.ACTIVE
    assert again.id != token.id
    await again.withdraw()


@pytest.mark.contract("MT-1", "MT-2", "MT-4", "MT-5", "MT-10")
async def test_withdrawn_while_idle(kernel: Kernel, kind: str) -> None:
    path = Path(kernel)
    token = KINDS[kind](kernel.root)
    assert visible(kernel, kind)
    ending = token.withdraw("not needed")
    assert not visible(kernel, kind)
    with pytest.raises(MountWithdrawnError, match="not needed"):
        token.require_active()
    await ending
    assert path.of(token) == LIFE
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-2", "MT-3")
async def test_withdrawn_during_a_call_that_follows_its_signal(kernel: Kernel, kind: str) -> None:
    token = KINDS[kind](kernel.root)
    call = await Call(token, lambda: token.aborted.wait()).started()
    await token.withdraw()
    assert await call.outcome() is MountWithdrawnError
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-3")
async def test_withdrawn_during_a_call_that_honours_cancellation(kernel: Kernel, kind: str) -> None:
    cleaned: list[bool] = []

    async def work() -> None:
        try:
            await wait_for_ever()
        finally:
            cleaned.append(token.aborted.aborted)

    token = KINDS[kind](kernel.root)
    call = await Call(token, work).started()
    await token.withdraw()
    assert cleaned == [True]
    assert await call.outcome() is MountWithdrawnError
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-3")
async def test_withdrawn_during_a_call_that_ignores_cancellation(
    kernel: Kernel, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named in the log and left behind; its caller is not."""
    deaf = Deaf()
    token = KINDS[kind](kernel.root)
    call = await Call(token, deaf).started()
    await token.withdraw()
    assert await call.outcome() is MountWithdrawnError
    assert "deaf ignored its cancellation" in caplog.text
    await check_gone(kernel, kind, token)
    deaf.release.set()


@pytest.mark.contract("MT-6", "MT-7")
async def test_withdrawn_from_inside_a_call(kernel: Kernel, kind: str) -> None:
    """The call is not waited for and runs to its end, but its result no longer counts."""
    finished: list[bool] = []
    token = KINDS[kind](kernel.root)

    async def work() -> str:
        await asyncio.create_task(nested())
        finished.append(token.state is MountState.WITHDRAWN)
        return "a good response"

    async def nested() -> None:
        await token.withdraw()

    call = await Call(token, work).started()
    assert await call.outcome() is MountWithdrawnError
    assert finished == [True]
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-6")
async def test_withdrawn_twice_at_the_same_time(kernel: Kernel, kind: str) -> None:
    path = Path(kernel)
    token = KINDS[kind](kernel.root)
    call = await Call(token, wait_for_ever).started()
    await asyncio.gather(wait(token.withdraw("first")), wait(token.withdraw("second")))
    await token.withdraw()
    assert token.reason == "first"
    assert path.of(token) == LIFE
    assert await call.outcome() is MountWithdrawnError
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-6")
async def test_a_cancelled_waiter_does_not_stop_the_withdrawal(kernel: Kernel, kind: str) -> None:
    token = KINDS[kind](kernel.root)
    call = await Call(token, wait_for_ever).started()
    waiter = asyncio.ensure_future(wait(token.withdraw()))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.wait({waiter})
    assert waiter.cancelled()
    await token.withdraw()
    assert await call.outcome() is MountWithdrawnError
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-1", "MT-9")
async def test_withdrawn_while_mounting(kernel: Kernel, kind: str) -> None:
    path = Path(kernel)
    tokens: list[MountToken[Any]] = []

    async def start(context: Context, config: object) -> None:
        token = KINDS[kind](context)
        tokens.append(token)
        assert token.state is MountState.MOUNTING
        assert not visible(kernel, kind)
        with pytest.raises(MountWithdrawnError, match="not mounted yet"):
            await token.call(wait_for_ever)
        await token.withdraw()

    fiber = await kernel.root.install(FiberSpec("starting", start)).settled()
    assert not visible(kernel, kind)
    assert path.of(tokens[0]) == "mounting withdrawing withdrawn"
    await fiber.dispose()
    await check_gone(kernel, kind, tokens[0])


@pytest.mark.contract("MT-9", "FIB-24")
async def test_the_owner_is_disposed(kernel: Kernel, kind: str) -> None:
    path = Path(kernel)
    tokens: list[MountToken[Any]] = []
    fiber = kernel.root.install(FiberSpec("owner", lambda context, config: tokens.append(KINDS[kind](context))))
    await fiber.settled()
    (token,) = tokens
    call = await Call(token, wait_for_ever).started()
    ending = fiber.dispose()
    assert not visible(kernel, kind)
    if kind in UNIQUE:
        with pytest.raises(MountConflictError):
            KINDS[kind](kernel.root)
    with pytest.raises(InactiveContextError):
        KINDS[kind](token.owner.fiber.context)
    await ending
    assert path.of(token) == LIFE
    assert await call.outcome() is MountWithdrawnError
    await check_gone(kernel, kind, token)


@pytest.mark.contract("MT-4", "MT-5")
async def test_a_key_is_free_only_after_every_undo_step_has_run(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    order: list[str] = []
    release = asyncio.Event()

    def fails() -> None:
        order.append("fails")
        raise ValueError("broken")

    async def slow() -> None:
        await release.wait()
        order.append("slow")

    token = kernel.root.mount(TOOL, "read", "x")
    token.defer(lambda: order.append("first"))
    token.defer(slow)
    token.defer(fails)
    ending = token.withdraw()
    await asyncio.sleep(0)
    with pytest.raises(MountConflictError, match=r"'root'.*withdrawing"):
        kernel.root.mount(TOOL, "read", "y")
    release.set()
    await ending
    assert order == ["fails", "slow", "first"]
    assert isinstance(token.error, ExceptionGroup)
    assert [str(error) for error in token.error.exceptions] == ["broken"]
    assert caplog.text.count("ValueError: broken") == 1
    kernel.root.mount(TOOL, "read", "y")


async def test_an_undo_step_that_hangs_is_given_up(kernel: Kernel) -> None:
    token = kernel.root.mount(TOOL, "read", "x")
    token.defer(wait_for_ever)
    await token.withdraw()
    assert isinstance(token.error, ExceptionGroup)
    assert isinstance(token.error.exceptions[0], TimeoutError)


class TestCalls:
    async def test_returns_and_raises_what_the_function_does(self, kernel: Kernel) -> None:
        token = kernel.root.mount(TOOL, "read", "x")

        async def add(a: int, b: int) -> int:
            if b < 0:
                raise ValueError("negative")
            return a + b

        assert await token.call(add, 1, 2) == 3
        with pytest.raises(ValueError, match="negative"):
            await token.call(add, 1, -2)

    @pytest.mark.contract("MT-7")
    async def test_a_good_response_after_the_withdrawal_is_discarded(self, kernel: Kernel) -> None:
        token = kernel.root.mount(TOOL, "read", "x")

        async def answer() -> str:
            await token.aborted.wait()
            return "good"

        call = await Call(token, answer).started()
        await token.withdraw()
        assert await call.outcome() is MountWithdrawnError

    @pytest.mark.contract("MT-8")
    async def test_the_callers_cancellation_stays_a_cancellation(self, kernel: Kernel) -> None:
        token = kernel.root.mount(TOOL, "read", "x")
        ended: list[str] = []

        async def work() -> None:
            try:
                await wait_for_ever()
            finally:
                ended.append("work")

        call = await Call(token, work).started()
        call.task.cancel()
        assert await call.outcome() is asyncio.CancelledError
        assert ended == ["work"]
        token.require_active()

    @pytest.mark.contract("MT-8")
    async def test_a_withdrawal_leaves_no_cancellation_count_in_the_caller(self, kernel: Kernel) -> None:
        token = kernel.root.mount(TOOL, "read", "x")
        counts: list[int] = []

        async def caller() -> None:
            with pytest.raises(MountWithdrawnError):
                await token.call(wait_for_ever)
            current = asyncio.current_task()
            assert current is not None
            counts.append(current.cancelling())
            await asyncio.sleep(0)

        task = asyncio.ensure_future(caller())
        await asyncio.sleep(0)
        await token.withdraw()
        await task
        assert counts == [0]

    @pytest.mark.contract("MT-8")
    async def test_a_signal_aborts_one_call(self, kernel: Kernel) -> None:
        token = kernel.root.mount(TOOL, "read", "x")
        controller = AbortController()
        other = await Call(token, wait_for_ever).started()
        task = asyncio.ensure_future(token.call(wait_for_ever, signal=controller.signal))
        await asyncio.sleep(0)
        controller.abort("user")
        with pytest.raises(AbortedError) as caught:
            await task
        assert caught.value.cause == "user"
        assert not other.task.done()

    async def test_a_call_that_follows_its_signal_may_still_answer(self, kernel: Kernel) -> None:
        token = kernel.root.mount(TOOL, "read", "x")
        controller = AbortController()

        async def partial() -> str:
            await controller.signal.wait()
            return "partial result"

        task = asyncio.ensure_future(token.call(partial, signal=controller.signal))
        await asyncio.sleep(0)
        controller.abort()
        assert await task == "partial result"


class TestTable:
    async def test_a_handler_refuses_before_anything_is_reserved(self, kernel: Kernel) -> None:
        with pytest.raises(ValueError, match="must begin"):
            kernel.root.mount(ROUTE, "a", "page")
        assert kernel.mounts.snapshot() == []

    async def test_a_failed_installation_leaves_the_key_free(self, kernel: Kernel) -> None:
        path = Path(kernel)
        failed: list[MountToken[str]] = []

        class Picky(KindHandler[str]):
            def install(self, token: MountToken[str]) -> None:
                token.defer(lambda: undone.append("partial work"))
                if not failed:
                    failed.append(token)
                    raise ValueError("no")

        undone: list[str] = []
        kernel.mounts.handle(TOOL, Picky())
        with pytest.raises(ValueError, match="no"):
            kernel.root.mount(TOOL, "read", "x")
        await failed[0].withdraw()
        assert undone == ["partial work"]
        assert failed[0].state is MountState.FAILED
        assert path.of(failed[0]) == "mounting failed"
        kernel.root.mount(TOOL, "read", "x")

    async def test_a_kind_has_one_handler_set_before_its_first_mount(self, kernel: Kernel) -> None:
        with pytest.raises(MountConflictError):
            kernel.mounts.handle(ROUTE, Routes())
        kernel.root.mount(TOOL, "read", "x")
        with pytest.raises(MountConflictError):
            kernel.mounts.handle(TOOL, Routes())

    async def test_the_snapshot_tells_every_live_token(self, kernel: Kernel) -> None:
        def start(context: Context, config: object) -> None:
            context.mount(TOOL, "read", "x")
            context.scope("agent").context.mount(ROUTE, "/a", "page")

        fiber = await kernel.root.install(FiberSpec("files", start)).settled()
        listed = [tuple(info)[1:] for info in kernel.mounts.snapshot()]
        assert listed == [
            ("tool", "read", "files", None, MountState.ACTIVE),
            ("route", "/a", "files/agent", "agent", MountState.ACTIVE),
        ]
        assert kernel.mounts.snapshot()[0].id == f"{fiber.uid}/1"
        tree = fiber.owner.info()
        assert (tree.name, len(tree.mounts), [child.name for child in tree.children]) == ("files", 1, ["files/agent"])

    @pytest.mark.contract("MT-10")
    async def test_a_failing_observer_does_not_stop_a_mount(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(token: MountToken[Any], old: MountState, new: MountState) -> None:
            raise ValueError("observer")

        kernel.root.on(MOUNT_CHANGED, fail)
        token = kernel.root.mount(TOOL, "read", "x")
        await token.withdraw()
        assert token.state is MountState.WITHDRAWN
        assert "observer" in caplog.text


def visible(kernel: Kernel, kind: str) -> bool:
    match kind:
        case "service":
            return kernel.root.get(STORE) is not None
        case "route":
            return kernel.mounts.get(ROUTE, "/a") is not None and bool(kernel.mounts.items(ROUTE))
        case "tool":
            return kernel.mounts.token(TOOL, "read") is not None and bool(kernel.mounts.items(TOOL))
        case "note":
            return bool(kernel.mounts.items(NOTE))
        case "listener":
            heard = len(kernel.events.listeners(NOTED))
            assert heard == len([key for key, _ in kernel.mounts.items(LISTENER) if key == NOTED])
            return bool(heard)
        case "task":
            return bool(kernel.mounts.items(TASK))
    raise AssertionError(kind)


async def wait(ending: Any) -> None:
    await ending


async def test_a_service_may_be_mounted_like_anything_else(kernel: Kernel) -> None:
    kernel.root.mount(SERVICE, ("root", "store"), Provision(STORE, "store"))
    assert kernel.root.get(STORE) == "store"
