"""From a request to the body: message mapping, the order of keys, thinking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from polyhost.interfaces import JsonObject, ModelError, ModelRequest, assistant_message, text_block, user_message
from polyhost_models.providers import Provider, configured_providers
from polyhost_models.serialize import request_body

PLAIN = Provider("local", "Local", "http://127.0.0.1:1")
DEEPSEEK = configured_providers(None, {})[0]
IMAGE = {"type": "image", "attachment": {"attachmentId": "a"}}

Ask = Callable[..., ModelRequest]


def tool_result(id: str, *blocks: JsonObject) -> JsonObject:
    return {"type": "tool-result", "toolCallId": id, "content": list(blocks)}


def tool_call(id: str, name: str, arguments: str) -> JsonObject:
    return {"type": "tool-call", "id": id, "name": name, "arguments": arguments}


def sent(ask: Ask, *messages: JsonObject, **fields: Any) -> list[JsonObject]:
    messages_sent: list[JsonObject] = request_body(ask(messages=messages, **fields), PLAIN)["messages"]
    return messages_sent


def answer(*blocks: JsonObject) -> JsonObject:
    return assistant_message(list(blocks), provider="local", model="m")


@pytest.mark.contract("DS-09")
def test_keys_come_in_the_documented_order(ask: Ask) -> None:
    tool = {"name": "read", "description": "Read", "parameters": {"type": "object"}, "execution": "parallel"}
    body = request_body(
        ask(system="S", tools=[tool], temperature=0, max_tokens=5, stop=["x"], reasoning_effort="max"), DEEPSEEK
    )
    assert list(body.items()) == [
        ("model", "m"),
        ("messages", [{"role": "system", "content": "S"}, {"role": "user", "content": "hello"}]),
        ("stream", True),
        ("stream_options", {"include_usage": True}),
        ("thinking", {"type": "enabled"}),
        ("reasoning_effort", "max"),
        (
            "tools",
            [
                {
                    "type": "function",
                    "function": {"name": "read", "description": "Read", "parameters": {"type": "object"}},
                }
            ],
        ),
        ("temperature", 0),
        ("max_tokens", 5),
        ("stop", ["x"]),
    ]


@pytest.mark.contract("DS-09")
def test_what_is_not_given_is_not_sent(ask: Ask) -> None:
    assert list(request_body(ask(stop=[]), PLAIN)) == ["model", "messages", "stream", "stream_options"]


def test_the_field_for_the_token_limit_is_configurable(ask: Ask) -> None:
    body = request_body(ask(max_tokens=5), PLAIN._replace(max_tokens_field="max_completion_tokens"))
    assert body["max_completion_tokens"] == 5
    assert "max_tokens" not in body


@pytest.mark.contract("DS-09")
@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([text_block("a"), text_block("b")], [{"role": "user", "content": "ab"}]),
        ([], [{"role": "user", "content": ""}]),
        ([{"type": "new-kind", "data": 1}], [{"role": "user", "content": ""}]),
        ([{"type": "new-kind", "data": 1}, text_block("a")], [{"role": "user", "content": "a"}]),
        ([tool_result("c", text_block("r"))], [{"role": "tool", "tool_call_id": "c", "content": "r"}]),
        ([tool_result("c")], [{"role": "tool", "tool_call_id": "c", "content": "(no output)"}]),
        ([tool_result("c", text_block(""))], [{"role": "tool", "tool_call_id": "c", "content": "(no output)"}]),
        (
            [text_block("a"), tool_result("c", text_block("r")), tool_result("d", text_block("s"))],
            [
                {"role": "tool", "tool_call_id": "c", "content": "r"},
                {"role": "tool", "tool_call_id": "d", "content": "s"},
                {"role": "user", "content": "a"},
            ],
        ),
    ],
)
def test_user_messages(ask: Ask, blocks: list[JsonObject], expected: list[JsonObject]) -> None:
    assert sent(ask, user_message(blocks)) == expected


@pytest.mark.contract("DS-09")
@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([text_block("a"), text_block("b")], {"content": "ab"}),
        ([], {"content": ""}),
        ([{"type": "reasoning", "text": "r"}, text_block("a")], {"content": "a"}),
        (
            [{"type": "reasoning", "text": "r"}, tool_call("c", "read", '{"a'), tool_call("d", "grep", "{}")],
            {
                "content": "",
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "read", "arguments": '{"a'}},
                    {"id": "d", "type": "function", "function": {"name": "grep", "arguments": "{}"}},
                ],
                "reasoning_content": "r",
            },
        ),
    ],
)
def test_assistant_messages_send_reasoning_back_with_tool_calls_only(
    ask: Ask, blocks: list[JsonObject], expected: JsonObject
) -> None:
    assert sent(ask, answer(*blocks)) == [{"role": "assistant", **expected}]


@pytest.mark.contract("DS-09")
@pytest.mark.parametrize("blocks", [[text_block("see"), IMAGE], [tool_result("c", IMAGE)]])
def test_images_that_were_not_loaded_are_refused(ask: Ask, blocks: list[JsonObject]) -> None:
    with pytest.raises(ModelError) as caught:
        sent(ask, user_message(blocks))
    assert caught.value.code == "UNSUPPORTED_CONTENT"


def test_images_stand_among_the_texts_where_they_were(ask: Ask) -> None:
    message = user_message([text_block("see"), IMAGE, {"type": "new-kind"}, text_block("?")])
    body = request_body(ask(messages=[message, user_message("plain")]), PLAIN, {"a": "data:a"})
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:a"}},
                {"type": "text", "text": "?"},
            ],
        },
        {"role": "user", "content": "plain"},
    ]


def test_images_of_tool_results_follow_after_the_last_result(ask: Ask) -> None:
    other = {"type": "image", "attachment": {"attachmentId": "b"}}
    messages = [
        answer(tool_call("c", "shot", "{}"), tool_call("d", "shot", "{}")),
        user_message([tool_result("c", text_block("one"), IMAGE)], {"kind": "tool", "callId": "c"}),
        user_message([tool_result("d", other)], {"kind": "tool", "callId": "d"}),
    ]
    shown = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}} for url in ("data:a", "data:b")],
    }
    images = {"a": "data:a", "b": "data:b"}
    for more in ([], [user_message("and?")], [answer(text_block("seen"))]):
        body = request_body(ask(messages=[*messages, *more]), PLAIN, images)
        assert [message["role"] for message in body["messages"][1:3]] == ["tool", "tool"]
        assert [message["content"] for message in body["messages"][1:3]] == ["one", "(image below)"]
        assert body["messages"][3] == shown
        assert len(body["messages"]) == 4 + len(more)


@pytest.mark.contract("DS-02")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ({"reasoning_effort": "max"}, {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        ({"reasoning_effort": "off"}, {"thinking": {"type": "disabled"}}),
        ({"reasoning_effort": "max", "purpose": "session-title"}, {"thinking": {"type": "disabled"}}),
        ({"purpose": "compaction"}, {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
    ],
)
def test_the_effort_is_chosen_per_request(ask: Ask, fields: dict[str, Any], expected: JsonObject) -> None:
    body = request_body(ask(**fields), DEEPSEEK)
    assert {key: body[key] for key in ("thinking", "reasoning_effort") if key in body} == expected


@pytest.mark.contract("DS-02")
@pytest.mark.parametrize(
    "provider", [DEEPSEEK._replace(efforts=DEEPSEEK.efforts[:1], default_effort="off"), PLAIN], ids=["off", "none"]
)
def test_an_effort_that_is_not_offered_is_refused(ask: Ask, provider: Provider) -> None:
    with pytest.raises(ModelError) as caught:
        request_body(ask(reasoning_effort="high"), provider)
    assert caught.value.code == "UNSUPPORTED_REASONING_EFFORT"
