"""Server-sent events, as far as chat completions use them: an incremental reader of ``data:`` payloads. No I/O.

Lines end with LF or CRLF; comments and other fields are skipped.
"""

from __future__ import annotations

from polyhost.interfaces import ModelError

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An unfinished event larger than this ends the stream with MALFORMED_RESPONSE."""


class EventReader:
    """Feed network reads, get complete events; an event ends at a blank line, so a cut one is never delivered.

    :param limit: bytes of an unfinished event that are kept.
    """

    __slots__ = ("_data", "_data_size", "_limit", "_line", "_line_size")

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._line: list[bytes] = []  # pieces of a line, joined when it ends: a long one may come in many reads
        self._line_size = 0
        self._data: list[bytes] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The ``data`` of each event that ``chunk`` completes; lines of one event are joined by a line feed.

        Raises :class:`ModelError` (MALFORMED_RESPONSE) when an unfinished event passes the limit.
        """
        self._line.append(chunk)
        self._line_size += len(chunk)
        events = self._lines() if b"\n" in chunk else []
        if self._data_size + self._line_size > self._limit:
            raise ModelError(f"the endpoint sent an event above {self._limit} bytes", code="MALFORMED_RESPONSE")
        return events

    def _lines(self) -> list[bytes]:
        *lines, rest = b"".join(self._line).split(b"\n")
        self._line = [rest]
        self._line_size = len(rest)
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                self._data_size += len(line)
            elif data and line in (b"", b"\r"):
                events.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
                self._data_size = 0
        return events
