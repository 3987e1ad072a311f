"""The ``[plugins.models]`` table. Loaded only when a configuration has such a table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ModelConfig(BaseModel):
    """One model of a provider: what the host cannot find out from the endpoint."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1)
    name: str | None = None
    context_window: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    images: bool = False


class ProviderConfig(BaseModel):
    """One endpoint, ``[plugins.models.providers.ID]``.

    ``credential`` names the API key: the credential store (``hostctl auth set NAME``) is asked first, then the
    environment. Without it no ``Authorization`` header is sent, which is what local servers expect.
    """

    model_config = ConfigDict(extra="forbid")

    name: str | None = None
    base_url: str | None = None
    credential: str | None = None
    models: list[str | ModelConfig] = []
    thinking: bool | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    idle_timeout: PositiveSeconds = 300
    headers: dict[str, str] = {}
    proxy_from_environment: bool = False


class ModelsConfig(BaseModel):
    """Providers by id; the ids ``demo`` and ``deepseek-official`` exist without being configured."""

    model_config = ConfigDict(extra="forbid")

    providers: dict[str, ProviderConfig] = {}
