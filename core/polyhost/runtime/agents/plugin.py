"""Built-in plugin ``runtime-agents``: publishes the agents, the prompt assembly and the doors that open sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyhost.interfaces import AGENTS, HOST, INTERACTIONS, MODELS, SESSION_DIRECTORY, SYSTEM_PROMPT, TOOLS
from polyhost.kernel.hookspecs import hookimpl
from polyhost.kernel.plugins import PluginInfo
from polyhost.runtime.agents.directory import Directory
from polyhost.runtime.agents.loop import AgentLoop
from polyhost.runtime.agents.parts import AgentServices
from polyhost.runtime.agents.prompt import Prompts, mount_defaults
from polyhost.runtime.agents.registry import LiveAgents
from polyhost.runtime.sessions.plugin import LIVE_SESSIONS, STORAGE

if TYPE_CHECKING:
    from polyhost.kernel.context import Context


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="runtime-agents",
        summary="Agents, turns and the system prompt",
        requires=(HOST, INTERACTIONS, LIVE_SESSIONS, MODELS, STORAGE, TOOLS),
        provides=(AGENTS, SESSION_DIRECTORY, SYSTEM_PROMPT),
    )


@hookimpl
async def polyhost_start(ctx: Context, config: None) -> None:
    prompts = Prompts(ctx.mounts)
    agents = LiveAgents()
    sessions = ctx.require(LIVE_SESSIONS)
    storage = ctx.require(STORAGE)
    services = AgentServices(models=ctx.require(MODELS), prompts=prompts, tools=ctx.require(TOOLS), sessions=sessions)
    loop = AgentLoop(ctx, services, sessions, agents, storage=storage, default_model=ctx.require(HOST).default_model)
    mount_defaults(ctx)
    ctx.provide(SYSTEM_PROMPT, prompts)
    ctx.provide(AGENTS, agents)
    ctx.provide(SESSION_DIRECTORY, Directory(loop, agents, storage=storage, interactions=lambda: ctx.get(INTERACTIONS)))
