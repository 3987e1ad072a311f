"""A whole host inside a test: real discovery, real configuration, real composition, and a check of what is left.

The fixtures on top of this are in ``pytest_plugin``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from polyhost.cli.state import HostState
from polyhost.runtime.host import Host

_NOTHING: Mapping[str, object] = MappingProxyType({})


@asynccontextmanager
async def running_host(
    home: Path, config: str = "", *, plugins: Mapping[str, object] = _NOTHING, strict: bool = True
) -> AsyncIterator[Host]:
    """Start a host as ``hostctl`` would, and afterwards close it and :func:`assert_clean`.

    :param home: the home directory; created if need be.
    :param config: TOML, written to ``config.toml`` of the home.
    :param plugins: plugins that no installed distribution announces, by name: a module, an object with the hooks, or
        the name of a module.
    :param strict: a plugin that fails to start fails the test, with ``PluginsFailedError``.
    """
    state = HostState(home=str(home), strict_plugins=strict)
    state.home.create()
    state.home.config_file.write_text(config, encoding="utf-8")
    for name, plugin in plugins.items():
        state.catalog.add(name, plugin)
    host = Host(
        home=state.home,
        cwd=state.cwd,
        version=version("polyhost"),
        model=state.configuration.host.model,
        catalog=state.catalog,
        rows=state.rows(),
        resolve=state.resolve,
        redactor=state.redactor,
        strict=state.strict_plugins,
    )
    before = asyncio.all_tasks()
    try:
        await host.start()
        yield host
    finally:
        await host.aclose()
    assert_clean(host, before)


def assert_clean(host: Host, tasks_before: Collection[asyncio.Task[Any]] = ()) -> None:
    """Raise AssertionError naming what a closed host left behind: mounts (listeners and services are mounts) or tasks.

    :param tasks_before: tasks that were there before the host and are not its own.
    """
    mounts = [f"{info.kind} {info.key!r} of {info.owner}" for info in host.kernel.mounts.snapshot()]
    own = asyncio.all_tasks() - set(tasks_before) - {asyncio.current_task()}
    left = mounts + [f"task {task.get_name()}" for task in own]
    if left:
        raise AssertionError(f"the host is not clean, it left: {'; '.join(sorted(left))}")
