"""Images by their first bytes: which format, how many pixels. Nothing is decoded.

PNG: signature and IHDR (RFC 2083). JPEG: the frame header among the segments (ITU T.81). GIF: the logical screen
(GIF89a). WebP: the RIFF container with VP8, VP8L or VP8X (RFC 9649).
"""

from __future__ import annotations

from typing import NamedTuple

_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FRAME = frozenset({0xC4, 0xC8, 0xCC})  # in the range of frame headers, but others
_BARE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length


class ImageFacts(NamedTuple):
    """Sizes in pixels."""

    media_type: str
    width: int
    height: int


def inspect_image(data: bytes) -> ImageFacts | None:
    """What ``data`` is, None when it is no complete header of a PNG, JPEG, WebP or GIF image with pixels."""
    size: tuple[int, int] | None = None
    media_type = sniff(data)
    if media_type == "image/png":
        size = _png(data)
    elif media_type == "image/jpeg":
        size = _jpeg(data)
    elif media_type == "image/webp":
        size = _webp(data)
    elif media_type == "image/gif":
        size = _gif(data)
    if media_type is None or size is None or 0 in size:
        return None
    return ImageFacts(media_type, *size)


def sniff(data: bytes) -> str | None:
    """The media type that the signature claims."""
    if data.startswith(_PNG):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return None


def _png(data: bytes) -> tuple[int, int] | None:
    if len(data) < 33 or data[8:16] != b"\x00\x00\x00\rIHDR":
        return None
    return _big(data[16:20]), _big(data[20:24])


def _gif(data: bytes) -> tuple[int, int] | None:
    return (_little(data[6:8]), _little(data[8:10])) if len(data) >= 13 else None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _BARE:
            at += 2
        elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            frame = data[at + 5 : at + 9]
            return (_big(frame[2:4]), _big(frame[0:2])) if len(frame) == 4 else None
        else:
            length = _big(data[at + 2 : at + 4])
            if length < 2 or marker in (0xD9, 0xDA):
                return None  # the image ends, or its data begins, without a frame header
            at += 2 + length
    return None


def _webp(data: bytes) -> tuple[int, int] | None:
    if len(data) < 30 or _little(data[4:8]) + 8 > len(data) + 1:
        return None  # the container is cut off; a missing pad byte is forgiven
    kind = data[12:16]
    if kind == b"VP8X":
        return _little(data[24:27]) + 1, _little(data[27:30]) + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = _little(data[21:25])
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
    return None


def _big(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")
