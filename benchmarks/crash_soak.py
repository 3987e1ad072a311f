"""Kill a working host at random moments, again and again, and count what was lost.

    python benchmarks/crash_soak.py [--turns 200] [--sessions 1000] [--seed 0]

A child process runs turns of the demo model (text, a file, a command) and prints a receipt for each prompt once the log
has reached the operating system, as a front end would answer one. It gets SIGKILL after a random time; the next child
goes on with the same session. Afterwards every log must load, with whole sequence numbers and every receipt in it.

Then faults are injected below the writer, session by session: writes that fail after some of their bytes (a full disk),
and logs cut inside their last batch (a torn write), in both encodings. Every log must load again, with every receipt.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from polyhost.interfaces import AGENTS, SESSION_DIRECTORY, SESSIONS, SessionError, SessionHeader, user_message
from polyhost.runtime.sessions import JsonlStorage, LiveSession
from polyhost.runtime.sessions.layout import Encoding
from polyhost.testing.host import running_host
from polyhost.wire import json

PROMPTS = ("count 400", "write note{n}.txt hello", "run echo {n}; exit 3", "say {n}")
TURNS_PER_SESSION = 10
MEAN_LIFE = 0.012  # seconds from the first receipt to the kill


async def work(home: Path, session_id: str, first: int) -> None:
    """The child: prompts without end, a line ``message-id`` on stdout for each receipt."""
    async with running_host(home) as host:
        directory, agents, sessions = (host.root.get(key) for key in (SESSION_DIRECTORY, AGENTS, SESSIONS))
        assert directory is not None
        assert agents is not None
        assert sessions is not None
        opened = await directory.open(session_id, cwd=str(home), model="demo/demo", mode="full")
        for n in range(first, sys.maxsize):
            message = user_message(PROMPTS[n % len(PROMPTS)].format(n=n))
            ticket = agents.prompt(opened.agent, message)
            await sessions.written(opened.agent.session)
            sys.stdout.write(message["id"] + "\n")
            sys.stdout.flush()
            await ticket.outcome()


async def one_life(home: Path, session_id: str, first: int, seconds: float) -> list[str]:
    """Receipts that one child gave before it was killed."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--child",
        str(home),
        session_id,
        str(first),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    receipts: list[str] = []
    deadline = None
    while True:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            line = await asyncio.wait_for(child.stdout.readline(), timeout)
        except TimeoutError:
            break
        if not line:
            break
        receipts.append(line.decode().strip())
        deadline = (
            deadline or time.monotonic() + seconds
        )  # counted from the first receipt, so that each life does some work
    if child.returncode is None:
        child.send_signal(signal.SIGKILL)
    rest, errors = await child.communicate()
    receipts += rest.decode().split()
    if child.returncode != -signal.SIGKILL:
        raise SystemExit(f"the child ended by itself ({child.returncode}): {errors.decode()[-2000:]}")
    return receipts


async def check(home: Path, receipts: dict[str, list[str]]) -> tuple[int, int, int]:
    """Unreadable logs, lost receipts, events read."""
    unreadable = lost = events = 0
    async with running_host(home) as host:
        directory = host.root.get(SESSION_DIRECTORY)
        assert directory is not None
        for session_id, ids in receipts.items():
            try:
                _, lines = await directory.read(session_id)
            except Exception as error:
                print(f"{session_id}: {error}", file=sys.stderr)
                unreadable += 1
                continue
            decoded = [json.loads(line) for line in lines]
            if [event["seq"] for event in decoded] != list(range(len(decoded))):
                unreadable += 1
            accepted = {
                message["id"]
                for event in decoded
                if event["type"] == "agent/inbox/spliced"
                for message in event["data"]["inserted"]
            }
            lost += len(set(ids) - accepted)
            events += len(decoded)
    return unreadable, lost, events


