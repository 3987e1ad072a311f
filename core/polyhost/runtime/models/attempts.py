"""One attempt at one adapter, as a stream that never raises for the adapter's failures.

Whatever the adapter does ends as one terminal ``Finish``; what the consumer raises is not the adapter's and passes.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    JsonObject,
    ModelAdapter,
    ModelError,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from polyhost.kernel.signals import AbortedError
from polyhost.runtime.containment import ends_task
from polyhost.runtime.models.errors import ABORTED, failure_of

RESPONSE_LIMIT = 64 * 1024 * 1024
"""What one response may come to: characters of text, reasoning and arguments, and :data:`CHUNK_WEIGHT` per chunk."""

CHUNK_WEIGHT = 48
"""What a chunk counts beside its text: even an empty one is an event in the log. Allows over a million short ones."""

_OTHER_CHUNKS = frozenset({ToolCallDelta, BlockStart, BlockEnd, UsageReport, Finish})

_log = logging.getLogger(__name__)

Redact = Callable[[str], str]


async def attempt(adapter: ModelAdapter, request: ModelRequest, redact: Redact = str) -> AsyncGenerator[Chunk, None]:
    """The chunks of ``adapter`` for ``request``, up to and including the first ``Finish``.

    A response that passes :data:`RESPONSE_LIMIT` fails with RESPONSE_TOO_LARGE, which is not worth a retry.

    :param redact: takes secrets out of what is told of a failure: endpoints quote what they were sent.
    Closing this stream early closes the adapter's.
    """
    source: AsyncIterator[Chunk] | None = None
    room = RESPONSE_LIMIT
    try:
        source = adapter.stream(request)
        async for chunk in source:
            kind = type(chunk)
            if kind is TextDelta or kind is ReasoningDelta:
                if type(chunk.text) is not str:  # type: ignore[union-attr]
                    raise _no_chunk(request, chunk)
                room -= CHUNK_WEIGHT + len(chunk.text)  # type: ignore[union-attr]
            elif kind not in _OTHER_CHUNKS:
                raise _no_chunk(request, chunk)
            else:
                room -= CHUNK_WEIGHT
                if isinstance(chunk, ToolCallDelta):
                    room -= len(chunk.id) + len(chunk.name or "") + len(chunk.arguments)
            if room < 0:
                raise _too_large(request)
            if isinstance(chunk, Finish):
                yield _redacted(chunk, redact)
                return
            yield chunk
    except GeneratorExit:
        raise  # this stream is being closed
    except BaseException as error:
        if ends_task(error):
            raise
        yield failed(request, error, redact)
    finally:
        await close(source)


def failed(request: ModelRequest, error: BaseException, redact: Redact = str) -> Finish:
    """The terminal chunk for an attempt that ended with ``error``."""
    failure = failure_of(error)
    if isinstance(error, AbortedError):
        failure["code"] = ABORTED
    aborted = (request.signal is not None and request.signal.aborted) or failure["code"] == ABORTED
    reason: JsonObject = {"kind": "aborted" if aborted else "error", "failure": failure}
    return _redacted(Finish(reason), redact)


async def close(source: object) -> None:
    """Close an asynchronous iterator that can be closed. A failure to close is logged: the attempt is over anyway."""
    aclose = getattr(source, "aclose", None)
    if aclose is None:
        return
    try:
        closing = aclose()
        if inspect.isawaitable(closing):
            await closing
    except Exception:
        _log.exception("a model stream failed while it was closed")


def _redacted(finish: Finish, redact: Redact) -> Finish:
    failure = finish.reason.get("failure")
    if not isinstance(failure, dict):
        return finish
    told = {name: redact(fact) if isinstance(fact, str) else fact for name, fact in failure.items()}
    return finish._replace(reason={**finish.reason, "failure": told})


def _too_large(request: ModelRequest) -> ModelError:
    return ModelError(
        f"the response of {request.provider}/{request.model} grew beyond {RESPONSE_LIMIT} characters "
        f"(with {CHUNK_WEIGHT} for each chunk) and was cut",
        code="RESPONSE_TOO_LARGE",
    )


def _no_chunk(request: ModelRequest, chunk: object) -> ModelError:
    return ModelError(f"the adapter of provider {request.provider} sent {chunk!r:.120}, which is no chunk")
