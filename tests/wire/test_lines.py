"""The line splitter: any cut of a stream gives the same lines, and its limits are exact."""

from __future__ import annotations

import itertools
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.wire.dialects import JSON_RPC, MAX_LINE, Dialect
from polyhost.wire.errors import FrameError, FrameTooLargeError, InvalidFrameError, TruncatedFrameError
from polyhost.wire.lines import LineDecoder

SMALL = JSON_RPC._replace(max_line=8)
EXACT = JSON_RPC._replace(trim=False, nul="close", last_line="close", oversized_line="close", max_line=8)
KIB = 1024


def run(dialect: Dialect, *chunks: bytes) -> list[bytes | str]:
    """All lines of a stream, defects by their text."""
    decoder = LineDecoder(dialect)
    events = [event for chunk in chunks for event in decoder.feed(chunk)] + decoder.eof()
    return [repr(event) if isinstance(event, FrameError) else event for event in events]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    bounds = [0, *sorted(point % (len(data) + 1) for point in at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


streams = st.lists(
    st.binary(max_size=12) | st.sampled_from([b"\n", b"\r\n", b"\r", b"\0", b"\xef\xbb\xbf", b" ", "é😀".encode()])
).map(b"".join)
dialects = st.builds(
    JSON_RPC._replace,
    max_line=st.integers(0, 12),
    oversized_line=st.sampled_from(["skip", "close"]),
    nul=st.sampled_from(["pass", "close"]),
    trim=st.booleans(),
    last_line=st.sampled_from(["deliver", "drop", "close"]),
)


@given(streams, st.lists(st.integers(0, 10_000)), dialects)
def test_the_cut_of_the_stream_does_not_matter(data: bytes, at: list[int], dialect: Dialect) -> None:
    whole = run(dialect, data)
    assert run(dialect, *cut(data, at)) == whole
    assert run(dialect, *(bytes((byte,)) for byte in data)) == whole
    for line in whole:
        if isinstance(line, bytes):
            assert len(line) <= dialect.max_line
            assert b"\n" not in line
            assert dialect.nul == "pass" or b"\0" not in line


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and line[-1:] != b"\r")))
def test_untrimmed_lines_come_back_as_they_were(lines: list[bytes]) -> None:
    dialect = JSON_RPC._replace(trim=False)
    assert run(dialect, *(line + b"\n" for line in lines)) == lines
    assert run(dialect, b"\r\n".join([*lines, b""])) == lines


@pytest.mark.case("CASE-01")
@pytest.mark.parametrize("size", [64 * KIB - 1, 64 * KIB, 64 * KIB + 1, KIB * KIB, 8 * KIB * KIB])
@pytest.mark.parametrize("chunk", [4 * KIB - 1, 64 * KIB, 16 * KIB * KIB])
def test_long_lines_are_lines_like_others(size: int, chunk: int) -> None:
    data = b"[]\n" + b"x" * size + b"\n{}\n"
    assert run(JSON_RPC, *(data[start : start + chunk] for start in range(0, len(data), chunk))) == [
        b"[]",
        b"x" * size,
        b"{}",
    ]


@pytest.mark.case("CASE-01")
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_line_of_exactly_the_limit_passes_and_one_byte_more_is_reported(end: bytes) -> None:
    assert run(SMALL, b"12345678" + end + b"ok\n") == [b"12345678", b"ok"]
    decoder = LineDecoder(SMALL)
    first, second = decoder.feed(b"123456789" + end + b"ok\n")
    assert isinstance(first, FrameTooLargeError)
    assert (first.limit, first.fatal, first.code) == (8, False, "FRAME_TOO_LARGE")
    assert "8 bytes" in str(first)
    assert second == b"ok"


