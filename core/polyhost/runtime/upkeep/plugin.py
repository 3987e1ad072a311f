"""Built-in plugin ``runtime-upkeep``: titles, projections, attachments, commands, checkpoints and instructions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from polyhost.interfaces import (
    AGENT_REQUEST,
    AGENT_STATUS,
    COMMAND,
    COMMANDS,
    HOST,
    INTERACTIONS,
    MODELS,
    PROJECTION,
    PROJECTIONS,
    PROMPT_CONTEXT,
    SESSION_ATTACHMENTS,
    SESSION_DISPOSED,
    SESSIONS,
    TITLES,
    TOOL_EXECUTE,
    Projection,
    PromptContext,
)
from polyhost.interfaces.attachments import IMAGE_TYPES, AttachmentLimits
from polyhost.kernel.hookspecs import hookimpl
from polyhost.kernel.plugins import PluginInfo
from polyhost.runtime.commands.builtin import builtin_commands
from polyhost.runtime.commands.registry import CommandRegistry
from polyhost.runtime.sessions.attachments import AttachmentFiles
from polyhost.runtime.sessions.folds import PROJECTIONS_SHIPPED
from polyhost.runtime.sessions.plugin import SESSIONS_FOLDER
from polyhost.runtime.sessions.projections import ProjectionRegistry
from polyhost.runtime.sessions.titles import TitleService
from polyhost.runtime.upkeep.checkpoints import Checkpoint
from polyhost.runtime.upkeep.instructions import WorkspaceFacts

if TYPE_CHECKING:
    from polyhost.interfaces import JsonObject, SessionHeader
    from polyhost.kernel.context import Context
    from polyhost.runtime.upkeep.config import UpkeepConfig


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="runtime-upkeep",
        summary="Titles, projections, attachments, commands, checkpoints and instructions of sessions",
        requires=(HOST, INTERACTIONS, MODELS, SESSIONS),
        provides=(COMMANDS, PROJECTIONS, SESSION_ATTACHMENTS, TITLES),
        config="polyhost.runtime.upkeep.config:UpkeepConfig",
    )


@hookimpl
async def polyhost_start(ctx: Context, config: UpkeepConfig) -> AsyncIterator[None]:
    projections = ProjectionRegistry(ctx.mounts)
    ctx.provide(PROJECTIONS, projections)
    for key, projection in PROJECTIONS_SHIPPED.items():
        ctx.mount(PROJECTION, key, projection)

    titles = TitleService(ctx.mounts, projections)
    ctx.provide(TITLES, titles)
    ctx.on(AGENT_REQUEST, titles.before_request, prepend=True)
    ctx.on(AGENT_STATUS, titles.on_status)
    ctx.on(SESSION_DISPOSED, titles.disposed)

    sessions = ctx.require(SESSIONS)
    ctx.on(TOOL_EXECUTE, Checkpoint(sessions), prepend=True)

    def live(session_id: str) -> SessionHeader | None:
        session = sessions.get(session_id)
        return None if session is None else session.header

    home = ctx.require(HOST).home
    attachments = AttachmentFiles(home / SESSIONS_FOLDER, live)
    ctx.provide(SESSION_ATTACHMENTS, attachments)
    ctx.mount(PROJECTION, "imageLimits", _image_limits(attachments.limits))

    ctx.provide(COMMANDS, CommandRegistry(ctx.mounts))
    for command in builtin_commands(ctx.require(INTERACTIONS), ctx.require(MODELS), titles):
        ctx.mount(COMMAND, command.name, command)

    if config.instructions:
        facts = WorkspaceFacts(home)
        ctx.mount(PROMPT_CONTEXT, "environment", PromptContext(50, facts.environment))
        ctx.mount(PROMPT_CONTEXT, "instructions", PromptContext(60, facts.instructions))
    yield
    await titles.close()


def _image_limits(limits: AttachmentLimits) -> Projection:
    """A constant, for front ends: what they may offer to attach."""
    value: JsonObject = {
        "maxImageBytes": limits.image_bytes,
        "maxImagesPerMessage": limits.images,
        "maxMessageImageBytes": limits.message_image_bytes,
        "maxImagePixels": limits.image_pixels,
        "mediaTypes": list(IMAGE_TYPES),
    }
    return Projection(1, frozenset(), lambda header: None, lambda state, event: state, lambda state: value)
