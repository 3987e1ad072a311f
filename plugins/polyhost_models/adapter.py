"""The HTTP side of an OpenAI-compatible provider: one streaming request per attempt, watched and cancellable.

Mapping in and out is in ``serialize``, ``translate``, ``sse`` and ``failures``; here is only what touches the network.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from polyhost.interfaces import (
    Chunk,
    Credentials,
    ModelError,
    ModelInfo,
    ModelRequest,
    ProviderInfo,
    RetryPolicy,
    SessionAttachments,
)
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.signals import AbortedError, AbortSignal
from polyhost.wire import json
from polyhost.wire.errors import WireError
from polyhost_models.failures import http_error
from polyhost_models.images import load_images
from polyhost_models.providers import Provider
from polyhost_models.serialize import request_body
from polyhost_models.sse import EventReader
from polyhost_models.translate import Translator

if TYPE_CHECKING:
    import aiohttp  # 0.1 s; imported with the first request

_BODY_LIMIT = 1024 * 1024  # of an error or a list of models
_CONNECT_TIMEOUT = 30.0
_LINGER = 0.25  # seconds that a complete response may take to end its body


class OpenAIAdapter:
    """Adapter for one provider; keeps one connection pool, opened on first use and closed by :meth:`aclose`.

    :param attachments: finds the service that keeps the images of messages, at each use.
    :param redact: takes secrets out of messages: endpoints quote what they were sent.
    """

    def __init__(
        self,
        provider: Provider,
        credentials: Credentials,
        *,
        version: str,
        attachments: Callable[[], SessionAttachments | None] = lambda: None,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._redact = redact
        self._attachments = attachments
        self._provider = provider
        self._credentials = credentials
        self._version = version
        self._session: aiohttp.ClientSession | None = None

    def provider_info(self, route: str) -> ProviderInfo:
        return ProviderInfo(self._provider.id, self._provider.name)

    def retry_policy(self, route: str) -> RetryPolicy:
        return RetryPolicy()

    async def list_models(self, route: str) -> Sequence[ModelInfo]:
        """The configured catalogue, else what ``GET {base_url}/models`` lists. Raises :class:`ModelError`."""
        ids: Sequence[str] = [entry.id for entry in self._provider.catalogue] or await self._listed()
        return tuple(self._provider.describe(id) for id in ids)

    async def resolve_model(self, route: str, model: str, signal: AbortSignal | None) -> ModelInfo:
        return self._provider.describe(model)

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One attempt. Raises :class:`ModelError` for whatever goes wrong, with ABORTED once the signal is aborted."""
        signal = request.signal or AbortSignal()
        if signal.aborted:
            raise _cancelled()
        images = await load_images(request, self._provider, self._attachments)
        body = json.dumps(request_body(request, self._provider, images))
        headers = self._headers("text/event-stream", request)
        reader, translator, received = EventReader(), Translator(), 0
        with self._network_errors(signal):
            response = await self._post("/chat/completions", body, headers, signal)
            undo = signal.on_abort(lambda _: response.close())
            try:
                if response.status != 200:
                    error = await self._http_error(response)
                    raise _cancelled() if signal.aborted else error
                while data := await response.content.readany():
                    received += len(data)
                    for event in reader.feed(data):
                        for chunk in translator.feed(event):
                            if signal.aborted:
                                raise _cancelled()
                            yield chunk
                        if translator.done:
                            return
                raise self._cut_short(response, received)
            finally:
                undo()
                if translator.done:
                    await _end_of_body(response)
                response.close()

    async def check(self) -> None:
        """Raise :class:`ModelError` when the key is missing or refused, or the endpoint cannot be reached."""
        headers = self._headers("application/json")
        with self._network_errors(AbortSignal()):
            async with self._client().get(
                self._provider.base_url.rstrip("/") + "/models", headers=headers, allow_redirects=False
            ) as response:
                if response.status in (401, 403) or response.status >= 500:
                    raise await self._http_error(response)

    async def aclose(self) -> None:
        """Close the connections; requests that are still running fail with TRANSPORT."""
        if self._session is not None:
            await self._session.close()

    async def _listed(self) -> list[str]:
        with self._network_errors(AbortSignal()):
            async with self._client().get(
                self._provider.base_url.rstrip("/") + "/models",
                headers=self._headers("application/json"),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise await self._http_error(response)
                raw = await _read(response)
        try:
            rows = json.loads(raw)["data"]
            return sorted({row["id"] for row in rows if isinstance(row["id"], str)})
        except (WireError, TypeError, KeyError, IndexError) as error:
            raise ModelError(
                f"{self._provider.base_url}/models is no list of models; name them in "
                f"plugins.models.providers.{self._provider.id}.models",
                code="MALFORMED_RESPONSE",
            ) from error

    async def _post(
        self, path: str, body: bytes, headers: dict[str, str], signal: AbortSignal
    ) -> aiohttp.ClientResponse:
        # Redirects are not followed: they would take the prompt, and perhaps the key, where nobody configured it.
        url = self._provider.base_url.rstrip("/") + path
        async with asyncio.timeout(self._provider.idle_timeout):  # the client's own timeout starts after the upload
            # A file is sent in pieces; bytes would be one write, however long the history has become.
            upload = self._client().post(url, data=io.BytesIO(body), headers=headers, allow_redirects=False)
            return await signal.race(upload)

    async def _http_error(self, response: aiohttp.ClientResponse) -> ModelError:
        import aiohttp

        try:
            body = json.loads(await _read(response))
        except (OSError, aiohttp.ClientError, WireError):
            body = None  # the status alone says enough
        headers = {name.lower(): self._redact(value) for name, value in response.headers.items()}
        fallback = f"{self._provider.name} API error (HTTP {response.status})"
        return http_error(response.status, headers, body, fallback, redact=self._redact)

    def _cut_short(self, response: aiohttp.ClientResponse, received: int) -> ModelError:
        if not received:
            return ModelError(f"{self._provider.base_url} answered with an empty body", code="EMPTY_RESPONSE")
        message = f"{self._provider.base_url} closed the stream before it was complete"
        if response.content_type != "text/event-stream":
            message += f"; it answered with {response.content_type}, so base_url may be wrong"
        return ModelError(message, code="STREAM_CLOSED")

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=self._provider.idle_timeout
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._provider.trust_env,
            )
        return self._session

    def _headers(self, accept: str, request: ModelRequest | None = None) -> dict[str, str]:
        provider = self._provider
        headers = {"accept": accept, "user-agent": f"polyhost/{self._version}"}
        if provider.credential is not None:
            try:
                headers["authorization"] = f"Bearer {self._credentials.require(provider.credential)}"
            except PolyhostError as error:
                raise ModelError(error.message, code=error.code) from error
        if request is not None:
            headers["content-type"] = "application/json"
            if provider.identify and request.session_id:
                headers["x-deepseek-harness-session-id"] = request.session_id
            if provider.identify and request.purpose == "compaction":
                headers["x-deepseek-harness-compact"] = "1"
        return {**headers, **provider.headers}

    @contextmanager
    def _network_errors(self, signal: AbortSignal) -> Iterator[None]:
        """Whatever the network does inside, as :class:`ModelError`; an aborted signal has closed the connection."""
        import aiohttp

        provider = self._provider
        try:
            yield
        except (AbortedError, OSError, aiohttp.ClientError) as error:
            if signal.aborted:
                raise _cancelled() from None
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
                message = f"{provider.base_url} sent nothing for {provider.idle_timeout:g} seconds"
                raise ModelError(message, code="TIMEOUT") from error
            message = f"{provider.base_url} broke off: {error or type(error).__name__}"
            if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)):
                message = (
                    f"cannot reach {provider.base_url}: {error}; check that the server runs and that "
                    f"plugins.models.providers.{provider.id}.base_url is right"
                )
            raise ModelError(message, code="TRANSPORT") from error


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The body, cut at a limit."""
    parts, size = [], 0
    while size < _BODY_LIMIT and (data := await response.content.readany()):
        parts.append(data)
        size += len(data)
    return b"".join(parts)[:_BODY_LIMIT]


async def _end_of_body(response: aiohttp.ClientResponse) -> None:
    """Wait for the last bytes of a complete response, so that its connection serves the next request."""
    with suppress(Exception):  # nobody needs to know how the body of a complete response ended
        async with asyncio.timeout(_LINGER):
            await response.content.readany()


def _cancelled() -> ModelError:
    return ModelError("the request was cancelled", code="ABORTED")
