"""The two encodings of a stored log as bytes: plain JSON lines, and the same lines in zstd frames, one per batch.

Reading cuts a file into frames with their places; a plain file is one frame. What the lines mean is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from polyhost.interfaces.sessions import SessionError
from polyhost.runtime.sessions.layout import Encoding

if TYPE_CHECKING:
    import zstandard

_MAGIC = b"\x28\xb5\x2f\xfd"
_LEVEL = 3


class Frame(NamedTuple):
    """A run of content that was written at once. ``start`` is its offset in the file.

    ``complete`` is False for a last frame that the file ends inside of; its content is what could be decoded.
    """

    start: int
    content: bytes
    complete: bool


class Encoder:
    """Encodes batches for one file after the other; belongs to one thread."""

    def __init__(self) -> None:
        self._compressor: zstandard.ZstdCompressor | None = None

    def load(self, encoding: Encoding) -> None:
        """Make the compressor ready ahead of time; its library is loaded only where one is needed."""
        if encoding == "zstd" and self._compressor is None:
            import zstandard

            self._compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)

    def encode(self, content: bytes, encoding: Encoding) -> bytes:
        """One batch as it is appended to a file."""
        if encoding == "plain":
            return content
        self.load(encoding)
        assert self._compressor is not None
        return self._compressor.compress(content)


def frames(raw: bytes, encoding: Encoding, path: str) -> Iterator[Frame]:
    """The frames of a file, in order.

    :raises SessionError: SESSION_CORRUPT for damage that is no torn end, with file and offset.
    """
    if encoding == "plain":
        yield Frame(0, raw, True)
        return
    import zstandard

    start = 0
    while start < len(raw):
        end = _frame_end(raw, start, path)
        piece = raw[start:end]
        try:
            content = zstandard.ZstdDecompressor().decompressobj().decompress(piece)
        except zstandard.ZstdError as error:
            raise _damaged(path, start, str(error)) from error
        if end is None:
            _refuse_hidden_frames(raw, start, path)
            yield Frame(start, content, False)
            return
        yield Frame(start, content, True)
        start = end


def is_compressed(raw: bytes) -> bool:
    """Whether this content of a file is zstd, and not plain lines."""
    return raw.startswith(_MAGIC)


def first_frame(head: bytes, encoding: Encoding, path: str) -> bytes:
    """The content of the first frame, as far as ``head``, the beginning of a file, goes."""
    if encoding == "plain":
        return head
    for frame in frames(head, encoding, path):
        return frame.content
    return b""


def _frame_end(raw: bytes, start: int, path: str) -> int | None:
    """Where the frame at ``start`` ends; None when the file ends first. Follows RFC 8878, 3.1.1."""
    magic = raw[start : start + 4]
    if magic != _MAGIC[: len(magic)]:
        raise _damaged(path, start, "no frame begins here")
    if start + 5 > len(raw):
        return None
    descriptor = raw[start + 4]
    single_segment = descriptor >> 5 & 1
    at = start + 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    at += (single_segment, 2, 4, 8)[descriptor >> 6]
    last = False
    while not last:
        if at + 3 > len(raw):
            return None
        block = int.from_bytes(raw[at : at + 3], "little")
        last = bool(block & 1)
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
    at += 4 if descriptor >> 2 & 1 else 0
    return at if at <= len(raw) else None


def _refuse_hidden_frames(raw: bytes, start: int, path: str) -> None:
    """A damaged length can make whole frames look like the rest of a torn one: nothing may be cut then."""
    at = raw.find(_MAGIC, start + 1)
    while at != -1:
        if _frame_end(raw, at, path) is not None:
            raise _damaged(path, start, f"it runs over the frame at byte {at}")
        at = raw.find(_MAGIC, at + 1)


def _damaged(path: str, start: int, reason: str) -> SessionError:
    return SessionError(f"{path}: the compressed frame at byte {start} is damaged: {reason}", code="SESSION_CORRUPT")
