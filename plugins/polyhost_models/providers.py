"""What the adapter needs to know of each provider: presets, overlaid with the configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from polyhost.interfaces import ModelInfo, ReasoningEffort
from polyhost.kernel.errors import PolyhostError

if TYPE_CHECKING:
    from polyhost_models.config import ModelsConfig, ProviderConfig

DEEPSEEK = "deepseek-official"
_DEEPSEEK_URL = "https://api.deepseek.com"
_DEEPSEEK_EFFORTS = (
    ReasoningEffort("off", "Off", "Answer without thinking"),
    ReasoningEffort("high", "High"),
    ReasoningEffort("max", "Max", "Think longest"),
)


class Provider(NamedTuple):
    """One OpenAI-compatible endpoint.

    :param efforts: reasoning efforts that the endpoint's dialect knows; empty means that none is ever sent.
    :param identify: send the session id in the ``x-deepseek-harness-session-id`` header.
    :param idle_timeout: seconds without a byte after which a request fails with TIMEOUT.
    """

    id: str
    name: str
    base_url: str
    credential: str | None = None
    models: tuple[ModelInfo, ...] = ()
    efforts: tuple[ReasoningEffort, ...] = ()
    default_effort: str | None = None
    context_window: int | None = None
    default_max_tokens: int | None = None
    identify: bool = False
    max_tokens_field: str = "max_tokens"
    idle_timeout: float = 300.0
    headers: tuple[tuple[str, str], ...] = ()
    trust_env: bool = False

    def describe(self, model: str) -> ModelInfo:
        """Facts about any model id: the catalogue's, else the provider's defaults."""
        for info in self.models:
            if info.id == model:
                return info
        return self.model(model)

    def model(
        self,
        id: str,
        name: str | None = None,
        *,
        context_window: int | None = None,
        max_tokens: int | None = None,
        images: bool = False,
    ) -> ModelInfo:
        return ModelInfo(
            provider=self.id,
            id=id,
            name=name or id,
            input_modalities=("text", "image") if images else ("text",),
            context_window=context_window or self.context_window,
            default_max_tokens=max_tokens or self.default_max_tokens,
            efforts=self.efforts,
            default_effort=self.default_effort,
        )


def _deepseek() -> Provider:
    preset = Provider(
        id=DEEPSEEK,
        name="DeepSeek",
        base_url=os.environ.get("DEEPSEEK_BASE_URL") or _DEEPSEEK_URL,
        credential="DEEPSEEK_API_KEY",
        efforts=_DEEPSEEK_EFFORTS,
        default_effort="high",
        context_window=1_000_000,
        default_max_tokens=256_000,
        identify=True,
    )
    catalogue = (
        preset.model("deepseek-v4-flash", "DeepSeek-V4-Flash"),
        preset.model("deepseek-v4-pro", "DeepSeek-V4-Pro"),
    )
    return preset._replace(models=catalogue)


def configured_providers(config: ModelsConfig | None) -> list[Provider]:
    """The DeepSeek preset and every configured provider. Raises :class:`PolyhostError` (CONFIG_INVALID)."""
    providers = {DEEPSEEK: _deepseek()}
    for id, settings in (config.providers if config is not None else {}).items():
        if id == "demo":
            raise PolyhostError(
                "plugins.models.providers.demo: the id demo is taken by the offline model", code="CONFIG_INVALID"
            )
        providers[id] = _overlay(providers.get(id), id, settings)
    return list(providers.values())


def _overlay(preset: Provider | None, id: str, settings: ProviderConfig) -> Provider:
    base_url = settings.base_url or (preset.base_url if preset else None)
    if not base_url:
        raise PolyhostError(
            f"plugins.models.providers.{id}: base_url is missing; for a local server it looks like "
            '"http://127.0.0.1:11434/v1"',
            code="CONFIG_INVALID",
        )
    provider = (preset or Provider(id=id, name=id, base_url=base_url))._replace(
        base_url=base_url,
        max_tokens_field=settings.max_tokens_field,
        idle_timeout=settings.idle_timeout,
        headers=tuple(settings.headers.items()),
        trust_env=settings.proxy_from_environment,
    )
    if settings.name:
        provider = provider._replace(name=settings.name)
    if settings.credential:
        provider = provider._replace(credential=settings.credential)
    if settings.thinking is not None:
        efforts = _DEEPSEEK_EFFORTS if settings.thinking else _DEEPSEEK_EFFORTS[:1]
        provider = provider._replace(efforts=efforts, default_effort="high" if settings.thinking else "off")
    if settings.models or settings.thinking is not None:
        listed = settings.models or [info.id for info in provider.models]
        provider = provider._replace(
            models=tuple(
                provider.model(item)
                if isinstance(item, str)
                else provider.model(
                    item.id,
                    item.name,
                    context_window=item.context_window,
                    max_tokens=item.max_tokens,
                    images=item.images,
                )
                for item in listed
            )
        )
    return provider
