"""From a model request to the JSON body of ``POST /chat/completions`` (agent-core 2.18). Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Iterator

from polyhost.interfaces import JsonObject, ModelError, ModelRequest, text_of
from polyhost_models.providers import Provider


def request_body(request: ModelRequest, provider: Provider) -> JsonObject:
    """The body, keys in the documented order.

    Raises :class:`ModelError`: UNSUPPORTED_CONTENT for images, UNSUPPORTED_REASONING_EFFORT for an effort that the
    provider does not offer.
    """
    body: JsonObject = {
        "model": request.model,
        "messages": list(_messages(request)),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body.update(_thinking(request, provider))
    if request.tools:
        body["tools"] = [{"type": "function", "function": _function(tool)} for tool in request.tools]
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.max_tokens is not None:
        body[provider.max_tokens_field] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    return body


def _thinking(request: ModelRequest, provider: Provider) -> JsonObject:
    effort = request.reasoning_effort or provider.default_effort
    if effort is None:
        return {}
    if effort not in {known.id for known in provider.efforts}:
        raise ModelError(
            f"reasoning effort {effort!r} is not offered by {provider.id}", code="UNSUPPORTED_REASONING_EFFORT"
        )
    if effort == "off" or request.purpose == "session-title":
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


def _function(tool: JsonObject) -> JsonObject:
    return {name: tool[name] for name in ("name", "description", "parameters")}


def _messages(request: ModelRequest) -> Iterator[JsonObject]:
    if request.system:
        yield {"role": "system", "content": request.system}
    for message in request.messages:
        content = message["content"]
        if message["role"] == "assistant":
            yield _assistant(content)
        elif message["role"] == "user":
            yield from _user(content)
        else:
            yield {"role": message["role"], "content": text_of(content)}


def _user(content: list[JsonObject]) -> Iterator[JsonObject]:
    """Tool results first, since they must follow the calls; then the text, empty only if there is nothing else."""
    results = [block for block in content if block.get("type") == "tool-result"]
    _refuse_images(content)
    for result in results:
        _refuse_images(result["content"])
        text = text_of(result["content"]) or "(no output)"
        yield {"role": "tool", "tool_call_id": result["toolCallId"], "content": text}
    text = text_of(content)
    if text or not results:
        yield {"role": "user", "content": text}


def _refuse_images(content: list[JsonObject]) -> None:
    if any(block.get("type") == "image" for block in content):
        raise ModelError("this provider takes no images; choose a model of another one", code="UNSUPPORTED_CONTENT")


def _assistant(content: list[JsonObject]) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": text_of(content)}
    calls = [block for block in content if block.get("type") == "tool-call"]
    if calls:
        message["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in calls
        ]
        # The endpoint wants the reasoning back only where the model still works on the same turn.
        reasoning = "".join(block["text"] for block in content if block.get("type") == "reasoning")
        if reasoning:
            message["reasoning_content"] = reasoning
    return message
