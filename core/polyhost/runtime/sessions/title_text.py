"""What a title may look like: one short line of visible text (agent-core 2.22)."""

from __future__ import annotations

import re

MAX_BYTES = 80
FALLBACK_WORDS = 5
FALLBACK_BYTES = 40

_LOOKED_AT = 2000  # characters; prompts may be megabytes

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)"  # OSC, DCS and other strings, up to their terminator
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]",
    re.DOTALL,
)
_CONTROLS = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"  # those that are no white space
    r"|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # bidirectional
    r"|[\ud800-\udfff]"
)
_INVISIBLE = re.compile(
    r"[\s\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0]+"
)


def title_of(text: str) -> str:
    """``text`` as a title of at most 80 bytes; empty when nothing of it can be seen.

    On one line, without terminal sequences, control and bidirectional characters.
    """
    return _cut(_line(text), MAX_BYTES)


def fallback(text: str) -> str:
    """The title of a session whose first human text this is; empty when there is nothing to see."""
    return _cut(" ".join(_line(text).split()[:FALLBACK_WORDS]), FALLBACK_BYTES)


def _line(text: str) -> str:
    start = text.lstrip()[:_LOOKED_AT]
    return " ".join(_CONTROLS.sub("", _ESCAPES.sub("", start)).split())


def _cut(line: str, limit: int) -> str:
    """As much as fits into ``limit`` bytes of UTF-8, without half a character at the end."""
    title = line.encode()[:limit].decode("utf-8", "ignore").rstrip()
    return "" if _INVISIBLE.fullmatch(title) else title
