"""Mount sets: all or nothing, whatever fails, and whenever it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polyhost.kernel import (
    FIBER_STATUS,
    MOUNT_CHANGED,
    SERVICE,
    Context,
    FiberSpec,
    FiberState,
    Kernel,
    KindHandler,
    Limits,
    MountKind,
    MountState,
    MountToken,
    Provision,
    ServiceKey,
)
from polyhost.kernel.errors import InactiveContextError, MountConflictError

PART: MountKind[str] = MountKind("part")
STORE: ServiceKey[object] = ServiceKey("store")
SIZE = 4


class Parts(KindHandler[str]):
    """Installs synchronously, uninstalls in several suspensions; may be told to fail at one key."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fail_install: object = None
        self.fail_uninstall: object = None

    def install(self, token: MountToken[str]) -> None:
        self.log.append(f"+{token.key}")
        if token.key == self.fail_install:
            raise ValueError(f"install {token.key}")

    async def uninstall(self, token: MountToken[str]) -> None:  # type: ignore[override]
        for _ in range(2):
            await asyncio.sleep(0)
        self.log.append(f"-{token.key}")
        if token.key == self.fail_uninstall:
            raise ValueError(f"uninstall {token.key}")


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel(limits=Limits(abort_grace=0.01, cancel_grace=0.05))
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []


@pytest.fixture
def parts(kernel: Kernel) -> Parts:
    parts = Parts()
    kernel.mounts.handle(PART, parts)
    return parts


async def mount_all(context: Context, size: int = SIZE, fail_at: int | None = None) -> list[MountToken[str]]:
    """Add parts with a suspension between them, raising before number ``fail_at`` (or at the end)."""
    async with context.mount_set() as mounts:
        for index in range(size):
            if fail_at == index:
                raise KeyError(index)
            mounts.add(PART, index, "part")
            await asyncio.sleep(0)
        if fail_at == size:
            raise KeyError(size)
    return list(mounts.tokens)


@pytest.mark.contract("TX-1", "TX-3")
async def test_a_set_is_invisible_until_it_appears_in_one_step(kernel: Kernel, parts: Parts) -> None:
    seen: list[int] = []
    kernel.root.on(MOUNT_CHANGED, lambda token, old, new: seen.append(len(kernel.mounts.items(PART))))
    async with kernel.root.mount_set() as mounts:
        for index in range(SIZE):
            token = mounts.add(PART, index, "part")
            assert token.state is MountState.MOUNTING
        await asyncio.sleep(0)
        assert kernel.mounts.items(PART) == ()
        seen.clear()
    assert seen == [SIZE] * SIZE
    assert [key for key, _ in kernel.mounts.items(PART)] == [0, 1, 2, 3]


@pytest.mark.contract("TX-3")
async def test_services_are_announced_when_the_whole_set_is_visible(kernel: Kernel, parts: Parts) -> None:
    seen: list[Any] = []
    fiber = kernel.root.install(FiberSpec("user", lambda context, config: None, (STORE,)))
    kernel.root.on(FIBER_STATUS, lambda fiber, previous: seen.append(kernel.mounts.items(PART)))
    states: list[FiberState] = []
    async with kernel.root.mount_set() as mounts:
        mounts.add(PART, 0, "first")
        mounts.add(SERVICE, ("root", "store"), Provision(STORE, "store"))
        mounts.add(PART, 1, "second")
        states.append(fiber.state)
    states.append(fiber.state)
    await fiber.settled()
    assert states == [FiberState.PENDING, FiberState.LOADING]
    assert seen == [((0, "first"), (1, "second"))] * 2


@pytest.mark.contract("TX-2")
async def test_every_key_is_reserved_before_anything_is_installed(kernel: Kernel, parts: Parts) -> None:
    def start(context: Context, config: object) -> None:
        context.mount(PART, 3, "taken")

    await kernel.root.install(FiberSpec("rival", start)).settled()
    parts.log.clear()
    with pytest.raises(MountConflictError, match=r"'root'.*'rival'"):
        await mount_all(kernel.root)
    assert parts.log == []
    assert kernel.mounts.items(PART) == ((3, "taken"),)


