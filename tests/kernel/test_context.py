"""Contexts: what they inherit, whose behalf they act on, and the kernel's public face."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

import polyhost.kernel
from polyhost.kernel import (
    Context,
    EventKey,
    FiberSpec,
    FiberState,
    Kernel,
    MountKind,
    MountState,
    ServiceKey,
)
from polyhost.kernel.errors import InactiveContextError

FOO: ServiceKey[str] = ServiceKey("foo")
BAR: ServiceKey[str] = ServiceKey("bar")
NOTED: EventKey[[int]] = EventKey("test/noted")
TOOL: MountKind[str] = MountKind("tool")


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel()
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []


def nothing(context: Context, config: object) -> None:
    pass


@pytest.mark.contract("CTX-1")
async def test_derived_contexts_and_fibers_below_inherit_realm_and_scope(kernel: Kernel) -> None:
    derived = kernel.root.isolate(FOO, "private").derive(scope="agent")
    derived.provide(FOO, "inside")
    derived.mount(TOOL, "read", "scoped")
    fiber = await derived.install(FiberSpec("below", nothing)).settled()
    for context in (derived.derive(), fiber.context):
        assert context.get(FOO) == "inside"
        assert context.scope_tag == "agent"
    assert kernel.root.get(FOO) is None
    assert kernel.root.scope_tag is None
    assert kernel.mounts.get(TOOL, "read") is None


@pytest.mark.contract("CTX-8")
async def test_a_context_shows_the_nearest_name(kernel: Kernel) -> None:
    seen: list[str] = []

    def start(context: Context, config: object) -> None:
        seen.append(repr(context))
        context.install(FiberSpec("", lambda inner, _: seen.append(repr(inner))))

    anonymous = await kernel.root.install(FiberSpec("", lambda context, _: seen.append(repr(context)))).settled()
    await kernel.root.install(FiberSpec("clock", start)).settled()
    for fiber in list(kernel.fibers.values()):
        await fiber.settled()
    assert repr(kernel.root) == "Context <root>"
    assert seen == ["Context <root>", "Context <clock>", "Context <clock>"]
    assert anonymous.name == "root"


async def test_a_derived_context_shares_the_lifetime(kernel: Kernel) -> None:
    fiber = await kernel.root.install(FiberSpec("plugin", nothing)).settled()
    derived = fiber.context.isolate(FOO).derive(scope="agent")
    await fiber.dispose()
    assert derived.stopping.aborted
    with pytest.raises(InactiveContextError, match="'plugin'"):
        derived.on(NOTED, lambda value: None)


async def test_isolation_keeps_the_scope_and_other_isolations(kernel: Kernel) -> None:
    context = kernel.root.derive(scope="agent").isolate(FOO, "a").isolate(BAR, "b")
    assert (context.label(FOO), context.label(BAR), context.scope_tag) == ("a", "b", "agent")


async def test_an_isolated_realm_is_fresh_unless_named(kernel: Kernel) -> None:
    first, second = kernel.root.isolate(FOO), kernel.root.isolate(FOO)
    assert len({first.label(FOO), second.label(FOO), kernel.root.label(FOO)}) == 3
    assert kernel.root.isolate(FOO, "a").label(FOO) == kernel.root.isolate(FOO, "a").label(FOO)


class TestCurrent:
    async def test_start_tasks_and_run_know_on_whose_behalf_they_work(self, kernel: Kernel) -> None:
        seen: list[Context | None] = [Context.current()]

        async def work() -> None:
            seen.append(Context.current())

        async def start(context: Context, config: object) -> None:
            seen.append(Context.current())
            await context.spawn(work(), name="work").value
            seen.append(kernel.root.run(Context.current))

        fiber = await kernel.root.install(FiberSpec("plugin", start)).settled()
        assert seen == [None, fiber.context, fiber.context, kernel.root]
        assert Context.current() is None


class TestSpawn:
    async def test_a_refused_coroutine_is_closed(self, kernel: Kernel) -> None:
        fiber = await kernel.root.install(FiberSpec("plugin", nothing)).settled()
        await fiber.dispose()
        coroutine = asyncio.sleep(0)
        with pytest.raises(InactiveContextError):
            fiber.context.spawn(coroutine, name="late")
        with pytest.raises(RuntimeError, match="cannot reuse"):
            await coroutine

    async def test_a_task_begins_at_once_and_is_withdrawn_when_it_ends(self, kernel: Kernel) -> None:
        states: list[MountState] = []

        async def start(context: Context, config: object) -> None:
            token = context.spawn(asyncio.sleep(0, "result"), name="handshake")
            states.append(token.state)
            assert await token.value == "result"
            await token.withdraw()
            states.append(token.state)

        await kernel.root.install(FiberSpec("plugin", start)).settled()
        assert states == [MountState.MOUNTING, MountState.WITHDRAWN]

    async def test_withdrawing_its_token_cancels_it(self, kernel: Kernel) -> None:
        token = kernel.root.spawn(asyncio.Event().wait(), name="for ever")
        await token.withdraw()
        assert token.value.cancelled()

    async def test_a_crash_on_the_root_is_kept_and_the_root_goes_on(
        self, kernel: Kernel, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def crash() -> None:
            raise ValueError("broken")

        token = kernel.root.spawn(crash(), name="crash")
        await asyncio.wait({token.value})
        await token.withdraw()
        assert isinstance(token.error, ValueError)
        assert kernel.root.fiber.error is token.error
        assert kernel.root.fiber.state is FiberState.ACTIVE


class TestPublicFace:
    def test_every_name_resolves_lazily(self) -> None:
        for name in polyhost.kernel.__all__:
            assert getattr(polyhost.kernel, name) is not None
        assert set(polyhost.kernel._HOME_OF) == set(polyhost.kernel.__all__)
        with pytest.raises(AttributeError, match="nonsense"):
            polyhost.kernel.nonsense  # noqa: B018

    def test_importing_the_package_loads_no_container(self) -> None:
        code = "import sys, polyhost.kernel; from polyhost.kernel import ServiceKey; print(*sys.modules)"
        modules = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        assert "polyhost.kernel.keys" in modules
        assert not {"dependency_injector", "asyncio", "polyhost.kernel.context"} & set(modules)


def test_keys_compare_by_name() -> None:
    assert ServiceKey[Any]("a") == ServiceKey[Any]("a", str)
    assert EventKey[[int]]("a") != EventKey[[int]]("b")
    assert [str(key) for key in (FOO, NOTED, TOOL)] == ["foo", "test/noted", "tool"]
