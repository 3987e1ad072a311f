"""Images on their way from a session's attachments to the endpoint, and what keeps them from leaving."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from polyhost.interfaces import (
    AGENTS,
    SESSION_ATTACHMENTS,
    SESSION_DIRECTORY,
    AttachedFile,
    AttachmentError,
    ModelError,
    text_block,
    user_message,
)
from polyhost_models.demo import DemoAdapter
from polyhost_models.images import load_images
from polyhost_models.providers import CatalogueEntry, Provider

GIF = b"GIF89a\x02\x00\x03\x00\0\0\0;"
URL = "data:image/gif;base64," + base64.b64encode(GIF).decode()
SEEING = Provider("local", "Local", "http://127.0.0.1:1", catalogue=(CatalogueEntry("m", images=True),))
IMAGE = {"type": "image", "attachment": {"attachmentId": "a", "mediaType": "image/gif"}}


class Shelf:
    """Attachments in a dict; counts how often it is asked."""

    def __init__(self, **content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[str, str]] = []

    async def open(self, session_id: str, attachment_id: str) -> bytes:
        self.asked.append((session_id, attachment_id))
        if attachment_id not in self.content:
            raise AttachmentError("it is gone", code="ATTACHMENT_NOT_FOUND")
        return self.content[attachment_id]


async def test_each_image_is_loaded_once(ask: Any) -> None:
    shelf: Any = Shelf(a=GIF)
    result = {"type": "tool-result", "toolCallId": "c", "content": [IMAGE]}
    request = ask(messages=[user_message([IMAGE, IMAGE]), user_message([result])], session_id="s")
    assert await load_images(request, SEEING, lambda: shelf) == {"a": URL}
    assert shelf.asked == [("s", "a")]


async def test_without_images_nobody_is_asked(ask: Any) -> None:
    def fail() -> None:
        raise AssertionError

    assert await load_images(ask(), SEEING, fail) == {}


@pytest.mark.contract("DS-09")
@pytest.mark.parametrize(
    ("provider", "image", "attachments", "session_id", "code"),
    [
        (SEEING._replace(catalogue=()), IMAGE, Shelf(a=GIF), "s", "UNSUPPORTED_CONTENT"),
        (SEEING, {"type": "image", "attachment": {"mediaType": "image/bmp"}}, Shelf(), "s", "UNSUPPORTED_CONTENT"),
        (SEEING, IMAGE, Shelf(), "s", "ATTACHMENT_NOT_FOUND"),
        (SEEING, IMAGE, None, "s", "ATTACHMENT_NOT_FOUND"),
        (SEEING, IMAGE, Shelf(a=GIF), None, "ATTACHMENT_NOT_FOUND"),
    ],
)
async def test_images_that_cannot_be_sent(
    ask: Any, provider: Provider, image: Any, attachments: Any, session_id: str | None, code: str
) -> None:
    request = ask(messages=[user_message([image])], session_id=session_id)
    with pytest.raises(ModelError) as caught:
        await load_images(request, provider, lambda: attachments)
    assert caught.value.code == code


async def test_the_demo_model_takes_no_images(ask: Any) -> None:
    with pytest.raises(ModelError) as caught:
        await anext(aiter(DemoAdapter().stream(ask(messages=[user_message([IMAGE])]))))
    assert caught.value.code == "UNSUPPORTED_CONTENT"


@pytest.mark.contract("DS-09")
@pytest.mark.parametrize("images", [True, False])
async def test_from_a_prompt_to_the_endpoint(polyhost_host: Any, mock_model: Any, tmp_path: Any, images: bool) -> None:
    """A model that takes images gets them; for another one, nothing is sent at all and the turn says why."""
    mock_model.script("success")
    config = mock_model.provider() + f'models = [{{ id = "eye", images = {str(images).lower()} }}]\n'
    async with polyhost_host(config) as host:
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=str(tmp_path), model="mock/eye")
        blocks = await host.root.get(SESSION_ATTACHMENTS).save(opened.agent.session, [AttachedFile(GIF, "x.gif")])
        message = user_message([text_block("what is it?"), *blocks])
        outcome = await host.root.get(AGENTS).prompt(opened.agent, message).outcome()
        await opened.close()
    if images:
        assert outcome.reason == {"kind": "completed"}
        (request,) = mock_model.requests
        (content,) = [part["content"] for part in request["messages"] if isinstance(part["content"], list)]
        assert content == [
            {"type": "text", "text": "what is it?"},
            {"type": "image_url", "image_url": {"url": URL}},
        ]
    else:
        assert outcome.reason["error"]["code"] == "UNSUPPORTED_CONTENT"
        assert mock_model.requests == []
