"""Payload rules of the event types that the core reads back: messages, turns, steps, requests.

Each check answers with what is wrong, in words, or None. They look at the fields that projections depend on; block
types and sources of features are carried, not judged. Payloads of other types are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_REQUIRED_CONFIG = ("provider", "model")
_HEADER_REASONS = ("initial", "resume", "change")
_DEFAULTABLE = frozenset({"reasoningEffort", "maxTokens"})


def message_problem(message: Any, role: str) -> str | None:
    """A message has an id, its role, a list of typed blocks and a source with a kind (agent-core 2.3)."""
    if not isinstance(message, dict):
        return "the message must be an object"
    if not _is_text(message.get("id")):
        return "the message needs an id"
    if message.get("role") != role:
        return f"the message's role must be {role!r}"
    content = message.get("content")
    if not isinstance(content, list) or not all(
        isinstance(block, dict) and _is_text(block.get("type")) for block in content
    ):
        return "the message's content must be a list of blocks, each with a type"
    source = message.get("source")
    if not isinstance(source, dict) or not _is_text(source.get("kind")):
        return "the message's source must be an object with a kind"
    return None


def _user_message(data: Any) -> str | None:
    return message_problem(data, "user")


def _assistant_message(data: Any) -> str | None:
    problem = _step(data) or message_problem(data.get("message"), "assistant")
    if problem is not None:
        return problem
    if data["message"]["source"]["kind"] != "model":
        return "an assistant message comes from a model"
    for block in data["message"]["content"]:
        if block["type"] == "tool-call" and not _is_text(block.get("id")):
            return "a tool-call block needs an id"
    return None


def _tool_result(data: Any) -> str | None:
    problem = _step(data) or message_problem(data.get("message"), "user")
    if problem is not None:
        return problem
    source, content = data["message"]["source"], data["message"]["content"]
    if source["kind"] != "tool" or not isinstance(source.get("callId"), str):
        return "a tool result's source must be {kind: tool, callId}"
    if len(content) != 1 or content[0]["type"] != "tool-result":
        return "a tool result holds exactly one tool-result block"
    if content[0].get("toolCallId") != source["callId"] or not isinstance(content[0].get("content"), list):
        return "the tool-result block must answer its source's callId with a content list"
    return None


def _turn(data: Any) -> str | None:
    if not isinstance(data, dict):
        return "data must be an object"
    return None if _is_count(data.get("turn")) else "turn must be a positive integer"


def _step(data: Any) -> str | None:
    return _turn(data) or (None if _is_count(data.get("step")) else "step must be a positive integer")


def _turn_end(data: Any) -> str | None:
    problem = _turn(data)
    if problem is not None:
        return problem
    reason = data.get("reason")
    if not isinstance(reason, dict) or not _is_text(reason.get("kind")):
        return "reason must be an object with a kind"
    return None


def _chunk(data: Any) -> str | None:
    problem = _step(data)
    if problem is not None:
        return problem
    chunk = data.get("chunk")
    return None if isinstance(chunk, dict) and _is_text(chunk.get("type")) else "chunk must be an object with a type"


def _tool_call(data: Any) -> str | None:
    problem = _step(data)
    if problem is not None:
        return problem
    missing = [field for field in ("callId", "name", "arguments") if not isinstance(data.get(field), str)]
    return f"{missing[0]} must be a string" if missing else None


def _request_header(data: Any) -> str | None:
    if not isinstance(data, dict) or not isinstance(data.get("header"), dict):
        return "header must be an object"
    if data.get("reason") not in _HEADER_REASONS:
        return "reason must be initial, resume or change"
    header = data["header"]
    config = header.get("config")
    if not isinstance(config, dict) or not all(_is_text(config.get(field)) for field in _REQUIRED_CONFIG):
        return "header.config needs a provider and a model"
    if "reasoningEffort" in config and not _is_text(config["reasoningEffort"]):
        return "header.config.reasoningEffort must be a non-empty string"
    defaults = header.get("adapterDefaults", {})
    if not isinstance(defaults, dict) or not all(
        key in _DEFAULTABLE and value is True for key, value in defaults.items()
    ):
        return "header.adapterDefaults may only say true, of reasoningEffort and maxTokens"
    if "system" in header and not isinstance(header["system"], str):
        return "header.system must be a string"
    if "tools" in header and not isinstance(header["tools"], list):
        return "header.tools must be a list"
    return None


def _request_context(data: Any) -> str | None:
    if not isinstance(data, dict) or not all(_is_text(data.get(field)) for field in _REQUIRED_CONFIG):
        return "a provider and a model are needed"
    if "contextWindow" in data and not _is_count(data["contextWindow"]):
        return "contextWindow must be a positive integer"
    return None


def _object(data: Any) -> str | None:
    return None if isinstance(data, dict) else "data must be an object"


def _approval(data: Any) -> str | None:
    return None if isinstance(data, dict) and _is_text(data.get("id")) else "an approval needs an id"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


SHAPES: dict[str, Callable[[Any], str | None]] = {
    "turn/start": _turn,
    "turn/end": _turn_end,
    "step/start": _step,
    "step/end": _step,
    "user/message": _user_message,
    "assistant/chunk": _chunk,
    "assistant/message": _assistant_message,
    "tool/call": _tool_call,
    "tool/result": _tool_result,
    "request/header": _request_header,
    "request/context": _request_context,
    "agent/inbox/spliced": _object,
    "session/end-seed": _object,
    "approval/asked": _approval,
    "approval/decided": _approval,
    "todo/write": _object,
    "session/title": _object,
}
