"""Looking after stored sessions: names, removal, repair, and logs from elsewhere, such as those of the reference."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from polyhost.interfaces import SessionError, TitleError, text_of
from polyhost.runtime.sessions import JsonlStorage, LiveSession, LiveSessions
from polyhost.runtime.sessions.importing import import_log
from polyhost.runtime.sessions.lock import acquire
from polyhost.runtime.sessions.management import SessionManagement

Open = Callable[..., JsonlStorage]

HOLDER = """
import asyncio, sys
from pathlib import Path
from polyhost.runtime.sessions import JsonlStorage

async def main():
    storage = JsonlStorage(Path(sys.argv[1]))
    await storage.prepare(sys.argv[2])
    print("holding", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await storage.close()

asyncio.run(main())
"""


@pytest.fixture
def deleted() -> list[str]:
    return []


@pytest.fixture
def manage(storage: JsonlStorage, store: LiveSessions, deleted: list[str]) -> SessionManagement:
    return SessionManagement(storage, store, deleted.append)


@pytest.fixture
def write(open_storage: Open, new_session: Any, talk_to: Any) -> Callable[..., Any]:
    """Stores a session with one turn; returns its log."""

    async def write_one(session_id: str = "s-1", prompt: str = "hi", encoding: str = "plain", **facts: Any) -> Path:
        storage = open_storage(encoding=encoding)
        session = new_session(session_id, **facts)
        storage.attach(session)
        talk_to(session).whole_turn(prompt, "hello")
        await storage.close()
        return storage.locate(session.header)

    return write_one


def contents(root: Path) -> dict[Path, bytes]:
    """All logs and what stands beside them."""
    return {path: path.read_bytes() for path in root.glob("*/*/*") if path.is_file()}


def code_of(caught: pytest.ExceptionInfo[SessionError]) -> str:
    return caught.value.code


# Names


@pytest.mark.contract("TTL-02")
async def test_a_rename_is_logged_through_the_lock(
    manage: SessionManagement, write: Any, open_storage: Open, talk_to: Any
) -> None:
    path = await write()
    before = path.read_bytes()
    assert await manage.rename("s-1", "  The\x1b[2J new\nname ") == "The new name"
    assert path.read_bytes().startswith(before)
    [event] = [json.loads(line) for line in path.read_bytes()[len(before) :].splitlines()]
    assert (event["type"], event["seq"]) == ("session/title", 11)
    assert event["data"] == {"title": "The new name", "messageSeqs": [], "source": {"kind": "user"}}
    [row] = (await manage.page()).sessions
    assert row.title == "The new name"
    with pytest.raises(TitleError) as caught:
        await manage.rename("s-1", " \u200b\n")
    assert caught.value.code == "TITLE_INVALID"

    other = open_storage()
    (prepared := await other.prepare("s-1"))
    with pytest.raises(SessionError) as locked:
        await manage.rename("s-1", "mine")
    assert code_of(locked) == "SESSION_LOCKED"
    prepared.release()
    assert await manage.rename("s-1", "mine") == "mine"


async def test_a_live_session_is_renamed_where_it_lives(
    manage: SessionManagement, storage: JsonlStorage, store: LiveSessions
) -> None:
    session = store.create("live", cwd="/w")
    storage.attach(session)
    session.append("feedback/record", {})
    assert await manage.rename("live", "here") == "here"
    assert json.loads(session.lines()[-1])["data"]["title"] == "here"


async def test_ids_may_be_shortened(manage: SessionManagement, write: Any) -> None:
    for session_id in ("abc", "abd", "b", "bc", "%", "a_"):
        await write(session_id)
    assert await manage.matching("b") == ["b"]
    assert await manage.matching("abd") == ["abd"]
    assert await manage.matching("bc") == ["bc"]
    assert await manage.matching("ab") == ["abc", "abd"]
    assert await manage.matching("a", limit=5) == ["a_", "abc", "abd"]
    assert await manage.matching("%") == ["%"]
    assert await manage.matching("a_") == ["a_"]
    assert await manage.matching("_b") == []
    assert len(await manage.matching("", limit=9)) == 6
    assert (await manage.locate("b")).parent.name == "b"


# Removal


@pytest.mark.case("CASE-10")
async def test_a_session_that_is_open_is_not_deleted(
    manage: SessionManagement, storage: JsonlStorage, write: Any, root: Path, deleted: list[str]
) -> None:
    path = await write()
    prepared = await storage.prepare("s-1")
    with pytest.raises(SessionError) as caught:
        await manage.delete("s-1")
    assert code_of(caught) == "SESSION_BUSY"
    prepared.release()

    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLDER, str(root), "s-1"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"holding\n"
    with pytest.raises(SessionError) as caught:
        await manage.delete("s-1")
    assert code_of(caught) == "SESSION_LOCKED"
    assert f"pid {holder.pid}" in caught.value.message
    [row] = await manage.diagnose("s-1")
    assert f"pid {holder.pid}" in (row.holder or "")
    assert path.stat().st_size > 0
    holder.stdin.write(b"\n")
    await holder.wait()
    assert deleted == []
    await manage.delete("s-1")
    assert deleted == ["s-1"]


async def test_a_deleted_session_is_gone_with_all_that_stood_beside_it(
    manage: SessionManagement, storage: JsonlStorage, write: Any, root: Path
) -> None:
    path, kept = await write("gone", cwd="/w"), await write("kept", cwd="/w")
    (path.parent / "attachments").mkdir()
    (path.parent / "attachments" / "a.png").write_bytes(b"x")
    outside = root / "outside"
    outside.write_text("stays")
    os.symlink(outside, path.parent / "link")
    await manage.delete("gone")
    assert sorted(os.listdir(kept.parent.parent)) == ["kept"]
    assert outside.read_text() == "stays"
    assert [row.header.id for row in (await manage.page()).sessions] == ["kept"]
    with pytest.raises(SessionError) as caught:
        await manage.delete("gone")
    assert code_of(caught) == "SESSION_NOT_FOUND"
    session = LiveSession(kept_header := (await storage.inspect("kept")).stored.header._replace(id="gone"))
    storage.attach(session)
    session.append("feedback/record", {})
    await storage.written(session)
    assert (await storage.inspect("gone")).stored.header == kept_header


async def test_what_cannot_be_read_can_be_deleted(manage: SessionManagement, write: Any) -> None:
    path = await write()
    path.write_bytes(b"junk\n")
    assert (await manage.page()).left_out == 1
    await manage.delete("s-1")
    assert (await manage.page()).left_out == 0


async def test_a_session_that_changed_meanwhile_is_not_deleted(manage: SessionManagement, write: Any) -> None:
    path = await write()
    os.utime(path, (1000, 1000))
    with pytest.raises(SessionError) as caught:
        await manage.delete("s-1", unchanged_since=999_999)
    assert code_of(caught) == "SESSION_CHANGED"
    await manage.delete("s-1", unchanged_since=1_000_000)


async def test_a_lock_file_that_was_removed_meanwhile_locks_nothing(
    manage: SessionManagement, write: Any, open_storage: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await write()
    import fcntl

    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        """Between opening the lock file and locking it, somebody deletes the session."""
        monkeypatch.setattr(fcntl, "flock", real)
        for name in ("session.jsonl", "session.lock"):
            (path.parent / name).unlink()
        path.parent.rmdir()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(SessionError) as caught:
        await open_storage().prepare("s-1")
    assert code_of(caught) == "SESSION_UNREADABLE"
    assert "removed" in caught.value.message


# Repair


@pytest.mark.case("CASE-11")
@pytest.mark.parametrize("encoding", ["plain", "zstd"])
async def test_a_diagnosis_writes_nothing_and_a_repair_what_it_said(
    manage: SessionManagement, write: Any, encoding: str, root: Path
) -> None:
    torn, other = await write("torn", encoding=encoding), await write("other")
    os.truncate(torn, torn.stat().st_size - 3)
    os.truncate(other, other.stat().st_size - 40)
    before = contents(root)
    [row] = await manage.diagnose("torn")
    assert (row.problem, row.holder) == (None, None)
    assert row.notes
    assert len(await manage.diagnose()) == 2
    assert contents(root) == before
    assert await manage.repair("torn") == row.notes
    [row] = await manage.diagnose("torn")
    assert row.notes == []
    assert other.read_bytes() == before[other]


# Logs from elsewhere

HEAD = {"type": "session", "version": 0, "id": "ref/1", "createdAt": 5000, "cwd": "/r", "delegationDepth": 0}
SOURCE = {"kind": "model", "provider": "p", "model": "m"}
# One turn as the layout of agent-core 2.21 has it: chunk runs are packed, member order is the writer's.
RECORDS: list[list[dict[str, Any]]] = [
    [
        {"type": "turn/start", "seq": 0, "time": 5001, "data": {"turn": 1}},
        {"type": "step/start", "seq": 1, "time": 5001, "data": {"turn": 1, "step": 1}},
        {
            "type": "user/message",
            "seq": 2,
            "time": 5002,
            "data": {
                "id": "u",
                "role": "user",
                "content": [{"type": "text", "text": "Where is the needle"}],
                "source": {"kind": "user"},
            },
            "surfaceOp": "append",
        },
    ],
    [
        {
            "type": "text-chunks",
            "seq0": 3,
            "time0": 5003,
            "data": {"turn": 1, "step": 1, "index": 0, "dt": [2, 0], "texts": ["In ", "the ", "haystack"]},
        },
        {
            "type": "assistant/message",
            "seq": 6,
            "time": 5006,
            "data": {
                "turn": 1,
                "step": 1,
                "message": {
                    "id": "a",
                    "role": "assistant",
                    "content": [{"type": "text", "text": "In the haystack"}],
                    "source": SOURCE,
                },
            },
            "sourceEventSeqs": [3, 4, 5],
            "surfaceOp": "append",
        },
    ],
    [
        {"seq": 7, "type": "step/end", "time": 5007, "data": {"turn": 1, "step": 1}},
        {"type": "turn/end", "seq": 8, "time": 5007, "data": {"turn": 1, "reason": {"kind": "completed"}}},
        {
            "type": "session/title",
            "seq": 9,
            "time": 5008,
            "data": {"title": "Needles", "messageSeqs": [2], "source": {"kind": "fallback"}},
        },
    ],
]


def reference_log(encoding: str, head: dict[str, Any] = HEAD) -> bytes:
    def text(*records: dict[str, Any]) -> bytes:
        lines = (json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n" for record in records)
        content = "".join(lines).encode()
        return content if encoding == "plain" else zstandard.ZstdCompressor(write_checksum=True).compress(content)

    return text(head) + b"".join(text(*batch) for batch in RECORDS)


@pytest.fixture
def reference(tmp_path: Path) -> Callable[..., Path]:
    """Writes the log into a root of its own, as the reference lays it out."""

    def lay_out(encoding: str, head: dict[str, Any] = HEAD, at: Path | None = None) -> Path:
        name = "session.jsonl.zstd" if encoding == "zstd" else "session.jsonl"
        path = (at or tmp_path / "reference") / "--r--" / head["id"].replace("/", "~002F") / name
        path.parent.mkdir(parents=True)
        path.write_bytes(reference_log(encoding, head))
        os.utime(path, (7000, 7000))
        return path

    return lay_out


@pytest.mark.contract("JSL-07")
@pytest.mark.parametrize("encoding", ["plain", "zstd"])
@pytest.mark.parametrize("way", ["in place", "imported file", "imported root"])
async def test_logs_of_the_reference_list_search_and_resume(
    manage: SessionManagement, storage: JsonlStorage, reference: Any, root: Path, encoding: str, way: str, talk_to: Any
) -> None:
    path = reference(encoding, at=root if way == "in place" else None)
    if way != "in place":
        [outcome] = await manage.add(path if way == "imported file" else path.parents[2])
        assert outcome.problem is None
        assert outcome.stored is not None
        assert outcome.path == str(path)
        taken = Path(outcome.stored.path)
        assert taken == root / path.relative_to(path.parents[2])
        assert contents(root)[taken] == path.read_bytes()
    [row] = (await manage.page()).sessions
    assert (row.header.id, row.title, row.events, row.turns, row.modified) == ("ref/1", "Needles", 10, 1, 7_000_000)
    [match] = await manage.search("haystack")
    assert (match.stored.header.id, match.seq, match.role) == ("ref/1", 6, "assistant")
    prepared = await storage.prepare("ref/1")
    assert (len(prepared.lines), prepared.notes) == (10, [])
    session = LiveSession(prepared.header, prepared.lines)
    assert [text_of(message["content"]) for message in session.messages()] == ["Where is the needle", "In the haystack"]
    storage.attach(session)
    talk_to(session).whole_turn("again", "still there")
    await storage.retire(session)
    [row] = (await manage.page()).sessions
    assert (row.turns, row.title) == (2, "Needles")


async def test_an_import_refuses_what_is_stored_already_or_cannot_be_read(
    manage: SessionManagement, reference: Any, root: Path, tmp_path: Path
) -> None:
    source = reference("plain").parents[2]
    reference("zstd", {**HEAD, "id": "b"})
    reference("plain", {**HEAD, "id": "c", "version": 7})
    corrupt = reference("plain", {**HEAD, "id": "d"})
    corrupt.write_bytes(corrupt.read_bytes().replace(b'"seq":1,', b'"seq":5,'))
    first = {Path(outcome.path).parent.name: outcome for outcome in await manage.add(source)}
    assert {name: outcome.problem and outcome.problem.code for name, outcome in first.items()} == {
        "ref~002F1": None,
        "b": None,
        "c": "SESSION_UNSUPPORTED",
        "d": "SESSION_CORRUPT",
    }
    before = contents(root)
    again = await manage.add(source)
    assert sorted(outcome.problem.code for outcome in again if outcome.problem) == [
        "SESSION_ALREADY_EXISTS",
        "SESSION_ALREADY_EXISTS",
        "SESSION_CORRUPT",
        "SESSION_UNSUPPORTED",
    ]
    moved = reference("plain", {**HEAD, "cwd": "/elsewhere"}, at=tmp_path / "other")
    [outcome] = await manage.add(moved)
    assert outcome.problem is not None
    assert outcome.problem.code == "SESSION_ALREADY_EXISTS"
    assert contents(root) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SessionError) as caught:
        await manage.add(empty)
    assert code_of(caught) == "SESSION_NOT_FOUND"


@pytest.mark.parametrize("encoding", ["plain", "zstd"])
async def test_an_import_leaves_a_torn_end_behind(
    manage: SessionManagement, storage: JsonlStorage, reference: Any, encoding: str
) -> None:
    path = reference(encoding)
    os.truncate(path, path.stat().st_size - 9)
    before = path.read_bytes()
    [outcome] = await manage.add(path)
    assert outcome.problem is None
    assert path.read_bytes() == before
    [row] = await manage.diagnose("ref/1")
    assert (row.problem, row.events) == (None, 9 if encoding == "plain" else 7)
    assert not any("cut off" in note for note in row.notes)


async def test_an_export_can_be_imported_again(
    manage: SessionManagement, storage: JsonlStorage, write: Any, tmp_path: Path
) -> None:
    await write("a", encoding="zstd")
    lines = (await storage.inspect("a")).lines
    _, _, content = await manage.export("a")
    (tmp_path / "copy.txt").write_bytes(content)
    await manage.delete("a")
    [outcome] = await manage.add(tmp_path / "copy.txt")
    assert outcome.problem is None
    assert (await storage.inspect("a")).lines == lines


async def test_an_import_is_not_there_in_part(
    manage: SessionManagement, reference: Any, storage: JsonlStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        [outcome] = await manage.add(reference("plain"))
    assert outcome.problem is not None
    assert outcome.problem.code == "SESSION_WRITE_FAILED"
    assert "No space" in outcome.problem.message
    assert (await manage.page()).sessions == []
    [outcome] = await manage.add(Path(outcome.path))
    assert outcome.problem is None


def test_a_locked_place_takes_no_import(reference: Any, root: Path) -> None:
    from polyhost.runtime.sessions.catalogue import EventCatalogue
    from polyhost.runtime.sessions.lock import acquire

    path = reference("plain")
    place = root / "--r--" / "ref~002F1"
    place.mkdir(parents=True)
    lock = acquire(place, "ref/1")
    with pytest.raises(SessionError) as caught:
        import_log(path, root, EventCatalogue())
    assert code_of(caught) == "SESSION_LOCKED"
    lock.release()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_does_not_keep_a_session_from_being_locked(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting is what frees space, and it needs the lock."""

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", full)
    lock = acquire(tmp_path, "s")
    with pytest.raises(SessionError) as caught:
        acquire(tmp_path, "s")
    assert caught.value.code in ("SESSION_LOCKED", "SESSION_BUSY")
    lock.release()
