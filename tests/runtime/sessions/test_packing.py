"""Packed rows: exact forms, what breaks a run, and the identity of packing and unpacking."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import Chunk, ReasoningDelta, SessionHeader, TextDelta, ToolCallDelta, UsageReport
from polyhost.runtime.sessions import LiveSession
from polyhost.runtime.sessions.packing import MAX_RUN, pack, unpack
from polyhost.wire.json import dumps, loads


def written(*chunks: Chunk, times: list[int] | None = None) -> list[bytes]:
    """Lines of ``chunks`` as the chunk writer makes them, from seq 2 on; times as given, else 1000."""
    session = LiveSession(SessionHeader("s", 1), clock=lambda: 1000)
    session.append("turn/start", {"turn": 1})
    session.append("step/start", {"turn": 1, "step": 1})
    write = session.chunk_writer(1, 1).write
    for chunk in chunks:
        write(chunk)
    lines = list(session.lines(2))
    if times is not None:
        lines = [line.replace(b'"time":1000', b'"time":%d' % at) for line, at in zip(lines, times, strict=True)]
    return lines


def restored(records: list[bytes]) -> list[bytes]:
    lines: list[bytes] = []
    for record in records:
        value = loads(record)
        lines += unpack(value) if "seq0" in value else [record]
    return lines


@pytest.mark.contract("ROW-01")
@pytest.mark.parametrize(
    ("chunks", "row"),
    [
        (
            [TextDelta(0, "a"), TextDelta(0, "b"), TextDelta(0, "c")],
            '{"type":"text-chunks","seq0":2,"time0":1000,"data":{"turn":1,"step":1,"index":0,"dt":[3,0],'
            '"texts":["a","b","c"]}}',
        ),
        (
            [ReasoningDelta(4, "é"), ReasoningDelta(4, '"\n'), ReasoningDelta(4, "")],
            '{"type":"reasoning-chunks","seq0":2,"time0":1000,"data":{"turn":1,"step":1,"index":4,"dt":[3,0],'
            '"texts":["é","\\"\\n",""]}}',
        ),
        (
            [
                ToolCallDelta(1, "c", "{", "read"),
                ToolCallDelta(1, "c", '"', "read"),
                ToolCallDelta(1, "c", "}", "read"),
            ],
            '{"type":"tool-call-chunks","seq0":2,"time0":1000,"data":{"turn":1,"step":1,"index":1,"id":"c",'
            '"name":"read","dt":[3,0],"args":["{","\\"","}"]}}',
        ),
        (
            [ToolCallDelta(1, "c", "{"), ToolCallDelta(1, "c", "1"), ToolCallDelta(1, "c", "}")],
            '{"type":"tool-call-chunks","seq0":2,"time0":1000,"data":{"turn":1,"step":1,"index":1,"id":"c",'
            '"dt":[3,0],"args":["{","1","}"]}}',
        ),
    ],
)
def test_a_run_of_three_becomes_one_row_and_back(chunks: list[Chunk], row: str) -> None:
    lines = written(*chunks, times=[1000, 1003, 1003])
    assert list(pack(lines)) == [row.encode() + b"\n"]
    assert unpack(loads(row)) == lines
    assert list(pack(lines[:2])) == lines[:2]


@pytest.mark.contract("ROW-01", "ROW-02")
@pytest.mark.parametrize(
    "chunks",
    [
        [TextDelta(0, "a"), TextDelta(0, "b"), TextDelta(1, "c"), TextDelta(1, "d")],
        [TextDelta(0, "a"), TextDelta(0, "b"), ReasoningDelta(0, "c"), TextDelta(0, "d")],
        [TextDelta(0, "a"), TextDelta(0, "b"), UsageReport({}), TextDelta(0, "c")],
        [ToolCallDelta(0, "c", "1"), ToolCallDelta(0, "c", "2"), ToolCallDelta(0, "d", "3")],
        [ToolCallDelta(0, "c", "1", "x"), ToolCallDelta(0, "c", "2", "x"), ToolCallDelta(0, "c", "3", "y")],
        [ToolCallDelta(0, "c", "1", "x"), ToolCallDelta(0, "c", "2"), ToolCallDelta(0, "c", "3")],
    ],
)
def test_what_differs_is_not_packed(chunks: list[Chunk]) -> None:
    lines = written(*chunks)
    assert list(pack(lines)) == lines


@pytest.mark.contract("ROW-02")
def test_gaps_in_number_or_beyond_safe_integers_break_a_run() -> None:
    lines = written(*[TextDelta(0, "x")] * 4)
    assert len(list(pack([*lines[:2], lines[3]]))) == 3
    edge = 2**53 - 1
    far = written(*[TextDelta(0, "x")] * 3, times=[-edge, edge, edge])
    assert list(pack(far)) == far


@pytest.mark.contract("ROW-01")
def test_a_very_long_run_becomes_several_rows() -> None:
    lines = written(*[TextDelta(0, "x")] * (2 * MAX_RUN + 2))
    records = list(pack(lines))
    assert [record.count(b'"x"') for record in records] == [MAX_RUN, MAX_RUN, 1, 1]
    assert restored(records) == lines


@pytest.mark.contract("ROW-03")
@pytest.mark.parametrize(
    "change",
    [
        lambda event: event.update(more=1),
        lambda event: event.update(ignorable=True),
        lambda event: event["data"].update(more=1),
        lambda event: event["data"]["chunk"].update(more=1),
        lambda event: event.update(time=1000.5),
        lambda event: event["data"]["chunk"].update(text=1),
        lambda event: event["data"]["chunk"].update(index="0"),
        lambda event: event["data"].update(turn=None),
    ],
)
def test_a_delta_that_is_not_exactly_one_is_stored_as_it_is(change: Any) -> None:
    lines = written(*[TextDelta(0, "x")] * 5)
    event = loads(lines[2])
    change(event)
    lines[2] = dumps(event) + b"\n"
    assert list(pack(lines)) == lines


@pytest.mark.contract("ROW-03")
@pytest.mark.parametrize("text", [b'"\\u0041"', b'"\\/"', b'"\xff"', b'"a","b":"c"', b'"a" '])
def test_bytes_that_would_come_back_differently_are_not_packed(text: bytes) -> None:
    lines = [line.replace(b'"x"', text) for line in written(*[TextDelta(0, "x")] * 3)]
    assert list(pack(lines)) == lines


ROW = {
    "type": "text-chunks",
    "seq0": 0,
    "time0": 5,
    "data": {"turn": 1, "step": 1, "index": 0, "dt": [0], "texts": ["a", "b"]},
}


@pytest.mark.parametrize(
    "row",
    [
        {**ROW, "more": 1},
        {key: value for key, value in ROW.items() if key != "time0"},
        {**ROW, "seq0": "0"},
        {**ROW, "time0": 1.5},
        {**ROW, "data": []},
        {**ROW, "data": {**ROW["data"], "more": 1}},
        {**ROW, "data": {**ROW["data"], "dt": []}},
        {**ROW, "data": {**ROW["data"], "dt": [0.5]}},
        {**ROW, "data": {**ROW["data"], "dt": [2**53 - 1]}},
        {**ROW, "data": {**ROW["data"], "texts": ["a", 1]}},
        {**ROW, "data": {**ROW["data"], "texts": [], "dt": []}},
        {**ROW, "data": {**ROW["data"], "turn": True}},
        {**ROW, "type": "tool-call-chunks"},
    ],
)
def test_a_malformed_row_is_refused(row: Any) -> None:
    assert len(unpack(ROW)) == 2
    with pytest.raises(ValueError, match="packed row"):
        unpack(json.loads(json.dumps(row)))


TEXT = st.text(max_size=8) | st.sampled_from(["\ud800", '"\\', "\x00\x1f", "\u2028"])
CHUNKS = st.one_of(
    st.builds(TextDelta, st.integers(0, 1), TEXT),
    st.builds(ReasoningDelta, st.integers(0, 1), TEXT),
    st.builds(ToolCallDelta, st.integers(0, 1), st.sampled_from(["c", "d"]), TEXT, st.sampled_from([None, "n", "é\\"])),
    st.just(UsageReport({"inputTokens": 1})),
)


@pytest.mark.contract("ROW-04")
@settings(deadline=None)
@given(st.data())
def test_packing_and_unpacking_are_the_identity(data: st.DataObject) -> None:
    runs = data.draw(st.lists(st.tuples(CHUNKS, st.integers(1, 5)), max_size=12))
    chunks = [chunk for chunk, count in runs for _ in range(count)]
    times = data.draw(st.lists(st.integers(-(2**53) + 1, 2**53 - 1), min_size=len(chunks), max_size=len(chunks)))
    lines = written(*chunks, times=times)
    records = list(pack(lines))
    assert restored(records) == lines
    assert all(record.endswith(b"\n") and record.count(b"\n") == 1 for record in records)
