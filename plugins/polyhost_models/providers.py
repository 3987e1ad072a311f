"""What the adapter needs to know of each provider: presets, overlaid with the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from polyhost.interfaces import ModelInfo, ReasoningEffort
from polyhost.kernel.errors import PolyhostError

if TYPE_CHECKING:
    from polyhost_models.config import ModelsConfig, ProviderConfig

DEEPSEEK = "deepseek-official"
_EFFORTS = (
    ReasoningEffort("off", "Off", "Answer without thinking"),
    ReasoningEffort("high", "High"),
    ReasoningEffort("max", "Max", "Think longest"),
)


class CatalogueEntry(NamedTuple):
    """What is known of one model; absent numbers are the provider's. ``images``: it takes them as input."""

    id: str
    name: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
    images: bool = False


class Provider(NamedTuple):
    """One OpenAI-compatible endpoint.

    :param credential: name of the API key; None sends no ``Authorization`` header.
    :param catalogue: the models to offer; empty asks the endpoint. Any other id may be used all the same.
    :param efforts: reasoning efforts that the endpoint's dialect knows; empty means that none is ever sent.
    :param identify: send the session id and the compaction mark, in DeepSeek's headers.
    :param idle_timeout: seconds without a byte after which a request fails with TIMEOUT.
    :param trust_env: use the proxy that the environment names.
    """

    id: str
    name: str
    base_url: str
    credential: str | None = None
    catalogue: tuple[CatalogueEntry, ...] = ()
    efforts: tuple[ReasoningEffort, ...] = ()
    default_effort: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
    identify: bool = False
    max_tokens_field: str = "max_tokens"
    idle_timeout: float = 300.0
    headers: Mapping[str, str] = MappingProxyType({})
    trust_env: bool = False

    def entry(self, model: str) -> CatalogueEntry:
        """The entry of a model id, empty when the catalogue has none."""
        return next((entry for entry in self.catalogue if entry.id == model), CatalogueEntry(model))

    def describe(self, model: str) -> ModelInfo:
        """Facts about any model id: the catalogue's, else the provider's."""
        entry = self.entry(model)
        return ModelInfo(
            provider=self.id,
            id=model,
            name=entry.name or model,
            input_modalities=("text", "image") if entry.images else ("text",),
            context_window=entry.context_window or self.context_window,
            default_max_tokens=entry.max_tokens or self.max_tokens,
            efforts=self.efforts,
            default_effort=self.default_effort,
        )


def _deepseek(environ: Mapping[str, str]) -> Provider:
    return Provider(
        id=DEEPSEEK,
        name="DeepSeek",
        base_url=environ.get("DEEPSEEK_BASE_URL") or "https://api.deepseek.com",
        credential="DEEPSEEK_API_KEY",
        catalogue=(
            CatalogueEntry("deepseek-v4-flash", "DeepSeek-V4-Flash"),
            CatalogueEntry("deepseek-v4-pro", "DeepSeek-V4-Pro"),
        ),
        efforts=_EFFORTS,
        default_effort="high",
        context_window=1_000_000,
        max_tokens=256_000,
        identify=True,
    )


def configured_providers(config: ModelsConfig | None, environ: Mapping[str, str] = os.environ) -> list[Provider]:
    """The DeepSeek preset and every configured provider. Raises :class:`PolyhostError` (CONFIG_INVALID)."""
    providers = {DEEPSEEK: _deepseek(environ)}
    for id, settings in (config.providers if config is not None else {}).items():
        providers[id] = _overlay(_base(providers.get(id), id, settings.base_url), settings)
    return list(providers.values())


def _base(preset: Provider | None, id: str, base_url: str | None) -> Provider:
    if id == "demo":
        raise _invalid(id, "the id demo is taken by the offline model; choose another id")
    if preset is not None:
        return preset._replace(base_url=base_url or preset.base_url)
    if base_url is None:
        raise _invalid(id, 'base_url is missing; for a local server it looks like "http://127.0.0.1:11434/v1"')
    return Provider(id=id, name=id, base_url=base_url)


def _overlay(provider: Provider, settings: ProviderConfig) -> Provider:
    provider = provider._replace(
        name=settings.name or provider.name,
        credential=settings.credential or provider.credential,
        max_tokens_field=settings.max_tokens_field,
        idle_timeout=settings.idle_timeout,
        headers={name.lower(): value for name, value in settings.headers.items()},
        trust_env=settings.proxy_from_environment,
    )
    if settings.models:
        provider = provider._replace(catalogue=_catalogue(provider, settings))
    if settings.thinking is not None:
        efforts, default = (_EFFORTS, "high") if settings.thinking else (_EFFORTS[:1], "off")
        provider = provider._replace(efforts=efforts, default_effort=default)
    return provider


def _catalogue(provider: Provider, settings: ProviderConfig) -> tuple[CatalogueEntry, ...]:
    entries: dict[str, CatalogueEntry] = {}
    for item in settings.models:
        if isinstance(item, str):
            entry = provider.entry(item)
        else:
            entry = CatalogueEntry(item.id, item.name, item.context_window, item.max_tokens, item.images)
        if entry.id in entries:
            raise _invalid(provider.id, f"models lists {entry.id!r} twice")
        entries[entry.id] = entry
    return tuple(entries.values())


def _invalid(id: str, problem: str) -> PolyhostError:
    return PolyhostError(f"plugins.models.providers.{id}: {problem}", code="CONFIG_INVALID")
