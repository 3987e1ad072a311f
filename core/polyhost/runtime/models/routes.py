"""Routing of model requests to adapters, and the defaults that adapters know for a model.

Adapters are mounts, so they come and go with their plugins. What one attempt does with an adapter is in ``attempts``,
which facts about models are accepted in ``metadata``; retries are in ``retry``.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence

from polyhost.interfaces import (
    MODEL_ADAPTER,
    MODEL_ADAPTERS_UPDATED,
    MODEL_STREAM,
    Chunk,
    JsonObject,
    ModelAdapter,
    ModelError,
    ModelInfo,
    ModelRequest,
    ModelRoute,
    RetryPolicy,
)
from polyhost.kernel.context import Kernel
from polyhost.kernel.events import EventBus
from polyhost.kernel.mounts import KindHandler, MountTable, MountToken
from polyhost.kernel.scopes import Owner
from polyhost.kernel.signals import AbortSignal
from polyhost.runtime.models.attempts import Redact, attempt, close, failed
from polyhost.runtime.models.errors import error_chain
from polyhost.runtime.models.metadata import check_catalogue, check_model

_ADAPTER_METHODS = ("provider_info", "retry_policy", "list_models", "resolve_model", "stream")


class AdapterKind(KindHandler[ModelAdapter]):
    """Refuses what is no adapter and ids that are taken, and tells when the set of adapters changes.

    :param changed: called when the new set can be read, once for each adapter that came or went.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def validate(self, key: Hashable, value: ModelAdapter) -> None:
        missing = [name for name in _ADAPTER_METHODS if not callable(getattr(value, name, None))]
        if missing:
            raise ModelError(f"adapter {key!r} lacks {', '.join(missing)}", code="INVALID_ADAPTER")
        if not isinstance(key, str) or not key or "/" in key:
            raise ModelError(f"a provider id is a name without slashes, not {key!r}", code="INVALID_ADAPTER")

    def conflict(self, key: Hashable, holder: MountToken[ModelAdapter], owner: Owner) -> Exception:
        return ModelError(
            f"provider {key} of {owner.name} is already served by {holder.owner.name}; choose another id",
            code="DUPLICATE_ADAPTER",
        )

    def announce(self, token: MountToken[ModelAdapter]) -> None:
        self._changed()


def prepare_model_kinds(kernel: Kernel) -> None:
    """Say what adapters must look like. Once per host, before the first of them is mounted."""
    kernel.mounts.handle(MODEL_ADAPTER, AdapterKind(lambda: kernel.events.emit(MODEL_ADAPTERS_UPDATED)))


class BoundCall:
    """A request bound to one adapter; see :class:`polyhost.interfaces.models.PreparedCall`."""

    def __init__(
        self,
        dispatch: Callable[[ModelAdapter, ModelRequest], AsyncGenerator[Chunk, None]],
        adapter: ModelAdapter,
        config: JsonObject,
        adapter_defaults: JsonObject,
        info: ModelInfo,
    ) -> None:
        self._dispatch = dispatch
        self._adapter: ModelAdapter | None = adapter
        self.config = config
        self.adapter_defaults = adapter_defaults
        self.context_window = info.context_window
        self.retry_policy: RetryPolicy = adapter.retry_policy(info.provider)

    def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        """Dispatch, once. Raises :class:`ModelError` (INVALID_PREPARED_CALL) for a second or a differing request."""
        adapter, self._adapter = self._adapter, None
        if adapter is None:
            raise ModelError(
                "this model call was dispatched already; prepare another one", code="INVALID_PREPARED_CALL"
            )
        if call_config(request) != self.config:
            raise ModelError(
                f"the request asks for {call_config(request)}, but {self.config} was prepared",
                code="INVALID_PREPARED_CALL",
            )
        return self._dispatch(adapter, request)


