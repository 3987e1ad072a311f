"""A workbench: the shipped tools in a real kernel, with real pipeline, broker, processes, files and session logs."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polyhost.config.mask import Redactor
from polyhost.interfaces import (
    AGENT_DISPOSED,
    AGENTS,
    HOST,
    PROCESSES,
    REDACTOR,
    TOOLS,
    HostInfo,
    SessionHeader,
    ToolCall,
    ToolResult,
    text_of,
)
from polyhost.kernel.context import Kernel
from polyhost.kernel.fibers import FiberSpec, FiberState
from polyhost.kernel.signals import AbortController
from polyhost.process import ProcessSupervisor
from polyhost.runtime.interaction import plugin as interaction_plugin
from polyhost.runtime.interaction.config import InteractionConfig
from polyhost.runtime.sessions.log import LiveSession
from polyhost.runtime.tools import plugin as runtime_plugin
from polyhost.runtime.tools.config import ToolRuntimeConfig
from polyhost_tools import plugin as tools_plugin
from polyhost_tools.config import NAMES, ToolsConfig


class FakeAgent:
    """An agent over a real log, inside an open step."""

    def __init__(self, kernel: Kernel, name: str, cwd: Path) -> None:
        self.id = name
        self.scope = kernel.root.scope(self)
        self.context = self.scope.context
        self.session = LiveSession(SessionHeader(name, 0, str(cwd)))
        self.session.append("turn/start", {"turn": 1})
        self.session.append("step/start", {"turn": 1, "step": 1})


class Workbench:
    """Runs tools for sessions whose working directory is ``root``."""

    def __init__(self, root: Path, home: Path) -> None:
        self.root = root.resolve()
        self.home = home
        self.kernel = Kernel()
        self.caller = AbortController()
        self.agents: dict[str, Any] = {}

    async def start(self, config: ToolsConfig, mode: str, inline: int) -> None:
        self.processes = ProcessSupervisor()
        context = self.kernel.root
        context.provide(HOST, HostInfo("0", self.home, self.root, None, mode))
        context.provide(PROCESSES, self.processes)
        context.provide(REDACTOR, Redactor())
        context.provide(AGENTS, SimpleNamespace(get=self.agents.get))  # type: ignore[arg-type]
        for plugin, settings in (
            (runtime_plugin, ToolRuntimeConfig(max_inline_bytes=inline, repeat_reminder=[])),
            (interaction_plugin, InteractionConfig()),
            (tools_plugin, config),
        ):
            await self.install(plugin, settings)
        self.tools = context.get(TOOLS)

    async def install(self, plugin: Any, settings: Any, name: str | None = None) -> None:
        info = plugin.polyhost_plugin()
        spec = FiberSpec(name or info.name, plugin.polyhost_start, info.requires, lambda: settings)
        fiber = self.kernel.root.install(spec)
        await fiber.settled()
        assert not fiber.missing
        assert fiber.state is FiberState.ACTIVE

    async def aclose(self) -> None:
        await self.kernel.aclose()
        await self.processes.aclose()

    def agent(self, name: str = "s1", cwd: Path | None = None) -> Any:
        if name not in self.agents:
            self.agents[name] = FakeAgent(self.kernel, name, cwd or self.root)
        return self.agents[name]

    def dispose(self, name: str = "s1") -> None:
        self.kernel.events.emit(AGENT_DISPOSED, self.agents.pop(name))

    async def run(self, name: str, session: str | None = "s1", **arguments: Any) -> ToolResult:
        agent = self.agent(session) if session is not None else None
        call = ToolCall(
            call_id="call_1",
            name=name,
            arguments=arguments,
            signal=self.caller.signal,
            agent=agent,
            cwd=agent.session.header.cwd if agent is not None else str(self.root),
        )
        assert self.tools is not None
        return await self.tools.execute(call)

    async def text(self, name: str, session: str | None = "s1", **arguments: Any) -> str:
        """The text of a call that must succeed."""
        result = await self.run(name, session, **arguments)
        assert not result.is_error, text_of(result.content)
        return text_of(result.content)

    async def failure(self, name: str, session: str | None = "s1", **arguments: Any) -> tuple[str, str]:
        """Code and message of a call that must fail."""
        result = await self.run(name, session, **arguments)
        assert result.is_error, text_of(result.content)
        assert result.error_info is not None
        return result.error_info["code"], text_of(result.content)

    def put(self, name: str, content: str | bytes) -> Path:
        """A file below the working directory."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def get(self, name: str) -> bytes:
        return (self.root / name).read_bytes()


async def _started(tmp_path: Path, config: ToolsConfig, mode: str = "full", inline: int = 50_000) -> Workbench:
    root, home = tmp_path / "work", tmp_path / "home"
    root.mkdir()
    home.mkdir()
    made = Workbench(root, home)
    await made.start(config, mode, inline)
    return made


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    made = await _started(tmp_path, ToolsConfig())
    yield made
    await made.aclose()


@pytest.fixture
async def unguarded(tmp_path: Path) -> AsyncIterator[Workbench]:
    """Without the rule that files are read before they are changed."""
    made = await _started(tmp_path, ToolsConfig(require_read=False))
    yield made
    await made.aclose()


@pytest.fixture
async def asking(tmp_path: Path) -> AsyncIterator[Workbench]:
    """In ``workspace`` mode, with nobody to ask."""
    made = await _started(tmp_path, ToolsConfig(), "workspace")
    yield made
    await made.aclose()


@pytest.fixture
async def supervised(tmp_path: Path) -> AsyncIterator[Workbench]:
    """In ``ask`` mode: every change and every command asks."""
    made = await _started(tmp_path, ToolsConfig(), "ask")
    yield made
    await made.aclose()


@pytest.fixture
async def trusting(tmp_path: Path) -> AsyncIterator[Workbench]:
    """In ``ask`` mode, without the rule that files are read before they are changed."""
    made = await _started(tmp_path, ToolsConfig(require_read=False), "ask")
    yield made
    await made.aclose()


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Workbench]:
    """With bash only."""
    made = await _started(tmp_path, ToolsConfig(disabled=[name for name in NAMES if name != "bash"]))
    yield made
    await made.aclose()


@pytest.fixture
async def unspilled(tmp_path: Path) -> AsyncIterator[Workbench]:
    """With results of any size in the conversation."""
    made = await _started(tmp_path, ToolsConfig(), inline=0)
    yield made
    await made.aclose()


class Reader:
    """Looks at the disk on behalf of asynchronous tests, which may not do it themselves."""

    @staticmethod
    def text(path: str | Path) -> str:
        return Path(path).read_text()

    @staticmethod
    def mode(path: str | Path) -> int:
        return stat.S_IMODE(os.stat(path).st_mode)

    @staticmethod
    def alive(pid: int | str) -> bool:
        return Path(f"/proc/{int(pid)}").exists()

    @staticmethod
    def fifo(path: Path) -> Path:
        os.mkfifo(path)
        return path

    @staticmethod
    def socket(path: Path) -> Path:
        with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # whose whole path may be too long
            made.bind(path.name)
        return path


@pytest.fixture
def disk() -> Reader:
    return Reader()
