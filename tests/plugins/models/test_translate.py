"""From stream objects to chunks: the mapping, what is held back to the end, and whatever else an endpoint may send."""

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
    ModelError,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)
from polyhost.wire import json
from polyhost_models.translate import Translator


def translate(*events: Any) -> list[Chunk]:
    """The chunks of a whole response, ``[DONE]`` included."""
    translator = Translator()
    chunks = [chunk for event in events for chunk in translator.feed(json.dumps(event))]
    assert not translator.done
    chunks += translator.feed(b"[DONE]")
    assert translator.done
    return chunks


def failure(*events: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        translate(*events)
    return caught.value


def delta(finish: str | None = None, **members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": finish}]}


def call(index: int | None, arguments: str = "", id: str | None = None, name: str | None = None) -> dict[str, Any]:
    part: dict[str, Any] = {"function": {"arguments": arguments, "name": name}, "id": id}
    return delta(tool_calls=[part if index is None else {**part, "index": index}])


STOP = Finish({"kind": "stop"})


@pytest.mark.contract("DS-10")
def test_text() -> None:
    assert translate(delta(role="assistant", content=""), delta(content="Hel"), delta(content="lo"), delta("stop")) == [
        BlockStart(0, "text"),
        TextDelta(0, "Hel"),
        TextDelta(0, "lo"),
        BlockEnd(0, {"type": "text", "text": "Hello"}),
        STOP,
    ]


@pytest.mark.contract("DS-10")
def test_an_empty_first_reasoning_delta_opens_nothing() -> None:
    chunks = translate(delta(reasoning_content=""), delta(content="a"), delta(reasoning_content="b", content=None))
    assert chunks[:4] == [BlockStart(0, "text"), TextDelta(0, "a"), BlockStart(1, "reasoning"), ReasoningDelta(1, "b")]


@pytest.mark.contract("DS-10")
def test_interleaved_blocks_are_one_reasoning_and_one_text_and_end_in_their_order() -> None:
    chunks = translate(
        delta(reasoning_content="r1", content="t1"), delta(reasoning_content="r2"), delta(content="t2"), delta("stop")
    )
    assert chunks[-3:] == [
        BlockEnd(0, {"type": "reasoning", "text": "r1r2"}),
        BlockEnd(1, {"type": "text", "text": "t1t2"}),
        STOP,
    ]


@pytest.mark.contract("DS-10")
def test_parallel_calls_are_kept_apart_by_their_index() -> None:
    chunks = translate(
        delta(content="x"),
        call(0, id="a", name="read"),
        call(1, '{"q":', id="b", name="grep"),
        call(0, "{}"),
        call(1, "1}"),
        delta("tool_calls"),
    )
    assert chunks[2:8] == [
        BlockStart(1, "tool-call"),
        ToolCallDelta(1, "a", "", "read"),
        BlockStart(2, "tool-call"),
        ToolCallDelta(2, "b", '{"q":', "grep"),
        ToolCallDelta(1, "a", "{}"),
        ToolCallDelta(2, "b", "1}"),
    ]
    assert chunks[-3:] == [
        BlockEnd(1, {"type": "tool-call", "id": "a", "name": "read", "arguments": "{}"}),
        BlockEnd(2, {"type": "tool-call", "id": "b", "name": "grep", "arguments": '{"q":1}'}),
        Finish({"kind": "tool-calls"}),
    ]


@pytest.mark.contract("DS-10")
def test_a_call_without_id_or_index_gets_them_from_its_position() -> None:
    chunks = translate(delta(content="x"), call(None, "{}", name="read"), delta("tool_calls"))
    assert chunks[3] == ToolCallDelta(1, "call-1", "{}", "read")
    assert chunks[-2] == BlockEnd(1, {"type": "tool-call", "id": "call-1", "name": "read", "arguments": "{}"})


@pytest.mark.contract("DS-10")
@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 12, "completion_tokens": 3}, {"inputTokens": 12, "outputTokens": 3}),
        (
            {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 10}},
            {"inputTokens": 2, "outputTokens": 3, "cacheReadTokens": 10},
        ),
        (
            {"prompt_tokens": 12, "prompt_tokens_details": {"cached_tokens": 10}, "prompt_cache_hit_tokens": 1},
            {"inputTokens": 2, "outputTokens": 0, "cacheReadTokens": 10},
        ),
        (
            {"prompt_tokens": 12, "prompt_cache_hit_tokens": 20, "prompt_tokens_details": None},
            {"inputTokens": 0, "outputTokens": 0, "cacheReadTokens": 20},
        ),
        (
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}},
            {"inputTokens": 0, "outputTokens": 9, "reasoningTokens": 4},
        ),
    ],
)
def test_trailing_usage_is_disjoint_and_precedes_the_finish(usage: dict[str, Any], expected: dict[str, int]) -> None:
    early = {"choices": [], "usage": {"prompt_tokens": 99}}
    chunks = translate(early, delta("stop", content="x"), {"choices": [], "usage": usage})
    assert chunks[-2:] == [UsageReport(expected), STOP]


