"""Server-sent events: complete events only, in any chunking, within a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import ModelError
from polyhost_models.sse import EventReader

LINES = st.sampled_from([b"data: {}", b"data:x", b"data:", b": comment", b"event: e", b"", b"", b"\r", b"id", b"da"])
STREAM = st.lists(LINES).map(b"\n".join) | st.binary(max_size=60)


@pytest.mark.contract("DS-11")
@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
        (b"data:x\r\n\r\ndata: y\r\n\r\n", [b"x", b"y"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b": keep-alive\n\n\n\nevent: e\nid: 3\ndata: x\n\n", [b"x"]),
        (b"data: [DONE]\n", []),
        (b"data: [DONE]", []),
        (b"data: cu", []),
        (b"", []),
    ],
)
def test_only_events_that_a_blank_line_ends_are_delivered(stream: bytes, events: list[bytes]) -> None:
    assert EventReader().feed(stream) == events


@pytest.mark.contract("DS-11")
@given(STREAM, st.lists(st.integers(0, 60)))
def test_chunking_makes_no_difference(stream: bytes, cuts: list[int]) -> None:
    whole = EventReader().feed(stream)
    reader, events, start = EventReader(), [], 0
    for cut in [*sorted(cuts), len(stream)]:
        events += reader.feed(stream[start:cut])
        start = max(start, cut)
    assert events == whole


@pytest.mark.parametrize("piece", [b"data: 0123456789", b"data: 0123456789\n", b": 0123456789"])
def test_an_unfinished_event_is_bounded(piece: bytes) -> None:
    reader = EventReader(limit=100)
    with pytest.raises(ModelError, match="above 100 bytes") as caught:
        for _ in range(20):
            reader.feed(piece)
    assert caught.value.code == "MALFORMED_RESPONSE"


def test_the_bound_is_for_one_event_not_for_the_stream() -> None:
    reader = EventReader(limit=100)
    for _ in range(50):
        assert reader.feed(b"data: 0123456789\n\n: comment\n") == [b"0123456789"]