async def faults(sessions: int, seed: int) -> int:
    """Faults below the writer, one or more per session."""
    rng = random.Random(seed)
    counts = {"full disk": 0, "torn write": 0, "unreadable": 0, "lost": 0}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(sessions):
            session = LiveSession(SessionHeader(f"s-{number}", 1, "/w"), None)
            safe, size = await _write_with_faults(Path(folder), session, rng, counts)
            _tear(Path(folder), session, size, rng, counts)
            await _verify(Path(folder), session, safe, counts)
    print(f"{sessions} sessions with faults: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if counts["unreadable"] or counts["lost"] else 0


async def _write_with_faults(
    root: Path, session: LiveSession, rng: random.Random, counts: dict[str, int]
) -> tuple[int, int]:
    """Write batches, some onto a full disk; how many events, and bytes, had a receipt before the last batch."""
    encoding: Encoding = rng.choice(("zstd", "plain"))
    storage = JsonlStorage(root, encoding=encoding)
    storage.attach(session)
    path = storage.locate(session.header)
    safe = size = 0
    for batch in (rng.randrange(1, 30) for _ in range(rng.randrange(2, 6))):
        safe, size = (len(session), path.stat().st_size) if path.exists() else (0, 0)
        for _ in range(batch):
            session.append("feedback/record", {"text": "x" * rng.randrange(200)})
        with full_disk(rng) if rng.random() < 0.4 else contextlib.nullcontext():
            try:
                await storage.written(session)
            except SessionError:
                counts["full disk"] += 1
        await storage.written(session)  # there is room again: what was held back is written
    await storage.close()
    return safe, size


def _tear(root: Path, session: LiveSession, size: int, rng: random.Random, counts: dict[str, int]) -> None:
    """Cut the log somewhere inside its last batch, as when the machine stopped in the middle of that write."""
    path = JsonlStorage(root).locate(session.header)
    path = path if path.exists() else path.with_name("session.jsonl")
    whole = path.read_bytes()
    if size and rng.random() < 0.7:
        path.write_bytes(whole[: rng.randrange(size, len(whole))])
        counts["torn write"] += 1


async def _verify(root: Path, session: LiveSession, safe: int, counts: dict[str, int]) -> None:
    """Open the log again; every event with a receipt must be there, byte for byte."""
    storage = JsonlStorage(root)
    try:
        prepared = await storage.prepare(session.id)
        counts["lost"] += list(prepared.lines[:safe]) != list(session.lines()[:safe])
        prepared.release()
    except SessionError as error:
        print(f"{session.id}: {error}", file=sys.stderr)
        counts["unreadable"] += 1
    finally:
        await storage.close()


@contextlib.contextmanager
def full_disk(rng: random.Random) -> Iterator[None]:
    """While inside, the next write takes some of its bytes and then fails, as on a disk that fills up."""
    pwrite, room = os.pwrite, rng.randrange(0, 200)

    def limited(fd: int, data: bytes, offset: int) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = pwrite(fd, data[:room], offset)
        room -= taken
        return taken

    os.pwrite = limited  # type: ignore[assignment]
    try:
        yield
    finally:
        os.pwrite = pwrite


async def soak(turns: int, seed: int) -> int:
    rng = random.Random(seed)
    receipts: dict[str, list[str]] = {}
    kills = done = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        while done < turns:
            session_id = f"soak-{done // TURNS_PER_SESSION}"
            given = await one_life(home, session_id, done, rng.expovariate(1 / MEAN_LIFE))
            receipts.setdefault(session_id, []).extend(given)
            done += len(given)
            kills += 1
        unreadable, lost, events = await check(home, receipts)
    print(
        f"{done} turns in {len(receipts)} sessions, {kills} kills, {events} events: "
        f"{unreadable} unreadable logs, {lost} lost receipts"
    )
    return 1 if unreadable or lost else 0


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        home, session_id, first = sys.argv[2:]
        asyncio.run(work(Path(home), session_id, int(first)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # each fault is reported, as it should be; here they are counted
    return asyncio.run(soak(options.turns, options.seed)) | asyncio.run(faults(options.sessions, options.seed))


if __name__ == "__main__":
    sys.exit(main())
