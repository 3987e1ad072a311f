"""``--json``: a header line, the session's event lines as they are logged, and a result line per prompt.

What is printed has been written to the log before, so a consumer never knows more than the log does. Lines leave in
batches, at most :data:`PAUSE` seconds after they were logged. Anything else that prints to stdout lands on stderr.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from polyhost.interfaces import Session, SessionError, SessionEvent, TurnOutcome
from polyhost.wire import json

SCHEMA_VERSION = 1
"""Version of the lines, see the user guide: it grows when a consumer would have to change."""

PAUSE = 0.02


class JsonRenderer:
    """Buffers lines and prints them once they are safe.

    :param out: file descriptor from :func:`claim_stdout`.
    :param written: waits until everything logged so far has reached the operating system.
    :param gone: called once when nobody reads stdout any more.
    """

    def __init__(self, out: int, written: Callable[[], Awaitable[None]], gone: Callable[[], object]) -> None:
        self._written = written
        self._gone = gone
        self._is_gone = False
        self._lines: list[bytes] = []
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._out = out

    def begin(self, session: Session, *, resumed: bool, mode: str) -> None:
        facts = {"type": "run/start", "schema": SCHEMA_VERSION, "sessionId": session.id}
        self._add(json.dumps({**facts, "cwd": session.header.cwd, "mode": mode, "resumed": resumed}) + b"\n")
        if not resumed:
            for line in session.lines():
                self._add(line)

    def event(self, event: SessionEvent) -> None:
        self._add(event.line)

    def finish(self, session: Session, outcome: TurnOutcome) -> None:
        result = {"type": "run/result", "turn": outcome.turn, "reason": outcome.reason, "text": outcome.text}
        self._add(json.dumps({**result, "usage": outcome.usage}) + b"\n")

    async def run(self) -> None:
        """Print batches until cancelled. A log that cannot be written holds its lines back until it can."""
        while not self._is_gone:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.flush()
            except SessionError:
                self._wake.set()
            await asyncio.sleep(PAUSE)

    async def flush(self) -> None:
        """Print what there is. Raises :class:`SessionError` when the log cannot be written."""
        async with self._writing:
            await self._written()
            lines, self._lines = self._lines, []
            if not lines or self._is_gone:
                return
            try:
                # In a thread: a reader that does not read must not keep a signal from being heard.
                await asyncio.to_thread(_write_all, self._out, b"".join(lines))
            except BrokenPipeError:
                self._is_gone = True
                self._gone()

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._wake.set()


def claim_stdout() -> int:
    """Keep stdout for the lines: returns a descriptor of it, and lets everybody else's stdout be stderr."""
    sys.stdout.flush()
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