@pytest.mark.contract("TX-2")
async def test_reservations_conflict_with_each_other(kernel: Kernel, parts: Parts) -> None:
    async with kernel.root.mount_set() as first:
        first.add(PART, "a", "x")
        with pytest.raises(MountConflictError, match="mounting"):
            first.add(PART, "a", "again")
        with pytest.raises(MountConflictError):
            async with kernel.root.mount_set() as second:
                second.add(PART, "b", "y")
                second.add(PART, "a", "y")
        with pytest.raises(MountConflictError):
            kernel.root.mount(PART, "a", "z")
    assert kernel.mounts.items(PART) == (("a", "x"),)


@pytest.mark.contract("TX-4")
@pytest.mark.parametrize("position", range(SIZE + 1))
async def test_an_error_at_any_position_leaves_nothing(kernel: Kernel, parts: Parts, position: int) -> None:
    with pytest.raises(KeyError):
        await mount_all(kernel.root, fail_at=position)
    assert parts.log == []
    assert kernel.mounts.snapshot() == []
    assert len(await mount_all(kernel.root)) == SIZE


@pytest.mark.contract("TX-4")
@pytest.mark.parametrize("position", range(SIZE))
async def test_a_failing_installation_rolls_back_in_reverse(kernel: Kernel, parts: Parts, position: int) -> None:
    parts.fail_install = position
    mounts = kernel.root.mount_set()
    with pytest.raises(ValueError, match=f"install {position}"):
        async with mounts:
            for index in range(SIZE):
                mounts.add(PART, index, "part")
    done = [f"+{index}" for index in range(position + 1)]
    assert parts.log == done + [f"-{index}" for index in reversed(range(position))]
    assert [token.state for token in mounts.tokens] == [
        MountState.FAILED if index == position else MountState.WITHDRAWN for index in range(SIZE)
    ]
    assert kernel.mounts.snapshot() == []
    parts.fail_install = None
    assert len(await mount_all(kernel.root)) == SIZE


