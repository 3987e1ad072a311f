"""Real children for the tests of :mod:`polyhost.process`: short to start, and never left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from polyhost.process import ProcessHandle, ProcessSupervisor, SpawnSpec, table

Spawn = Callable[..., Awaitable[ProcessHandle]]


@pytest.fixture
async def supervisor() -> AsyncIterator[ProcessSupervisor]:
    async with ProcessSupervisor() as live:
        yield live


@pytest.fixture
def make_spec() -> Callable[..., SpawnSpec]:
    """A specification from a program's arguments, with harmless values for what a test does not care about."""

    def make(*argv: str, **fields: Any) -> SpawnSpec:
        defaults: dict[str, Any] = {
            "argv": argv,
            "cwd": "/",
            "stdin": "ignore",
            "stdout": "pipe",
            "stderr": "inherit",
            "grace": 10.0,
        }
        return SpawnSpec(**{**defaults, **fields})

    return make


@pytest.fixture
def spawn(supervisor: ProcessSupervisor, make_spec: Callable[..., SpawnSpec]) -> Spawn:
    async def start(*argv: str, **fields: Any) -> ProcessHandle:
        return await supervisor.spawn(make_spec(*argv, **fields))

    return start


@pytest.fixture
def python(spawn: Spawn) -> Spawn:
    """Start a Python program given as source text."""

    async def start(source: str, **fields: Any) -> ProcessHandle:
        return await spawn(sys.executable, "-c", source, **fields)

    return start


@pytest.fixture
def stranger() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a child of this process that no supervisor knows."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **options: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(argv, **options))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def running() -> Callable[[int], bool]:
    """Whether a process exists and is no zombie."""

    def check(pid: int) -> bool:
        row = table.read_row(pid)
        return row is not None and row.alive

    return check


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until something outside this process has happened; fails after ten seconds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - other processes set no event for us
                await asyncio.sleep(0.005)

    return wait
