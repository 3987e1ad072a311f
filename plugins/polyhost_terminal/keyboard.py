"""Lines from the terminal without a thread, so that a pending question can be withdrawn."""

from __future__ import annotations

import asyncio
import os
from collections import deque

_READ_SIZE = 64 * 1024
_MAX_LINE = 1024 * 1024


class Keyboard:
    """Reads lines of a terminal's file descriptor on the running loop; one reader at a time."""

    def __init__(self, fd: int = 0) -> None:
        self._fd = fd
        self._buffer = b""
        self._lines: deque[str] = deque()
        self._ended = False

    async def line(self) -> str | None:
        """The next line without its end; None at the end of input. Cancelling it loses no input."""
        loop = asyncio.get_running_loop()
        while not self._lines:
            if self._ended:
                return None
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._fd, _settle, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._fd)
            self._take(os.read(self._fd, _READ_SIZE))
        return self._lines.popleft()

    def discard(self) -> None:
        """Forget lines that were typed ahead, so that they cannot answer a question nobody had seen."""
        self._lines.clear()
        self._buffer = b""

    def _take(self, data: bytes) -> None:
        if not data:
            self._ended = True
            if self._buffer:
                self._lines.append(self._buffer.decode(errors="replace"))
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._buffer = self._buffer[-_MAX_LINE:]
        self._lines.extend(line.decode(errors="replace").rstrip("\r") for line in lines)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
