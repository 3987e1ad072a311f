"""The plugin as the host runs it: what it mounts, what it imports, what it closes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import CREDENTIALS, HOST, MODEL_ADAPTER, MODELS, Finish, HostInfo, ModelRequest, user_message
from polyhost.kernel.context import Kernel
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.fibers import FiberSpec, FiberState
from polyhost.kernel.plugins import PluginInfo, PluginRow, PluginsFailedError
from polyhost.testing.mock_model import MockModelServer
from polyhost_models import plugin
from polyhost_models.config import ModelsConfig

START_WITHOUT_HEAVY_IMPORTS = """
import asyncio, sys
import polyhost_models.plugin
from polyhost_models.adapter import OpenAIAdapter
from polyhost_models.demo import DemoAdapter
from polyhost_models.providers import configured_providers

async def main():
    (provider,) = configured_providers(None)
    adapter = OpenAIAdapter(provider, None, version="1")
    await adapter.list_models(provider.id)
    await adapter.resolve_model(provider.id, "m", None)
    await adapter.aclose()
    await DemoAdapter().list_models("demo")

asyncio.run(main())
heavy = {"aiohttp", "pydantic.main", "click", "rich", "tomlkit", "hypothesis", "pytest"}
print(sorted(heavy & set(sys.modules)))
"""


async def start(kernel: Kernel, config: Any, credentials: Any) -> Any:
    kernel.root.provide(HOST, HostInfo("1.2", Path("home"), Path("cwd"), None))
    kernel.root.provide(CREDENTIALS, credentials)

    async def body(ctx: Any, _: Any) -> AsyncIterator[None]:
        async for _ in plugin.polyhost_start(ctx, config):
            yield

    fiber = kernel.root.install(FiberSpec("models", body, requires=(CREDENTIALS, HOST)))
    await fiber.settled()
    return fiber


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel()
    yield kernel
    await kernel.aclose()


@pytest.mark.contract("DS-07")
async def test_it_starts_without_configuration_or_key(kernel: Kernel, credentials: Any) -> None:
    fiber = await start(kernel, None, credentials)
    assert fiber.state is FiberState.ACTIVE
    assert sorted(key for key, _ in kernel.mounts.items(MODEL_ADAPTER)) == ["deepseek-official", "demo"]
    assert credentials.asked == 0


async def test_configured_providers_are_mounted_and_withdrawn(kernel: Kernel, credentials: Any) -> None:
    config = ModelsConfig.model_validate({"providers": {"local": {"base_url": "http://127.0.0.1:1"}}})
    fiber = await start(kernel, config, credentials)
    assert sorted(key for key, _ in kernel.mounts.items(MODEL_ADAPTER)) == ["deepseek-official", "demo", "local"]
    await fiber.dispose()
    assert list(kernel.mounts.items(MODEL_ADAPTER)) == []


async def test_a_configuration_that_cannot_be_used_fails_the_start(kernel: Kernel, credentials: Any) -> None:
    with pytest.raises(PolyhostError, match="base_url is missing"):
        await start(kernel, ModelsConfig.model_validate({"providers": {"local": {}}}), credentials)
    assert list(kernel.mounts.items(MODEL_ADAPTER)) == []


def test_nothing_heavy_is_imported_before_the_first_request() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", START_WITHOUT_HEAVY_IMPORTS], capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.stderr) == ("[]\n", "")


@pytest.mark.contract("DS-08")
async def test_a_change_that_cannot_be_used_keeps_the_old_providers_whole(
    polyhost_host: Any, mock_model: MockModelServer
) -> None:
    def resolve(info: PluginInfo, row: PluginRow) -> object:
        return ModelsConfig.model_validate(row.config) if row.use == "models" else row.config

    def with_providers(**providers: Any) -> list[PluginRow]:
        config = {"providers": providers}
        return [row._replace(config=config) if row.id == "models" else row for row in host.plugins.rows]

    def routes() -> list[str]:
        return sorted(key for key, _ in host.kernel.mounts.items(MODEL_ADAPTER))

    async with polyhost_host(mock_model.provider()) as host:
        for broken in ({"idle_timeout": -1, "base_url": "http://h"}, {"name": "no url"}):
            with pytest.raises(PluginsFailedError):
                await host.plugins.apply(with_providers(other={"base_url": "http://h"}, broken=broken), resolve)
            assert routes() == ["deepseek-official", "demo", "mock"]
            request = ModelRequest(provider="mock", model="m", messages=[user_message("hi")])
            chunks = [chunk async for chunk in host.root.get(MODELS).stream(request)]
            assert chunks[-1] == Finish({"kind": "stop"})
        await host.plugins.apply(with_providers(other={"base_url": "http://h"}), resolve)
        assert routes() == ["deepseek-official", "demo", "other"]
