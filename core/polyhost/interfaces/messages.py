"""Messages and content blocks: constructors for the plain JSON objects that sessions log and models read.

A message is ``{id, role, content: [block, ...], source}``. It is built once, gets its identity here, and is never
changed afterwards: treat every message as frozen. Shapes follow agent-core 2.3.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from polyhost.interfaces.json_types import JsonObject

USER_SOURCE: JsonObject = {"kind": "user"}


def new_id() -> str:
    """A UUID v4 string, the identity of a message, approval or call."""
    return str(uuid.uuid4())


def text_block(text: str) -> JsonObject:
    """``{type: "text", text}``."""
    return {"type": "text", "text": text}


def user_message(content: str | list[JsonObject], source: JsonObject | None = None) -> JsonObject:
    """A user-role message; plain text becomes one text block, and no ``source`` means a human prompt."""
    blocks = [text_block(content)] if isinstance(content, str) else list(content)
    return {"id": new_id(), "role": "user", "content": blocks, "source": dict(source or USER_SOURCE)}


def plugin_message(plugin: str, text: str, *, form: str | None = None, **extra: object) -> JsonObject:
    """Machine-authored context of ``plugin``; forms are instructions, catalog, snapshot, notice, relay, recall."""
    source: JsonObject = {"kind": "plugin", "plugin": plugin}
    if form is not None:
        source["form"] = form
    source.update(extra)
    return user_message(text, source)


def assistant_message(
    content: list[JsonObject], *, provider: str, model: str, replay_state: object = None
) -> JsonObject:
    """The assistant-role message of one model response."""
    source: JsonObject = {"kind": "model", "provider": provider, "model": model}
    if replay_state is not None:
        source["replayState"] = replay_state
    return {"id": new_id(), "role": "assistant", "content": content, "source": source}


def tool_result_message(
    call_id: str, content: list[JsonObject], *, is_error: bool, message_id: str | None = None
) -> JsonObject:
    """The user-role message that carries exactly one tool result."""
    block = {"type": "tool-result", "toolCallId": call_id, "content": content, "isError": is_error}
    return {
        "id": message_id or new_id(),
        "role": "user",
        "source": {"kind": "tool", "callId": call_id},
        "content": [block],
    }


def text_of(content: Iterable[JsonObject]) -> str:
    """The text blocks of a content list, concatenated."""
    return "".join(block["text"] for block in content if block.get("type") == "text")
