"""The ``[plugins.models]`` table. Loaded only when a configuration has such a table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

Name = Annotated[str, Field(min_length=1)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Url = Annotated[str, Field(pattern=r"^https?://[^\s/]")]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
HeaderValue = Annotated[str, Field(pattern=r"^[\x20-\x7e]*$")]


class ModelConfig(BaseModel):
    """One model of a provider: what the host cannot find out from the endpoint.

    :ivar images: it takes images; without it, a prompt with images is refused before anything is sent.
    """

    model_config = ConfigDict(extra="forbid")

    id: Name
    name: Name | None = None
    context_window: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    images: bool = False


class ProviderConfig(BaseModel):
    """One endpoint, ``[plugins.models.providers.ID]``.

    :ivar credential: name of the API key: the credential store (``hostctl auth set NAME``) is asked first, then the
        environment. Without it no ``Authorization`` header is sent, which is what local servers expect.
    :ivar models: what to offer, as ids or tables; empty offers what the endpoint lists, or the preset's.
    :ivar thinking: whether the endpoint knows DeepSeek's ``thinking`` and ``reasoning_effort`` members; false offers
        only the effort ``off``. Without it, nothing of the kind is sent, except by the DeepSeek preset.
    :ivar idle_timeout: seconds without a byte after which a request fails.
    :ivar headers: sent with every request, over the adapter's own.
    """

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    base_url: Url | None = None
    credential: Name | None = None
    models: list[Name | ModelConfig] = []
    thinking: bool | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    idle_timeout: PositiveSeconds = 300
    headers: dict[HeaderName, HeaderValue] = {}
    proxy_from_environment: bool = False


class ModelsConfig(BaseModel):
    """Providers by id; the ids ``demo`` and ``deepseek-official`` exist without being configured."""

    model_config = ConfigDict(extra="forbid")

    providers: dict[Name, ProviderConfig] = {}
