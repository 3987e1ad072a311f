"""What the index keeps of a log: title, counts, and the texts that a search goes over.

A digest checks nothing: it takes what it understands of a log that may be damaged or still be written, and says where
the next one can go on. What a log may look like is in ``reading``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from polyhost.interfaces.messages import text_of
from polyhost.interfaces.sessions import SessionError, SessionHeader
from polyhost.runtime.sessions import header as headers
from polyhost.runtime.sessions.codec import frames
from polyhost.runtime.sessions.events import LINE_DEPTH
from polyhost.runtime.sessions.layout import Encoding
from polyhost.runtime.sessions.packing import ROW_TYPES
from polyhost.runtime.sessions.title_text import fallback, title_of
from polyhost.wire.errors import WireError
from polyhost.wire.json import loads

TEXT_LIMIT = 64 * 1024
"""Characters of one message that a search sees."""

_TYPE = re.compile(rb'\{"type":"([a-z/-]+)"')


class Text(NamedTuple):
    """One message that a search can find; ``role`` is ``user``, ``assistant`` or ``title``."""

    seq: int
    role: str
    text: str


class Digest:
    """A log, or the part of it behind what an earlier digest saw.

    :ivar header: None in a later part.
    :ivar title: of the last ``session/title``.
    :ivar prompt: the first words of the first human prompt.
    :ivar events: how many the log has, counted from its beginning; 0 when this part has none.
    :ivar turns: how many begin in this part.
    :ivar end: offset in the file up to which it was read, on a boundary where reading can go on.
    """

    __slots__ = ("end", "events", "header", "prompt", "texts", "title", "turns")

    def __init__(self, end: int) -> None:
        self.header: SessionHeader | None = None
        self.title: str | None = None
        self.prompt: str | None = None
        self.events = 0
        self.turns = 0
        self.texts: list[Text] = []
        self.end = end


def digest(raw: bytes, start: int, encoding: Encoding, path: str) -> Digest:
    """Digest ``raw``, the content of the file from the offset ``start`` on; 0 is where the header is.

    :raises SessionError: SESSION_CORRUPT or SESSION_UNSUPPORTED, when the header is unusable, or when no record begins
        at ``start``.
    """
    result = Digest(start)
    last = b""
    try:
        for frame in frames(raw, encoding, path):
            result.end = start + frame.start
            if not frame.complete:
                break
            *lines, torn = frame.content.split(b"\n")
            if start == 0 and result.header is None and lines:
                result.header = headers.decode(lines.pop(0), path)
            for line in lines:
                _take_in(result, line)
            last = lines[-1] if lines else last
            if encoding == "plain":
                result.end += len(raw) - len(torn)
        else:
            if encoding == "zstd":
                result.end = start + len(raw)
    except SessionError:
        if result.end == start:
            raise
    if start == 0 and result.header is None:
        raise SessionError(f"{path}: it ends within its header", code="SESSION_CORRUPT")
    result.events = _events_up_to(last)
    return result


def _take_in(result: Digest, line: bytes) -> None:
    match = _TYPE.match(line)
    if match is not None and match[1] not in _READERS:
        return
    event = _decoded(line)
    reader = _READERS.get(str(event.get("type")).encode("utf-8", "replace"))
    if reader is not None:
        try:
            reader(result, event)
        except (AttributeError, KeyError, TypeError):
            return  # no event that a host wrote; opening the log will say so


def _title(result: Digest, event: Any) -> None:
    title = event["data"]["title"]
    result.title = title_of(title) or result.title
    _keep(result, event["seq"], "title", title)


def _turn(result: Digest, event: Any) -> None:
    result.turns += 1


def _user(result: Digest, event: Any) -> None:
    message = event["data"]
    if message["source"]["kind"] != "user":
        return
    text = text_of(message["content"])
    result.prompt = result.prompt or fallback(text) or None
    _keep(result, event["seq"], "user", text)


def _assistant(result: Digest, event: Any) -> None:
    _keep(result, event["seq"], "assistant", text_of(event["data"]["message"]["content"]))


def _keep(result: Digest, seq: int, role: str, text: str) -> None:
    if text and not text.isspace():
        # A lone surrogate is legal in a log, but nothing that a database could store.
        result.texts.append(Text(int(seq), role, text[:TEXT_LIMIT].encode("utf-8", "replace").decode()))


_READERS: dict[bytes, Callable[[Digest, Any], None]] = {
    b"session/title": _title,
    b"turn/start": _turn,
    b"user/message": _user,
    b"assistant/message": _assistant,
}


def _events_up_to(line: bytes) -> int:
    """How many events a log has that ends with this line."""
    record = _decoded(line)
    try:
        if record.get("type") in ROW_TYPES:
            return int(record["seq0"]) + len(record["data"]["dt"]) + 1
        return int(record["seq"]) + 1
    except (KeyError, TypeError, ValueError):
        return 0


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        value = loads(line, max_depth=LINE_DEPTH)
    except WireError:
        return {}
    return value if isinstance(value, dict) else {}
