"""Keeping secrets out of what is shown, logged or handed to children.

Three rules, together: names that say "secret" (:func:`is_secret_name`), values that were resolved from
``{ env = ... }`` or registered otherwise (:class:`Redactor`), and pydantic's ``SecretStr``. References themselves are
shown, since a variable's name is no secret.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from polyhost.config.references import is_reference, is_variable_name

MASK = "********"

MIN_LENGTH = 4
"""Registered secrets shorter than this are masked only as whole values: inside a text they would hit any word."""

# Plain strings, compiled on first use: most starts never match one.
_WORD = r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+"
_SECRET_WORD = r".*(?:key|token|secret|password|passwd|passphrase|passcode|credential|cookie|authorization|bearer)s?"
_ASSIGNMENT = r"(?s:(-{0,2}([A-Za-z][\w-]*)=).+)"
_FLAG = r"-{1,2}([A-Za-z][\w-]*)"
_USER_INFO = r"(://[^/?#\s@:]*:)[^/?#\s@]+(?=@)"
_QUERY = r"([?&;]([\w.-]+)=)[^&;#\s]+"


def words(name: str) -> list[str]:
    """The lower-case words of an identifier: ``baseURL``, ``base_url`` and ``BASE-URL`` are ``["base", "url"]``."""
    return [word.lower() for word in re.findall(_WORD, name)]


def is_secret_name(name: str) -> bool:
    """Whether a key, variable, header or flag of this name holds a secret.

    True when a word ends in key, token, secret, password, credential and the like, or the name ends in auth.
    """
    parts = words(name)
    if any(re.fullmatch(_SECRET_WORD, part) for part in parts):
        return True
    return bool(parts) and (parts[-1] == "auth" or (parts[-1] == "pwd" and len(parts) > 1))


class Redactor:
    """The secret values known to this process, and texts without them.

    One instance is shared by everything that shows or logs; it is safe to use from several threads. It is a
    ``logging`` filter as well: add it to a handler, and messages, arguments and tracebacks are redacted.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._whole: frozenset[str] = frozenset()
        self._inside: tuple[str, ...] = ()
        self._adding = threading.Lock()
        for value in values:
            self.add(value)

    def add(self, value: str) -> None:
        """Register a secret; its form inside a JSON or Python string is covered too. Empty values are ignored."""
        import json

        forms = {value, value.strip(), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        forms.add(repr(value)[1:-1])
        with self._adding:
            if value and value not in self._whole:
                self._whole |= {value}
                self._inside += tuple(form for form in forms if len(form) >= MIN_LENGTH)

    def redact(self, text: str) -> str:
        """``text`` with every occurrence of a registered secret, overlapping ones included, replaced by the mask."""
        if text in self._whole:
            return MASK
        spans = [span for secret in self._inside if secret in text for span in _occurrences(secret, text)]
        if not spans:
            return text
        pieces, end = [], 0
        for start, stop in sorted(spans):
            if start >= end:
                pieces += [text[end:start], MASK]
            end = max(end, stop)
        return "".join((*pieces, text[end:]))

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a log record in place; always True. (The name is what ``logging`` calls.)"""
        if not self._inside:
            return True
        try:
            message = record.getMessage()
        except Exception as error:  # a wrong log call must neither fail its caller nor show its arguments
            message = f"{record.msg!r} (arguments left out: {type(error).__name__})"
        record.msg, record.args = self.redact(message), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self.redact(record.exc_text)
        if record.stack_info:
            record.stack_info = self.redact(record.stack_info)
        return True


def masked(value: Any, redactor: Redactor | None = None) -> Any:
    """A copy of ``value`` (tables, arrays, scalars, pydantic models) that may be shown.

    Hidden are: everything under a secret name, except references, booleans and token counts; ``SecretStr``; passwords
    and secretly named parameters in URLs; secretly named options in argument lists; what ``redactor`` knows.
    """
    return _mask(value, redactor or Redactor(), secret=False)


def _mask(value: Any, redactor: Redactor, *, secret: bool) -> Any:
    if hasattr(value, "get_secret_value"):
        return MASK
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    elif hasattr(value, "__dataclass_fields__"):
        value = {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        if is_reference(value) and is_variable_name(value["env"]):
            return dict(value)
        return {
            redactor.redact(str(key)): _mask(child, redactor, secret=secret or _hides(str(key), child))
            for key, child in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_mask(child, redactor, secret=secret or after) for child, after in _after_flags(value)]
    if secret:
        return value if value is None or value == "" or isinstance(value, bool) else MASK
    return _mask_text(value, redactor) if isinstance(value, str) else value


def _hides(name: str, value: object) -> bool:
    if isinstance(value, (int, float)) and "tokens" in words(name):
        return False  # max_tokens = 4096
    return is_secret_name(name)


def _after_flags(values: list[Any] | tuple[Any, ...]) -> Iterable[tuple[Any, bool]]:
    """Each element, and whether it is the argument of a secret flag: ``["--api-key", "..."]``."""
    after = False
    for value in values:
        yield value, after
        flag = re.fullmatch(_FLAG, value) if isinstance(value, str) else None
        after = flag is not None and is_secret_name(flag[1])


def _mask_text(text: str, redactor: Redactor) -> str:
    text = redactor.redact(text)
    assignment = re.fullmatch(_ASSIGNMENT, text)
    if assignment and is_secret_name(assignment[2]):
        return assignment[1] + MASK
    text = re.sub(_USER_INFO, rf"\g<1>{MASK}", text)
    return re.sub(_QUERY, lambda found: found[1] + MASK if is_secret_name(found[2]) else found[0], text)


def _occurrences(secret: str, text: str) -> Iterable[tuple[int, int]]:
    start = text.find(secret)
    while start >= 0:
        yield start, start + len(secret)
        start = text.find(secret, start + 1)
