"""Running one command inside a host: start it, give the command a context, and shut down in order, whatever happens.

Not here: the event loop, and how signals end it (``running``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from importlib.metadata import version
from typing import Any

import click

from polyhost.cli import logs
from polyhost.cli.process import CANCELLED
from polyhost.cli.running import CommandLoop
from polyhost.cli.state import DISTRIBUTION, HostState
from polyhost.config.errors import ConfigError
from polyhost.kernel.context import Context
from polyhost.kernel.errors import ServiceUnavailableError
from polyhost.kernel.keys import ServiceKey
from polyhost.kernel.plugins import PluginRecord, PluginRow
from polyhost.kernel.startup import FiberSpec
from polyhost.runtime.host import Host

Main = Callable[["CommandContext"], Awaitable[int]]


class CommandContext:
    """What a command gets.

    :ivar context: a context of its own; what it mounts is withdrawn when it ends.
    :ivar host: the host that runs it.
    """

    def __init__(self, context: Context, host: Host, loop: CommandLoop) -> None:
        self.context = context
        self.host = host
        self._loop = loop

    @contextlib.contextmanager
    def interrupts(self, callback: Callable[[], object]) -> Iterator[None]:
        """While inside, the first SIGINT calls ``callback`` instead of ending the command; the second ends it."""
        previous, self._loop.interrupt = self._loop.interrupt, callback
        try:
            yield
        finally:
            self._loop.interrupt = previous


def on_host(
    state: HostState,
    name: str,
    main: Main,
    *,
    requires: tuple[ServiceKey[Any], ...],
    plugins: Collection[str] | None = None,
) -> int:
    """Run ``main`` on a host made for it and return the exit code.

    :param requires: services that ``main`` needs; one that no plugin provides is an error that names it.
    :param plugins: ids of the configured plugins to start; None starts all enabled ones that are no other front end.
    """
    state.home.create()
    logs.set_up(state.home.logs, state.log_level, state.redactor, stderr=state.log_level_given)
    for warning in state.configuration.warnings:
        click.echo(f"hostctl: warning: {warning}", err=True)
    host = Host(
        home=state.home,
        cwd=state.start_folder,
        version=version("polyhost"),
        model=state.configuration.host.model,
        catalog=state.catalog,
        rows=_rows(state, plugins),
        resolve=state.resolve,
        redactor=state.redactor,
        strict=state.strict_plugins,
    )
    loop = CommandLoop()
    try:
        return loop.run(_run(state, host, name, main, requires, loop), host.aclose)
    except asyncio.CancelledError:
        return CANCELLED


async def _run(
    state: HostState, host: Host, name: str, main: Main, requires: tuple[ServiceKey[Any], ...], loop: CommandLoop
) -> int:
    await host.start()
    _report(state, host.plugins.records())
    return await _in_fiber(host, name, main, requires, loop)


def _report(state: HostState, records: Sequence[PluginRecord]) -> None:
    """Warn of plugins that do not work. Wrong configuration of a shipped one, which others build on, is an error."""
    failed = [record for record in records if record.error is not None and record.state != "blocked"]
    for record in failed:
        assert record.error is not None
        if record.error.stage == "configure" and record.distribution == DISTRIBUTION:
            raise ConfigError(record.error.message)
        click.echo(f"hostctl: warning: plugin {record.id}: {record.error}", err=True)
    for record in records:
        if record.state == "loading":
            click.echo(f"hostctl: warning: plugin {record.id} is still starting; going on without it", err=True)
    if failed:
        click.echo(f"hostctl: the details are in {state.home.logs / logs.LOG_FILE}", err=True)


async def _in_fiber(host: Host, name: str, main: Main, requires: tuple[ServiceKey[Any], ...], loop: CommandLoop) -> int:
    """Run ``main`` with the context of a fiber of its own, so that all it mounts goes when it ends."""
    fiber = host.root.install(FiberSpec(f"command {name}", _nothing_to_start, requires=requires))
    try:
        await fiber.settled()
        if fiber.missing:
            missing = ", ".join(key.name for key in fiber.missing)
            raise ServiceUnavailableError(
                f"`hostctl {name}` needs what no running plugin provides: {missing}; see `hostctl plugins list --all`"
            )
        return await main(CommandContext(fiber.context, host, loop))
    finally:
        await fiber.dispose()


async def _nothing_to_start(ctx: Context, config: object) -> None:
    """The command itself runs outside the fiber's start, which must not take as long as a conversation."""


def _rows(state: HostState, plugins: Collection[str] | None) -> list[PluginRow]:
    if plugins is None:
        return state.rows()
    essential = state.catalog.essential
    return [row for row in state.rows() if essential(row.use) or row.id in plugins]
