"""From a model request to the JSON body of ``POST /chat/completions`` (agent-core 2.18). Plain data, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from polyhost.interfaces import JsonObject, ModelError, ModelRequest, image_references, text_of
from polyhost_models.images import refused
from polyhost_models.providers import Provider

_NO_IMAGES: Mapping[str, str] = MappingProxyType({})


def request_body(request: ModelRequest, provider: Provider, images: Mapping[str, str] = _NO_IMAGES) -> JsonObject:
    """The body, keys in the documented order.

    Raises :class:`ModelError`: UNSUPPORTED_CONTENT for an image that is not among ``images``,
    UNSUPPORTED_REASONING_EFFORT for an effort that the provider does not offer.

    :param images: URLs by attachment id.
    """
    body: JsonObject = {
        "model": request.model,
        "messages": list(_messages(request, images)),
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


def _messages(request: ModelRequest, images: Mapping[str, str]) -> Iterator[JsonObject]:
    if request.system:
        yield {"role": "system", "content": request.system}
    shown: list[JsonObject] = []  # images of tool results: those messages are text only, and follow their calls
    for message in request.messages:
        content = message["content"]
        if shown and not _has_results(message):
            yield {"role": "user", "content": shown}
            shown = []
        if message["role"] == "assistant":
            yield _assistant(content)
        elif message["role"] == "user":
            yield from _user(request, content, images, shown)
        else:
            yield {"role": message["role"], "content": text_of(content)}
    if shown:
        yield {"role": "user", "content": shown}


def _has_results(message: JsonObject) -> bool:
    return any(block.get("type") == "tool-result" for block in message["content"])


def _user(
    request: ModelRequest, content: list[JsonObject], images: Mapping[str, str], shown: list[JsonObject]
) -> Iterator[JsonObject]:
    """Tool results first, since they must follow the calls; then the rest, empty only if there is nothing else.

    Images of the results are added to ``shown``, to be sent after the last of them.
    """
    results = [block for block in content if block.get("type") == "tool-result"]
    for result in results:
        found = _parts(request, result["content"], images, texts=False)
        text = text_of(result["content"]) or ("(image below)" if found else "(no output)")
        yield {"role": "tool", "tool_call_id": result["toolCallId"], "content": text}
        shown += found
    own = [block for block in content if block.get("type") in ("text", "image")]
    if any(block["type"] == "image" for block in own):
        yield {"role": "user", "content": _parts(request, own, images)}
    elif (text := text_of(own)) or not results:
        yield {"role": "user", "content": text}


def _parts(
    request: ModelRequest, content: list[JsonObject], images: Mapping[str, str], *, texts: bool = True
) -> list[JsonObject]:
    """Texts, if wanted, and images of a message, as the content parts of the dialect."""
    parts: list[JsonObject] = []
    for block in content:
        if block.get("type") == "text" and texts:
            parts.append({"type": "text", "text": block["text"]})
        for image in image_references([block]):
            url = images.get(image.get("attachmentId", ""))
            if url is None:
                raise refused(request.model)
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


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
