"""Text as files hold it and as models see it: decoding, line endings, literal replacement. No I/O.

Models see and send LF. A file's own line endings survive: what is replaced or written anew takes the ending that
prevails in the file, and everything else stays byte for byte as it was.
"""

from __future__ import annotations

import re
from bisect import bisect_left

from polyhost_tools.errors import FileError

CRLF = "\r\n"


def decode(data: bytes, path: str) -> str:
    """``data`` as UTF-8 text.

    :raises FileError: FS_NOT_TEXT for NUL bytes or invalid UTF-8.
    """
    if b"\0" in data:
        raise FileError(f"{path}: it is a binary file, not text", code="FS_NOT_TEXT")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: it is not valid UTF-8 at byte {error.start}", code="FS_NOT_TEXT") from error


def encode(text: str, path: str) -> bytes:
    """``text`` as UTF-8.

    :raises FileError: FS_NOT_TEXT for lone surrogates.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise FileError(f"{path}: the new text has a lone surrogate at {error.start}", code="FS_NOT_TEXT") from error


def to_lf(text: str) -> str:
    return text.replace(CRLF, "\n")


def with_endings_of(sample: str, text: str) -> str:
    """``text`` with the line ending that prevails in ``sample``."""
    text = to_lf(text)
    crlf = sample.count(CRLF)
    return text.replace("\n", CRLF) if crlf > sample.count("\n") - crlf else text


def replace_literal(text: str, old: str, new: str, *, every: bool, path: str) -> str:
    """``text`` with ``old`` replaced by ``new``, both compared and given with LF.

    :raises FileError: FS_EDIT_NOT_FOUND, or FS_AMBIGUOUS_EDIT when ``old`` occurs several times and not ``every`` one
        is to be replaced.
    """
    old = to_lf(old)
    plain = to_lf(text)
    found = plain.count(old)
    if found == 0:
        raise FileError(f"{path}: old_string was not found; it must match the file exactly", code="FS_EDIT_NOT_FOUND")
    if found > 1 and not every:
        raise FileError(
            f"{path}: old_string occurs {found} times; give more context to make it unique, or set replace_all",
            code="FS_AMBIGUOUS_EDIT",
        )
    new = with_endings_of(text, new)
    if len(plain) == len(text):
        return text.replace(old, new)
    return _replace_ranges(text, plain, old, new)


def _replace_ranges(text: str, plain: str, old: str, new: str) -> str:
    """Replace in a text with CRLF what was found in its LF form, leaving the rest untouched."""
    dropped = [match.start() - index for index, match in enumerate(re.finditer(CRLF, text))]  # LF of each, in ``plain``
    parts, end = [], 0
    for match in re.finditer(re.escape(old), plain):
        start, stop = (place + bisect_left(dropped, place) for place in match.span())
        parts += [text[end:start], new]
        end = stop
    return "".join([*parts, text[end:]])
