"""Newline-delimited frames: an incremental splitter for byte streams that are cut anywhere.

What a line means is not known here; see :mod:`polyhost.wire.jsonrpc`.
"""

from __future__ import annotations

from polyhost.wire.dialects import JSON_RPC, Dialect
from polyhost.wire.errors import FrameError, FrameTooLargeError, InvalidFrameError, TruncatedFrameError

_BOM = b"\xef\xbb\xbf"


class LineDecoder:
    """Turns chunks of bytes into lines, in time linear in the bytes, holding at most one line of the dialect's limit.

    Lines come without their terminator (LF or CR LF). The result does not depend on where the stream was cut: bytes
    are joined before anybody decodes them, so multibyte characters need no care. A defect comes as a
    :class:`~polyhost.wire.errors.FrameError` in the place of its line; after one that is ``fatal`` the decoder is
    ``closed`` and ignores further bytes.
    """

    __slots__ = ("_dialect", "_pending", "_skipping", "closed")

    def __init__(self, dialect: Dialect = JSON_RPC) -> None:
        self.closed = False
        self._dialect = dialect
        self._pending = bytearray()  # the line begun; a list of chunks would cost far more for one-byte chunks
        self._skipping = False  # inside the rest of a line that was reported as too long

    def feed(self, data: bytes) -> list[bytes | FrameError]:
        """Take the next bytes of the stream and return the lines that they complete."""
        events: list[bytes | FrameError] = []
        *complete, rest = data.split(b"\n")
        for piece in complete:
            if self.closed:
                return events
            if self._skipping:
                self._skipping = False
            elif self._pending:
                self._pending += piece
                line = bytes(self._pending)
                self._pending.clear()
                self._finish(line, events)
            else:
                self._finish(piece, events)
        if not (self.closed or self._skipping):
            self._hold(rest, events)
        return events

    def eof(self) -> list[bytes | FrameError]:
        """Say that the stream has ended, and return what its unterminated last line amounts to."""
        events: list[bytes | FrameError] = []
        line, self._pending = bytes(self._pending), bytearray()
        if line:
            if self._too_long(line):
                self._report_oversized(events)
            elif self._dialect.last_line == "close":
                events.append(TruncatedFrameError(len(line)))
            elif self._dialect.last_line == "deliver":
                self._finish(line, events)
        self.closed = True
        return events

    def _hold(self, piece: bytes, events: list[bytes | FrameError]) -> None:
        self._pending += piece
        if self._too_long(self._pending):
            self._pending = bytearray()
            self._skipping = True
            self._report_oversized(events)

    def _finish(self, line: bytes, events: list[bytes | FrameError]) -> None:
        dialect = self._dialect
        if self._too_long(line):
            self._report_oversized(events)
            return
        if dialect.nul == "close" and b"\0" in line:
            self.closed = True
            events.append(InvalidFrameError("NUL byte in a line", fatal=True))
            return
        line = line.removesuffix(b"\r")
        if dialect.trim:
            line = line.strip().removeprefix(_BOM).lstrip()
            if not line:
                return
        events.append(line)

    def _too_long(self, line: bytes | bytearray) -> bool:
        # A CR at the end may belong to the terminator, which the limit does not count.
        return len(line) - line.endswith(b"\r") > self._dialect.max_line

    def _report_oversized(self, events: list[bytes | FrameError]) -> None:
        self.closed = self._dialect.oversized_line == "close"
        events.append(FrameTooLargeError(self._dialect.max_line, fatal=self.closed))
