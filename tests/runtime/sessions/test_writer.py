"""Write-behind: windows, barriers, failures and recovery, with a sink that the test controls; and real full disks."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import SessionError
from polyhost.runtime.sessions import JsonlStorage, LiveSession
from polyhost.runtime.sessions.worker import DiskWorker, Urgency
from polyhost.runtime.sessions.writer import WriteBehind

LONG = 3600.0  # a window that never ends in a test


class Sink:
    """Notes batches; ``gate`` holds the worker's thread, ``failures`` are raised one after the other."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.failures: list[Exception] = []

    def append(self, lines: list[bytes]) -> None:
        self.gate.wait(5)
        if self.failures:
            raise self.failures.pop(0)
        self.log.append(len(lines))

    def sync(self) -> None:
        self.log.append("sync")


@pytest.fixture
async def worker() -> AsyncIterator[DiskWorker]:
    worker = DiskWorker()
    yield worker
    await worker.close()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def health() -> list[str | None]:
    return []


@pytest.fixture
def behind(
    session: LiveSession, sink: Sink, worker: DiskWorker, health: list[str | None]
) -> Callable[..., WriteBehind]:
    def make(window: float = LONG, stored: int = 0) -> WriteBehind:
        return WriteBehind(
            session, sink, worker, stored=stored, window=window, on_health=lambda _, reason: health.append(reason)
        )

    return make


def note(session: LiveSession, count: int = 1) -> None:
    for _ in range(count):
        session.append("feedback/record", {})


