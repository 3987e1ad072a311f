from __future__ import annotations

import uuid

import pytest

from polyhost.interfaces import assistant_message, plugin_message, text_block, tool_result_message, user_message


@pytest.mark.contract("MSG-01")
def test_messages_get_their_identity_when_they_are_made() -> None:
    messages = [
        user_message("hi"),
        plugin_message("p", "text", form="notice", summary="s"),
        assistant_message([], provider="p", model="m"),
        tool_result_message("c-1", [text_block("ok")], is_error=False),
    ]
    assert len({uuid.UUID(message["id"], version=4) for message in messages}) == 4
    assert messages[0]["source"] == {"kind": "user"}
    assert messages[1]["source"] == {"kind": "plugin", "plugin": "p", "form": "notice", "summary": "s"}
    assert messages[2]["source"] == {"kind": "model", "provider": "p", "model": "m"}


@pytest.mark.contract("MSG-01")
def test_a_tool_result_names_its_call_in_block_and_source() -> None:
    message = tool_result_message("c-1", [text_block("ok")], is_error=True)
    (block,) = message["content"]
    assert block["toolCallId"] == message["source"]["callId"] == "c-1"
    assert block["isError"] is True


def test_blocks_and_sources_of_callers_are_not_shared() -> None:
    blocks, source = [text_block("a")], {"kind": "user"}
    message = user_message(blocks, source)
    blocks.append(text_block("b"))
    source["kind"] = "changed"
    assert len(message["content"]) == 1
    assert message["source"] == {"kind": "user"}
