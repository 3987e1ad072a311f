"""From a model request to the JSON body of ``POST /chat/completions`` (agent-core 2.18). Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Iterator

from polyhost.interfaces import JsonObject, ModelError, ModelRequest
from polyhost_models.providers import Provider


def request_body(request: ModelRequest, provider: Provider) -> JsonObject:
    """The body, keys in the documented order. Raises :class:`ModelError` (UNSUPPORTED_CONTENT, ...)."""
    body: JsonObject = {
        "model": request.model,
        "messages": list(_messages(request, images="image" in provider.describe(request.model).input_modalities)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if provider.efforts:
        effort = "off" if request.purpose == "session-title" else request.reasoning_effort or provider.default_effort
        if effort not in {known.id for known in provider.efforts}:
            raise ModelError(
                f"reasoning effort {effort!r} is not offered by {provider.id}", code="UNSUPPORTED_REASONING_EFFORT"
            )
        body["thinking"] = {"type": "disabled" if effort == "off" else "enabled"}
        if effort != "off":
            body["reasoning_effort"] = effort
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["parameters"],
                },
            }
            for tool in request.tools
        ]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.max_tokens is not None:
        body[provider.max_tokens_field] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    return body


def _messages(request: ModelRequest, *, images: bool) -> Iterator[JsonObject]:
    if request.system:
        yield {"role": "system", "content": request.system}
    for message in request.messages:
        if message["role"] == "assistant":
            yield _assistant(message)
        elif message["role"] == "user":
            yield from _user(message, images=images)
        else:
            yield {"role": message["role"], "content": _text(message["content"])}


def _user(message: JsonObject, *, images: bool) -> Iterator[JsonObject]:
    content = message["content"]
    if not images and any(block.get("type") == "image" for block in content):
        raise ModelError("the model does not take images; choose one that does", code="UNSUPPORTED_CONTENT")
    results = [block for block in content if block.get("type") == "tool-result"]
    for result in results:
        text = _text(result["content"])
        yield {"role": "tool", "tool_call_id": result["toolCallId"], "content": text or "(no output)"}
    if len(results) < len(content) or not content:
        text = _text(content)
        if text or not results:
            yield {"role": "user", "content": text}


def _assistant(message: JsonObject) -> JsonObject:
    content = message["content"]
    result: JsonObject = {"role": "assistant", "content": _text(content)}
    calls = [block for block in content if block.get("type") == "tool-call"]
    if calls:
        result["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
        reasoning = "".join(block["text"] for block in content if block.get("type") == "reasoning")
        if reasoning:
            result["reasoning_content"] = reasoning
    return result


def _text(content: list[JsonObject]) -> str:
    return "".join(block["text"] for block in content if block.get("type") == "text")
