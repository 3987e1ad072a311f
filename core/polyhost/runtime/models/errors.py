"""Failures as text and as the facts that go into a log; never raises, whatever an exception does.

What a failed model attempt looks like on the wire is decided here. When to try again is in ``retry``.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyhost.interfaces import JsonObject, ModelError
from polyhost.kernel.errors import PolyhostError

UNKNOWN = "UNKNOWN"
ABORTED = "ABORTED"

_MAX_CAUSES = 32
_MAX_LENGTH = 16_384  # characters of a rendered chain; a hostile message must not fill the log


def error_chain(error: BaseException) -> str:
    """``message: cause message: ...`` over the explicit causes, the members of a group as `` [a; b]``.

    A cause whose text its parent already quotes is not repeated, and a cycle ends the chain. An exception without a
    text shows as the name of its class.
    """
    return _render(error, set())[:_MAX_LENGTH]


def failure_of(error: BaseException) -> JsonObject:
    """The wire form ``{message, code, ...}``.

    A :class:`ModelError` keeps its facts, any other error of the host its code; a foreign one is ``UNKNOWN``.
    """
    code = None
    try:
        if isinstance(error, ModelError):
            return clean_failure(error.failure())
        if isinstance(error, PolyhostError):
            code = error.code
    except Exception:
        pass  # a subclass with odd facts: what can be said is its text
    return clean_failure({"message": error_chain(error), "code": code})


def clean_failure(facts: object) -> JsonObject:
    """The known facts of the right types only: adapters are foreign code, and these go straight into the log."""
    if not isinstance(facts, dict):
        facts = {}
    message, code = facts.get("message"), facts.get("code")
    clean: JsonObject = {
        "message": _encodable(message)[:_MAX_LENGTH] if isinstance(message, str) else "the model request failed",
        "code": _encodable(code) if isinstance(code, str) and code else UNKNOWN,
    }
    for key in ("status", "providerRetryAfterMs"):
        if type(facts.get(key)) is int and 0 <= facts[key] < 2**53:
            clean[key] = facts[key]
    if isinstance(facts.get("requestId"), str):
        clean["requestId"] = _encodable(facts["requestId"])
    return clean


def _render(error: BaseException, seen: set[int]) -> str:
    text = ""
    for link in _links(error, seen):
        part = _text(link)
        if isinstance(link, BaseExceptionGroup):
            members = "; ".join(
                _render(member, seen) for member in link.exceptions[:_MAX_CAUSES] if id(member) not in seen
            )
            part = f"{_text_of_group(link)} [{members}]" if members else part
        if not text:
            text = part
        elif part not in text and not _quoted(link, text):
            text = f"{text}: {part}"
    return text


def _links(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(seen) < _MAX_CAUSES:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _quoted(error: BaseException, text: str) -> bool:
    """Whether ``text`` has the reason of an operating system's error, without its number and path."""
    return isinstance(error, OSError) and isinstance(error.strerror, str) and error.strerror in text


def _text_of_group(group: BaseExceptionGroup[BaseException]) -> str:
    return group.message if isinstance(group.message, str) else type(group).__name__


def _text(error: BaseException) -> str:
    try:
        text = str(error).strip()
    except Exception:
        text = ""
    return _encodable(text) or type(error).__name__


def _encodable(text: str) -> str:
    """``text`` without lone surrogates, which no JSON line can carry."""
    return text.encode("utf-8", "replace").decode("utf-8")
