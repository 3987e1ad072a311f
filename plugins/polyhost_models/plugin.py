"""Plugin ``models``: mounts one adapter per provider and declares the ``models`` and ``auth`` commands.

What a provider speaks on the wire is in ``adapter`` and below; this module only connects configuration to mounts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from polyhost import Context, PluginInfo, hookimpl
from polyhost.interfaces import CREDENTIALS, HOST, MODEL_ADAPTER, REDACTOR, SESSION_ATTACHMENTS, ModelError
from polyhost.kernel.plugins import CommandSpec

CHECK_TIMEOUT = 4.0

if TYPE_CHECKING:
    from polyhost_models.adapter import OpenAIAdapter
    from polyhost_models.config import ModelsConfig


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="models",
        api_version=1,
        summary="Model providers: the offline demo, DeepSeek, and any OpenAI-compatible endpoint",
        requires=(CREDENTIALS, HOST),
        optional=(REDACTOR, SESSION_ATTACHMENTS),
        config="polyhost_models.config:ModelsConfig",
    )


@hookimpl
def polyhost_cli() -> tuple[CommandSpec, ...]:
    return (
        CommandSpec(
            "models", "List and test the models of the configured providers", "polyhost_models.commands:models"
        ),
        CommandSpec("auth", "Store or remove the API key of a provider", "polyhost_models.commands:auth"),
    )


@hookimpl
async def polyhost_start(ctx: Context, config: ModelsConfig | None) -> AsyncIterator[None]:
    from polyhost_models.adapter import OpenAIAdapter
    from polyhost_models.demo import DemoAdapter
    from polyhost_models.providers import configured_providers

    credentials, version = ctx.require(CREDENTIALS), ctx.require(HOST).version
    redactor = ctx.get(REDACTOR)
    adapters = {
        provider.id: OpenAIAdapter(
            provider,
            credentials,
            version=version,
            attachments=lambda: ctx.get(SESSION_ATTACHMENTS),
            redact=redactor.redact if redactor is not None else str,
        )
        for provider in configured_providers(config)
    }
    ctx.mount(MODEL_ADAPTER, "demo", DemoAdapter())
    for id, adapter in adapters.items():
        ctx.mount(MODEL_ADAPTER, id, adapter)
    yield
    for adapter in adapters.values():
        await adapter.aclose()


@hookimpl
async def polyhost_health(ctx: Context) -> dict[str, Any]:
    """Whether each endpoint can be reached with its key."""
    from polyhost_models.adapter import OpenAIAdapter

    found = [(id, adapter) for id, adapter in ctx.mounts.items(MODEL_ADAPTER) if isinstance(adapter, OpenAIAdapter)]
    checks = await asyncio.gather(*(_check(id, adapter) for id, adapter in found))
    return {"ok": all(check["ok"] for check in checks), "checks": checks}


async def _check(id: str, adapter: OpenAIAdapter) -> dict[str, Any]:
    subject = f"provider {id}"
    try:
        async with asyncio.timeout(CHECK_TIMEOUT):
            await adapter.check()
    except TimeoutError:
        return {"subject": subject, "ok": False, "detail": f"no answer within {CHECK_TIMEOUT:g} s"}
    except ModelError as error:
        return {"subject": subject, "ok": False, "detail": error.message}
    return {"subject": subject, "ok": True, "detail": "reachable"}
