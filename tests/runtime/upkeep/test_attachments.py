"""Attachments: what is kept, where, and what is refused before anything is written."""

from __future__ import annotations

import hashlib
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import (
    PROJECTIONS,
    SESSION_ATTACHMENTS,
    SESSION_DIRECTORY,
    AttachedFile,
    AttachmentError,
    AttachmentLimits,
    SessionHeader,
    image_references,
    user_message,
)
from polyhost.runtime.sessions import LiveSession
from polyhost.runtime.sessions.attachments import AttachmentFiles


def gif(width: int = 2, height: int = 3, filling: bytes = b"") -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0" + filling + b";"


GIF = gif()
GIF_ID = hashlib.sha256(GIF).hexdigest()


class Shelf:
    """Attachments under a folder, for sessions that are made by hand."""

    def __init__(self, root: Path, **limits: int) -> None:
        self.root = root
        self.headers: dict[str, SessionHeader] = {}
        self.files = AttachmentFiles(root, self.headers.get, limits=AttachmentLimits(**limits))

    def session(self, session_id: str = "s-1", parent: str | None = None) -> LiveSession:
        session = LiveSession(SessionHeader(session_id, 1, cwd="/w", parent_session=parent))
        self.headers[session_id] = session.header
        return session

    def stored(self) -> list[Path]:
        return sorted(path for path in self.root.rglob("*") if path.is_file())


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "sessions")


async def test_an_image_is_kept_privately_under_its_content(shelf: Shelf) -> None:
    session = shelf.session()
    (block,) = await shelf.files.save(session, [AttachedFile(GIF, "C:\\pictures\\a<b>.gif", "image/gif")])
    assert block == {
        "type": "image",
        "attachment": {
            "attachmentId": GIF_ID,
            "mediaType": "image/gif",
            "bytes": len(GIF),
            "width": 2,
            "height": 3,
            "name": "a_b_.gif",
        },
    }
    (path,) = shelf.stored()
    assert path.name == f"{GIF_ID}.gif"
    assert path.parent.name == "attachments"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent, shelf.root):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert await shelf.files.open("s-1", GIF_ID) == GIF


async def test_the_same_content_is_kept_once_and_needs_no_name(shelf: Shelf) -> None:
    session = shelf.session()
    first, second = await shelf.files.save(session, [AttachedFile(GIF), AttachedFile(GIF, "x.gif")])
    await shelf.files.save(session, [AttachedFile(GIF)])
    assert "name" not in first["attachment"]
    assert second["attachment"]["attachmentId"] == first["attachment"]["attachmentId"]
    assert len(shelf.stored()) == 1


async def test_a_text_becomes_a_text_block_and_is_kept(shelf: Shelf) -> None:
    content = "\ufeffhello w\u00f6rld\n".encode()
    (block,) = await shelf.files.save(shelf.session(), [AttachedFile(content, "notes.txt")])
    assert block == {"type": "text", "text": '<attachment name="notes.txt">\nhello w\u00f6rld\n\n</attachment>'}
    (path,) = shelf.stored()
    assert path.read_bytes() == content


async def test_a_long_text_is_shown_in_part_with_the_path_of_the_whole(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, inline_text_bytes=1000)
    content = b"".join(b"line %d\n" % number for number in range(1000))
    (block,) = await shelf.files.save(shelf.session(), [AttachedFile(content, "log.txt")])
    (path,) = shelf.stored()
    assert len(block["text"]) < 1100
    assert str(path) in block["text"]
    assert "line 0\n" in block["text"]
    assert "line 999\n" in block["text"]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        (AttachedFile(b"GIF89a", "a.gif"), "INVALID_IMAGE"),
        (AttachedFile(b"no image", "a.png", "image/png"), "INVALID_IMAGE"),
        (AttachedFile(GIF, "a.png", "image/png"), "IMAGE_TYPE_MISMATCH"),
        (AttachedFile(GIF, "a.txt", "text/plain"), "IMAGE_TYPE_MISMATCH"),
        (AttachedFile(b"<svg/>", "a.svg", "image/svg+xml"), "UNSUPPORTED_ATTACHMENT"),
        (AttachedFile(gif(filling=b"\0" * 200), "a.gif"), "IMAGE_TOO_LARGE"),
        (AttachedFile(gif(101, 100), "a.gif"), "IMAGE_TOO_MANY_PIXELS"),
        (AttachedFile(b"x" * 301, "a.txt"), "TEXT_TOO_LARGE"),
        (AttachedFile(b"\xff\xfe", "a.bin"), "UNSUPPORTED_ATTACHMENT"),
        (AttachedFile(b"a\0b", "a.bin"), "UNSUPPORTED_ATTACHMENT"),
    ],
)
async def test_one_refused_file_refuses_the_message(tmp_path: Path, file: AttachedFile, code: str) -> None:
    shelf = Shelf(tmp_path / "sessions", image_bytes=200, image_pixels=10_000, text_bytes=300)
    with pytest.raises(AttachmentError) as caught:
        await shelf.files.save(shelf.session(), [AttachedFile(GIF), file])
    assert caught.value.code == code
    assert file.name is not None
    assert file.name in caught.value.message
    assert not shelf.root.exists()


