"""The derived index: what it lists and finds, how it follows the disk, and that it is never the truth."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import SessionError, StoredSession
from polyhost.runtime.sessions import JsonlStorage, LiveSession, database, freshness, layout
from polyhost.runtime.sessions.index import SessionIndex

Open = Callable[..., JsonlStorage]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def write(open_storage: Open, new_session: Any, talk_to: Any) -> Callable[..., Any]:
    """Stores a session with one turn, last changed at ``modified`` (seconds); returns its log."""

    async def write_one(session_id: str, prompt: str = "hi", *, modified: int | None = None, **facts: Any) -> Path:
        storage = open_storage()
        session = new_session(session_id, **facts)
        storage.attach(session)
        talk_to(session).whole_turn(prompt, "hello")
        await storage.close()
        path = storage.locate(session.header)
        if modified is not None:
            os.utime(path, (modified, modified))
        return path

    return write_one


@pytest.fixture
async def indexes(root: Path) -> Any:
    made: list[SessionIndex] = []

    def new(**options: Any) -> SessionIndex:
        made.append(SessionIndex(root, **options))
        return made[-1]

    yield new
    for index in made:
        await index.close()


def ids(rows: Any) -> list[str]:
    return [row.header.id for row in rows]


async def listed(index: SessionIndex, **options: Any) -> list[str]:
    return ids((await index.page(limit=None, **options)).sessions)


# Listing


@pytest.mark.contract("JSL-08")
async def test_pages_follow_each_other_without_gap_or_repetition(write: Any, indexes: Any) -> None:
    for number in range(11):
        await write(f"s-{number:02}", cwd=f"/w/{number % 2}", modified=1000 + number // 2)
    index = indexes()
    seen: list[StoredSession] = []
    cursor = None
    for size in (4, 4, 3):
        page = await index.page(limit=4, cursor=cursor)
        assert len(page.sessions) == size
        seen += page.sessions
        cursor = page.cursor
        assert page.sessions[-1].cursor == (cursor or seen[-1].cursor)
    assert cursor is None
    assert ids(seen) == [f"s-{number:02}" for number in (10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)]
    assert await listed(index, cwd="/w/1") == ["s-09", "s-07", "s-05", "s-03", "s-01"]
    for wrong in ("", "x", "1000", "x.s-1"):
        with pytest.raises(SessionError) as caught:
            await index.page(limit=1, cursor=wrong)
        assert caught.value.code == "USAGE"


async def test_a_row_says_what_the_log_says(storage: JsonlStorage, session: LiveSession, talk: Any) -> None:
    storage.attach(session)
    talk.whole_turn("  Why\tdoes \x1b[31mtest_prices\x1b[0m fail on Mondays and never else", "abcdefgh")
    talk.whole_turn("second")
    await storage.flush(session)
    [row] = await storage.list()
    status = storage.locate(session.header).stat()
    assert row.header == session.header
    assert row.title == "Why does test_prices fail on"
    assert (row.events, row.turns, row.size) == (len(session), 2, status.st_size)
    assert row.modified == status.st_mtime_ns // 1_000_000

    for title in ("first", "last\x07 \u202eone"):
        session.append("session/title", {"title": title, "messageSeqs": [], "source": {"kind": "user"}})
        await storage.flush(session)
    [later] = await storage.list()
    assert later.title == "last one"
    assert (later.events, later.turns) == (len(session), 2)
    assert later.revision != row.revision


async def test_sessions_of_subagents_can_be_left_out(write: Any, indexes: Any) -> None:
    await write("parent")
    await write("child", origin="subagent", parent_session="parent")
    assert await listed(indexes(), subagents=False) == ["parent"]
    assert set(await listed(indexes())) == {"parent", "child"}


async def test_of_two_logs_with_one_id_the_younger_is_listed(
    write: Any, indexes: Any, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = await write("a", cwd="/x", modified=1000)
    younger = await write("b", cwd="/y", modified=2000)
    younger.write_bytes((await write("a2", cwd="/y")).read_bytes())
    double = younger.parent.with_name("a")
    shutil.move(younger.parent, double)
    (double / younger.name).write_bytes(older.read_bytes())  # its header says /x: in the wrong place
    page = await indexes().page(limit=None)
    assert ids(page.sessions) == ["a2", "a"]
    assert page.left_out == 1
    same = root / "--y--" / "a" / "session.jsonl"
    (double / younger.name).unlink()
    same.write_bytes(
        b'{"type":"session","version":0,"id":"a","createdAt":1000,"cwd":"/y","delegationDepth":0}\n'
        b'{"type":"feedback/record","seq":0,"time":1000,"data":{}}\n'
    )
    page = await indexes().page(limit=None)
    assert [row.path for row in page.sessions if row.header.id == "a"] == [str(same)]
    assert "same session id" in caplog.text


# Searching


async def test_a_search_finds_words_of_prompts_answers_and_titles(
    storage: JsonlStorage, new_session: Any, talk_to: Any
) -> None:
    for session_id, prompt, answer in (
        ("fruit", "Sort the apples by colour", "The Äpfel are sorted"),
        ("prices", "Why does test_prices fail?", "Because of rounding"),
    ):
        session = new_session(session_id, cwd=f"/{session_id}")
        storage.attach(session)
        talk_to(session).whole_turn(prompt, answer)
        if session_id == "prices":
            session.append("session/title", {"title": "Rounding", "messageSeqs": [], "source": {"kind": "user"}})
            session.append("session/title", {"title": "Invoices", "messageSeqs": [], "source": {"kind": "user"}})
        await storage.retire(session)
    search = storage.index.search

    async def found(words: str, **options: Any) -> list[tuple[str, str]]:
        return [(match.stored.header.id, match.role) for match in await search(words, limit=10, **options)]

    assert await found("apples") == [("fruit", "user")]
    assert await found("COLOUR appl") == [("fruit", "user")]
    assert await found("apfel") == [("fruit", "assistant")]
    assert await found("apples rounding") == []
    assert await found("test_prices") == [("prices", "user")]
    assert await found("invoices") == [("prices", "title")]
    assert await found("the", cwd="/prices") == []
    assert await found('" OR * ) NEAR(') == []
    [match] = await search("rounding", limit=10)
    assert match.snippet in ("Because of rounding", "Rounding")
    assert (match.stored.title, match.stored.turns) == ("Invoices", 1)
    with pytest.raises(SessionError) as caught:
        await search("  ", limit=1)
    assert caught.value.code == "USAGE"


async def test_a_match_is_not_shown_after_its_log_has_changed(
    write: Any, indexes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.IndexDatabase, "logs_after", lambda *_: [])  # going round would find it as well
    gone, other = await write("gone", "the needle"), await write("other", "the needle")
    index = indexes()
    assert len(await index.search("needle", limit=5)) == 2
    content = (await write("third", "nothing")).read_bytes()
    gone.unlink()
    other.write_bytes(content)
    assert await index.search("needle", limit=5) == []


async def test_deleted_texts_leave_the_file(root: Path, write: Any, storage: JsonlStorage) -> None:
    await write("a", "zebrafish forever")
    await write("b", "other")
    assert len(await storage.index.search("zebrafish", limit=1)) == 1
    await storage.delete("a")
    assert await storage.index.search("zebrafish", limit=1) == []
    await storage.close()
    content = index_bytes(root)
    assert b"other" in content
    assert b"zebrafish" not in content


# Following the disk


@pytest.mark.parametrize("way", ["appears", "vanishes", "grows", "shrinks", "is replaced", "loses its header"])
async def test_the_next_listing_shows_what_happened_to_a_log(way: str, write: Any, indexes: Any) -> None:
    kept, changed = await write("a", modified=1000), await write("b", modified=900)
    index = indexes()
    assert await listed(index) == ["a", "b"]
    match way:
        case "appears":
            await write("c", modified=800)
            assert await listed(index) == ["a", "b", "c"]
        case "vanishes":
            changed.unlink()
            assert await listed(index) == ["a"]
            await asyncio.to_thread(shutil.rmtree, kept.parent)
            assert await listed(index) == []
        case "grows":
            with changed.open("ab") as file:
                file.write(changed.read_bytes()[-20:])
            assert await listed(index) == ["b", "a"]
        case "shrinks":
            os.truncate(changed, changed.stat().st_size - 5)
            assert await listed(index) == ["b", "a"]
        case "is replaced":
            content = (await write("c", "a longer prompt than before", modified=1)).read_bytes()
            changed.write_bytes(content)
            page = await index.page(limit=None)
            assert (ids(page.sessions), page.left_out) == (["a", "c"], 1)
        case "loses its header":
            changed.write_bytes(b"junk\n")
            page = await index.page(limit=None)
            assert (ids(page.sessions), page.left_out) == (["a"], 1)
    assert await listed(indexes()) == await listed(index)


async def test_a_live_session_is_followed_by_its_new_events_alone(
    write: Any, open_storage: Open, indexes: Any, talk_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database.IndexDatabase, "logs_after", lambda *_: [])  # going round would find it as well
    for number in range(5):
        await write(f"s-{number}", modified=1000 + number)
    index = indexes()
    assert (await listed(index))[0] == "s-4"
    host = open_storage()
    prepared = await host.prepare("s-0")
    session = LiveSession(prepared.header, prepared.lines)
    host.attach(session)
    starts: list[int] = []
    digest = freshness._digest
    monkeypatch.setattr(freshness, "_digest", lambda path, start: starts.append(start) or digest(path, start))
    for turn in range(2, 5):
        talk_to(session).whole_turn("needle", f"answer {turn}")
        await host.flush(session)
        page = await index.page(limit=1)
        assert [(row.header.id, row.turns, row.events) for row in page.sessions] == [("s-0", turn, len(session))]
    assert len(starts) == 3
    assert 0 not in starts
    assert sorted(starts) == starts
    assert len(await index.search("needle", limit=9)) == 1
    await host.close()
    assert (await listed(index))[0] == "s-0"


@pytest.mark.contract("JSL-08")
async def test_a_page_costs_the_same_however_much_is_stored(
    root: Path, indexes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(900):
        place = root / f"--w{number % 300}--" / f"s-{number}"
        place.mkdir(parents=True)
        (place / "session.jsonl").write_text(
            f'{{"type":"session","version":0,"id":"s-{number}","createdAt":1,"cwd":"/w{number % 300}"}}\n'
        )
        os.utime(place / "session.jsonl", (number, number))
    for number in range(300):
        os.utime(root / f"--w{number}--", (5000, 5000))
    await indexes().page(limit=10)
    looks: list[object] = []
    real = os.stat
    monkeypatch.setattr(os, "stat", lambda *given, **options: looks.append(given) or real(*given, **options))
    monkeypatch.setattr(freshness, "_digest", lambda path, start: pytest.fail(f"{path} was read"))
    read = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: read(path) if path == root else pytest.fail(f"{path} was read"))
    page = await indexes().page(limit=10)
    assert ids(page.sessions) == [f"s-{number}" for number in range(899, 889, -1)]
    assert len(looks) < 2 * freshness.PLACES + freshness.ROUND + 10 + 20


async def test_changes_behind_the_hosts_backs_are_found_by_going_round(
    write: Any, indexes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freshness, "ROUND", 2)
    paths = [await write(f"s-{number}", modified=1000 + number) for number in range(7)]
    index = indexes()
    await index.page(limit=1)
    os.utime(paths[0], (5000, 5000))
    for _ in range(4):
        page = await index.page(limit=1)
    assert ids(page.sessions) == ["s-0"]


# Never the truth


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "garbage", "torn page", "other version", "somebody else's", "no tables", "no texts"]
)
async def test_an_unusable_index_is_made_anew(damage: str, write: Any, indexes: Any, root: Path) -> None:
    for name in ("a", "b"):
        await write(name, f"prompt {name}")
    first = indexes()
    assert set(await listed(first)) == {"a", "b"}
    await first.close()
    path = root / "index.sqlite"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"x" * 10_000)
        case "torn page":
            content = path.read_bytes()
            path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
        case _:
            statement = {
                "other version": "PRAGMA user_version = 99",
                "somebody else's": "PRAGMA application_id = 1",
                "no tables": "DROP TABLE logs",
                "no texts": "DROP TABLE texts",
            }[damage]
            connection = sqlite3.connect(path)
            connection.execute(statement)
            connection.close()
    index = indexes()
    assert set(await listed(index)) == {"a", "b"}
    assert ids(match.stored for match in await index.search("prompt b", limit=5)) == ["b"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_wrong_index_neither_invents_sessions_nor_hides_them_from_a_resume(
    write: Any, open_storage: Open, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_FEW_PROJECTS", 0)
    for name in ("a", "b"):
        await write(name, cwd=f"/{name}")
    storage = open_storage()
    assert len(await storage.list()) == 2
    await storage.close()
    connection = sqlite3.connect(root / "index.sqlite")
    connection.execute("UPDATE logs SET project = '--nowhere--', title = 'invented' WHERE id = 'a'")
    connection.execute("DELETE FROM logs WHERE id = 'b'")
    connection.commit()
    connection.close()
    storage = open_storage()
    assert "invented" not in [row.title for row in await storage.list()]
    for name in ("a", "b"):
        (await storage.prepare(name)).release()
        assert (await storage.inspect(name)).stored.header.id == name
    await storage.index.rebuild()
    assert set(ids(await storage.list())) == {"a", "b"}


async def test_a_resume_goes_straight_to_the_log(
    write: Any, open_storage: Open, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "_FEW_PROJECTS", 3)
    for number in range(5):
        await write(f"s-{number}", cwd=f"/w/{number}")
    storage = open_storage()
    await storage.list()
    with monkeypatch.context() as patch:
        patch.setattr("polyhost.runtime.sessions.archive.find", lambda *_: pytest.fail("every project was looked into"))
        (await storage.prepare("s-3")).release()
        assert (await storage.inspect("s-2")).stored.header.cwd == "/w/2"
    with pytest.raises(SessionError) as caught:
        await storage.prepare("s-9")
    assert caught.value.code == "SESSION_NOT_FOUND"

    double = root / "--w-4--" / "s-3"
    double.mkdir()
    (double / "session.jsonl").write_text(
        '{"type":"session","version":0,"id":"s-3","createdAt":1000,"cwd":"/w/4","delegationDepth":0}\n'
    )
    await storage.list()
    with pytest.raises(SessionError, match="more than once"):
        await storage.prepare("s-3")


async def test_an_index_that_cannot_be_written_is_replaced_by_reading_all_logs(
    write: Any, indexes: Any, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await write("a", "an apple")
    (root / "index.sqlite").unlink()
    (root / "index.sqlite").mkdir()
    clock = Clock()
    index = indexes(clock=clock)
    assert await listed(index) == ["a"]
    assert "cannot be used" in caplog.text
    assert len(await index.search("apple", limit=1)) == 1
    await write("b")
    assert set(await listed(index)) == {"a", "b"}
    caplog.clear()
    assert set(await listed(index)) == {"a", "b"}
    assert "cannot be used" not in caplog.text, "it is tried again later"
    (root / "index.sqlite").rmdir()
    clock.now = 61
    assert set(await listed(index)) == {"a", "b"}
    assert (root / "index.sqlite").stat().st_size > 0


async def test_a_locked_index_is_not_waited_for_long(
    write: Any, indexes: Any, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    await write("a")
    clock = Clock()
    index = indexes(clock=clock)
    assert await listed(index) == ["a"]
    holder = sqlite3.connect(root / "index.sqlite", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    await write("b", modified=1)
    assert await listed(index) == ["a", "b"]
    assert "locked" in caplog.text
    holder.execute("ROLLBACK")
    holder.close()
    clock.now = 61
    assert await listed(index) == ["a", "b"]
    assert [row[0] for row in sqlite_rows(root, "SELECT id FROM logs ORDER BY id")] == ["a", "b"]


async def test_an_index_that_another_process_replaced_is_opened_anew(write: Any, indexes: Any, root: Path) -> None:
    await write("a")
    index = indexes()
    assert await listed(index) == ["a"]
    await indexes().rebuild()
    await write("b", modified=1)
    assert await listed(index) == ["a", "b"]
    assert sqlite_rows(root, "SELECT count(*) FROM logs") == [(2,)]


async def test_closing_gives_up_a_long_reading_and_refuses_more(
    write: Any, indexes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await write(f"s-{number}")
    index = indexes()
    await index.rebuild()
    monkeypatch.setattr(freshness, "revision_of", lambda status: index.__setattr__("_closed", True) or "moved")
    with pytest.raises(SessionError) as caught:
        await index.page(limit=None)
    assert caught.value.code == "SESSION_CLOSED"
    await index.close()
    with pytest.raises(SessionError):
        await index.page(limit=None)


LISTER = """
import asyncio, sys
from pathlib import Path
from polyhost.interfaces import SessionHeader
from polyhost.runtime.sessions import JsonlStorage, LiveSession

