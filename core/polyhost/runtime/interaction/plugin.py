"""Built-in plugin ``runtime-interaction``: publishes the broker, and mounts the permission policy and its facts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, cast

from polyhost.interfaces import (
    AGENTS,
    HOST,
    INTERACTIONS,
    PROMPT_CONTEXT,
    SESSION_DISPOSED,
    TOOL_PRE_EXECUTE,
    TOOLS,
    Agent,
    PermissionMode,
    PromptContext,
)
from polyhost.kernel.events import MOUNT_CHANGED
from polyhost.kernel.hookspecs import hookimpl
from polyhost.kernel.plugins import PluginInfo
from polyhost.runtime.interaction.broker import Broker
from polyhost.runtime.interaction.modes import describe_mode, describe_policy
from polyhost.runtime.interaction.permissions import Permissions

if TYPE_CHECKING:
    from polyhost.kernel.context import Context
    from polyhost.runtime.interaction.config import InteractionConfig


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="runtime-interaction",
        summary="Approvals, questions and permission modes",
        requires=(HOST, TOOLS),
        optional=(AGENTS,),
        provides=(INTERACTIONS,),
        config="polyhost.runtime.interaction.config:InteractionConfig",
    )


@hookimpl
async def polyhost_start(ctx: Context, config: InteractionConfig) -> AsyncIterator[None]:
    tools = ctx.require(TOOLS)
    broker = Broker(
        ctx.kernel,
        agents=lambda: ctx.get(AGENTS),
        default_mode=cast("PermissionMode", ctx.require(HOST).default_mode),
        approval_timeout=config.approval_timeout or None,
    )
    permissions = Permissions(
        lambda call: tools.get(call.name, call.agent),
        mode=broker.mode,
        trusts_shell=broker.trusts_shell,
        rules=config.rules,
    )

    def mode_text(agent: Agent) -> str:
        return describe_mode(broker.mode(agent), trusts_shell=broker.trusts_shell(agent))

    def policy_text(agent: Agent) -> str:
        return describe_policy(broker.policy(agent))

    ctx.provide(INTERACTIONS, broker)
    ctx.on(TOOL_PRE_EXECUTE, permissions)
    ctx.on(SESSION_DISPOSED, broker.forget)
    ctx.on(MOUNT_CHANGED, broker.mount_changed)
    ctx.mount(PROMPT_CONTEXT, "sandbox-mode", PromptContext(110, mode_text))
    ctx.mount(PROMPT_CONTEXT, "approval-policy", PromptContext(115, policy_text))
    yield
    await broker.aclose()
