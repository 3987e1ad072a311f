"""Built-in plugin ``runtime-models``: publishes the routing to mounted adapters, and mounts the retry policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyhost.interfaces import AGENT_REQUEST_ERROR, MODELS, REDACTOR
from polyhost.kernel.hookspecs import hookimpl
from polyhost.kernel.plugins import PluginInfo
from polyhost.runtime.models.retry import Retry
from polyhost.runtime.models.routes import ModelRoutes

if TYPE_CHECKING:
    from polyhost.kernel.context import Context


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="runtime-models",
        summary="Routing to model providers, retries",
        optional=(REDACTOR,),
        provides=(MODELS,),
    )


@hookimpl
async def polyhost_start(ctx: Context, config: None) -> None:
    redactor = ctx.get(REDACTOR)
    redact = redactor.redact if redactor is not None else str
    ctx.provide(MODELS, ModelRoutes(ctx.mounts, ctx.kernel.events, redact))
    ctx.on(AGENT_REQUEST_ERROR, Retry())
