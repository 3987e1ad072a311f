"""Random lives of a small host: whatever happens in whatever order, the rules hold and nothing is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyhost.kernel import (
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
    Scope,
    ServiceKey,
)
from polyhost.kernel.errors import PolyhostError

TOOL: MountKind[str] = MountKind("tool")
NOTED: EventKey[[int]] = EventKey("test/noted")
KEYS: list[ServiceKey[Any]] = [ServiceKey(f"service {n}") for n in range(3)]
TRANSITIONS = {
    "pending": {"loading", "unloading"},
    "loading": {"active", "unloading"},
    "active": {"unloading"},
    "failed": {"loading", "unloading", "pending"},
    "unloading": {"loading", "pending", "failed", "disposed"},
    "disposed": set(),
}
MOVES = {
    "mounting": {"active", "withdrawing", "failed"},
    "active": {"withdrawing"},
    "withdrawing": {"withdrawn"},
    "withdrawn": set(),
    "failed": set(),
}

plugin = st.fixed_dictionaries(
    {
        "requires": st.sets(st.integers(0, 2), max_size=2),
        "provides": st.none() | st.integers(0, 2),
        "steps": st.integers(0, 3),  # suspensions of its start
        "ending": st.sampled_from(["return", "fail", "crash", "hang"]),
        "nested": st.booleans(),
        "parent": st.none() | st.integers(0, 3),
    }
)
index = st.integers(0, 5)
action = st.one_of(
    st.tuples(st.just("install"), plugin),
    st.tuples(st.sampled_from(["dispose", "restart", "update", "bad update", "call", "scope", "end scope"]), index),
    st.tuples(st.sampled_from(["mount", "withdraw", "listen", "emit", "set", "failing set"]), index),
    st.tuples(st.just("pass"), st.integers(1, 6)),
)


class Host:
    """Runs actions against a kernel and checks every transition that it announces."""

    def __init__(self) -> None:
        limits = Limits(start_grace=0, abort_grace=0, cancel_grace=1, cleanup_grace=1, dependants_grace=1)
        self.kernel = Kernel(limits=limits)
        self.fibers: list[Fiber] = []
        self.scopes: list[Scope] = []
        self.tokens: list[MountToken[Any]] = []
        self.pending: set[asyncio.Task[None]] = set()
        self.live: dict[int, int] = {}
        self.kernel.root.on(FIBER_STATUS, self.check_fiber)
        self.kernel.root.on(MOUNT_CHANGED, self.check_mount)
        self.broken: list[str] = []

    def check_fiber(self, fiber: Fiber, previous: FiberState) -> None:
        if fiber.state not in TRANSITIONS[previous]:
            self.broken.append(f"{fiber}: from {previous}")
        if fiber.state is FiberState.ACTIVE and fiber.missing:
            self.broken.append(f"{fiber} is active without {fiber.missing}")

    def check_mount(self, token: MountToken[Any], old: MountState, new: MountState) -> None:
        if new not in MOVES[old]:
            self.broken.append(f"{token}: from {old}")
        if new is MountState.ACTIVE and token.owner.fiber.state is not FiberState.ACTIVE:
            self.broken.append(f"{token} is active before its fiber")

    def spec(self, number: int, traits: dict[str, Any]) -> FiberSpec:
        async def tick() -> None:
            await asyncio.sleep(0)
            if traits["ending"] == "crash":
                raise ValueError("crash")
            await asyncio.Event().wait()

        async def start(context: Context, config: Any) -> AsyncIterator[None]:
            self.live[number] = self.live.get(number, 0) + 1
            context.defer(lambda: self.ended(number))
            for key in traits["requires"]:
                assert context.require(KEYS[key]) is not None
            context.mount(TOOL, number, "tool")
            context.on(NOTED, lambda value: asyncio.sleep(0))
            context.spawn(tick(), name="tick")
            if traits["nested"]:
                context.scope(f"nested {number}").context.mount(TOOL, "inner", "tool")
                context.install(FiberSpec("nested", lambda inner, _: inner.defer(lambda: None)))
            for _ in range(traits["steps"]):
                await asyncio.sleep(0)
            if traits["provides"] is not None:
                context.provide(KEYS[traits["provides"]], object())
            if traits["ending"] == "fail" or config == "bad":
                raise ValueError("start")
            if traits["ending"] == "hang":
                await context.stopping.wait()
            yield
            await asyncio.sleep(0)

        return FiberSpec(f"plugin {number}", start, tuple(KEYS[key] for key in traits["requires"]))

    def ended(self, number: int) -> None:
        self.live[number] -= 1
        if self.live[number] != 0:
            self.broken.append(f"plugin {number} ran {self.live[number] + 1} times at once")

    def context(self, number: int | None) -> Context:
        if number is not None and number < len(self.fibers) and self.fibers[number].state is FiberState.ACTIVE:
            return self.fibers[number].context
        return self.kernel.root

    def background(self, work: Any) -> None:
        async def run() -> None:
            try:
                await work
            except (PolyhostError, ValueError, ExceptionGroup):
                pass

        task = asyncio.ensure_future(run())
        self.pending.add(task)

    async def act(self, name: str, argument: Any) -> None:
        fiber = self.fibers[argument % len(self.fibers)] if self.fibers and isinstance(argument, int) else None
        token = self.tokens[argument % len(self.tokens)] if self.tokens and isinstance(argument, int) else None
        match name:
            case "install":
                spec = self.spec(len(self.fibers), argument)
                self.fibers.append(self.context(argument["parent"]).install(spec))
            case "dispose" if fiber:
                fiber.dispose()
            case "restart" if fiber:
                self.background(fiber.restart())
            case "update" if fiber:
                self.background(fiber.update(lambda: "good"))
            case "bad update" if fiber:
                self.background(fiber.update(lambda: "bad"))
            case "mount":
                self.tokens.append(self.context(argument).mount(TOOL, object(), "tool"))
            case "listen":
                self.tokens.append(self.context(argument).on(NOTED, lambda value: asyncio.sleep(0)))
            case "withdraw" if token:
                token.withdraw()
            case "call" if token:
                self.background(token.call(asyncio.sleep, 0))
            case "emit":
                self.kernel.events.emit(NOTED, 1)
            case "scope":
                scope = self.context(argument).scope(object())
                self.scopes.append(scope)
                self.tokens.append(scope.context.mount(TOOL, "scoped", "tool"))
            case "end scope" if self.scopes:
                self.scopes[argument % len(self.scopes)].dispose()
            case "set" | "failing set":
                self.background(self.mount_set(argument, fail=name == "failing set"))
            case "pass":
                for _ in range(argument):
                    await asyncio.sleep(0)

    async def mount_set(self, number: int, *, fail: bool) -> None:
        async with self.context(number).mount_set() as mounts:
            for _ in range(3):
                mounts.add(TOOL, object(), "tool")
                await asyncio.sleep(0)
            if fail:
                raise ValueError("set")

    async def settle(self) -> None:
        """Wait until nothing moves: every transition ended, every operation answered."""
        while busy := [task for task in self.pending if not task.done()]:
            hanging = [fiber for fiber in self.fibers if fiber.state is FiberState.LOADING]
            _, waiting = await asyncio.wait(busy, timeout=0.005)
            if waiting and hanging:
                for fiber in hanging:
                    fiber.dispose()

    def check_rest(self) -> None:
        """Of fibers at rest: those that could run do, those that failed say why, and only active ones show mounts."""
        for token in self.kernel.mounts._live:
            assert not token.active or token.owner.fiber.state is FiberState.ACTIVE, token
        for fiber in self.fibers:
            if fiber.state is FiberState.PENDING and fiber._driver is None and not fiber.missing:
                parent = fiber.parent
                assert parent is not None
                assert parent.owner.sealed, f"{fiber} could start"
            if fiber.state is FiberState.FAILED and fiber.error is None:
                raise AssertionError(f"{fiber} has no error")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(action, max_size=40))
def test_nothing_is_left_of_any_life(actions: list[tuple[str, Any]]) -> None:
    async def live() -> None:
        host = Host()
        for name, argument in actions:
            try:
                await host.act(name, argument)
            except PolyhostError:
                pass  # refused: the target was gone or closing
        async with asyncio.timeout(20):
            await host.settle()
        host.check_rest()
        await host.kernel.aclose()
        await host.settle()
        kernel = host.kernel
        assert host.broken == []
        assert all(count == 0 for count in host.live.values())
        assert all(fiber.state is FiberState.DISPOSED for fiber in host.fibers)
        assert kernel.mounts.snapshot() == []
        assert kernel.fibers == {}
        assert kernel.events.listeners(NOTED) == ()
        assert kernel.services._watchers == {}
        assert not any(slot.overridden for slot in kernel.services._slots.values())
        assert kernel.scopes._parents == {}
        assert kernel.root.owner.info().cleanups == []
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(live())
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("point", range(30))
async def test_a_host_may_be_closed_at_any_moment_of_its_start(point: int) -> None:
    """Three plugins that depend on each other, closed after every possible number of loop steps."""
    host = Host()
    base = {"steps": 2, "ending": "return", "nested": True, "parent": None}
    traits = [
        {**base, "requires": {1}, "provides": 2},
        {**base, "requires": {0}, "provides": 1},
        {**base, "requires": set(), "provides": 0},
    ]
    for number, each in enumerate(traits):
        host.fibers.append(host.kernel.root.install(host.spec(number, each)))
    for _ in range(point):
        await asyncio.sleep(0)
    await host.kernel.aclose()
    assert host.broken == []
    assert all(count == 0 for count in host.live.values())
    assert host.kernel.mounts.snapshot() == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
