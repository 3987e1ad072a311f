"""Collected output: the newest bytes of a stream in memory and, if wanted, the whole of it in a private file.

No pipe and no event loop here: bytes are fed in, and can be read back at any time. :mod:`polyhost.process.stdio`
connects it to a child.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from polyhost.process.spec import Collect
from polyhost.process.spills import SpillDirectory


class OutputRead(NamedTuple):
    """What :meth:`CollectedOutput.read_from` found."""

    data: bytes
    """Byte-exact, from the asked offset or from the oldest byte still kept."""
    next_offset: int
    """Offset of the first byte not in ``data``: where the next read goes on."""
    lossy: bool
    """Whether bytes at and after the asked offset had already been dropped."""
    spill_path: str | None
    """A file with the whole stream; only when the stream is complete, outgrew memory and fitted the spill limit."""

    @property
    def text(self) -> str:
        """``data`` as UTF-8; a character cut in two at either end shows as U+FFFD."""
        return self.data.decode("utf-8", "replace")


class _Spill:
    """One spill file: the whole stream, or nothing at all once it grew too large or could not be written."""

    def __init__(self, directory: SpillDirectory, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        self._size = 0
        self._fd: int | None = None
        self._path: str | None = None
        self._dropped = False

    def write(self, data: bytes | bytearray) -> None:
        if self._dropped:
            return
        self._size += len(data)
        if self._size > self._limit:
            self._drop()
            return
        try:
            if self._fd is None:
                self._fd, self._path = self._directory.create()
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._drop()

    def close(self) -> str | None:
        """Close the file and return its path, or None when there is no complete file."""
        fd, self._fd = self._fd, None
        if fd is None:
            return None
        try:
            os.close(fd)
        except OSError:  # the last bytes may not have reached the disk: a path would promise too much
            self._drop()
        return self._path

    def _drop(self) -> None:
        self._dropped = True
        fd, self._fd = self._fd, None
        path, self._path = self._path, None
        try:
            if fd is not None:
                os.close(fd)
        except OSError:
            pass
        try:
            if path is not None:
                os.unlink(path)
        except OSError:
            pass


class CollectedOutput:
    """The bounded tail of one output stream. Reading consumes nothing and works during the run and after it."""

    def __init__(self, mode: Collect, spills: SpillDirectory) -> None:
        self._max_bytes = mode.max_bytes
        self._tail = bytearray()
        self._start = 0
        self._spill = _Spill(spills, mode.spill_bytes) if mode.spill_bytes is not None else None
        self._spilling = False
        self._spill_path: str | None = None
        self._finished = False

    @property
    def total_bytes(self) -> int:
        """How many bytes the stream has had so far."""
        return self._start + len(self._tail)

    def feed(self, data: bytes) -> None:
        """Take in the next bytes; ignored once finished."""
        if self._finished:
            return
        if self._spill is not None and len(self._tail) + len(data) > self._max_bytes:
            if not self._spilling:  # until now the tail was the whole stream
                self._spilling = True
                self._spill.write(self._tail)
            self._spill.write(data)
        self._tail += data
        if (excess := len(self._tail) - self._max_bytes) > 0:
            del self._tail[:excess]
            self._start += excess

    def finish(self) -> None:
        """The stream is complete: close the spill file, and let nothing change any more."""
        if self._finished:
            return
        self._finished = True
        if self._spill is not None:
            self._spill_path = self._spill.close()

    def read_from(self, offset: int = 0) -> OutputRead:
        """What is kept from ``offset`` (counted in bytes from the start of the stream) on.

        :raises ValueError: when ``offset`` is negative.
        """
        if offset < 0:
            raise ValueError(f"offset must not be negative: {offset}")
        data = bytes(self._tail[max(0, offset - self._start) :])
        return OutputRead(data, self.total_bytes, offset < self._start, self._spill_path)

    def lines(self, limit: int) -> list[str]:
        """The newest ``limit`` non-empty lines that are kept, the last one also when it is not yet terminated."""
        lines = [line for line in self.read_from().text.split("\n") if line.strip()]
        return [line.removesuffix("\r") for line in lines[-limit:]] if limit > 0 else []