@pytest.mark.contract("TX-4")
async def test_a_rollback_step_that_fails_stands_beside_the_original_error(
    kernel: Kernel, parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    parts.fail_install, parts.fail_uninstall = 3, 1
    with pytest.raises(ExceptionGroup, match="mount failed") as caught:
        await mount_all(kernel.root)
    original, rollback = caught.value.exceptions
    assert str(original) == "install 3"
    assert isinstance(rollback, ExceptionGroup)
    assert [str(error) for error in rollback.exceptions] == ["uninstall 1"]
    assert parts.log[-3:] == ["-2", "-1", "-0"]
    assert kernel.mounts.snapshot() == []


@pytest.mark.contract("TX-4")
@pytest.mark.parametrize("point", range(SIZE + 8))
async def test_a_cancellation_at_any_suspension_leaves_nothing(kernel: Kernel, parts: Parts, point: int) -> None:
    """Cancelled in the block, during a rollback's undo steps, or too late."""
    parts.fail_install = 2 if point >= SIZE else None
    task = asyncio.ensure_future(mount_all(kernel.root))
    for _ in range(point + 1):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() or (point >= SIZE and isinstance(task.exception(), ValueError)) or not cancelled
    parts.fail_install = None
    left = [kernel.mounts.holder(PART, info.key) for info in kernel.mounts.snapshot()]
    assert {token.state for token in left if token} <= {MountState.WITHDRAWING, MountState.FAILED}
    for token in left:
        assert token is not None
        await token.withdraw()
    assert len(await mount_all(kernel.root)) == SIZE


@pytest.mark.contract("TX-5")
async def test_a_slow_or_failed_transaction_delays_nobody(kernel: Kernel, parts: Parts) -> None:
    """Ours hold no lock: a key is reserved in one synchronous step, and a commit is another."""
    async with kernel.root.mount_set() as slow:
        slow.add(PART, "slow", "x")
        async with kernel.root.mount_set() as nested:
            nested.add(PART, "nested", "x")
        assert kernel.mounts.items(PART) == (("nested", "x"),)
        with pytest.raises(KeyError):
            await mount_all(kernel.root, fail_at=1)
        kernel.root.mount(PART, "plain", "x")
    assert [key for key, _ in kernel.mounts.items(PART)] == ["nested", "plain", "slow"]


class TestStart:
    @pytest.mark.contract("TX-6")
    async def test_what_a_start_mounts_appears_when_it_has_succeeded(self, kernel: Kernel, parts: Parts) -> None:
        mounted, release = asyncio.Event(), asyncio.Event()
        contexts: list[Context] = []

        async def start(context: Context, config: object) -> None:
            contexts.append(context)
            context.mount(PART, "one", "x")
            async with context.mount_set() as mounts:
                mounts.add(PART, "two", "x")
            context.scope("agent").context.mount(PART, "scoped", "x")
            mounted.set()
            await release.wait()

        slow = kernel.root.install(FiberSpec("slow", start))
        await mounted.wait()
        quick = kernel.root.install(FiberSpec("quick", lambda context, _: void(context.mount(PART, "quick", "x"))))
        await quick.settled()
        assert kernel.mounts.items(PART, scope="agent") == (("quick", "x"),)
        release.set()
        await slow.settled()
        assert [key for key, _ in kernel.mounts.items(PART, scope="agent")] == ["quick", "one", "two", "scoped"]
        late = contexts[0].mount(PART, "late", "x")
        assert late.state is MountState.ACTIVE

    @pytest.mark.contract("TX-6")
    @pytest.mark.parametrize("position", range(SIZE + 1))
    async def test_a_failed_start_leaves_nothing(
        self, kernel: Kernel, parts: Parts, position: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def start(context: Context, config: object) -> None:
            for index in range(SIZE):
                if index == position:
                    raise KeyError(index)
                context.mount(PART, index, "part")
                await asyncio.sleep(0)
            raise KeyError(SIZE)

        fiber = kernel.root.install(FiberSpec("failing", start))
        with pytest.raises(KeyError):
            await fiber.settled()
        assert fiber.state is FiberState.FAILED
        assert kernel.mounts.snapshot() == []
        assert parts.log == []

    @pytest.mark.contract("TX-4", "TX-6")
    async def test_an_installation_that_fails_at_the_commit_fails_the_start(
        self, kernel: Kernel, parts: Parts, caplog: pytest.LogCaptureFixture
    ) -> None:
        parts.fail_install = 2

        def start(context: Context, config: object) -> None:
            for index in range(SIZE):
                context.mount(PART, index, "part")

        fiber = kernel.root.install(FiberSpec("failing", start))
        with pytest.raises(ValueError, match="install 2"):
            await fiber.settled()
        assert parts.log == ["+0", "+1", "+2", "-1", "-0"]
        parts.fail_install = None
        await fiber.restart()
        assert len(kernel.mounts.items(PART)) == SIZE


@pytest.mark.contract("TX-7")
async def test_a_set_is_withdrawn_in_one_step_and_removed_in_reverse(kernel: Kernel, parts: Parts) -> None:
    states: list[tuple[object, int]] = []
    async with kernel.root.mount_set() as mounts:
        for index in range(SIZE):
            mounts.add(PART, index, "part")
    kernel.root.on(MOUNT_CHANGED, lambda token, old, new: states.append((new, len(kernel.mounts.items(PART)))))
    parts.log.clear()
    states.clear()
    ending = mounts.withdraw()
    assert states == [(MountState.WITHDRAWING, 0)] * SIZE
    await ending
    await mounts.withdraw()
    assert parts.log == ["-3", "-2", "-1", "-0"]
    assert {token.state for token in mounts.tokens} == {MountState.WITHDRAWN}


async def test_a_set_dies_with_its_owner_before_it_is_committed(kernel: Kernel, parts: Parts) -> None:
    scope = kernel.root.scope("agent")
    with pytest.raises(InactiveContextError):
        async with scope.context.mount_set() as mounts:
            token = mounts.add(PART, "a", "x")
            await scope.dispose()
            assert token.state is MountState.WITHDRAWN
            with pytest.raises(InactiveContextError):
                mounts.add(PART, "b", "x")
    assert parts.log == []


def void(_: object) -> None:
    return None
