"""What an error of a chat-completion endpoint means (agent-core 2.18). Plain data, no I/O."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from polyhost.interfaces import ModelError

_QUOTA = re.compile(
    r"insufficient[ _](quota|balance|funds|credits?)|quota[ _](is |has been |was )?exceeded"
    r"|exceeded your (current |monthly )?quota|credit balance is too low|billing[ _](hard[ _])?limit",
    re.IGNORECASE,
)
_CONTEXT = re.compile(
    r"context_length_exceeded|maximum context length|(prompt|input|request|messages?) (is|are) too long"
    r"|too long for the model|exceeds? [^.]{0,60}context (window|length|size)|exceed_context_size",
    re.IGNORECASE,
)
_REQUEST_ID_HEADERS = ("x-request-id", "x-deepseek-request-id")


def http_error(
    status: int,
    headers: Mapping[str, str],
    body: Any,
    fallback: str,
    *,
    redact: Callable[[str], str] = str,
) -> ModelError:
    """The typed error for one failed response.

    :param headers: names in lower case.
    :param body: the decoded JSON body, or None when it was not JSON.
    :param fallback: message when the body has none.
    :param redact: takes secrets out of the endpoint's message.
    """
    message, detail = _texts(body.get("error") if isinstance(body, dict) else None)
    return ModelError(
        redact(message) or fallback,
        code=_code(status, detail),
        status=status,
        retry_after_ms=retry_after_ms(headers.get("retry-after")),
        request_id=next((headers[name] for name in _REQUEST_ID_HEADERS if headers.get(name)), None),
    )


def stream_error(error: Any) -> ModelError:
    """The typed error for the ``error`` member of a stream object, which comes after a status of 200."""
    message, detail = _texts(error)
    return ModelError(message or "the endpoint reported an error in the stream", code=_code(500, detail))


def _texts(error: Any) -> tuple[str, str]:
    """The message and all wording of an ``error`` member; some servers send a bare string."""
    if isinstance(error, str):
        return error, error
    if not isinstance(error, dict):
        return "", ""
    texts = {key: value for key in ("message", "code", "type") if isinstance(value := error.get(key), str)}
    return texts.get("message", ""), "\n".join(texts.values())


def _code(status: int, detail: str) -> str:
    if status in (401, 403):
        return "AUTH"
    if _QUOTA.search(detail):
        return "QUOTA"
    if status == 429:
        return "RATE_LIMIT"
    if status == 400:
        return "CONTEXT_WINDOW_EXCEEDED" if _CONTEXT.search(detail) else "INVALID_REQUEST"
    if status >= 500:
        return "SERVER"
    return f"HTTP_{status}"


def retry_after_ms(value: str | None, now: float | None = None) -> int | None:
    """Milliseconds until the time that a ``Retry-After`` header names; None for absent, invalid, zero or past.

    :param now: POSIX time to count from; by default the present.
    """
    if not value:
        return None
    if re.fullmatch(r"\d{1,9}", value.strip()):
        return int(value) * 1000 or None
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delay = round((moment.timestamp() - (time.time() if now is None else now)) * 1000)
    return delay if delay > 0 else None
