"""The fixtures for plugin authors, used as they would be used elsewhere."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from polyhost import Context, PluginInfo, hookimpl
from polyhost.interfaces import HOST, MODEL_ADAPTER, MODELS, Finish, ModelRequest, user_message
from polyhost.kernel.plugins import PluginsFailedError
from polyhost.testing.host import assert_clean
from polyhost.testing.mock_model import MockModelServer

TOP_LEVEL_IMPORTS = """
import sys, pytest
before = set(sys.modules)
import polyhost.testing.pytest_plugin
print(sorted(name for name in set(sys.modules) - before if name.split(".")[0] != "polyhost"))
print(sorted(name for name in sys.modules if name.startswith("polyhost.")))
"""


class Plugin:
    """A plugin without configuration model."""

    def __init__(self, start: Any) -> None:
        self.polyhost_start = hookimpl(start)

    @hookimpl
    def polyhost_plugin(self) -> PluginInfo:
        return PluginInfo(name="probe", api_version=1)


def test_loading_the_plugin_imports_next_to_nothing() -> None:
    run = subprocess.run([sys.executable, "-c", TOP_LEVEL_IMPORTS], capture_output=True, text=True, check=True)
    foreign, own = run.stdout.splitlines()
    assert foreign == "[]"
    assert own == "['polyhost.testing', 'polyhost.testing.pytest_plugin']"


def test_the_environment_of_a_home_is_clean(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name in ("POLYHOST_HOME", "POLYHOST__HOST__MODEL", "DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL"):
        monkeypatch.setenv(name, "theirs")
    home = request.getfixturevalue("polyhost_home")
    assert home.is_relative_to(tmp_path)
    ours = {name: value for name, value in os.environ.items() if name.startswith(("POLYHOST", "DEEPSEEK"))}
    assert ours == {"POLYHOST_HOME": str(home)}
    assert list(Path.cwd().iterdir()) == []


async def test_a_host_runs_the_installed_plugins(polyhost_host: Any, polyhost_home: Path) -> None:
    async with polyhost_host() as host:
        assert host.root.require(HOST).home == polyhost_home
        active = {record.plugin for record in host.plugins.records() if record.state == "active"}
        assert {"models", "runtime-models"} <= active


async def test_a_host_talks_to_the_mock_model(polyhost_host: Any, mock_model: MockModelServer) -> None:
    mock_model.script("reasoning_success")
    async with polyhost_host(mock_model.provider(idle_timeout=5)) as host:
        provider, _, model = host.root.require(HOST).default_model.partition("/")
        request = ModelRequest(provider=provider, model=model, messages=[user_message("2 + 2?")])
        chunks = [chunk async for chunk in host.root.get(MODELS).stream(request)]
    assert chunks[-1] == Finish({"kind": "stop"})
    assert mock_model.requests[0]["messages"] == [{"role": "user", "content": "2 + 2?"}]


async def test_a_plugin_under_test_is_started_and_stopped(polyhost_host: Any) -> None:
    steps = []

    async def polyhost_start(ctx: Context, config: Any) -> AsyncIterator[None]:
        steps.append("started")
        yield
        steps.append("stopped")

    async with polyhost_host(plugins={"probe": Plugin(polyhost_start)}) as host:
        assert "probe" in [record.id for record in host.plugins.records() if record.state == "active"]
        assert steps == ["started"]
    assert steps == ["started", "stopped"]


async def test_a_plugin_that_fails_to_start_fails_the_test(polyhost_host: Any) -> None:
    async def polyhost_start(ctx: Context, config: Any) -> None:
        raise ValueError("no such zone")

    with pytest.raises(PluginsFailedError, match="no such zone"):
        async with polyhost_host(plugins={"probe": Plugin(polyhost_start)}):
            pass


async def test_what_a_plugin_leaves_behind_fails_the_test(polyhost_host: Any) -> None:
    async def polyhost_start(ctx: Context, config: Any) -> None:
        loop = asyncio.get_running_loop()
        left.append(loop.create_task(asyncio.Event().wait(), name="forgotten"))

    left: list[asyncio.Task[Any]] = []
    with pytest.raises(AssertionError, match="it left: task forgotten"):
        async with polyhost_host(plugins={"probe": Plugin(polyhost_start)}):
            pass
    left[0].cancel()


async def test_assert_clean_names_mounts(polyhost_host: Any) -> None:
    async with polyhost_host() as host:
        with pytest.raises(AssertionError, match=rf"{MODEL_ADAPTER.name} 'demo' of models"):
            assert_clean(host, asyncio.all_tasks())
