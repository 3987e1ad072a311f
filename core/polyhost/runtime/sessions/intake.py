"""Which files may come with a message: what they are, and how large. Nothing is written here.

What images look like is in ``images``; keeping what was checked is in ``attachments``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from polyhost.interfaces.attachments import IMAGE_TYPES, AttachedFile, AttachmentError, AttachmentLimits
from polyhost.interfaces.json_types import JsonObject
from polyhost.runtime.sessions.images import inspect_image, sniff

TEXT = "txt"
IMAGE_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}
EXTENSIONS = (*IMAGE_EXTENSIONS.values(), TEXT)

_NAME_CHARS = 120
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME_UNSAFE = re.compile(r"[\x00-\x1f\x7f<>\"\ud800-\udfff]+")


class CheckedFile(NamedTuple):
    """A file that may be kept: its content, its name on disk and for people, and pixels when it is an image."""

    content: bytes
    extension: str
    name: str | None
    image: JsonObject | None


def is_digest(text: str) -> bool:
    """Whether ``text`` has the form of an attachment's id."""
    return _DIGEST.fullmatch(text) is not None


def check_files(files: Sequence[AttachedFile], limits: AttachmentLimits) -> list[CheckedFile]:
    """What is to be kept. Raises :class:`AttachmentError` for the first file, or the sum, that is refused."""
    checked = [_check(file, limits) for file in files]
    images = [file for file in checked if file.image is not None]
    if len(images) > limits.images:
        raise AttachmentError(
            f"{len(images)} images are too many for one message; the limit is {limits.images}", code="TOO_MANY_IMAGES"
        )
    total = sum(len(file.content) for file in images)
    if total > limits.message_image_bytes:
        raise AttachmentError(
            f"the images of one message may have {limits.message_image_bytes} bytes together, these have {total}",
            code="IMAGES_TOO_LARGE",
        )
    return checked


def _check(file: AttachedFile, limits: AttachmentLimits) -> CheckedFile:
    name = _display_name(file.name)
    label = name or "the attachment"
    declared = (file.media_type or "").partition(";")[0].strip().lower()
    if declared.startswith("image/") or sniff(file.content) is not None:
        return _check_image(file.content, declared, name, label, limits)
    if len(file.content) > limits.text_bytes:
        raise AttachmentError(
            f"{label} has {len(file.content)} bytes; a text may have {limits.text_bytes}", code="TEXT_TOO_LARGE"
        )
    try:
        text = file.content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AttachmentError(
            f"{label} is neither a PNG, JPEG, WebP or GIF image nor UTF-8 text", code="UNSUPPORTED_ATTACHMENT"
        )
    return CheckedFile(file.content, TEXT, name, None)


def _check_image(content: bytes, declared: str, name: str | None, label: str, limits: AttachmentLimits) -> CheckedFile:
    if declared.startswith("image/") and declared not in IMAGE_TYPES:
        raise AttachmentError(
            f"{label} is {declared}; images are PNG, JPEG, WebP or GIF", code="UNSUPPORTED_ATTACHMENT"
        )
    if len(content) > limits.image_bytes:
        raise AttachmentError(
            f"{label} has {len(content)} bytes; an image may have {limits.image_bytes}", code="IMAGE_TOO_LARGE"
        )
    facts = inspect_image(content)
    if facts is None:
        raise AttachmentError(f"{label} is no complete PNG, JPEG, WebP or GIF image", code="INVALID_IMAGE")
    if declared and declared != facts.media_type:
        raise AttachmentError(f"{label} is {facts.media_type}, not {declared}", code="IMAGE_TYPE_MISMATCH")
    if facts.width * facts.height > limits.image_pixels:
        raise AttachmentError(
            f"{label} has {facts.width} x {facts.height} pixels; an image may have {limits.image_pixels}",
            code="IMAGE_TOO_MANY_PIXELS",
        )
    image = {
        "mediaType": facts.media_type,
        "bytes": len(content),
        "width": facts.width,
        "height": facts.height,
    }
    return CheckedFile(content, IMAGE_EXTENSIONS[facts.media_type], name, image)


def _display_name(name: str | None) -> str | None:
    """The last segment of a path, as something that can be shown; None when nothing is left of it."""
    if name is None:
        return None
    return _NAME_UNSAFE.sub("_", re.split(r"[/\\]", name)[-1]).strip()[-_NAME_CHARS:] or None
