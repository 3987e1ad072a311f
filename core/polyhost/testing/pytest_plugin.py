"""Pytest fixtures for plugin authors, loaded through the ``pytest11`` entry point of the package.

Every test session of every project that has polyhost installed imports this module, so nothing but pytest is
imported at its top; what a fixture needs, it imports when it is asked for. No fixture is asynchronous, so they work
with any plugin that runs coroutine tests on asyncio.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from polyhost.runtime.host import Host
    from polyhost.testing.mock_model import MockModelServer

_FOREIGN = ("DEEPSEEK_API_KEY", "DEEPSEEK_BASE_URL")


@pytest.fixture
def polyhost_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary home that hosts of this test use, also those in child processes.

    The environment has no other variable that a host obeys, and the working directory is an empty folder, so that no
    project file is found.
    """
    for name in list(os.environ):
        if name.startswith("POLYHOST_") or name in _FOREIGN:
            monkeypatch.delenv(name)
    home = tmp_path / "polyhost-home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("POLYHOST_HOME", str(home))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    monkeypatch.chdir(workspace)
    return home


@pytest.fixture
def polyhost_host(polyhost_home: Path) -> Callable[..., AbstractAsyncContextManager[Host]]:
    """Start a host in the temporary home; see :func:`polyhost.testing.host.running_host`::

        async def test_clock(polyhost_host):
            async with polyhost_host('[plugins.clock]\\nzone = "UTC"', plugins={"clock": my_clock}) as host:
                assert host.root.get(TOOLS).get("clock")

    Leaving the block closes the host and fails the test when anything is left: a mount, a listener, a task.
    """
    from polyhost.testing.host import running_host

    return partial(running_host, polyhost_home)


@pytest.fixture
def mock_model() -> Iterator[MockModelServer]:
    """A running mock model server, in a thread of its own, so that tests and child processes alike can talk to it.

    Add behaviours with ``mock_model.script(...)`` and configure ``mock_model.provider()``.
    """
    from polyhost.testing.mock_model import MockModelServer, in_thread

    with in_thread(MockModelServer()) as server:
        yield server