@pytest.mark.parametrize(
    ("limit", "code"), [({"images": 2}, "TOO_MANY_IMAGES"), ({"message_image_bytes": 40}, "IMAGES_TOO_LARGE")]
)
async def test_the_images_of_one_message_are_limited_together(tmp_path: Path, limit: Any, code: str) -> None:
    shelf = Shelf(tmp_path / "sessions", **limit)
    with pytest.raises(AttachmentError) as caught:
        await shelf.files.save(shelf.session(), [AttachedFile(GIF)] * 3)
    assert caught.value.code == code
    await shelf.files.save(shelf.session(), [AttachedFile(GIF)] * 2)


async def test_a_folder_that_cannot_be_written_is_said(shelf: Shelf) -> None:
    shelf.root.parent.mkdir(exist_ok=True)
    shelf.root.write_text("a file where the folder should be")
    with pytest.raises(AttachmentError) as caught:
        await shelf.files.save(shelf.session(), [AttachedFile(GIF)])
    assert caught.value.code == "ATTACHMENT_WRITE_FAILED"


@pytest.mark.parametrize("attachment_id", ["0" * 64, "../../etc/passwd", "", GIF_ID.upper(), GIF_ID[:-1]])
async def test_only_what_was_saved_can_be_opened(shelf: Shelf, attachment_id: str) -> None:
    await shelf.files.save(shelf.session(), [AttachedFile(GIF)])
    with pytest.raises(AttachmentError) as caught:
        await shelf.files.open("s-1", attachment_id)
    assert caught.value.code == "ATTACHMENT_NOT_FOUND"


async def test_content_that_changed_is_not_given_out(shelf: Shelf) -> None:
    await shelf.files.save(shelf.session(), [AttachedFile(GIF)])
    shelf.stored()[0].write_bytes(b"GIF89a something else")
    with pytest.raises(AttachmentError) as caught:
        await shelf.files.open("s-1", GIF_ID)
    assert caught.value.code == "ATTACHMENT_NOT_FOUND"


async def test_forks_see_what_they_inherited_and_strangers_nothing(shelf: Shelf) -> None:
    await shelf.files.save(shelf.session("s-1"), [AttachedFile(GIF)])
    shelf.session("s-2", parent="s-1")
    shelf.session("s-3", parent="s-2")
    shelf.session("other")
    shelf.session("loop", parent="loop")
    assert await shelf.files.open("s-3", GIF_ID) == GIF
    for stranger in ("other", "unknown", "loop"):
        with pytest.raises(AttachmentError):
            await shelf.files.open(stranger, GIF_ID)


async def test_images_outlive_the_host_s_memory_of_the_session(room: Any) -> None:
    """Saved before the log exists, opened after the session was closed, and no obstacle to its log."""
    attachments = room.root.get(SESSION_ATTACHMENTS)
    agent = await room.open()
    (block,) = await attachments.save(agent.session, [AttachedFile(GIF, "a.gif")])
    await room.say(agent, user_message([block]))
    await room.close()
    assert await attachments.open(agent.id, GIF_ID) == GIF
    again = await room.open(agent.id)
    (reference,) = image_references(again.session.messages()[0]["content"])
    assert reference == block["attachment"]
    stored = await room.root.get(SESSION_DIRECTORY).stored()
    assert [row.header.id for row in stored] == [agent.id]


@pytest.mark.parametrize("live", [True, False])
async def test_a_fork_reaches_the_attachments_of_its_source(room: Any, live: bool) -> None:
    attachments, directory = room.root.get(SESSION_ATTACHMENTS), room.root.get(SESSION_DIRECTORY)
    agent = await room.open()
    await room.say(agent, user_message(await attachments.save(agent.session, [AttachedFile(GIF, "a.gif")])))
    if not live:
        await room.close()
    child = await directory.fork(agent.id)
    (reference,) = image_references(child.agent.session.messages()[0]["content"])
    assert await attachments.open(child.agent.id, reference["attachmentId"]) == GIF
    await child.close()
    assert await attachments.open(child.agent.id, GIF_ID) == GIF
    grandchild = await directory.fork(child.agent.id)
    assert await attachments.open(grandchild.agent.id, GIF_ID) == GIF
    await grandchild.close()


async def test_front_ends_read_the_limits_as_a_projection(room: Any) -> None:
    agent = await room.open()
    assert room.root.get(PROJECTIONS).read(agent.session).values["imageLimits"] == {
        "maxImageBytes": 5_242_880,
        "maxImagesPerMessage": 20,
        "maxMessageImageBytes": 104_857_600,
        "maxImagePixels": 40_000_000,
        "mediaTypes": ["image/png", "image/jpeg", "image/webp", "image/gif"],
    }


def test_references_are_found_inside_tool_results() -> None:
    image = {"type": "image", "attachment": {"attachmentId": "1"}}
    result = {"type": "tool-result", "toolCallId": "c", "content": [{"type": "text", "text": "x"}, image]}
    assert list(image_references([result, {"type": "image"}, image])) == [image["attachment"]] * 2