@pytest.mark.case("CASE-01")
def test_an_oversized_line_is_reported_at_once_and_then_skipped_without_holding_it() -> None:
    decoder = LineDecoder(JSON_RPC._replace(max_line=64 * KIB))
    chunk = b"y" * 32 * KIB
    events: list[bytes | FrameError] = []
    tracemalloc.start()
    for _ in range(1000):
        events += decoder.feed(chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [type(event) for event in events] == [FrameTooLargeError]
    assert peak < KIB * KIB
    assert decoder.feed(b"tail\nnext\n") == [b"next"]


@pytest.mark.case("CASE-01")
def test_an_oversized_line_closes_a_dialect_that_says_so() -> None:
    decoder = LineDecoder(EXACT)
    events = decoder.feed(b"ok\n123456789\nmore\n")
    assert events[0] == b"ok"
    assert isinstance(events[1], FrameTooLargeError)
    assert events[1].fatal
    assert len(events) == 2
    assert decoder.closed
    assert decoder.feed(b"more\n") == decoder.eof() == []


@pytest.mark.case("CASE-01")
def test_an_oversized_last_line_is_too_large_rather_than_truncated() -> None:
    assert run(EXACT, b"123456789") == run(EXACT, b"123456789\n")
    assert run(SMALL, b"123456789") == run(SMALL, b"123456789\n")
    assert run(SMALL, b"12345678\r") == [b"12345678"]


def test_the_default_limit() -> None:
    assert JSON_RPC.max_line == MAX_LINE == 64 * KIB * KIB


def test_many_tiny_chunks_of_one_line_cost_linear_time() -> None:
    def seconds(count: int) -> float:
        decoder = LineDecoder()
        start = time.perf_counter()
        for _ in range(count):
            decoder.feed(b"ab")
        assert decoder.feed(b"\n") == [b"ab" * count]
        return time.perf_counter() - start

    small = min(seconds(20_000) for _ in range(3))
    assert seconds(400_000) < small * 20 * 8  # quadratic time would be 400 times as long


@pytest.mark.case("CASE-16")
@pytest.mark.parametrize(
    ("data", "trimmed", "exact"),
    [
        (b"a\r\n", [b"a"], [b"a"]),
        (b"\xef\xbb\xbf{}\n", [b"{}"], [b"\xef\xbb\xbf{}"]),
        (b" \xef\xbb\xbf {} \r\n", [b"{}"], None),
        (b"\n \n\r\n", [], [b"", b" ", b""]),
        (b"a\0b\n", [b"a\0b"], ["InvalidFrameError('NUL byte in a line')"]),
        (b"\0\n{}\n", [b"\0", b"{}"], ["InvalidFrameError('NUL byte in a line')"]),
        ("é\n".encode(), ["é".encode()], ["é".encode()]),
        (b"\xff\n", [b"\xff"], [b"\xff"]),
        ("a\u2028b\n".encode(), ["a\u2028b".encode()], ["a\u2028b".encode()]),
        (b"a\rb\n", [b"a\rb"], [b"a\rb"]),
    ],
    ids=repr,
)
def test_odd_bytes(data: bytes, trimmed: list[bytes], exact: list[bytes | str] | None) -> None:
    assert run(JSON_RPC, data) == trimmed
    if exact is not None:
        assert run(EXACT, data) == exact


def test_a_nul_byte_is_fatal_where_the_dialect_says_so() -> None:
    decoder = LineDecoder(EXACT)
    (event,) = decoder.feed(b"a\0\nb\n")
    assert isinstance(event, InvalidFrameError)
    assert event.fatal
    assert decoder.closed


@pytest.mark.case("CASE-16")
def test_the_end_of_the_stream() -> None:
    assert run(JSON_RPC, b"a\nb") == [b"a", b"b"]
    assert run(JSON_RPC._replace(last_line="drop"), b"a\nb") == [b"a"]
    assert run(EXACT, b"a\n") == [b"a"]
    assert run(EXACT) == run(JSON_RPC, b"a"[:0]) == []
    decoder = LineDecoder(EXACT)
    decoder.feed(b"a\nbcd")
    (event,) = decoder.eof()
    assert isinstance(event, TruncatedFrameError)
    assert (event.read, event.fatal) == (3, True)
    assert decoder.closed
    assert decoder.feed(b"\n") == decoder.eof() == []
