"""The HTTP side of an OpenAI-compatible provider: one streaming request per attempt, watched and cancellable.

Mapping in and out is in ``serialize``, ``translate``, ``sse`` and ``failures``; here is only what touches the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from polyhost.interfaces import (
    Chunk,
    Credentials,
    ModelError,
    ModelInfo,
    ModelRequest,
    ProviderInfo,
    RetryPolicy,
)
from polyhost.kernel.signals import AbortedError, AbortSignal
from polyhost.wire import json
from polyhost.wire.errors import WireError
from polyhost_models.failures import classify
from polyhost_models.providers import Provider
from polyhost_models.serialize import request_body
from polyhost_models.sse import EventReader
from polyhost_models.translate import Translator

if TYPE_CHECKING:
    import aiohttp

_ERROR_BODY_LIMIT = 256 * 1024
_CONNECT_TIMEOUT = 30.0


class OpenAIAdapter:
    """Adapter for one provider; keeps one connection pool, opened on first use and closed by :meth:`aclose`."""

    def __init__(self, provider: Provider, credentials: Credentials, *, version: str) -> None:
        self._provider = provider
        self._credentials = credentials
        self._version = version
        self._session: aiohttp.ClientSession | None = None

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(self._provider.id, self._provider.name)

    def retry_policy(self, route: str) -> RetryPolicy:
        return RetryPolicy()

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        """The configured catalogue, else what ``GET {base_url}/models`` lists."""
        if self._provider.models:
            return self._provider.models
        body = await self._get_json("/models")
        rows = body.get("data") if isinstance(body, dict) else None
        ids = [row["id"] for row in rows or () if isinstance(row, dict) and isinstance(row.get("id"), str)]
        return tuple(self._provider.model(id) for id in sorted(ids))

    async def resolve_model(self, route: str, model: str, signal: AbortSignal | None) -> ModelInfo:
        return self._provider.describe(model)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        signal = request.signal or AbortSignal()
        response = await self._post(request, signal)
        undo = signal.on_abort(lambda _: response.close())
        try:
            if response.status != 200:
                raise await self._failure(response)
            translator = Translator()
            events = EventReader()
            async for data in self._reads(response, signal):
                for event in events.feed(data):
                    for chunk in translator.feed(event):
                        yield chunk
                    if translator.done:
                        return
            raise ModelError("the endpoint closed the stream before it was complete", code="STREAM_CLOSED")
        finally:
            undo()
            response.close()

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, request: ModelRequest, signal: AbortSignal) -> aiohttp.ClientResponse:
        import aiohttp

        url = self._url("/chat/completions")
        body = json.dumps(request_body(request, self._provider))
        try:
            async with asyncio.timeout(self._provider.idle_timeout):
                return await signal.race(self._client().post(url, data=body, headers=self._headers(request)))
        except AbortedError:
            raise _cancelled() from None
        except TimeoutError:
            raise self._timeout() from None
        except (OSError, aiohttp.ClientError) as error:
            raise self._transport(error) from error

    async def _reads(self, response: aiohttp.ClientResponse, signal: AbortSignal) -> AsyncIterator[bytes]:
        """Network reads, each within the idle timeout; comments of the stream are bytes too, so they re-arm it."""
        import aiohttp

        while True:
            try:
                async with asyncio.timeout(self._provider.idle_timeout):
                    data = await response.content.readany()
            except TimeoutError:
                raise self._timeout() from None
            except (OSError, aiohttp.ClientError) as error:
                raise _cancelled() if signal.aborted else self._transport(error) from error
            if signal.aborted:
                raise _cancelled()
            if not data:
                return
            yield data

    async def _failure(self, response: aiohttp.ClientResponse) -> ModelError:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            raw = await response.content.read(_ERROR_BODY_LIMIT)
        try:
            body = json.loads(raw)
        except WireError:
            body = None
        headers = {name.lower(): value for name, value in response.headers.items()}
        return classify(response.status, headers, body, f"{self._provider.name} API error (HTTP {response.status})")

    async def _get_json(self, path: str) -> object:
        import aiohttp

        try:
            async with (
                asyncio.timeout(_CONNECT_TIMEOUT),
                self._client().get(self._url(path), headers=self._headers(None)) as response,
            ):
                if response.status != 200:
                    raise await self._failure(response)
                return json.loads(await response.read())
        except TimeoutError:
            raise self._timeout() from None
        except (OSError, aiohttp.ClientError) as error:
            raise self._transport(error) from error
        except WireError as error:
            raise ModelError(f"{self._url(path)}: {error.message}", code="MALFORMED_RESPONSE") from error

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT),
                trust_env=self._provider.trust_env,
            )
        return self._session

    def _headers(self, request: ModelRequest | None) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "user-agent": f"polyhost/{self._version}",
            **dict(self._provider.headers),
        }
        if self._provider.credential is not None:
            headers["authorization"] = f"Bearer {self._credentials.require(self._provider.credential)}"
        if self._provider.identify and request is not None:
            if request.session_id:
                headers["x-deepseek-harness-session-id"] = request.session_id
            if request.purpose == "compaction":
                headers["x-deepseek-harness-compact"] = "1"
        return headers

    def _url(self, path: str) -> str:
        return self._provider.base_url.rstrip("/") + path

    def _timeout(self) -> ModelError:
        idle = self._provider.idle_timeout
        return ModelError(f"{self._provider.base_url} sent nothing for {idle:g} seconds", code="TIMEOUT")

    def _transport(self, error: BaseException) -> ModelError:
        return ModelError(
            f"cannot reach {self._provider.base_url}: {error or type(error).__name__}; check that the server runs and "
            f"that plugins.models.providers.{self._provider.id}.base_url is right",
            code="TRANSPORT",
        )


def _cancelled() -> ModelError:
    return ModelError("the request was cancelled", code="ABORTED")
