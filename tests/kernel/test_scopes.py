"""Scopes: tags and their links, layered visibility, and owners that are usable at once and closed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.kernel import (
    EventKey,
    FiberSpec,
    Kernel,
    KindHandler,
    MountKind,
    MountState,
    MountToken,
    ScopeTree,
)
from polyhost.kernel.errors import InactiveContextError, MountConflictError, ScopeLinkError

TOOL: MountKind[str] = MountKind("tool")
NOTE: MountKind[str] = MountKind("note", unique=False)
NOTED: EventKey[[int]] = EventKey("test/noted")


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel()
    yield kernel
    await kernel.aclose()
    assert kernel.mounts.snapshot() == []


class Tag:
    """An opaque scope key."""


@pytest.mark.contract("SCO-1")
async def test_a_tag_is_inherited_and_the_inner_one_wins(kernel: Kernel) -> None:
    outer, inner = Tag(), Tag()
    scope = kernel.root.scope(outer)
    assert kernel.root.scope_tag is None
    assert scope.context.derive().scope_tag is outer
    assert scope.context.scope(inner).context.derive().scope_tag is inner
    child = scope.context.install(FiberSpec("child", lambda context, config: None))
    await child.settled()
    assert child.context.scope_tag is outer


@pytest.mark.contract("SCO-2")
async def test_a_scope_is_usable_in_the_step_that_makes_it(kernel: Kernel) -> None:
    tag = Tag()
    context = kernel.root.scope(tag).context
    context.mount(TOOL, "read", "scoped")
    assert kernel.mounts.get(TOOL, "read", scope=tag) == "scoped"
    assert kernel.mounts.get(TOOL, "read") is None


class TestDisposal:
    @pytest.mark.contract("SCO-3")
    async def test_all_callers_join_one_teardown(self, kernel: Kernel) -> None:
        scope = kernel.root.scope(Tag())
        release = asyncio.Event()
        runs: list[str] = []

        async def cleanup() -> None:
            await release.wait()
            runs.append("cleanup")

        scope.context.defer(cleanup)
        first = asyncio.ensure_future(scope.dispose())
        second = asyncio.ensure_future(scope.dispose())
        cancelled = asyncio.ensure_future(scope.dispose())
        closing = asyncio.ensure_future(kernel.aclose())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert not any(waiting.done() for waiting in (first, second, closing))
        release.set()
        await asyncio.gather(first, second, closing)
        await scope.dispose()
        assert runs == ["cleanup"]

    @pytest.mark.contract("SCO-4")
    async def test_a_scope_closes_at_its_place_in_the_owners_order(self, kernel: Kernel) -> None:
        order: list[str] = []

        def start(context: Any, config: object) -> None:
            context.defer(lambda: order.append("before"))
            scope = context.scope(Tag())
            scope.context.defer(lambda: order.append("inside 1"))
            scope.context.defer(lambda: order.append("inside 2"))
            context.defer(lambda: order.append("after"))

        fiber = await kernel.root.install(FiberSpec("owner", start)).settled()
        await fiber.dispose()
        assert order == ["after", "inside 2", "inside 1", "before"]

    async def test_mounts_of_a_scope_vanish_with_those_of_its_fiber_in_one_step(self, kernel: Kernel) -> None:
        tag = Tag()

        def start(context: Any, config: object) -> None:
            context.mount(TOOL, "outer", "1")
            context.scope(tag).context.mount(TOOL, "inner", "2")

        fiber = await kernel.root.install(FiberSpec("owner", start)).settled()
        assert [key for key, _ in kernel.mounts.items(TOOL, scope=tag)] == ["outer", "inner"]
        closing = fiber.dispose()
        assert kernel.mounts.items(TOOL, scope=tag) == ()
        await closing

    async def test_a_disposed_scope_refuses_and_is_forgotten(self, kernel: Kernel) -> None:
        parent, tag = Tag(), Tag()
        scope = kernel.root.scope(tag, parent)
        nested = scope.context.scope(Tag())
        await scope.dispose()
        for context in (scope.context, nested.context):
            with pytest.raises(InactiveContextError):
                context.mount(TOOL, "late", "x")
            assert context.stopping.aborted
        assert kernel.scopes.chain(tag) == (tag,)
        assert kernel.root.owner.info().children == []

    async def test_a_crashed_task_ends_its_scope_only(self, kernel: Kernel, caplog: pytest.LogCaptureFixture) -> None:
        scope = kernel.root.scope(Tag())

        async def crash() -> None:
            raise ValueError("broken")

        scope.context.spawn(crash(), name="crash")
        await scope.stopping.wait()
        await scope.dispose()
        assert isinstance(scope.error, ValueError)
        assert caplog.text.count("crashed") == 1
        kernel.root.owner.check_open()


class TestLinks:
    @pytest.mark.contract("SCO-8")
    async def test_a_parent_is_bound_once_and_moved_by_its_first_link_only(self, kernel: Kernel) -> None:
        first, second, third = Tag(), Tag(), Tag()
        link = kernel.scopes.bind(third, second)
        with pytest.raises(ScopeLinkError, match="already"):
            kernel.scopes.bind(third, first)
        kernel.scopes.bind(second, first)
        assert kernel.scopes.chain(third) == (third, second, first)
        with pytest.raises(ScopeLinkError, match="cycle"):
            kernel.scopes.bind(first, third)
        with pytest.raises(ScopeLinkError, match="cycle"):
            link.relink(third)
        link.relink(first)
        assert kernel.scopes.chain(third) == (third, first)

    async def test_a_refused_scope_leaves_nothing(self, kernel: Kernel) -> None:
        tag = Tag()
        kernel.root.scope(tag, Tag())
        before = kernel.root.owner.info()
        with pytest.raises(ScopeLinkError):
            kernel.root.scope(tag, Tag())
        assert kernel.root.owner.info() == before

    @given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))))
    def test_links_never_form_a_cycle(self, edges: list[tuple[int, int]]) -> None:
        tree = ScopeTree()
        links: dict[int, Any] = {}
        for tag, parent in edges:
            try:
                if tag in links:
                    links[tag].relink(parent)
                else:
                    links[tag] = tree.bind(tag, parent)
            except ScopeLinkError:
                assert tag in tree.chain(parent) or tag in links
            for start in range(6):
                chain = tree.chain(start)
                assert len(chain) == len(set(chain))


class TestLayers:
    @pytest.mark.contract("SCO-13")
    async def test_the_nearest_scope_shadows_a_name_in_its_place(self, kernel: Kernel) -> None:
        parent, child = Tag(), Tag()
        kernel.root.mount(TOOL, "a", "global a")
        kernel.root.mount(TOOL, "b", "global b")
        outer = kernel.root.scope(parent)
        inner = kernel.root.scope(child, parent)
        inner.context.mount(TOOL, "c", "child c")
        inner.context.mount(TOOL, "a", "child a")
        outer.context.mount(TOOL, "a", "parent a")
        outer.context.mount(TOOL, "d", "parent d")
        assert kernel.mounts.items(TOOL) == (("a", "global a"), ("b", "global b"))
        assert kernel.mounts.items(TOOL, scope=parent) == (("a", "parent a"), ("b", "global b"), ("d", "parent d"))
        assert kernel.mounts.items(TOOL, scope=child) == (
            ("a", "child a"),
            ("b", "global b"),
            ("d", "parent d"),
            ("c", "child c"),
        )
        assert kernel.mounts.get(TOOL, "a", scope=child) == "child a"
        await inner.dispose()
        assert kernel.mounts.get(TOOL, "a", scope=child) == "global a"

    @pytest.mark.contract("SCO-13")
    async def test_reads_make_no_layer_and_an_emptied_layer_is_dropped(self, kernel: Kernel) -> None:
        tag = Tag()
        assert kernel.mounts.items(TOOL, scope=tag) == ()
        assert kernel.mounts.get(TOOL, "a", scope=tag) is None
        layers = kernel.mounts._kind(TOOL).layers
        assert layers == {}
        token = kernel.root.scope(tag).context.mount(TOOL, "a", "x")
        assert list(layers) == [tag]
        await token.withdraw()
        assert layers == {}

    @pytest.mark.contract("SCO-10")
    async def test_an_undo_removes_its_own_insertion_only(self, kernel: Kernel) -> None:
        first = kernel.root.mount(TOOL, "a", "first")
        await first.withdraw()
        kernel.root.mount(TOOL, "a", "second")
        await first.withdraw()
        assert kernel.mounts.items(TOOL) == (("a", "second"),)

    @pytest.mark.contract("SCO-10")
    async def test_the_kinds_owner_words_the_conflict(self, kernel: Kernel) -> None:
        class Tools(KindHandler[str]):
            def conflict(self, key: object, holder: MountToken[str], owner: Any) -> Exception:
                return MountConflictError(f"tool {key} is taken by {holder.owner.name}")

        kernel.mounts.handle(TOOL, Tools())
        kernel.root.mount(TOOL, "a", "first")
        with pytest.raises(MountConflictError, match=r"tool a is taken by root"):
            kernel.root.mount(TOOL, "a", "second")
        assert kernel.mounts.items(TOOL) == (("a", "first"),)

    @pytest.mark.contract("SCO-11")
    async def test_equal_anonymous_values_are_separate(self, kernel: Kernel) -> None:
        first = kernel.root.mount(NOTE, "note", "same")
        kernel.root.mount(NOTE, "note", "same")
        assert kernel.mounts.items(NOTE) == (("note", "same"), ("note", "same"))
        await first.withdraw()
        assert kernel.mounts.items(NOTE) == (("note", "same"),)

    @pytest.mark.contract("SCO-12")
    async def test_a_read_is_a_snapshot(self, kernel: Kernel) -> None:
        """Ours differ from live iterators: what was read never changes, so nothing can be drained under a reader."""
        token = kernel.root.mount(NOTE, None, "first")
        seen = []
        for _, value in kernel.mounts.items(NOTE):
            seen.append(value)
            await token.withdraw()
            kernel.root.mount(NOTE, None, "added")
        assert seen == ["first"]
        assert kernel.mounts.items(NOTE) == ((None, "added"),)

    @pytest.mark.contract("SCO-14")
    async def test_a_failing_insertion_leaves_no_layer_and_undo_comes_before_its_notice(self, kernel: Kernel) -> None:
        seen: list[tuple[str, bool]] = []
        tag = Tag()

        class Tools(KindHandler[str]):
            def install(self, token: MountToken[str]) -> None:
                if token.value == "bad":
                    raise ValueError("no")

            def announce(self, token: MountToken[str]) -> None:
                seen.append((token.state, kernel.mounts.get(TOOL, token.key, scope=tag) is not None))

        kernel.mounts.handle(TOOL, Tools())
        context = kernel.root.scope(tag).context
        with pytest.raises(ValueError, match="no"):
            context.mount(TOOL, "a", "bad")
        assert seen == []
        assert kernel.mounts._kind(TOOL).layers == {}
        token = context.mount(TOOL, "a", "good")
        token.withdraw()
        assert seen == [(MountState.ACTIVE, True), (MountState.WITHDRAWING, False)]

    async def test_results_are_cached_until_something_changes(self, kernel: Kernel) -> None:
        tag = Tag()
        context = kernel.root.scope(tag).context
        context.mount(TOOL, "a", "x")
        before = kernel.mounts.version(TOOL)
        items = kernel.mounts.items(TOOL, scope=tag)
        assert kernel.mounts.items(TOOL, scope=tag) is items
        context.mount(TOOL, "b", "y")
        assert kernel.mounts.version(TOOL) > before
        assert len(kernel.mounts.items(TOOL, scope=tag)) == 2
