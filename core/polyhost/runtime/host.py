"""One running host: the kernel, what the process brings along, and the plugins, started and stopped in order.

What each part does is in its own package; this is only the composition root. Configuration is read by the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from polyhost.config.credentials import CredentialStore
from polyhost.config.mask import Redactor
from polyhost.config.paths import HomePaths
from polyhost.interfaces import CREDENTIALS, HOST, PROCESSES, REDACTOR, HostInfo
from polyhost.kernel.catalog import PluginCatalog
from polyhost.kernel.context import Context, Kernel
from polyhost.kernel.drain import Limits
from polyhost.kernel.inventory import Resolve
from polyhost.kernel.plugin_host import PluginHost
from polyhost.kernel.plugins import PluginRow
from polyhost.process import ProcessSupervisor
from polyhost.runtime.agents.prompt import prepare_prompt_kinds
from polyhost.runtime.models.routes import prepare_model_kinds
from polyhost.runtime.narration import narrate, warn_of_failures
from polyhost.runtime.tools.registry import prepare_tool_kinds
from polyhost.runtime.upkeep.kinds import prepare_upkeep_kinds

START_TIMEOUT = 20.0
"""Seconds that a start waits for all plugins; those that are still loading then come up when they do."""

SHUTDOWN_TIMEOUT = 15.0
"""Seconds that an orderly shutdown may take before the host gives up on what is left, by name."""

SHUTDOWN_NOTICE = 2.0
"""Seconds after which a shutdown says what it is waiting for."""

CLEANUP_GRACE = 5.0
"""Seconds that one cleanup of a plugin may take."""

logger = logging.getLogger("polyhost.host")


class Host:
    """The host of one process.

    :param rows: what to run, the built-in plugins included.
    :param resolve: validates a row when it starts.
    :param strict: a plugin that fails to start fails the host.
    """

    def __init__(
        self,
        *,
        home: HomePaths,
        cwd: Path,
        version: str,
        model: str | None,
        catalog: PluginCatalog,
        rows: Sequence[PluginRow],
        resolve: Resolve,
        redactor: Redactor,
        strict: bool = False,
    ) -> None:
        self._home = home
        self._info = HostInfo(version, home.root, cwd, model)
        self._rows = rows
        self._redactor = redactor
        self.kernel = Kernel(limits=Limits(cleanup_grace=CLEANUP_GRACE))
        self.plugins = PluginHost(self.kernel.root, catalog, resolve, strict=strict)
        self._processes: ProcessSupervisor | None = None

    @property
    def root(self) -> Context:
        """The context at the top; what is mounted here lives as long as the host."""
        return self.kernel.root

    async def start(self) -> None:
        """Start everything. A failing plugin is recorded and left out; an essential one, or any when strict, raises.

        One whose start hangs is waited for up to ``START_TIMEOUT`` seconds and then left behind, loading.
        """
        self._processes = ProcessSupervisor()
        for prepare in (prepare_model_kinds, prepare_prompt_kinds, prepare_tool_kinds, prepare_upkeep_kinds):
            prepare(self.kernel)
        self.root.provide(HOST, self._info)
        self.root.provide(REDACTOR, self._redactor)
        self.root.provide(CREDENTIALS, CredentialStore(self._home, redactor=self._redactor))
        self.root.provide(PROCESSES, self._processes)
        narrate(self.root)
        self.plugins.boot(self._rows)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self.plugins.settled()
        except TimeoutError:
            loading = [record.id for record in self.plugins.records() if record.state == "loading"]
            logger.warning("still loading after %g s: %s", START_TIMEOUT, ", ".join(loading))
        warn_of_failures(self.root)

    async def aclose(self) -> None:
        """Stop in order: front ends, agents (cause ``disposed``), sessions with their last bytes, child processes."""
        self.kernel.limits = self.kernel.limits._replace(start_grace=0)
        notice = asyncio.get_running_loop().call_later(SHUTDOWN_NOTICE, self._say_what_is_waited_for)
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT):
                await self.plugins.aclose()
                await self.kernel.aclose()
        except TimeoutError:
            logger.error("shutdown took more than %g s; given up on: %s", SHUTDOWN_TIMEOUT, self._unfinished())
        finally:
            notice.cancel()
            if self._processes is not None:
                await self._processes.aclose()

    def _say_what_is_waited_for(self) -> None:
        logger.warning("shutting down; waiting for: %s", self._unfinished())

    def _unfinished(self) -> str:
        current = asyncio.current_task()
        return ", ".join(sorted(task.get_name() for task in asyncio.all_tasks() if task is not current)) or "nothing"
