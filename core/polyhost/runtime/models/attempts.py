"""One attempt at one adapter, as a stream that never raises for the adapter's failures.

Whatever the adapter does ends as one terminal ``Finish``; what the consumer raises is not the adapter's and passes.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator

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

_OTHER_CHUNKS = frozenset({ToolCallDelta, BlockStart, BlockEnd, UsageReport, Finish})

_log = logging.getLogger(__name__)


async def attempt(adapter: ModelAdapter, request: ModelRequest) -> AsyncGenerator[Chunk, None]:
    """The chunks of ``adapter`` for ``request``, up to and including the first ``Finish``.

    Closing this stream early closes the adapter's.
    """
    source: AsyncIterator[Chunk] | None = None
    try:
        source = adapter.stream(request)
        async for chunk in source:
            kind = type(chunk)
            if kind is TextDelta or kind is ReasoningDelta:
                if type(chunk.text) is not str:  # type: ignore[union-attr]
                    raise _no_chunk(request, chunk)
            elif kind not in _OTHER_CHUNKS:
                raise _no_chunk(request, chunk)
            yield chunk
            if kind is Finish:
                return
    except GeneratorExit:
        raise  # this stream is being closed
    except BaseException as error:
        if ends_task(error):
            raise
        yield failed(request, error)
    finally:
        await close(source)


def failed(request: ModelRequest, error: BaseException) -> Finish:
    """The terminal chunk for an attempt that ended with ``error``."""
    failure = failure_of(error)
    if isinstance(error, AbortedError):
        failure["code"] = ABORTED
    aborted = (request.signal is not None and request.signal.aborted) or failure["code"] == ABORTED
    reason: JsonObject = {"kind": "aborted" if aborted else "error", "failure": failure}
    return Finish(reason)


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


def _no_chunk(request: ModelRequest, chunk: object) -> ModelError:
    return ModelError(f"the adapter of provider {request.provider} sent {chunk!r:.120}, which is no chunk")
