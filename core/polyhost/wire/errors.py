"""Errors of the wire layer: bad JSON, values that are not JSON, bad frames, full tables.

Each carries a stable ``code`` for programs. No message ever quotes payload, since it may end in a log. The error
that one JSON-RPC peer sends to another is a message of that protocol, not a fault of the wire: see
:class:`polyhost.wire.jsonrpc.JsonRpcError`.
"""

from __future__ import annotations

from typing import ClassVar


class WireError(Exception):
    """Base of everything that the wire layer raises or reports.

    :param message: what happened, where, and the way out; one line.
    """

    code: ClassVar[str] = "WIRE"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class JsonDecodeError(WireError):
    """The text is not JSON: syntax, NaN or Infinity, a number beyond a double, invalid UTF-8."""

    code = "JSON_MALFORMED"


class JsonDepthError(WireError):
    """A text or a value nests deeper than ``limit`` levels."""

    code = "JSON_TOO_DEEP"

    def __init__(self, limit: int) -> None:
        super().__init__(f"JSON nested deeper than the limit of {limit} levels")
        self.limit = limit


class JsonValueError(WireError):
    """A value cannot be written as JSON without loss.

    :param path: where the offending value stands, as in ``data.items[3]``.
    :param reason: what is wrong with it.
    """

    code = "JSON_UNSAFE"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class FrameError(WireError):
    """A defect of one line of a stream.

    :class:`~polyhost.wire.lines.LineDecoder` hands it out in the place of the line instead of raising it.
    ``fatal`` says that nothing more can be read from this stream.
    """

    code = "FRAME"

    def __init__(self, message: str, *, fatal: bool) -> None:
        super().__init__(message)
        self.fatal = fatal


class FrameTooLargeError(FrameError):
    """A line is longer than ``limit`` bytes, its terminator not counted."""

    code = "FRAME_TOO_LARGE"

    def __init__(self, limit: int, *, fatal: bool) -> None:
        super().__init__(f"line longer than the limit of {limit} bytes", fatal=fatal)
        self.limit = limit


class InvalidFrameError(FrameError):
    """A line holds a byte that its dialect forbids."""

    code = "FRAME_INVALID"


class TruncatedFrameError(FrameError):
    """The stream ended inside a line, of which ``read`` bytes had arrived."""

    code = "FRAME_TRUNCATED"

    def __init__(self, read: int) -> None:
        super().__init__(f"stream ended inside a line, after {read} of its bytes", fatal=True)
        self.read = read


class PendingLimitError(WireError):
    """More than ``limit`` requests wait for their response on one connection."""

    code = "TOO_MANY_PENDING"

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests already wait for a response on this connection; wait for some of them")
        self.limit = limit
