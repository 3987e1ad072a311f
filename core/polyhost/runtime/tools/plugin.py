"""Built-in plugin ``runtime-tools``: publishes the tool service and the spill files, and mounts the policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyhost.interfaces import (
    AGENT_INBOX_CLAIMED,
    HOST,
    INTERACTIONS,
    SESSION_DELETED,
    SPILL,
    TOOL_EXECUTE,
    TOOL_POST_EXECUTE,
    TOOLS,
)
from polyhost.interfaces.tools import SPILL_FOLDER
from polyhost.kernel.hookspecs import hookimpl
from polyhost.kernel.plugins import PluginInfo
from polyhost.runtime.tools.repeat import RepeatReminder
from polyhost.runtime.tools.runtime import ToolService
from polyhost.runtime.tools.spill import SpillFiles, SpillPolicy
from polyhost.runtime.tools.timeouts import TimeoutPolicy

if TYPE_CHECKING:
    from polyhost.kernel.context import Context
    from polyhost.runtime.tools.config import ToolRuntimeConfig


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="runtime-tools",
        summary="Tool registry and pipeline",
        requires=(HOST,),
        optional=(INTERACTIONS,),
        provides=(TOOLS, SPILL),
        config="polyhost.runtime.tools.config:ToolRuntimeConfig",
    )


@hookimpl
async def polyhost_start(ctx: Context, config: ToolRuntimeConfig) -> None:
    files = SpillFiles(ctx.require(HOST).home / SPILL_FOLDER)
    service = ToolService(
        ctx.kernel,
        interactions=lambda: ctx.get(INTERACTIONS),
        spill=SpillPolicy(files, config.max_inline_bytes) if config.max_inline_bytes else None,
    )
    ctx.provide(SPILL, files)
    ctx.on(SESSION_DELETED, files.remove)
    ctx.provide(TOOLS, service)
    ctx.on(TOOL_EXECUTE, TimeoutPolicy(lambda call: service.get(call.name, call.agent)))
    if config.repeat_reminder:
        reminder = RepeatReminder(config.repeat_reminder)
        ctx.on(TOOL_POST_EXECUTE, reminder)
        ctx.on(AGENT_INBOX_CLAIMED, reminder.reset)
