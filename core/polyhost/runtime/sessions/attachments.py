"""Attachments on disk: ``<session>/attachments/<sha256 of the content>.<extension>``, for the owner's eyes only.

Which files are kept at all is decided in ``intake``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyhost.interfaces.attachments import AttachedFile, AttachmentError, AttachmentLimits
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import text_block
from polyhost.interfaces.sessions import Session, SessionError, SessionHeader
from polyhost.runtime.sessions import layout
from polyhost.runtime.sessions.files import sync_directory

if TYPE_CHECKING:
    from polyhost.runtime.sessions.intake import CheckedFile

FOLDER = "attachments"

_LINEAGE = 64  # forks of forks that are searched for an inherited attachment


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
        from polyhost.runtime.sessions.intake import check_files  # most sessions have no attachments

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

    def _write(self, folder: Path, files: Sequence[CheckedFile]) -> list[JsonObject]:
        for path in (self._root, folder.parent.parent, folder.parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
        blocks = []
        for file in files:
            digest = _digest(file.content)
            path = folder / f"{digest}.{file.extension}"
            _write_new(path, file.content)
            blocks.append(self._block(file, digest, path))
        sync_directory(folder)
        return blocks

    def _block(self, file: CheckedFile, digest: str, path: Path) -> JsonObject:
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
        for path in self._candidates(session_id, attachment_id):
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

    def _candidates(self, session_id: str, attachment_id: str) -> Iterator[Path]:
        from polyhost.runtime.sessions.intake import EXTENSIONS, is_digest

        if is_digest(attachment_id):
            for folder in self._folders(session_id):
                for extension in EXTENSIONS:
                    yield folder / f"{attachment_id}.{extension}"

    def _folders(self, session_id: str) -> Iterator[Path]:
        """Where this session's attachments are, its own first, then those of the sessions that it was forked from."""
        next_id: str | None = session_id
        for _ in range(_LINEAGE):
            header = self._live(next_id) if next_id is not None else None
            if header is not None:
                yield layout.directory(self._root, header) / FOLDER
            elif next_id is not None and (stored := self._stored(next_id)) is not None:
                header, folder = stored
                yield folder / FOLDER
            else:
                return
            next_id = header.parent_session

    def _stored(self, session_id: str) -> tuple[SessionHeader, Path] | None:
        from polyhost.runtime.sessions.reading import read_header

        try:
            found = layout.find(self._root, session_id)
            return None if found is None else (read_header(str(found[0]), found[1]), found[0].parent)
        except (SessionError, OSError):
            return None


def _digest(content: bytes) -> str:
    from hashlib import sha256  # slow to import

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
