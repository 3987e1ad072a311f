"""Images of a request, as the data URLs that the endpoint takes: loaded before anything is sent.

A log only refers to images; their bytes come from the attachments service.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from itertools import chain

from polyhost.interfaces import (
    IMAGE_TYPES,
    AttachmentError,
    JsonObject,
    ModelError,
    ModelRequest,
    SessionAttachments,
    image_references,
)
from polyhost_models.providers import Provider

UNSUPPORTED = "UNSUPPORTED_CONTENT"


async def load_images(
    request: ModelRequest, provider: Provider, attachments: Callable[[], SessionAttachments | None]
) -> Mapping[str, str]:
    """Data URLs by attachment id, for every image in the request's messages.

    Raises :class:`ModelError`: UNSUPPORTED_CONTENT for a model that takes no images, or the code of the attachment
    that cannot be read.
    """
    found = chain.from_iterable(image_references(message["content"]) for message in request.messages)
    references: dict[str, JsonObject] = {str(image.get("attachmentId")): image for image in found}
    if not references:
        return {}
    if not provider.entry(request.model).images:
        raise refused(request.model)
    service = attachments()
    if service is None or request.session_id is None:
        raise ModelError("the request has images, but nothing that keeps them", code="ATTACHMENT_NOT_FOUND")
    return {id: await _data_url(service, request.session_id, image) for id, image in references.items()}


def refused(model: str) -> ModelError:
    """The error for images that ``model`` is not known to take."""
    return ModelError(
        f"model {model} takes no images; choose one that does (if it does, say images = true in its configuration)",
        code=UNSUPPORTED,
    )


async def _data_url(service: SessionAttachments, session_id: str, image: JsonObject) -> str:
    media_type = image.get("mediaType")
    if media_type not in IMAGE_TYPES:
        raise ModelError(f"an image of the type {media_type!r:.40} cannot be sent", code=UNSUPPORTED)
    try:
        content = await service.open(session_id, str(image.get("attachmentId")))
    except AttachmentError as error:
        raise ModelError(error.message, code=error.code) from error
    encoded = await asyncio.to_thread(base64.b64encode, content)
    return f"data:{media_type};base64,{encoded.decode('ascii')}"
