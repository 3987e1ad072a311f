"""Server-sent events, as far as chat completions use them: an incremental reader of ``data:`` payloads. No I/O."""

from __future__ import annotations

from polyhost.interfaces import ModelError

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""One event larger than this ends the stream with MALFORMED_RESPONSE."""


class EventReader:
    """Feed network reads, get complete events; an event ends at a blank line, so a cut one is never delivered."""

    __slots__ = ("_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The ``data`` of each event that ``chunk`` completes; lines of one event are joined by a line feed."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ModelError(f"the endpoint sent an event above {MAX_EVENT_BYTES} bytes", code="MALFORMED_RESPONSE")
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif data and line in (b"", b"\r"):
                events.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
        return events
