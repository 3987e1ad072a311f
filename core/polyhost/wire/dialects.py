"""Limits of the wire layer, and :class:`Dialect`: what protocols on the same framing do differently, as data.

Protocols derive theirs from :data:`JSON_RPC` with ``_replace`` and keep the result beside their method table; no
front end is named here, and no code below asks which protocol it serves.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

MAX_LINE = 64 * 1024 * 1024
"""Bytes of one line. Frames with a whole request header or an inline image are megabytes long and legitimate."""

MAX_DEPTH = 20_000
"""Levels of nesting, in text and in values; a list of scalars is one level."""

MAX_NODES = 4_000_000
"""Members and items of one foreign value. A shared container counts each time that it would be written."""

MAX_PENDING = 4096
"""Requests of one connection that wait for their response."""


class Dialect(NamedTuple):
    """One protocol's reading of newline-delimited JSON-RPC; the defaults are JSON-RPC 2.0, read tolerantly."""

    max_line: int = MAX_LINE
    """Bytes of one line without its terminator; a line of exactly this length is accepted."""

    oversized_line: Literal["skip", "close"] = "skip"
    """Report and skip to the next line, or report and end the stream."""

    nul: Literal["pass", "close"] = "pass"
    """A NUL byte: leave it to the JSON decoder, which refuses that line, or end the stream."""

    trim: bool = True
    """Strip white space and a byte order mark around each line, and skip blank lines."""

    last_line: Literal["deliver", "drop", "close"] = "deliver"
    """Bytes after the last newline at the end of the stream: a line like others, nothing, or a truncation error."""

    invalid_utf8: Literal["refuse", "replace"] = "refuse"
    """Refuse the line as malformed, or read U+FFFD in the place of invalid bytes."""

    max_depth: int = MAX_DEPTH
    """Levels of nesting of one message."""

    require_version: bool = False
    """Refuse messages without ``"jsonrpc": "2.0"``."""

    unknown_members: Literal["ignore", "refuse"] = "ignore"
    """Members of the envelope that JSON-RPC does not define."""

    fractional_ids: bool = True
    """Accept any finite number as an id; otherwise integers of 64 bits only."""

    null_id: Literal["request", "notification"] = "request"
    """What a ``method`` with ``"id": null`` is. ``request`` also admits error responses with a null id."""

    odd_id: Literal["refuse", "notification"] = "refuse"
    """What a ``method`` with a boolean, array or object as id is."""

    strict_shape: bool = True
    """Refuse what is not exactly one of request, notification, result and well-formed error. Otherwise whatever has
    an id and no method string is a response: failed if ``error`` is an object, else with ``result``, absent as null."""


JSON_RPC = Dialect()
"""JSON-RPC 2.0, one message per line: the ground on which protocols state their differences."""
