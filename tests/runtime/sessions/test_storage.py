"""Storage through its face: round trips, what is on disk, resuming, listing, collisions, reading."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from polyhost.interfaces import SessionError
from polyhost.kernel.signals import AbortController, AbortedError
from polyhost.runtime.sessions import JsonlStorage, LiveSession, LiveSessions
from polyhost.runtime.sessions.codec import Encoder
from polyhost.runtime.sessions.header import encode as header_line

Open = Callable[..., JsonlStorage]


def code_of(caught: pytest.ExceptionInfo[SessionError]) -> str:
    return caught.value.code


def stored_text(path: Path) -> bytes:
    if path.suffix != ".zstd":
        return path.read_bytes()
    return zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()


@pytest.mark.contract("PST-01", "JSL-07")
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("encoding", ["zstd", "plain"])
async def test_what_was_written_comes_back_byte_for_byte(
    open_storage: Open, new_session: Any, talk_to: Any, encoding: str, packed: bool, clock: Any
) -> None:
    session = new_session("s/1", cwd="/w", parent_session="p", origin="subagent", delegation_depth=2, agent_preset="x")
    storage = open_storage(encoding=encoding, packed=packed)
    storage.attach(session)
    talk = talk_to(session)
    talk.whole_turn("é\u2028", "abcdef")
    await storage.flush(session)
    clock.now = 900
    talk.whole_turn("\ud800", 'a\\b"c')
    await storage.retire(session)

    path = storage.locate(session.header)
    assert path.name == ("session.jsonl.zstd" if encoding == "zstd" else "session.jsonl")
    assert (b'"text-chunks"' in stored_text(path)) == packed
    other = open_storage(encoding="plain" if encoding == "zstd" else "zstd", packed=not packed)
    inspected = await other.inspect("s/1")
    assert inspected.stored.header == session.header
    assert inspected.lines == session.lines()
    prepared = await other.prepare("s/1")
    assert (prepared.header, prepared.lines, prepared.notes) == (session.header, session.lines(), [])

    resumed = LiveSession(prepared.header, prepared.lines, clock=clock)
    other.attach(resumed)
    talk_to(resumed).whole_turn("again", "xyz")
    await other.retire(resumed)
    assert (await storage.inspect("s/1")).lines == resumed.lines()
    assert sorted(os.listdir(path.parent)) == [path.name, "session.lock"]


@pytest.mark.contract("JSL-02", "PST-03")
async def test_nothing_is_on_disk_before_the_first_event(
    storage: JsonlStorage, new_session: Any, root: Path, store: LiveSessions
) -> None:
    session = new_session()
    storage.attach(session)
    await storage.written(session)
    await storage.flush(session)
    assert await asyncio.to_thread(root.exists) is False
    assert await storage.list() == []
    session.append("feedback/record", {})
    await storage.written(session)
    assert [row.header.id for row in await storage.list()] == ["s-1"]
    await storage.flush(session)
    before = (await storage.list())[0].revision
    session.append("feedback/record", {})
    await storage.flush(session)
    assert (await storage.list())[0].revision != before
    unused = new_session("unused")
    storage.attach(unused)
    await storage.retire(unused)
    assert [row.header.id for row in await storage.list()] == ["s-1"]


async def test_files_are_private_and_the_first_line_is_the_header(
    open_storage: Open, new_session: Any, root: Path
) -> None:
    storage = open_storage(encoding="plain")
    session = new_session(cwd="/w")
    storage.attach(session)
    session.append("feedback/record", {})
    await storage.flush(session)
    path = storage.locate(session.header)
    assert path == root / "--w--" / "s-1" / "session.jsonl"
    assert path.read_bytes() == (
        b'{"type":"session","version":0,"id":"s-1","createdAt":1000,"cwd":"/w","delegationDepth":0}\n'
        b'{"type":"feedback/record","seq":0,"time":1000,"data":{}}\n'
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for place in (root, path.parent.parent, path.parent):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


@pytest.mark.contract("JSL-10")
async def test_the_header_and_each_batch_are_frames_with_checksums(storage: JsonlStorage, new_session: Any) -> None:
    session = new_session()
    storage.attach(session)
    for _ in range(3):
        session.append("feedback/record", {})
        await storage.flush(session)
    raw = storage.locate(session.header).read_bytes()
    contents = []
    while raw:
        assert zstandard.get_frame_parameters(raw).has_checksum
        decoder = zstandard.ZstdDecompressor().decompressobj()
        contents.append(decoder.decompress(raw))
        raw = decoder.unused_data
    assert [content.count(b"\n") for content in contents] == [1, 1, 1, 1]


@pytest.mark.contract("PST-02", "PST-14", "JSL-05")
async def test_an_interrupted_turn_is_closed_in_memory_by_readers_and_once_on_disk_by_a_resume(
    open_storage: Open, new_session: Any, talk_to: Any
) -> None:
    storage = open_storage()
    session = new_session()
    storage.attach(session)
    talk = talk_to(session)
    talk.start_turn()
    talk.start_step()
    talk.asks("c-1")
    await storage.flush(session)
    assert (await storage.inspect("s-1")).lines == session.lines()
    await storage.retire(session)

    path = storage.locate(session.header)
    before = path.read_bytes()
    inspected = await storage.inspect("s-1")
    assert inspected.lines[: len(session)] == session.lines()
    assert b'"interrupted"' in inspected.lines[-1]
    assert "interrupted" in inspected.notes[0]
    assert await storage.read_from("s-1", 1) == session.lines(1)
    assert path.read_bytes() == before
    prepared = await storage.prepare("s-1")
    assert prepared.lines == list(inspected.lines)
    prepared.release()
    after = path.read_bytes()
    assert after.startswith(before)
    again = await storage.prepare("s-1")
    assert (again.lines, again.notes) == (prepared.lines, [])
    again.release()
    assert path.read_bytes() == after


@pytest.mark.contract("PST-05")
async def test_a_suffix_is_read_as_stored(storage: JsonlStorage, new_session: Any, talk_to: Any) -> None:
    session = new_session()
    storage.attach(session)
    talk_to(session).whole_turn(answer="abcdef")
    await storage.retire(session)
    before = storage.locate(session.header).read_bytes()
    for start in (0, 5, len(session)):
        assert await storage.read_from("s-1", start) == session.lines(start)
    assert storage.locate(session.header).read_bytes() == before


@pytest.mark.contract("PST-07", "JSL-02")
async def test_a_fork_stores_its_seed_once(storage: JsonlStorage, store: LiveSessions, talk_to: Any) -> None:
    source = store.create("a")
    talk_to(source).whole_turn()
    child = store.fork(source, child_id="b")
    storage.attach(child)
    await storage.flush(child)
    await storage.retire(child)
    prepared = await storage.prepare("b")
    assert prepared.header == child.header
    assert storage.locate(prepared.header) == storage.locate(child.header) != storage.locate(source.header)
    assert prepared.header.seed_length == len(source)
    resumed = LiveSession(prepared.header, prepared.lines)
    storage.attach(resumed)
    resumed.append("feedback/record", {})
    await storage.retire(resumed)
    assert (await storage.inspect("b")).lines == [*child.lines(), resumed.lines()[-1]]


@pytest.mark.contract("PST-09", "PST-06")
async def test_an_id_belongs_to_one_session_at_a_time(open_storage: Open, new_session: Any, talk_to: Any) -> None:
    storage = open_storage()
    session = new_session()
    storage.attach(session)
    storage.attach(session)
    with pytest.raises(SessionError) as caught:
        storage.attach(new_session())
    assert code_of(caught) == "SESSION_BUSY"
    session.append("feedback/record", {})
    with pytest.raises(SessionError) as caught:
        await storage.prepare("s-1")
    assert code_of(caught) == "SESSION_BUSY"
    await storage.retire(session)

    for collision in (new_session(), new_session(cwd="/elsewhere")):
        storage.attach(collision)
        collision.append("feedback/record", {"text": "mine"})
        with pytest.raises(SessionError) as caught:
            await storage.written(collision)
        assert code_of(caught) == "SESSION_ALREADY_EXISTS"
        with pytest.raises(SessionError):
            await storage.retire(collision)
    assert (await storage.inspect("s-1")).lines == session.lines()

    prepared = await storage.prepare("s-1")
    with pytest.raises(SessionError) as caught:
        storage.attach(new_session())
    assert code_of(caught) == "SESSION_BUSY"
    prepared.release()
    prepared.release()


@pytest.mark.contract("PST-08")
async def test_a_session_that_stayed_live_is_taken_over(open_storage: Open, new_session: Any, talk_to: Any) -> None:
    session = new_session(cwd="/w")
    talk = talk_to(session)
    first = open_storage(encoding="plain")
    first.attach(session)
    talk.start_turn()
    talk.start_step()
    await first.close()
    talk.user("meanwhile")
    before = first.locate(session.header).read_bytes()

    second = open_storage()
    second.attach(session)
    await second.flush(session)
    talk.end_step()
    await second.retire(session)
    path = first.locate(session.header)
    assert path.read_bytes() == before + b"".join(session.lines(2))
    assert sorted(os.listdir(path.parent)) == [path.name, "session.lock"]
    third = open_storage()
    third.attach(session)
    await third.flush(session)
    assert path.read_bytes() == before + b"".join(session.lines(2))


@pytest.mark.case("CASE-11")
async def test_a_diagnosis_explains_each_log_and_changes_none(
    open_storage: Open, new_session: Any, talk_to: Any
) -> None:
    storage = open_storage(encoding="plain")
    damage = {
        "sound": lambda content: content,
        "torn": lambda content: content[:-5],
        "foreign": lambda content: content.replace(b'"version":0', b'"version":7'),
        "corrupt": lambda content: content.replace(b'"seq":1,', b'"seq":9,'),
        "unknown": lambda content: content.replace(b'"step/start"', b'"step/novel"'),
    }
    paths = {}
    for session_id, change in damage.items():
        session = new_session(session_id)
        storage.attach(session)
        talk_to(session).whole_turn()
        await storage.retire(session)
        paths[session_id] = storage.locate(session.header)
        paths[session_id].write_bytes(change(paths[session_id].read_bytes()))
        os.utime(paths[session_id], (2000, 2000))  # a change of equal size within one clock tick shows in no revision
    paths["double"] = paths["sound"].parent.with_name("double") / "session.jsonl"
    paths["double"].parent.mkdir()
    for encoding in ("zstd", "plain"):
        path = paths["double"].with_name("session.jsonl" + (".zstd" if encoding == "zstd" else ""))
        path.write_bytes(Encoder().encode(header_line(new_session("double").header), encoding))
    before = {path: path.read_bytes() for path in paths.values()}
    found = {Path(row.path).parent.name: row for row in await storage.diagnose()}
    assert {session_id: row.problem and row.problem.code for session_id, row in found.items()} == {
        "sound": None,
        "torn": None,
        "foreign": "SESSION_UNSUPPORTED",
        "corrupt": "SESSION_CORRUPT",
        "unknown": "SESSION_UNSUPPORTED",
        "double": "SESSION_CORRUPT",
    }
    assert [bool(found[session_id].notes) for session_id in ("sound", "torn")] == [False, True]
    for session_id in ("foreign", "corrupt", "unknown"):
        assert str(paths[session_id]) in found[session_id].problem.message
    assert {path: path.read_bytes() for path in paths.values()} == before
    assert {row.header.id for row in await storage.list()} == {"sound", "torn", "corrupt", "unknown", "double"}


@pytest.mark.contract("PST-13")
async def test_a_preparation_is_exclusive_and_can_be_given_up(
    open_storage: Open, new_session: Any, talk_to: Any
) -> None:
    storage = open_storage()
    session = new_session()
    storage.attach(session)
    talk_to(session).whole_turn()
    await storage.retire(session)

    first = asyncio.create_task(storage.prepare("s-1"))
    await asyncio.sleep(0)
    with pytest.raises(SessionError) as caught:
        await storage.prepare("s-1")
    assert code_of(caught) == "SESSION_BUSY"
    (await first).release()

    aborted = AbortController()
    waiting = asyncio.create_task(storage.prepare("s-1", aborted.signal))
    await asyncio.sleep(0)
    aborted.abort()
    with pytest.raises(AbortedError):
        await waiting
    await storage.close()

    other = open_storage()
    cancelled = asyncio.create_task(other.prepare("s-1"))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await other.close()
    (await open_storage().prepare("s-1")).release()


async def test_missing_sessions_and_bad_windows(open_storage: Open) -> None:
    storage = open_storage()
    for read in (storage.prepare, storage.inspect, storage.export):
        with pytest.raises(SessionError, match='session "x" not found') as caught:
            await read("x")
        assert code_of(caught) == "SESSION_NOT_FOUND"


@pytest.mark.contract("PST-15")
@pytest.mark.parametrize("window", [0, -1, 2**31])
def test_a_bad_window_is_refused(tmp_path: Path, window: int) -> None:
    with pytest.raises(ValueError, match="window_ms"):
        JsonlStorage(tmp_path, window_ms=window)


@pytest.mark.contract("PST-10", "PST-16")
async def test_retiring_drains_once_for_everybody_and_frees_the_id(
    open_storage: Open, new_session: Any, talk_to: Any
) -> None:
    storage = open_storage(window_ms=60_000)
    session = new_session()
    storage.attach(session)
    talk_to(session).whole_turn()
    retirements = [asyncio.create_task(storage.retire(session)) for _ in range(2)]
    await asyncio.sleep(0)
    prepared = await storage.prepare("s-1")
    assert prepared.lines == session.lines()
    await asyncio.gather(*retirements)
    await storage.retire(session)
    assert await storage.flush(session) is False
    prepared.release()


@pytest.mark.contract("JSL-08")
async def test_a_list_reads_headers_over_all_projects_and_leaves_out_what_is_foreign(
    open_storage: Open, new_session: Any, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_storage(encoding="plain")
    compressed = open_storage()
    sessions = [new_session("a", cwd="/one"), new_session("b", cwd="/two/" + "x" * 70_000), new_session("c")]
    for at, session in enumerate(sessions):
        keeper = compressed if session.id == "b" else storage
        keeper.attach(session)
        session.append("feedback/record", {})
        await keeper.retire(session)
        os.utime(keeper.locate(session.header), (at, at))
    strays = {"a-copy": root / "--one--" / "a" / "session.jsonl", "empty": None, "junk": None}
    for name, original in strays.items():
        place = root / "--one--" / name
        place.mkdir()
        (place / "session.jsonl").write_bytes(
            original.read_bytes() if original else b"" if name == "empty" else b"{}\n"
        )
    (root / "--one--" / "a" / "notes.txt").write_text("x")
    (root / "a file").write_text("x")
    rows = await storage.list()
    assert [row.header for row in rows] == [session.header for session in reversed(sessions)]
    assert [row.modified for row in rows] == [2000, 1000, 0]
    assert [row.header.id for row in await storage.list(limit=1)] == ["c"]
    for name in strays:
        assert name in caplog.text
    with pytest.raises(SessionError) as caught:
        await storage.inspect("a-copy")
    assert code_of(caught) == "SESSION_CORRUPT"


async def test_both_encodings_stand_side_by_side(open_storage: Open, new_session: Any) -> None:
    for encoding in ("plain", "zstd"):
        storage = open_storage(encoding=encoding)
        session = new_session(encoding)
        storage.attach(session)
        session.append("feedback/record", {})
        await storage.retire(session)
    assert {row.header.id for row in await storage.list()} == {"plain", "zstd"}
    for session_id in ("plain", "zstd"):
        prepared = await storage.prepare(session_id)
        prepared.release()


@pytest.mark.contract("JSL-03")
@pytest.mark.parametrize("encoding", ["zstd", "plain"])
async def test_an_export_is_the_stored_text(open_storage: Open, new_session: Any, talk_to: Any, encoding: str) -> None:
    storage = open_storage(encoding=encoding)
    session = new_session()
    storage.attach(session)
    talk_to(session).whole_turn(answer="abcdef")
    await storage.retire(session)
    path = storage.locate(session.header)
    header, name, content = await storage.export("s-1")
    assert (header, name) == (session.header, "session.jsonl")
    assert content == stored_text(path)
    path.write_bytes(b"junk\n" + path.read_bytes())
    with pytest.raises(SessionError) as caught:
        await storage.export("s-1")
    assert code_of(caught) == "SESSION_CORRUPT"


async def test_closing_the_storage_writes_everything_and_ends_its_thread(open_storage: Open, new_session: Any) -> None:
    import threading

    storage = open_storage(window_ms=60_000)
    storage.warm_up()
    sessions = [new_session(f"s-{number}") for number in range(20)]
    for session in sessions:
        storage.attach(session)
        session.append("feedback/record", {})
    await storage.close()
    assert "polyhost-disk" not in {thread.name for thread in threading.enumerate()}
    assert len(await open_storage().list()) == 20


@pytest.mark.parametrize("durable", [False, True])
async def test_only_durable_receipts_wait_for_the_disk(
    durable: bool, open_storage: Any, new_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that does not sync holds durable receipts back, and no others."""
    storage = open_storage(durable=durable)
    session = new_session()
    storage.attach(session)
    session.append("feedback/record", {})
    await storage.flush(session)
    blocked = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda fd: blocked.wait(10))
    monkeypatch.setattr(os, "fdatasync", lambda fd: blocked.wait(10), raising=False)
    session.append("feedback/record", {})
    receipt = asyncio.ensure_future(storage.written(session))
    done, _ = await asyncio.wait([receipt], timeout=0.3)
    blocked.set()
    await receipt
    assert bool(done) is not durable
