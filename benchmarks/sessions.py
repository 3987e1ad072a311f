"""What it costs to list and to resume stored sessions, with few and with many of them, as ratios of one run.

    python benchmarks/sessions.py [--few 10] [--many 10000] [--per-project 20] [--rounds 20]

Writes both stores into temporary homes, builds their indexes once, and then measures by turns: the first page in a
process of its own (``hostctl sessions list``), the first page in a host that has just started and in one that runs, and
locking, reading and checking one session by its id. Medians; compare ratios of one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from polyhost.interfaces import SessionHeader, assistant_message, text_block, user_message
from polyhost.runtime.sessions import JsonlStorage
from polyhost.runtime.sessions.codec import Encoder
from polyhost.runtime.sessions.header import encode
from polyhost.runtime.sessions.layout import directory
from polyhost.wire import json

PAGE = 10
COMMAND = [sys.executable, "-c", "from polyhost.cli import main; raise SystemExit(main())"]
SETTLING = 2.1  # seconds until a new directory counts as one that will not change unnoticed


def log(encoder: Encoder, header: SessionHeader, number: int) -> bytes:
    """A stored session with one turn."""
    place = {"turn": 1, "step": 1}
    answer = assistant_message([text_block(f"answer {number} " * 40)], provider="demo", model="demo")
    events = [
        {"type": "turn/start", "data": {"turn": 1}},
        {"type": "step/start", "data": place},
        {"type": "user/message", "data": user_message(f"prompt number {number}"), "surfaceOp": "append"},
        {"type": "assistant/message", "data": {**place, "message": answer}, "surfaceOp": "append"},
        {"type": "step/end", "data": place},
        {"type": "turn/end", "data": {"turn": 1, "reason": {"kind": "completed"}}},
    ]
    lines = [json.dumps({"seq": seq, "time": 1000 + number, **event}) + b"\n" for seq, event in enumerate(events)]
    return encoder.encode(encode(header), "zstd") + encoder.encode(b"".join(lines), "zstd")


def fill(home: Path, sessions: int, per_project: int) -> Path:
    """Write that many sessions under a home; returns their root."""
    root = home / "sessions"
    encoder = Encoder()
    for number in range(sessions):
        header = SessionHeader(f"session-{number:06}", 1000 + number, f"/project/{number // per_project}")
        path = directory(root, header) / "session.jsonl.zstd"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(log(encoder, header, number))
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    return root


async def seconds(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


class Store:
    """One home and the measurements in it."""

    def __init__(self, home: Path, sessions: int, per_project: int) -> None:
        self.home = home
        self.root = fill(home, sessions, per_project)
        self.middle = f"session-{sessions // 2:06}"
        self.results: dict[str, list[float]] = {}

    async def open(self) -> None:
        self.running = JsonlStorage(self.root)
        self.building = await seconds(lambda: self.running.index.page(limit=PAGE))

    async def measure(self) -> None:
        await self._take("hostctl sessions list", self._command)
        fresh = JsonlStorage(self.root)
        await self._take("first page, host just started", lambda: fresh.index.page(limit=PAGE))
        await fresh.close()
        await self._take("first page, running host", lambda: self.running.index.page(limit=PAGE))
        await self._take("resume by id", self._resume)

    async def _take(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        self.results.setdefault(name, []).append(await seconds(work))

    async def _resume(self) -> None:
        (await self.running.prepare(self.middle)).release()

    async def _command(self) -> None:
        environment = {**os.environ, "POLYHOST_HOME": str(self.home)}
        command = [*COMMAND, "sessions", "list", "--all-workspaces", "--limit", str(PAGE)]
        await asyncio.to_thread(
            subprocess.run, command, env=environment, check=True, capture_output=True, cwd=self.home
        )


async def compare(folder: Path, options: argparse.Namespace) -> None:
    stores = [Store(folder / str(count), count, options.per_project) for count in (options.few, options.many)]
    for store in stores:
        await store.open()
    await asyncio.sleep(SETTLING)
    for _ in range(options.rounds):
        for store in stores:
            await store.measure()
    few, many = stores
    print(f"{options.few} and {options.many} sessions, {options.per_project} to a project, median of {options.rounds}")
    print(f"{'':32} {'few, ms':>9} {'many, ms':>9} {'ratio':>6}")
    for name in few.results:
        one, other = (statistics.median(store.results[name]) * 1000 for store in stores)
        print(f"{name:32} {one:9.2f} {other:9.2f} {other / one:6.2f}")
    size = (many.root / "index.sqlite").stat().st_size / 1e6
    print(f"building the index of {options.many} logs: {many.building:.1f} s once; {size:.1f} MB")
    for store in stores:
        await store.running.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--per-project", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder), options))


if __name__ == "__main__":
    main()
