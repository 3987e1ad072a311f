"""A child's standard streams on the event loop: pipes for the caller, and collectors that drain by themselves.

The pipes are opened and attached before the child is started, so that starting it is one synchronous step. What a
collector keeps is in :mod:`polyhost.process.output`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import NamedTuple

from polyhost.process.output import CollectedOutput
from polyhost.process.spec import Collect, OutputMode, SpawnSpec
from polyhost.process.spills import SpillDirectory


class Collected(NamedTuple):
    """The collected outputs of a child; None where the stream is piped or inherited."""

    stdout: CollectedOutput | None
    stderr: CollectedOutput | None


class ChildEnds(NamedTuple):
    """What the child gets as its standard streams, in the terms of :class:`subprocess.Popen`."""

    stdin: int
    stdout: int | None
    stderr: int | None


class Stdio:
    """The host's ends of one child's streams.

    ``drained`` is done when every collected output has ended, ``closed`` when every pipe is closed. Both are futures
    that are never cancelled and never fail.
    """

    def __init__(self, spec: SpawnSpec, spills: SpillDirectory) -> None:
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self.collected = Collected(_collector(spec.stdout, spills), _collector(spec.stderr, spills))
        self._spec = spec
        self._loop = asyncio.get_running_loop()
        self.drained: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._child_fds: list[int] = []
        self._input: asyncio.StreamWriter | None = None  # the caller's, or that of batch input
        self._collectors: list[asyncio.ReadTransport] = []
        self._piped: list[asyncio.ReadTransport] = []
        self._attached: set[asyncio.BaseProtocol] = set()

    async def open(self) -> ChildEnds:
        """Open and attach all pipes. :meth:`started` or :meth:`abandon` must follow, also after a failure."""
        spec = self._spec
        stdin = subprocess.DEVNULL if spec.stdin == "ignore" else await self._open_input()
        stdout, self.stdout = await self._open_output(spec.stdout, self.collected.stdout)
        stderr, self.stderr = await self._open_output(spec.stderr, self.collected.stderr)
        if spec.stdin == "pipe":
            self.stdin = self._input
        return ChildEnds(stdin, stdout, stderr)

    def started(self) -> None:
        """The child runs and has its own copies: let go of its ends, and send the batch input if there is one."""
        self._close_child_ends()
        if isinstance(self._spec.stdin, bytes) and self._input is not None:
            self._input.write(self._spec.stdin)
            self._input.write_eof()
        self._note_end()

    def abandon(self) -> None:
        """No child was started: close everything."""
        self._close_child_ends()
        self.close()
        self._note_end()

    def close_stdin(self) -> None:
        """End of file for the child, after what is still buffered."""
        if self._input is not None:
            self._input.close()

    def finish(self) -> None:
        """Freeze the collected outputs; what still comes is drained and dropped."""
        for output in self.collected:
            if output is not None:
                output.finish()

    def close(self) -> None:
        """Close every pipe at once, dropping unsent input and unread output."""
        self.close_served()
        for transport in self._piped:
            transport.close()

    def close_served(self) -> None:
        """Close the input and the collectors; piped outputs stay, since their owner may not have read them yet."""
        if self._input is not None:
            pipe = self._input.transport
            if pipe.get_write_buffer_size() or not pipe.is_closing():  # asyncio closes twice if asked twice
                pipe.abort()
        for transport in self._collectors:
            transport.close()

    async def _open_input(self) -> int:
        read_fd, write_fd = os.pipe()
        self._child_fds.append(read_fd)
        # Nothing is read: this protocol also serves a writer's flow control and closing.
        protocol = _StreamProtocol(asyncio.StreamReader(loop=self._loop), self._loop, self._ended)
        with self._attaching(protocol, os.fdopen(write_fd, "wb", 0)) as pipe:
            transport, _ = await self._loop.connect_write_pipe(lambda: protocol, pipe)
        self._input = asyncio.StreamWriter(transport, protocol, None, self._loop)
        return read_fd

    async def _open_output(
        self, mode: OutputMode, output: CollectedOutput | None
    ) -> tuple[int | None, asyncio.StreamReader | None]:
        if mode == "inherit":
            return None, None
        read_fd, write_fd = os.pipe()
        self._child_fds.append(write_fd)
        reader: asyncio.StreamReader | None = None
        protocol: _StreamProtocol | _CollectProtocol
        if output is not None and isinstance(mode, Collect):
            protocol = _CollectProtocol(output, mode.on_data, self._loop, self._ended)
        else:
            reader = asyncio.StreamReader(self._spec.pipe_limit, self._loop)
            protocol = _StreamProtocol(reader, self._loop, self._ended)
        with self._attaching(protocol, os.fdopen(read_fd, "rb", 0)) as pipe:
            transport, _ = await self._loop.connect_read_pipe(lambda: protocol, pipe)
        (self._piped if output is None else self._collectors).append(transport)
        return write_fd, reader

    @contextmanager
    def _attaching(self, protocol: asyncio.BaseProtocol, pipe: FileIO) -> Iterator[FileIO]:
        """Account for a pipe until its protocol reports the end; after a cancellation asyncio closes it itself."""
        self._attached.add(protocol)
        try:
            yield pipe
        except Exception:
            self._attached.discard(protocol)
            pipe.close()
            raise

    def _ended(self, protocol: asyncio.BaseProtocol) -> None:
        self._attached.discard(protocol)
        self._note_end()

    def _note_end(self) -> None:
        if self._child_fds:  # still opening: more pipes may come
            return
        if not self.drained.done() and not any(isinstance(item, _CollectProtocol) for item in self._attached):
            self.drained.set_result(None)
        if not self.closed.done() and not self._attached:
            self.closed.set_result(None)

    def _close_child_ends(self) -> None:
        while self._child_fds:
            os.close(self._child_fds.pop())


def _collector(mode: OutputMode, spills: SpillDirectory) -> CollectedOutput | None:
    return CollectedOutput(mode, spills) if isinstance(mode, Collect) else None


class _StreamProtocol(asyncio.StreamReaderProtocol):
    """asyncio's own stream protocol that also says when its pipe is closed."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[asyncio.BaseProtocol], None],
    ) -> None:
        super().__init__(reader, loop=loop)
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._ended(self)


class _CollectProtocol(asyncio.Protocol):
    """Drains a pipe into a collected output, and passes the chunks on."""

    def __init__(
        self,
        output: CollectedOutput,
        on_data: Callable[[bytes], None] | None,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[asyncio.BaseProtocol], None],
    ) -> None:
        self._output = output
        self._on_data = on_data
        self._loop = loop
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        self._output.feed(data)
        if self._on_data is None:
            return
        try:
            self._on_data(data)
        except Exception as error:  # a broken listener must not stop the draining, or the child would block
            self._on_data = None
            self._loop.call_exception_handler({"message": "output listener failed and was removed", "exception": error})

    def connection_lost(self, exc: Exception | None) -> None:
        self._output.finish()
        self._ended(self)
