"""What an HTTP error of a chat-completion endpoint means (agent-core 2.18). Plain data, no I/O."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from polyhost.interfaces import ModelError

_QUOTA = re.compile(
    r"insufficient[ _]?(quota|balance|funds|credit)|quota[ _]?exceeded|exceeded your current quota|billing", re.I
)
_CONTEXT = re.compile(
    r"context_length_exceeded|maximum context length|context (window|length)|too long for the model|prompt is too long",
    re.I,
)
_REQUEST_ID_HEADERS = ("x-request-id", "x-deepseek-request-id")


def classify(status: int, headers: Mapping[str, str], body: Any, fallback: str) -> ModelError:
    """The typed error for one failed response.

    :param body: the decoded JSON body, or None when it was not JSON.
    :param fallback: message when the body has none.
    """
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    message = error.get("message") if isinstance(error.get("message"), str) else None
    detail = " ".join(str(error.get(key) or "") for key in ("code", "type", "message"))
    request_id = next((headers[name] for name in _REQUEST_ID_HEADERS if headers.get(name)), None)
    return ModelError(
        message or fallback,
        code=_code(status, detail),
        status=status,
        retry_after_ms=retry_after_ms(headers.get("retry-after")),
        request_id=request_id,
    )


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
    """Milliseconds until the time that a ``Retry-After`` header names; None for absent, invalid, zero or past."""
    if not value:
        return None
    if re.fullmatch(r"\d+", value.strip()):
        delay = int(value) * 1000
    else:
        try:
            moment = parsedate_to_datetime(value).timestamp()
        except (TypeError, ValueError):
            return None
        delay = round((moment - (time.time() if now is None else now)) * 1000)
    return delay if delay > 0 else None