@pytest.mark.contract("DS-10")
@pytest.mark.parametrize(
    ("reason", "kind"), [("stop", "stop"), ("tool_calls", "tool-calls"), ("length", "max-tokens"), (None, "stop")]
)
def test_finish_reasons(reason: str | None, kind: str) -> None:
    assert translate(delta(reason, content="x"))[-1] == Finish({"kind": kind})


@pytest.mark.contract("DS-10")
def test_any_other_finish_reason_is_an_error_named_after_it() -> None:
    assert failure(delta("content_filter", content="x")).code == "CONTENT_FILTER"


@pytest.mark.contract("DS-10")
@pytest.mark.parametrize("events", [(), (delta("stop"),), ({"choices": []}, {}), ({"choices": None},)])
def test_a_stop_without_any_block_is_an_empty_response(events: tuple[Any, ...]) -> None:
    assert failure(*events).code == "EMPTY_RESPONSE"


def test_length_without_any_block_is_no_empty_response() -> None:
    assert translate(delta("length")) == [Finish({"kind": "max-tokens"})]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"message": "overloaded", "code": "busy"}, "SERVER", "overloaded"),
        ({"message": "no", "type": "insufficient_quota"}, "QUOTA", "no"),
        ("out of memory", "SERVER", "out of memory"),
        ({"code": 5}, "SERVER", "the endpoint reported an error in the stream"),
        ([1], "SERVER", "the endpoint reported an error in the stream"),
    ],
)
def test_an_error_in_the_stream_has_no_status_of_its_own(error: Any, code: str, message: str) -> None:
    caught = failure({"error": error})
    assert caught.failure() == {"code": code, "message": message}


@pytest.mark.parametrize(
    "event",
    [
        [1, 2],
        5,
        None,
        "text",
        {"choices": 5},
        {"choices": {}},
        {"choices": [5]},
        {"choices": [None]},
        {"choices": [{"delta": "x"}]},
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": [{"delta": {"content": ["x"]}}]},
        {"choices": [{"delta": {"reasoning_content": {}}}]},
        {"choices": [{"delta": {"tool_calls": {}}}]},
        {"choices": [{"delta": {"tool_calls": ["x"]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": []}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": True}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"id": 5}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": []}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": 5}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": {}}}]}}]},
        {"choices": [{"finish_reason": 5}]},
        {"usage": 5},
        {"usage": {"prompt_tokens": "12"}},
        {"usage": {"prompt_tokens": -1}},
        {"usage": {"prompt_tokens": 1.5}},
        {"usage": {"prompt_tokens_details": [1]}},
        {"usage": {"completion_tokens_details": {"reasoning_tokens": True}}},
    ],
)
def test_a_wrong_type_anywhere_is_a_malformed_response(event: Any) -> None:
    assert failure(delta(content="x"), event).code == "MALFORMED_RESPONSE"


@pytest.mark.contract("DS-10")
@pytest.mark.parametrize("data", [b"{not json", b"", b"\xff", b"NaN", b"[" * 5000, b"[DONE"])
def test_data_that_is_no_json_is_a_malformed_response(data: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        Translator().feed(data)
    assert caught.value.code == "MALFORMED_RESPONSE"


NAMES = [
    "choices",
    "delta",
    "content",
    "reasoning_content",
    "tool_calls",
    "index",
    "id",
    "function",
    "name",
    "arguments",
]
NAMES += ["usage", "prompt_tokens", "prompt_tokens_details", "cached_tokens", "error", "finish_reason"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON | st.builds(lambda value: {"choices": [{"delta": value}]}, JSON), max_size=4))
def test_whatever_comes_ends_as_chunks_or_as_one_model_error(events: list[Any]) -> None:
    try:
        chunks = translate(*events)
    except ModelError:
        return
    assert type(chunks[-1]) is Finish
    json.snapshot([list(chunk) for chunk in chunks])