async def main():
    root, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    storage = JsonlStorage(root)
    for number in range(rounds):
        session = LiveSession(SessionHeader(f"{name}-{number}", 1000, cwd=f"/{number % 3}"))
        storage.attach(session)
        session.append("feedback/record", {"text": name})
        await storage.retire(session)
        listed = {row.header.id for row in await storage.list()}
        missing = {f"{name}-{n}" for n in range(number + 1)} - listed
        assert not missing, missing
    await storage.close()

asyncio.run(main())
"""


async def test_several_processes_share_the_index(root: Path, indexes: Any) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", LISTER, str(root), name, "15", stderr=asyncio.subprocess.PIPE
        )
        for name in ("a", "b", "c")
    ]
    outcomes = await asyncio.gather(*(process.communicate() for process in processes))
    assert [error.decode() for _, error in outcomes] == ["", "", ""]
    assert [process.returncode for process in processes] == [0, 0, 0]
    expected = {f"{name}-{number}" for name in "abc" for number in range(15)}
    assert set(await listed(indexes())) == expected
    assert {row[0] for row in sqlite_rows(root, "SELECT id FROM logs")} == expected
    assert len(sqlite_rows(root, "SELECT id FROM logs")) == len(expected)


async def test_connections_of_one_process_do_not_disturb_each_other(
    write: Any, indexes: Any, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's locks belong to the process: whoever closes a file of its own on the database drops all of them."""
    await write("a")
    running = indexes()
    for name in ("b", "c"):
        await listed(running)
        other = indexes()
        await listed(other)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", LISTER, str(root), name, "1")
        assert await process.wait() == 0
        assert (root / "index.sqlite-wal").stat().st_size >= 0, "it was removed under the open connections"
        await other.close()
        assert set(await listed(running)) >= {"a", f"{name}-0"}
    assert "damaged" not in caplog.text


def index_bytes(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.glob("index.sqlite*"))


def sqlite_rows(root: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(root / "index.sqlite")
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()