class ModelRoutes:
    """The adapters of a host; see :class:`polyhost.interfaces.models.ModelRuntime`.

    :param redact: takes secrets out of what is told of a failed attempt.
    """

    def __init__(self, mounts: MountTable, bus: EventBus, redact: Redact = str) -> None:
        self._mounts = mounts
        self._bus = bus
        self._redact = redact

    def routes(self) -> Sequence[ModelRoute]:
        return tuple(
            ModelRoute(provider, adapter.provider_info(provider))
            for provider, adapter in self._mounts.items(MODEL_ADAPTER)
        )

    async def list_models(self, provider: str) -> Sequence[ModelInfo]:
        return check_catalogue(await self._adapter(provider).list_models(provider), provider)

    async def prepare(self, config: JsonObject, signal: AbortSignal | None = None) -> BoundCall:
        provider, model = config["provider"], config["model"]
        adapter = self._adapter(provider)
        try:
            info = check_model(await adapter.resolve_model(provider, model, signal), provider)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"provider {provider} failed to describe model {model}: {error_chain(error)}") from error
        filled, defaults = _with_defaults(config, info)
        return BoundCall(self._dispatch, adapter, filled, defaults, info)

    def stream(self, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        return self._dispatch(self._mounts.get(MODEL_ADAPTER, request.provider), request)

    def _adapter(self, provider: str) -> ModelAdapter:
        adapter = self._mounts.get(MODEL_ADAPTER, provider)
        if adapter is None:
            raise self._no_adapter(provider)
        return adapter

    def _no_adapter(self, provider: str) -> ModelError:
        known = ", ".join(sorted(key for key, _ in self._mounts.items(MODEL_ADAPTER))) or "none"
        return ModelError(f'no adapter serves provider "{provider}"; configured: {known}', code="NO_ADAPTER")

    def _dispatch(self, adapter: ModelAdapter | None, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
        def inner() -> AsyncGenerator[Chunk, None]:
            if adapter is None:
                return _refused(request, self._no_adapter(request.provider))
            return attempt(adapter, self._without_foreign_state(adapter, request), self._redact)

        if not self._bus.listeners(MODEL_STREAM):
            return inner()  # one generator less for each delta
        return self._through_listeners(request, inner)

    async def _through_listeners(
        self, request: ModelRequest, inner: Callable[[], AsyncGenerator[Chunk, None]]
    ) -> AsyncGenerator[Chunk, None]:
        stream = self._bus.waterfall(MODEL_STREAM, request, inner=inner)
        if inspect.isawaitable(stream):
            stream = await stream
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await close(stream)

    def _without_foreign_state(self, adapter: ModelAdapter, request: ModelRequest) -> ModelRequest:
        """``request`` without replay state that another adapter object left: it means nothing to this one."""
        foreign = [
            index
            for index, message in enumerate(request.messages)
            if "replayState" in message["source"]
            and self._mounts.get(MODEL_ADAPTER, message["source"].get("provider")) is not adapter
        ]
        if not foreign:
            return request
        messages = list(request.messages)
        for index in foreign:
            source = {key: value for key, value in messages[index]["source"].items() if key != "replayState"}
            messages[index] = {**messages[index], "source": source}
        return request.replace(messages=tuple(messages))


def call_config(request: ModelRequest) -> JsonObject:
    """The call configuration that a request carries, what is unset left out."""
    values = {
        "provider": request.provider,
        "model": request.model,
        "reasoningEffort": request.reasoning_effort,
        "temperature": request.temperature,
        "maxTokens": request.max_tokens,
        "stop": request.stop,
    }
    return {key: value for key, value in values.items() if value is not None}


async def _refused(request: ModelRequest, error: ModelError) -> AsyncGenerator[Chunk, None]:
    yield failed(request, error)


def _with_defaults(config: JsonObject, info: ModelInfo) -> tuple[JsonObject, JsonObject]:
    """``config`` with what the model fills in, and markers of what that was."""
    filled, markers = {key: value for key, value in config.items() if value is not None}, {}
    if "maxTokens" not in filled and info.default_max_tokens is not None:
        filled["maxTokens"] = info.default_max_tokens
        markers["maxTokens"] = True
    effort = filled.get("reasoningEffort")
    if effort is not None and effort not in {known.id for known in info.efforts}:
        offered = ", ".join(known.id for known in info.efforts) or "none"
        raise ModelError(
            f'model {info.provider}/{info.id} has no reasoning effort "{effort}"; it offers: {offered}',
            code="UNSUPPORTED_REASONING_EFFORT",
        )
    if effort is None and info.default_effort is not None:
        filled["reasoningEffort"] = info.default_effort
        markers["reasoningEffort"] = True
    return filled, markers
