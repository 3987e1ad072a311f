"""Images by their first bytes: real files of each format, and every way to be none."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.runtime.sessions.images import ImageFacts, inspect_image


def png(width: int = 2, height: int = 3) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"".join(b"\0" + b"\xff\0\0" * min(width, 9) for _ in range(min(height, 9))))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(width: int = 2, height: int = 3, frame: int = 0xC0) -> bytes:
    app = b"\xff\xe0\x00\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0"
    sof = b"\xff\xff" + bytes([frame]) + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\0"
    return b"\xff\xd8" + app + b"\xff\xc4\x00\x04\0\0" + sof + b"\xff\xda\x00\x08\x01\x01\0\0\x3f\0\0\xff\xd9"


def gif(width: int = 2, height: int = 3) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def webp(kind: bytes, body: bytes) -> bytes:
    body += b"\0" * (18 - len(body)) if len(body) < 18 else b""
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


LOSSY = webp(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + struct.pack("<HH", 2 | 1 << 14, 3))
LOSSLESS = webp(b"VP8L", b"\x2f" + struct.pack("<I", 1 | 2 << 14))
EXTENDED = webp(b"VP8X", b"\x10\0\0\0" + (1).to_bytes(3, "little") + (2).to_bytes(3, "little"))


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (png(), "image/png"),
        (jpeg(), "image/jpeg"),
        (jpeg(frame=0xC2), "image/jpeg"),
        (gif(), "image/gif"),
        (LOSSY, "image/webp"),
        (LOSSLESS, "image/webp"),
        (EXTENDED, "image/webp"),
    ],
)
def test_format_and_size(data: bytes, media_type: str) -> None:
    assert inspect_image(data) == ImageFacts(media_type, 2, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain text",
        png()[:30],
        png(0, 3),
        jpeg()[:28],
        jpeg(0, 3),
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xda\0\x02",
        b"\xff\xd8\xff\xe0\0\x01",
        b"\xff\xd8\xff\xe0\0\x04abcd",
        gif()[:10],
        gif(3, 0),
        LOSSY[:-2],
        webp(b"VP8 ", b"\x30\x01\x00\0\0\0"),
        webp(b"VP8L", b"\0"),
        webp(b"ABCD", b""),
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ],
)
def test_what_is_no_image(data: bytes) -> None:
    assert inspect_image(data) is None


@given(st.sampled_from([png(), jpeg(), gif(), LOSSY, LOSSLESS, EXTENDED]), st.data())
def test_no_bytes_break_it(image: bytes, data: st.DataObject) -> None:
    cut = image[: data.draw(st.integers(0, len(image)))]
    facts = inspect_image(cut + data.draw(st.binary(max_size=40)))
    assert facts is None or (facts.width > 0 and facts.height > 0)
