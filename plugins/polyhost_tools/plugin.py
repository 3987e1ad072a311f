"""Plugin ``tools``: mounts the shipped tools. What each does is in the module of its name."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from polyhost import Context, PluginInfo, hookimpl
from polyhost.interfaces import AGENT_DISPOSED, HOST, INTERACTIONS, PROCESSES, REDACTOR, SPILL, TOOL, TOOLS, Agent, Tool
from polyhost.interfaces.tools import SPILL_FOLDER
from polyhost.kernel.errors import MountConflictError

if TYPE_CHECKING:
    from polyhost_tools.config import ToolsConfig

_log = logging.getLogger(__name__)


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="tools",
        summary="Tools for coding: read, write, edit, glob, grep, bash, ask_user_question, todo_write",
        requires=(HOST, TOOLS, INTERACTIONS, PROCESSES, REDACTOR, SPILL),
        config="polyhost_tools.config:ToolsConfig",
    )


@hookimpl
async def polyhost_start(ctx: Context, config: ToolsConfig) -> AsyncIterator[None]:
    from polyhost_tools.ask_user_question import ask_user_question_tool
    from polyhost_tools.bash import Shells, bash_tool
    from polyhost_tools.edit import edit_tool
    from polyhost_tools.fence import Fence
    from polyhost_tools.files import FileChanges
    from polyhost_tools.glob import glob_tool
    from polyhost_tools.grep import grep_tool
    from polyhost_tools.observation import Observations
    from polyhost_tools.read import read_tool
    from polyhost_tools.search import Search
    from polyhost_tools.todo_write import todo_write_tool
    from polyhost_tools.write import write_tool

    home, spill = ctx.require(HOST).home, ctx.require(SPILL)
    fence = Fence(str(home), readable=str(home / SPILL_FOLDER))
    observations = Observations()
    changes = FileChanges(observations, fence, require_read=config.require_read)
    search = Search(ctx.require(PROCESSES), fence)
    shells = Shells(ctx.require(PROCESSES), str(home), ctx.require(REDACTOR).redact)
    tools: tuple[Tool, ...] = (
        read_tool(observations, fence),
        write_tool(changes),
        edit_tool(changes),
        glob_tool(search, spill),
        grep_tool(search, spill),
        bash_tool(shells, config.bash_timeout_ms),
        ask_user_question_tool(ctx.require(INTERACTIONS)),
        todo_write_tool(),
    )
    for tool in tools:
        if tool.name not in config.disabled:
            _mount(ctx, tool)

    async def session_over(agent: Agent) -> None:
        observations.forget(agent.id)
        await shells.end(agent.id)

    ctx.on(AGENT_DISPOSED, session_over)
    yield
    await shells.aclose()


def _mount(ctx: Context, tool: Tool) -> None:
    """Mount one tool. One whose name is taken is left out, so that another plugin's tool does not cost all of ours."""
    try:
        ctx.mount(TOOL, tool.name, tool)
    except MountConflictError as error:
        _log.warning("the tool %s is left out: %s", tool.name, error)
