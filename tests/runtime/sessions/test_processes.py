"""Sessions and real processes: two hosts on one session, and a host that is killed while it writes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import SessionError
from polyhost.runtime.sessions import JsonlStorage, LiveSession
from polyhost.wire.json import loads

HOLDER = """
import asyncio, sys
from pathlib import Path
from polyhost.interfaces import SessionHeader
from polyhost.runtime.sessions import JsonlStorage, LiveSession

async def main():
    storage = JsonlStorage(Path(sys.argv[1]))
    session = LiveSession(SessionHeader("s-1", 1000))
    storage.attach(session)
    session.append("turn/start", {"turn": 1})
    await storage.flush(session)
    print("holding", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    await storage.close()
    print("released", flush=True)

asyncio.run(main())
"""

# Appends turns of everything that is packed and not packed; a line of output is a receipt for the events below it.
WRITER = """
import asyncio, sys
from pathlib import Path
from polyhost.interfaces import SessionError, SessionHeader, TextDelta, assistant_message, user_message
from polyhost.runtime.sessions import JsonlStorage, LiveSession

async def main():
    storage = JsonlStorage(Path(sys.argv[1]), encoding=sys.argv[2], window_ms=1)
    try:
        prepared = await storage.prepare("s-1")
        session = LiveSession(prepared.header, prepared.lines)
    except SessionError as error:
        assert error.code == "SESSION_NOT_FOUND", error
        session = LiveSession(SessionHeader("s-1", 1000))
    storage.attach(session)
    while True:
        turn = {"turn": session.last_turn + 1}
        session.append("turn/start", turn)
        session.append("step/start", {**turn, "step": 1})
        session.append("user/message", user_message("go"), surface_op="append")
        await receipt(storage, session)
        writer = session.chunk_writer(turn["turn"], 1)
        for burst in range(5):
            for number in range(20):
                writer.write(TextDelta(0, f"{burst} {number} é\\\\n"))
            await asyncio.sleep(0)
        message = assistant_message([], provider="p", model="m")
        session.append("assistant/message", {**turn, "step": 1, "message": message}, surface_op="append")
        session.append("step/end", {**turn, "step": 1})
        session.append("turn/end", {**turn, "reason": {"kind": "completed"}})
        await receipt(storage, session)

async def receipt(storage, session):
    count, last = len(session), session.lines(len(session) - 1)[0]
    await storage.written(session)
    sys.stdout.write(f"{count} {last.decode()}")
    sys.stdout.flush()

asyncio.run(main())
"""


@pytest.mark.case("CASE-10")
async def test_a_second_host_is_told_who_holds_the_session_and_can_read_it(
    root: Path, open_storage: Callable[..., JsonlStorage], new_session: Any
) -> None:
    process = await start(HOLDER, root)
    assert process.stdin is not None
    assert process.stdout is not None
    assert await line(process) == b"holding\n"
    storage = open_storage()
    with pytest.raises(SessionError) as caught:
        await storage.prepare("s-1")
    assert caught.value.code == "SESSION_LOCKED"
    assert f"pid {process.pid} on {os.uname().nodename}" in caught.value.message

    inspected = await storage.inspect("s-1")
    assert [loads(event)["type"] for event in inspected.lines] == ["turn/start"], "an open turn of a living writer"
    assert [row.header.id for row in await storage.list()] == ["s-1"]
    rival = new_session()
    storage.attach(rival)
    rival.append("feedback/record", {"text": "rival"})
    with pytest.raises(SessionError) as caught:
        await storage.written(rival)
    assert caught.value.code == "SESSION_LOCKED"
    with pytest.raises(SessionError):
        await storage.retire(rival)

    process.stdin.write(b"\n")
    assert await line(process) == b"released\n"
    assert await process.wait() == 0
    prepared = await storage.prepare("s-1")
    assert [loads(event)["type"] for event in prepared.lines] == ["turn/start", "turn/end"]
    prepared.release()


@pytest.mark.case("CASE-10")
async def test_the_lock_of_a_killed_host_is_free(root: Path, open_storage: Callable[..., JsonlStorage]) -> None:
    process = await start(HOLDER, root)
    assert await line(process) == b"holding\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    storage = open_storage()
    inspected = await storage.inspect("s-1")
    assert loads(inspected.lines[-1])["data"]["reason"] == {"kind": "interrupted"}
    (await storage.prepare("s-1")).release()


@pytest.mark.parametrize("encoding", ["zstd", "plain"])
async def test_what_was_acknowledged_survives_being_killed(
    root: Path, open_storage: Callable[..., JsonlStorage], encoding: str
) -> None:
    chance = random.Random(7)
    acknowledged: dict[int, bytes] = {}  # count of events to the last of them
    storage = open_storage()
    for _ in range(10):
        process = await start(WRITER, root, encoding)
        receipts = chance.randrange(1, 30)
        output = b"".join([await line(process) for _ in range(receipts)])
        await asyncio.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        assert process.stdout is not None
        output += await process.stdout.read()
        await process.wait()
        for receipt in output.splitlines(keepends=True):
            count, _, last = receipt.partition(b" ")
            if last.endswith(b"\n"):
                acknowledged[int(count)] = last
        inspected = await storage.inspect("s-1")
        rebuilt = LiveSession(inspected.stored.header, inspected.lines)
        assert not rebuilt.turn_open
        for count, last in acknowledged.items():
            assert inspected.lines[count - 1] == last
    assert len(acknowledged) > 20


async def start(program: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )


async def line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    return await asyncio.wait_for(process.stdout.readline(), 20)
