"""The built-in plugins of tools and interaction, started as a host starts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import (
    HOST,
    INTERACTIONS,
    PROMPT_CONTEXT,
    SPILL,
    TOOL,
    TOOLS,
    HostInfo,
    Tool,
    ToolCall,
    ToolOutput,
)
from polyhost.kernel.context import Kernel
from polyhost.kernel.fibers import Fiber, FiberSpec
from polyhost.kernel.signals import AbortSignal
from polyhost.runtime.interaction import plugin as interaction_plugin
from polyhost.runtime.interaction.config import InteractionConfig
from polyhost.runtime.interaction.permissions import Rule
from polyhost.runtime.tools import plugin as tools_plugin
from polyhost.runtime.tools.config import ToolRuntimeConfig


async def started(
    kernel: Kernel, home: Path, *, mode: str = "ask", config: InteractionConfig | None = None
) -> list[Fiber]:
    kernel.root.provide(HOST, HostInfo("0", home, home, None, mode))
    fibers = []
    for plugin, settings in ((tools_plugin, ToolRuntimeConfig()), (interaction_plugin, config or InteractionConfig())):
        resolve: Callable[[], Any] = lambda settings=settings: settings  # noqa: E731
        start: Any = plugin.polyhost_start
        info = plugin.polyhost_plugin()
        assert info.problem() is None
        fibers.append(kernel.root.install(FiberSpec(info.name, start, info.requires, resolve)))
    for fiber in fibers:
        await fiber.settled()
    return fibers


@pytest.mark.contract("APR-09")
async def test_mode_and_policy_are_part_of_the_runtime_context(bench: Any, tmp_path: Path) -> None:
    kernel = bench.kernel
    await started(kernel, tmp_path)
    agent = bench.agent()
    broker = kernel.root.get(INTERACTIONS)

    def texts() -> list[str]:
        contexts = sorted(
            (value for _, value in kernel.mounts.items(PROMPT_CONTEXT)), key=lambda context: context.order
        )
        return [context.text(agent) for context in contexts]

    before = texts()
    assert ["mode: ask" in before[0], "policy: ask" in before[1]] == [True, True]
    broker.set_policy(agent, "never")
    broker.set_mode(agent, "workspace")
    broker.set_policy(agent, "never")
    after = texts()
    assert "mode: workspace" in after[0]
    assert "policy: never" in after[1]


async def test_a_call_meets_the_policy_that_the_plugins_mount(bench: Any, tmp_path: Path) -> None:
    kernel = bench.kernel
    rules = [Rule("shell_ok", "allow")]
    fibers = await started(kernel, tmp_path, config=InteractionConfig(rules=rules))
    tools = kernel.root.get(TOOLS)

    async def body(arguments: Any, call: Any) -> None: ...

    for name in ("shell", "shell_ok"):
        output = ToolOutput({}, lambda arguments, value: [])
        tool = Tool(name=name, description="", parameters={"type": "object"}, output=output, execute=body)
        kernel.root.mount(TOOL, name, tool)
    agent = bench.agent()

    async def outcome(name: str) -> Any:
        call = ToolCall(call_id="c", name=name, arguments={}, signal=AbortSignal(), agent=agent, cwd="/tmp")
        return (await tools.execute(call)).error_info

    assert (await outcome("shell"))["code"] == "APPROVAL_UNAVAILABLE"
    assert await outcome("shell_ok") is None
    assert kernel.root.get(SPILL) is not None
    for fiber in reversed(fibers):
        await fiber.dispose()
    assert kernel.root.get(TOOLS) is None
    await started_again(kernel)


async def started_again(kernel: Kernel) -> None:
    """The tool runtime can come back in the same kernel, where its mount kind has its meaning already."""
    info = tools_plugin.polyhost_plugin()
    start: Any = tools_plugin.polyhost_start
    fiber = kernel.root.install(FiberSpec(info.name, start, info.requires, ToolRuntimeConfig))
    await fiber.settled()
    assert kernel.root.get(TOOLS) is not None


async def test_an_unknown_default_mode_fails_the_start(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown permission mode 'yolo'"):
        await started(bench.kernel, tmp_path, mode="yolo")
    assert bench.kernel.root.get(INTERACTIONS) is None


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: InteractionConfig(approval_timeout=-1), "approval_timeout"),
        (lambda: InteractionConfig(approval_timeout=float("inf")), "approval_timeout"),
        (lambda: ToolRuntimeConfig(max_inline_bytes=-1), "max_inline_bytes"),
        (lambda: ToolRuntimeConfig(repeat_reminder=[5, 3]), "thresholds"),
    ],
)
def test_bad_settings_are_refused(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
