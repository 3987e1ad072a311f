"""Attachments: files that come with a message. Images stay outside the log and are referred to (agent-core 2.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.sessions import Session
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import ServiceKey

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")


class AttachmentError(PolyhostError):
    """A file is refused or cannot be kept.

    Codes: INVALID_IMAGE, IMAGE_TYPE_MISMATCH, IMAGE_TOO_LARGE, IMAGE_TOO_MANY_PIXELS, TOO_MANY_IMAGES,
    IMAGES_TOO_LARGE, TEXT_TOO_LARGE, UNSUPPORTED_ATTACHMENT, ATTACHMENT_NOT_FOUND, ATTACHMENT_READ_FAILED,
    ATTACHMENT_WRITE_FAILED.
    """

    default_code = "UNSUPPORTED_ATTACHMENT"


class AttachmentLimits(NamedTuple):
    """Bytes, except for the counts of images and pixels. A longer text than ``inline_text_bytes`` is shown in part."""

    image_bytes: int = 5 * 1024 * 1024
    images: int = 20
    message_image_bytes: int = 100 * 1024 * 1024
    image_pixels: int = 40_000_000
    text_bytes: int = 10 * 1024 * 1024
    inline_text_bytes: int = 50_000


class AttachedFile(NamedTuple):
    """A file as it came in.

    :param name: what to call it; only its last path segment is kept.
    :param media_type: what the sender says that it is; an image must then be of that type. None looks at the content.
    """

    content: bytes
    name: str | None = None
    media_type: str | None = None


class SessionAttachments(Protocol):
    """Private files beside a session's log, named by their content."""

    @property
    def limits(self) -> AttachmentLimits: ...

    async def save(self, session: Session, files: Sequence[AttachedFile]) -> list[JsonObject]:
        """Keep the files of one message and return one content block for each, in order.

        Images become ``{type: "image", attachment: {attachmentId, mediaType, bytes, width, height, name?}}``, UTF-8
        texts become text blocks with the content, or with a part of it and the path of the whole. All files are
        checked before any is written. Raises :class:`AttachmentError`.
        """
        ...

    async def open(self, session_id: str, attachment_id: str) -> bytes:
        """The content of an attachment that was saved for this session, or for one that it was forked from.

        Raises :class:`AttachmentError`: ATTACHMENT_NOT_FOUND, also when the stored bytes are not what was saved, or
        ATTACHMENT_READ_FAILED.
        """
        ...


def image_references(content: Sequence[JsonObject]) -> Iterator[JsonObject]:
    """The ``attachment`` of every image block of a message, also inside tool results."""
    for block in content:
        if block.get("type") == "image" and isinstance(block.get("attachment"), dict):
            yield block["attachment"]
        elif isinstance(block.get("content"), list):
            yield from image_references(block["content"])


SESSION_ATTACHMENTS = ServiceKey[SessionAttachments]("session-attachments")
