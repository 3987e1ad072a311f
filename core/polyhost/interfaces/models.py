"""The model seam: what an adapter implements, what the runtime asks of it, and the chunks that flow back.

An adapter is mounted under the provider ids that it serves: ``ctx.mount(MODEL_ADAPTER, "acme", adapter)``. It turns
one :class:`ModelRequest` into an asynchronous stream of chunks, and raises :class:`ModelError` (or anything else,
which becomes code ``UNKNOWN``) when it fails; the runtime turns that into one terminal ``Finish``. Retries are not
the adapter's business. Shapes and codes follow agent-core 2.4 and 2.17.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey
from polyhost.kernel.signals import AbortSignal

# Chunks: tuples, because one is built per delta. ``position`` is the wire's ``index`` of the content block.


class TextDelta(NamedTuple):
    position: int
    text: str


class ReasoningDelta(NamedTuple):
    position: int
    text: str


class ToolCallDelta(NamedTuple):
    position: int
    id: str
    arguments: str
    name: str | None = None


class BlockStart(NamedTuple):
    position: int
    block_type: str


class BlockEnd(NamedTuple):
    position: int
    block: JsonObject


class UsageReport(NamedTuple):
    """Disjoint token counts: ``{inputTokens, outputTokens, cacheReadTokens?, cacheWriteTokens?, reasoningTokens?}``."""

    usage: JsonObject


class Finish(NamedTuple):
    """The last chunk; ``reason`` is ``{kind: stop | tool-calls | max-tokens}`` or
    ``{kind: aborted | error, failure}``.
    """

    reason: JsonObject
    replay_state: Any = None


Chunk: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | BlockStart | BlockEnd | UsageReport | Finish


class ModelError(PolyhostError):
    """A failed model attempt with the facts that retry and clients need.

    :param code: SCREAMING_SNAKE, for example RATE_LIMIT, TIMEOUT, TRANSPORT, AUTH, QUOTA, EMPTY_RESPONSE.
    """

    default_code = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retry_after_ms: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.retry_after_ms = retry_after_ms
        self.request_id = request_id

    def failure(self) -> JsonObject:
        """The wire form ``{message, code, status?, providerRetryAfterMs?, requestId?}``."""
        facts: JsonObject = {"message": self.message, "code": self.code}
        if self.status is not None:
            facts["status"] = self.status
        if self.retry_after_ms is not None:
            facts["providerRetryAfterMs"] = self.retry_after_ms
        if self.request_id is not None:
            facts["requestId"] = self.request_id
        return facts


class ModelRequest:
    """One request to a model, immutable by convention once it is handed to an adapter.

    :param messages: derived history, oldest first, as in ``interfaces.messages``.
    :param tools: ``[{name, description, parameters}]``.
    :param purpose: None for a turn; ``"compaction"`` or ``"session-title"`` otherwise.
    """

    __slots__ = (
        "max_tokens",
        "messages",
        "model",
        "provider",
        "purpose",
        "reasoning_effort",
        "session_id",
        "signal",
        "stop",
        "system",
        "temperature",
        "tools",
    )

    def __init__(
        self,
        *,
        provider: str,
        model: str,
        messages: Sequence[JsonObject],
        system: str | None = None,
        tools: Sequence[JsonObject] = (),
        reasoning_effort: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
        signal: AbortSignal | None = None,
        session_id: str | None = None,
        purpose: str | None = None,
    ) -> None:
        self.provider = provider
        self.model = model
        self.messages = messages
        self.system = system
        self.tools = tools
        self.reasoning_effort = reasoning_effort
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.stop = stop
        self.signal = signal
        self.session_id = session_id
        self.purpose = purpose

    def replace(self, **changes: Any) -> ModelRequest:
        """A copy with some fields changed, for listeners of ``llm/stream``."""
        return ModelRequest(**{name: getattr(self, name) for name in self.__slots__} | changes)


class ProviderInfo(NamedTuple):
    id: str
    name: str


class ReasoningEffort(NamedTuple):
    id: str
    name: str
    description: str | None = None


class ModelInfo(NamedTuple):
    """What an adapter knows about one model. Catalogues are advisory: any model id may be asked for."""

    provider: str
    id: str
    name: str
    description: str | None = None
    input_modalities: tuple[str, ...] = ("text",)
    context_window: int | None = None
    default_max_tokens: int | None = None
    efforts: tuple[ReasoningEffort, ...] = ()
    default_effort: str | None = None


class RetryPolicy(NamedTuple):
    """When and how a failed attempt is repeated (agent-core 2.19). Delays in milliseconds.

    :param mode: ``normal`` (bounded by ``max_retries``, only ``retryable_codes``) or ``always``.
    """

    mode: str = "normal"
    max_retries: int = 2
    retryable_codes: frozenset[str] = frozenset({"EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"})
    initial_delay_ms: int = 500
    max_delay_ms: int = 10_000
    jitter_ratio: float = 0.1


class ModelAdapter(Protocol):
    """What a provider plugin implements. ``route`` is the provider id under which it was mounted."""

    def provider_info(self, route: str) -> ProviderInfo: ...

    def retry_policy(self, route: str) -> RetryPolicy: ...

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        """The models worth offering; may ask the endpoint. Raises :class:`ModelError`."""
        ...

    async def resolve_model(self, route: str, model: str, signal: AbortSignal | None) -> ModelInfo:
        """Facts about any model id, known or not; must not need the network for unknown ones."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One attempt. Honour ``request.signal``; close the connection when the iterator is closed early."""
        ...


class ModelRoute(NamedTuple):
    """A provider id with its adapter, as the runtime lists them."""

    provider: str
    info: ProviderInfo


class PreparedCall(Protocol):
    """A model request bound to one adapter object; it may be dispatched once.

    ``config`` is the call configuration with the model's defaults filled in, ``adapter_defaults`` marks which those
    were: ``{reasoningEffort?: true, maxTokens?: true}``.
    """

    @property
    def config(self) -> JsonObject: ...

    @property
    def adapter_defaults(self) -> JsonObject: ...

    @property
    def context_window(self) -> int | None: ...

    @property
    def retry_policy(self) -> RetryPolicy: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """The attempt. Raises :class:`ModelError` (INVALID_PREPARED_CALL) for a second call or another configuration.

        A failing adapter ends the stream with one terminal ``Finish``; only ``llm/stream`` listeners raise.
        """
        ...


class ModelRuntime(Protocol):
    """Routing to adapters, defaults and failure normalisation (agent-core 2.17)."""

    def routes(self) -> Sequence[ModelRoute]: ...

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        """What a provider offers. Raises :class:`ModelError` with NO_ADAPTER, INVALID_CATALOG or the adapter's code."""
        ...

    async def prepare(self, config: JsonObject, signal: AbortSignal | None = None) -> PreparedCall:
        """Bind ``{provider, model, reasoningEffort?, temperature?, maxTokens?, stop?}`` to its adapter.

        Raises :class:`ModelError` with NO_ADAPTER, UNSUPPORTED_REASONING_EFFORT or INVALID_MODEL_INFO.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """One attempt without preparation: nothing is filled in, and a route without an adapter ends in NO_ADAPTER."""
        ...


MODELS = ServiceKey[ModelRuntime]("models")
MODEL_ADAPTER = MountKind[ModelAdapter]("model-adapter")
MODEL_ADAPTERS_UPDATED = EventKey[[]]("llm/adapters-updated")
MODEL_STREAM = EventKey[[ModelRequest, Callable[[], AsyncIterator[Chunk]]]]("llm/stream", EventMode.WATERFALL)
"""Around one attempt: ``listener(request, next) -> async iterator of chunks``."""