@pytest.fixture
async def windows(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The windows that were started; calling one ends it."""
    loop = asyncio.get_running_loop()
    call_later = loop.call_later
    started: list[Callable[[], None]] = []

    def noting(delay: float, callback: Callable[..., None], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        if delay == LONG:
            started.append(callback)
        return call_later(delay, callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_later", noting)
    return started


@pytest.mark.contract("PST-17")
async def test_a_window_from_the_first_event_gathers_one_batch(
    session: LiveSession, sink: Sink, behind: Any, windows: list[Any], until: Any
) -> None:
    writer = behind()
    assert windows == []
    note(session, 3)
    (end_window,) = windows
    end_window()
    await until(lambda: sink.log == [3, "sync"])
    note(session, 2)
    assert len(windows) == 2
    windows[1]()
    await until(lambda: sink.log == [3, "sync", 2, "sync"])
    await writer.close()


@pytest.mark.contract("PST-17")
async def test_barriers_share_one_write_and_later_events_start_a_window_of_their_own(
    session: LiveSession, sink: Sink, behind: Any, windows: list[Any]
) -> None:
    writer = behind()
    sink.gate.clear()
    note(session, 2)
    barriers = [asyncio.create_task(barrier()) for barrier in (writer.written, writer.flush, writer.flush)]
    await asyncio.sleep(0.01)
    note(session, 3)
    assert not any(barrier.done() for barrier in barriers)
    sink.gate.set()
    await asyncio.gather(*barriers)
    assert sink.log == [2, "sync"]
    assert len(windows) == 2, "one of the first events, one of the later ones"
    await writer.written()
    assert sink.log[:3] == [2, "sync", 3]
    await writer.close()


async def test_a_receipt_does_not_wait_for_a_sync(session: LiveSession, sink: Sink, behind: Any) -> None:
    syncing = threading.Event()
    release = threading.Event()

    def sync() -> None:
        syncing.set()
        release.wait(5)

    sink.sync = sync  # type: ignore[method-assign]
    writer = behind()
    note(session)
    await writer.written()
    release.set()
    await writer.close()
    assert syncing.is_set()


async def test_a_barrier_on_a_written_log_needs_nothing(session: LiveSession, sink: Sink, behind: Any) -> None:
    writer = behind()
    await writer.flush()
    assert sink.log == []
    note(session)
    await writer.flush()
    await writer.written()
    await writer.flush()
    assert sink.log == [1, "sync"]
    await writer.close()


async def test_what_the_sink_has_is_not_written_again(session: LiveSession, sink: Sink, behind: Any) -> None:
    note(session, 5)
    writer = behind(stored=3)
    await writer.flush()
    assert sink.log == [2, "sync"]
    await writer.close()


async def test_a_cancelled_waiter_disturbs_nobody(session: LiveSession, sink: Sink, behind: Any) -> None:
    writer = behind()
    sink.gate.clear()
    note(session)
    impatient, patient = asyncio.create_task(writer.flush()), asyncio.create_task(writer.flush())
    await asyncio.sleep(0.01)
    impatient.cancel()
    sink.gate.set()
    await patient
    assert impatient.cancelled()
    await writer.close()


@pytest.mark.contract("PST-17")
async def test_a_failure_keeps_the_batch_says_so_at_once_and_waits_for_a_barrier(
    session: LiveSession, sink: Sink, behind: Any, health: list[str | None], windows: list[Any], until: Any
) -> None:
    writer = behind()
    sink.failures = [SessionError("full", code="SESSION_WRITE_FAILED")] * 2
    note(session)
    windows[0]()
    await until(lambda: health)
    assert health == ["full"]
    note(session, 2)
    assert len(windows) == 1, "nothing is retried without a barrier"
    with pytest.raises(SessionError, match="full") as caught:
        await asyncio.wait_for(writer.flush(), 5)
    assert caught.value.code == "SESSION_WRITE_FAILED"
    await writer.written()
    assert sink.log[0] == 3
    assert health == ["full", None]
    note(session)
    assert len(windows) == 2
    await writer.close()


@pytest.mark.contract("PST-16")
async def test_closing_waits_for_a_write_in_flight_and_tries_once_more(
    session: LiveSession, sink: Sink, behind: Any
) -> None:
    writer = behind()
    sink.gate.clear()
    sink.failures = [SessionError("busy")]
    note(session, 2)
    waiting = asyncio.create_task(writer.written())
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    sink.gate.set()
    with pytest.raises(SessionError):
        await waiting
    await closing
    assert sink.log == [2, "sync"]
    sink.failures = [SessionError("busy")] * 2
    note(session)
    with pytest.raises(SessionError):
        await writer.close()


async def test_an_unexpected_error_is_typed(session: LiveSession, sink: Sink, behind: Any) -> None:
    writer = behind()
    sink.failures = [ZeroDivisionError()]
    note(session)
    with pytest.raises(SessionError, match="ZeroDivisionError") as caught:
        await writer.written()
    assert caught.value.code == "SESSION_WRITE_FAILED"
    await writer.close()


async def test_writes_go_before_syncs(worker: DiskWorker) -> None:
    gate = threading.Event()
    order: list[str] = []
    jobs = [worker.run(Urgency.WRITE, lambda: gate.wait(5) and None)]  # type: ignore[func-returns-value]
    for urgency, name in ((Urgency.CLOSE, "close"), (Urgency.SYNC, "sync"), (Urgency.WRITE, "write")):
        jobs.append(worker.run(urgency, lambda name=name: order.append(name)))  # type: ignore[misc]
    running = asyncio.gather(*jobs)
    await asyncio.sleep(0)
    gate.set()
    await running
    assert order == ["write", "sync", "close"]


# Real files


@pytest.fixture
async def plain(open_storage: Callable[..., JsonlStorage]) -> JsonlStorage:
    return open_storage(encoding="plain", window_ms=60_000)


class Disk:
    """Makes ``os.pwrite`` write ``room`` more bytes and then fail; ``os.ftruncate`` fails while ``stuck``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self.error = errno.ENOSPC
        self.stuck = False
        pwrite, ftruncate = os.pwrite, os.ftruncate

        def limited(fd: int, content: Any, offset: int) -> int:
            if self.room is None:
                return pwrite(fd, content, offset)
            if self.room == 0:
                raise OSError(self.error, os.strerror(self.error))
            written = pwrite(fd, bytes(content[: self.room]), offset)
            self.room -= written
            return written

        def truncate(fd: int, length: int) -> None:
            if self.stuck:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            ftruncate(fd, length)

        monkeypatch.setattr(os, "pwrite", limited)
        monkeypatch.setattr(os, "ftruncate", truncate)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.contract("JSL-05")
@pytest.mark.parametrize("stuck", [False, True])
async def test_a_full_disk_leaves_a_sound_file_and_a_typed_error(
    plain: JsonlStorage, session: LiveSession, disk: Disk, stuck: bool
) -> None:
    plain.attach(session)
    note(session)
    await plain.flush(session)
    path = plain.locate(session.header)
    before = path.read_bytes()
    note(session, 3)
    disk.room, disk.stuck = 20, stuck
    with pytest.raises(SessionError) as caught:
        await plain.written(session)
    assert caught.value.code == "SESSION_WRITE_FAILED"
    assert str(path) in caught.value.message
    assert "Free some space" in caught.value.message
    assert ("could not be cut off again" in caught.value.message) == stuck
    assert path.read_bytes()[: len(before)] == before
    assert (path.read_bytes() == before) != stuck
    disk.room, disk.stuck = None, False
    await plain.flush(session)
    assert path.read_bytes() == before + b"".join(session.lines(1))


@pytest.mark.contract("JSL-05")
async def test_a_first_write_that_fails_leaves_no_log(plain: JsonlStorage, session: LiveSession, disk: Disk) -> None:
    plain.attach(session)
    note(session)
    disk.room, disk.error = 0, errno.EROFS
    with pytest.raises(SessionError, match="Make that place writable"):
        await plain.written(session)
    path = plain.locate(session.header)
    assert os.listdir(path.parent) == ["session.lock"]
    disk.room = None
    await plain.flush(session)
    assert path.read_bytes().endswith(session.lines()[0])


async def test_a_new_log_is_whole_and_durable_before_it_has_its_name(
    plain: JsonlStorage, session: LiveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def noting_fsync(fd: int) -> None:
        steps.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
        fsync(fd)

    def noting_link(source: Path, target: Path) -> None:
        steps.append(f"link of {source.read_bytes().count(bytes([10]))} lines")
        link(source, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(os, "link", noting_link)
    plain.attach(session)
    note(session, 2)
    await plain.flush(session)
    assert steps[:2] == ["file", "link of 3 lines"]
    assert set(steps[2:]) == {"directory"}
    assert len(steps) == 6, "the root's parent, the root, the project and the session"


async def test_a_disk_that_failed_to_sync_is_not_believed_again(
    plain: JsonlStorage, session: LiveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.attach(session)
    note(session)
    await plain.flush(session)

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        note(session)
        with pytest.raises(SessionError) as caught:
            await plain.flush(session)
    assert caught.value.code == "SESSION_SYNC_FAILED"
    await plain.written(session)
    with pytest.raises(SessionError):
        await plain.flush(session)


async def test_a_log_that_somebody_changed_is_not_written_to(plain: JsonlStorage, session: LiveSession) -> None:
    plain.attach(session)
    note(session)
    await plain.flush(session)
    path = plain.locate(session.header)
    with path.open("ab") as file:
        file.write(b"foreign\n")
    note(session)
    with pytest.raises(SessionError, match="changed by somebody else"):
        await plain.written(session)
    path.unlink()
    with pytest.raises(SessionError, match="deleted"):
        await plain.written(session)


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from polyhost.interfaces import SessionError, SessionHeader
from polyhost.runtime.sessions import JsonlStorage, LiveSession

async def main():
    storage = JsonlStorage(Path(sys.argv[1]), encoding="plain")
    session = LiveSession(SessionHeader("s-1", 1000))
    storage.attach(session)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    for _ in range(100):
        session.append("feedback/record", {"text": "x" * 100})
        try:
            await storage.written(session)
        except SessionError as error:
            print(len(session) - 1, error.code, flush=True)
            break
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    session.append("feedback/record", {})
    await storage.close()

asyncio.run(main())
"""


async def test_a_file_size_limit_of_the_system_is_survived(root: Path, plain: JsonlStorage) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FULL_DISK, str(root), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 0
    written, code = output.decode().split()
    assert code == "SESSION_WRITE_FAILED"
    inspected = await plain.inspect("s-1")
    assert len(inspected.lines) == int(written) + 2
    assert inspected.notes == []
