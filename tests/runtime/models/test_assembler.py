from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from polyhost.runtime.models.assembler import BLOCK_TYPES, assemble


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool-call", "id": id, "name": name, "arguments": arguments}


@pytest.mark.contract("ASM-01")
@pytest.mark.parametrize(
    ("chunks", "content"),
    [
        pytest.param([TextDelta(0, "a"), TextDelta(0, "b")], [text("ab")], id="deltas open their block"),
        pytest.param(
            [BlockStart(0, "text"), TextDelta(0, "a"), BlockStart(0, "reasoning"), TextDelta(0, "b")],
            [text("ab")],
            id="a repeated start is ignored",
        ),
        pytest.param(
            [TextDelta(0, "a"), BlockEnd(0, text("final")), TextDelta(0, "late"), BlockEnd(0, text("later"))],
            [text("final")],
            id="the first end is authoritative",
        ),
        pytest.param(
            [TextDelta(3, "three"), ReasoningDelta(1, "one"), TextDelta(3, "!")],
            [text("three!"), {"type": "reasoning", "text": "one"}],
            id="in order of first sight",
        ),
        pytest.param(
            [ToolCallDelta(4, "", '{"a"', "t"), ToolCallDelta(4, "", ":1}")],
            [call("call-4", "t", '{"a":1}')],
            id="a call without id gets one",
        ),
        pytest.param(
            [ToolCallDelta(0, "c1", "", None), ToolCallDelta(0, "c1", "{}", "late")],
            [call("c1", "late", "{}")],
            id="a name may come late",
        ),
        pytest.param([BlockEnd(2, call("", "t", "{}"))], [call("call-2", "t", "{}")], id="also in an end"),
        pytest.param([BlockStart(0, "image")], [], id="an image cannot be built of nothing"),
        pytest.param([BlockStart(0, "text"), ToolCallDelta(0, "c", "{}")], [text("")], id="a delta of another kind"),
        pytest.param(
            [TextDelta(0, "safe"), ToolCallDelta(1, "c", '{"cut', "t"), Finish({"kind": "max-tokens"})],
            [text("safe")],
            id="cut calls are dropped",
        ),
    ],
)
def test_rules(chunks: list[Chunk], content: list[Any]) -> None:
    assert assemble(chunks).content() == content


@pytest.mark.contract("ASM-01")
def test_the_last_finish_and_usage_win_and_none_means_stop() -> None:
    assert assemble([]).finish == {"kind": "stop"}
    assert assemble([]).usage is None
    chunks = [
        UsageReport({"inputTokens": 1}),
        Finish({"kind": "tool-calls"}, "a"),
        UsageReport({"inputTokens": 2}),
        Finish({"kind": "stop"}, "b"),
    ]
    assembly = assemble(chunks)
    assert (assembly.finish, assembly.replay_state, assembly.usage) == ({"kind": "stop"}, "b", {"inputTokens": 2})


position = st.integers(0, 3)
field = st.text() | st.none() | st.integers()
json_object = st.dictionaries(st.sampled_from(["type", "text", "id", "name", "arguments"]), field)
block = st.fixed_dictionaries(
    {"type": st.sampled_from([*BLOCK_TYPES, "unheard-of"])},
    optional={"text": field, "id": field, "name": field, "arguments": field},
)
chunks = st.one_of(
    st.builds(TextDelta, position, st.text()),
    st.builds(ReasoningDelta, position, st.text()),
    st.builds(ToolCallDelta, position, st.text(), st.text(), st.none() | st.text()),
    st.builds(BlockStart, position, st.sampled_from([*BLOCK_TYPES, "unheard-of"])),
    st.builds(BlockEnd, position, block | json_object),
    st.builds(UsageReport, json_object),
    st.builds(Finish, st.builds(dict, kind=st.sampled_from(["stop", "tool-calls", "max-tokens", "error"])), st.none()),
)


@pytest.mark.contract("ASM-02")
@given(st.lists(chunks))
def test_whatever_comes_gives_valid_blocks_and_reading_twice_gives_the_same(stream: list[Chunk]) -> None:
    assembly = assemble(stream)
    content = assembly.content()
    assert content == assembly.content()
    for block in content:
        assert block["type"] in BLOCK_TYPES
        if block["type"] in ("text", "reasoning"):
            assert isinstance(block["text"], str)
        if block["type"] == "tool-call":
            assert block["id"]
            assert isinstance(block["name"], str)
            assert isinstance(block["arguments"], str)


def test_a_long_answer_is_joined_once() -> None:
    assert len(assemble([TextDelta(0, "word ")] * 200_000).content()[0]["text"]) == 1_000_000
