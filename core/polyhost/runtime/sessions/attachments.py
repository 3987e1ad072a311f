"""Attachments on disk: ``<session>/attachments/<sha256 of the content>.<extension>``, for the owner's eyes only.

Checking comes before writing, for all files of a message. What images look like is in ``images``.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from polyhost.interfaces.attachments import IMAGE_TYPES, AttachedFile, AttachmentError, AttachmentLimits
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import text_block
from polyhost.interfaces.sessions import Session, SessionError, SessionHeader
from polyhost.runtime.sessions import layout
from polyhost.runtime.sessions.images import EXTENSIONS, inspect_image, sniff

FOLDER = "attachments"

_LINEAGE = 64  # forks of forks that are searched for an inherited attachment
_NAME_CHARS = 120
_ID = re.compile(r"[0-9a-f]{64}")
_NAME_UNSAFE = re.compile(r"[\x00-\x1f\x7f<>\"\ud800-\udfff]+")


class _Checked(NamedTuple):
    """A file that may be kept: its content, its name on disk and for people, and pixels when it is an image."""

    content: bytes
    extension: str
    name: str | None
    image: JsonObject | None


class AttachmentFiles:
    """See :class:`polyhost.interfaces.attachments.SessionAttachments`.

    :param root: where the sessions are stored.
    :param live: the header of a live session, None for another id.
    """

    def __init__(
        self,
        root: Path,
        live: Callable[[str], SessionHeader | None],
        *,
        limits: AttachmentLimits = AttachmentLimits(),  # noqa: B008 - immutable
    ) -> None:
        self._root = root
        self._live = live
        self.limits = limits

    async def save(self, session: Session, files: Sequence[AttachedFile]) -> list[JsonObject]:
        checked = check_files(files, self.limits)
        folder = layout.directory(self._root, session.header) / FOLDER
        if not checked:
            return []
        try:
            return await asyncio.to_thread(self._write, folder, checked)
        except OSError as error:
            raise AttachmentError(
                f"an attachment cannot be written to {folder}: {error.strerror}", code="ATTACHMENT_WRITE_FAILED"
            ) from error

    async def open(self, session_id: str, attachment_id: str) -> bytes:
        return await asyncio.to_thread(self._read, session_id, attachment_id)

    # In a thread

    def _write(self, folder: Path, files: Sequence[_Checked]) -> list[JsonObject]:
        for path in (self._root, folder.parent.parent, folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
        blocks = []
        for file in files:
            digest = _digest(file.content)
            path = folder / f"{digest}.{file.extension}"
            if not path.exists():
                _write_new(path, file.content)
            blocks.append(self._block(file, digest, path))
        _sync_folder(folder)
        return blocks

    def _block(self, file: _Checked, digest: str, path: Path) -> JsonObject:
        if file.image is not None:
            attachment = {"attachmentId": digest, **file.image}
            if file.name is not None:
                attachment["name"] = file.name
            return {"type": "image", "attachment": attachment}
        from polyhost.runtime.tools.spill import preview

        text = file.content.decode("utf-8-sig")
        if len(file.content) > self.limits.inline_text_bytes:
            text = preview(file.content, str(path), self.limits.inline_text_bytes) or text
        return text_block(f'<attachment name="{file.name or "text"}">\n{text}\n</attachment>')

    def _read(self, session_id: str, attachment_id: str) -> bytes:
        if _ID.fullmatch(attachment_id):
            for folder in self._folders(session_id):
                for extension in (*EXTENSIONS.values(), "txt"):
                    path = folder / f"{attachment_id}.{extension}"
                    try:
                        content = path.read_bytes()
                    except FileNotFoundError:
                        continue
                    except OSError as error:
                        raise AttachmentError(
                            f"{path} cannot be read: {error.strerror}", code="ATTACHMENT_READ_FAILED"
                        ) from error
                    if _digest(content) == attachment_id:
                        return content
        raise AttachmentError(
            f"session {session_id!r} has no attachment {attachment_id[:64]!r}, or no longer",
            code="ATTACHMENT_NOT_FOUND",
        )

    def _folders(self, session_id: str) -> list[Path]:
        """Where this session's attachments are, its own first, then those of the sessions that it was forked from."""
        folders: list[Path] = []
        next_id: str | None = session_id
        while next_id is not None and len(folders) < _LINEAGE:
            header = self._live(next_id)
            if header is not None:
                folders.append(layout.directory(self._root, header) / FOLDER)
            else:
                stored = self._stored(next_id)
                if stored is None:
                    break
                header, folder = stored
                folders.append(folder / FOLDER)
            next_id = header.parent_session
        return folders

    def _stored(self, session_id: str) -> tuple[SessionHeader, Path] | None:
        from polyhost.runtime.sessions.reading import read_header

        try:
            found = layout.find(self._root, session_id)
            return None if found is None else (read_header(str(found[0]), found[1]), found[0].parent)
        except (SessionError, OSError):
            return None


def check_files(files: Sequence[AttachedFile], limits: AttachmentLimits) -> list[_Checked]:
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


def _check(file: AttachedFile, limits: AttachmentLimits) -> _Checked:
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
    return _Checked(file.content, "txt", name, None)


def _check_image(content: bytes, declared: str, name: str | None, label: str, limits: AttachmentLimits) -> _Checked:
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
    return _Checked(content, EXTENSIONS[facts.media_type], name, image)


def _display_name(name: str | None) -> str | None:
    """The last segment of a path, as something that can be shown; None when nothing is left of it."""
    if name is None:
        return None
    return _NAME_UNSAFE.sub("_", re.split(r"[/\\]", name)[-1]).strip()[-_NAME_CHARS:] or None


def _digest(content: bytes) -> str:
    from hashlib import sha256  # slow to import, and most sessions have no attachments

    return sha256(content).hexdigest()


def _write_new(path: Path, content: bytes) -> None:
    """Make the file appear with all of its content or not at all; somebody else may be writing the same one."""
    temporary = path.with_name(f".{path.stem[:16]}-{os.urandom(6).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
