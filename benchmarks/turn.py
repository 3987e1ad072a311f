"""Deltas per second of one long turn through the whole host, as a ratio to a loop that only encodes and writes JSON.

    python benchmarks/turn.py [--deltas 100000] [--rounds 3]

One process, one host with the demo model and real persistence in a temporary home; 0, 1, 3 and 10 subscribers that each
splice every event into a frame and drop it. Compare ratios of one run only: absolute figures drift with the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json as stdlib_json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from polyhost.interfaces import AGENTS, SESSION_DIRECTORY, SESSION_EVENT, SessionEvent, user_message
from polyhost.testing.host import running_host
from polyhost.wire import json

STALL_PROBE = 0.001


def baseline(deltas: int, folder: Path) -> float:
    """Seconds to encode the same events from dicts and write them."""
    started = time.perf_counter()
    with (folder / "baseline.jsonl").open("wb") as file:
        for seq in range(deltas):
            chunk = {"type": "text-delta", "index": 0, "text": f"{seq} "}
            event = {"type": "assistant/chunk", "seq": seq, "time": int(time.time() * 1000)}
            event["data"] = {"turn": 1, "step": 1, "chunk": chunk}
            file.write(json.dumps(event) + b"\n")
    return time.perf_counter() - started


async def turn(deltas: int, subscribers: int, home: Path) -> dict[str, float]:
    """One turn of ``count N``; seconds, longest loop stall in milliseconds, bytes kept per event beyond its text."""
    async with running_host(home) as host:
        for _ in range(subscribers):
            host.root.on(SESSION_EVENT, _Subscriber())
        directory = host.root.get(SESSION_DIRECTORY)
        agents = host.root.get(AGENTS)
        assert directory is not None
        assert agents is not None
        opened = await directory.open(cwd=str(home), model="demo/demo", mode="full")
        stalls: list[float] = []
        probe = asyncio.create_task(_probe(stalls))
        gc.collect()
        started = time.perf_counter()
        await agents.prompt(opened.agent, user_message(f"count {deltas}")).outcome()
        seconds = time.perf_counter() - started
        probe.cancel()
        lines = opened.agent.session.lines()
        texts = sum(len(f"{number} ") for number in range(1, deltas + 1))
        kept = sum(map(sys.getsizeof, lines))
        await opened.close()
        return {"seconds": seconds, "stall_ms": max(stalls) * 1000, "bytes_per_event": (kept - texts) / len(lines)}


class _Subscriber:
    """Splices each event into a frame, as a front end does."""

    def __init__(self) -> None:
        self.frame = b""

    def __call__(self, session: object, event: SessionEvent) -> None:
        self.frame = b'{"method":"session.event","params":{"event":' + event.line


async def _probe(stalls: list[float]) -> None:
    """How much later than asked the loop comes back."""
    while True:
        asked = time.perf_counter()
        await asyncio.sleep(STALL_PROBE)
        stalls.append(time.perf_counter() - asked - STALL_PROBE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deltas", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows: dict[int, list[dict[str, float]]] = {count: [] for count in (0, 1, 3, 10)}
    for _ in range(options.rounds):
        for count, results in rows.items():
            with tempfile.TemporaryDirectory() as folder:
                bare = baseline(options.deltas, Path(folder))
                result = asyncio.run(turn(options.deltas, count, Path(folder)))
                results.append({**result, "ratio": bare / result["seconds"]})
    table = {
        count: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for count, results in rows.items()
    }
    if options.json:
        print(stdlib_json.dumps(table))
        return
    print(f"{options.deltas} deltas, median of {options.rounds}")
    print(f"{'subscribers':>12} {'deltas/s':>10} {'ratio':>6} {'stall ms':>9} {'bytes/event':>12}")
    for count, row in table.items():
        speed = options.deltas / row["seconds"]
        print(f"{count:12} {speed:10.0f} {row['ratio']:6.2f} {row['stall_ms']:9.1f} {row['bytes_per_event']:12.0f}")


if __name__ == "__main__":
    main()
