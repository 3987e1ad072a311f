"""The plugin host: brings the configured rows up, keeps them in step with the configuration, takes them down.

:meth:`PluginHost.boot` contains failures, so that one bad plugin does not keep the host from starting;
:meth:`PluginHost.apply`, for a host that runs, is all or nothing (see ``reconcile``). Which rows there are and which
are enabled is the configuration's business; it hands them in, together with the function that validates a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from polyhost.kernel.catalog import PluginCatalog
from polyhost.kernel.context import Context
from polyhost.kernel.drain import retrieve
from polyhost.kernel.fibers import FiberState
from polyhost.kernel.instances import Instance, Setting
from polyhost.kernel.inventory import Resolve, outline, refusals
from polyhost.kernel.plugins import PluginError, PluginFailure, PluginInfo, PluginRecord, PluginRow, PluginsFailedError
from polyhost.kernel.reconcile import Reconciliation, quiesce, same

HEALTH_TIMEOUT = 5.0
START_TIMEOUT = 60.0


class Waiting(NamedTuple):
    """An instance that waits for services.

    :ivar missing: their names, in order of declaration.
    :ivar providers: for each of them the rows that declare to provide it, with their states.
    """

    id: str
    missing: tuple[str, ...]
    providers: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        hints = ((name, ", ".join(self.providers[name]) or "no enabled plugin provides it") for name in self.missing)
        return f"{self.id} waits for {', '.join(f'{name} ({hint})' for name, hint in hints)}"


def raw_config(info: PluginInfo, row: PluginRow) -> object:
    """The resolver of a host without configuration models: the raw table."""
    return row.config


class PluginHost:
    """The plugin instances of one host, on one event loop.

    :param root: the context under which they run.
    :param resolve: validates the raw table of a row; called at each activation, and before an update.
    :param strict: at boot, treat the failure of any plugin as that of an essential one.
    :param start_timeout: seconds that :meth:`apply` waits for an instance to come up before it counts as failed.
    :param health_timeout: seconds that :meth:`health` waits for an answer.
    """

    def __init__(
        self,
        root: Context,
        catalog: PluginCatalog,
        resolve: Resolve = raw_config,
        *,
        strict: bool = False,
        start_timeout: float = START_TIMEOUT,
        health_timeout: float = HEALTH_TIMEOUT,
    ) -> None:
        self.root = root
        self.catalog = catalog
        self.start_timeout = start_timeout
        self.instances: dict[str, Instance] = {}
        self._rows: dict[str, PluginRow] = {}
        self._failures: dict[str, PluginFailure] = {}
        self._resolve = resolve
        self._strict = strict
        self._health_timeout = health_timeout
        self._applying = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def rows(self) -> tuple[PluginRow, ...]:
        """The rows in force: those of the last successful :meth:`boot` or :meth:`apply`."""
        return tuple(self._rows.values())

    # --- life ----------------------------------------------------------------------------------------------------

    def boot(self, rows: Iterable[PluginRow]) -> None:
        """Import the plugins of the enabled rows and begin to start them, each as soon as its requirements are there.

        Returns at once; :meth:`settled` waits and tells of fatal failures. Others are in :meth:`records`. Raises
        :class:`PluginError` for rows that make no sense together, before anything has happened.
        """
        if self._rows:
            raise RuntimeError("the host has booted; use apply()")
        self._rows = self._checked(rows)
        for row in self._rows.values():
            if row.enabled:
                try:
                    self.launch(Instance(Setting(row, self._resolve), self.catalog.load(row.use)))
                except Exception as error:
                    self._failures[row.id] = PluginFailure.of(error, "start")

    async def settled(self) -> None:
        """Wait until nothing is starting or stopping any more. Instances that lack a service stay as they are.

        Without bound of its own. Raises :class:`PluginsFailedError` when an essential plugin has failed (any plugin,
        when strict); the host must then be closed.
        """
        await quiesce(self.instances.values())
        fatal = {
            id: failure
            for id, failure in self._current_failures().items()
            if self._strict or self.catalog.essential(self._rows[id].use)
        }
        if fatal:
            raise PluginsFailedError("the host cannot start", fatal)

    async def apply(self, rows: Iterable[PluginRow], resolve: Resolve | None = None) -> None:
        """Bring the running instances in step with ``rows``, or change nothing.

        Rows that are new start, those that are gone or disabled stop, those with another configuration take it over,
        those with another plugin are exchanged; the others are left alone. Waits until all that has settled.

        Raises :class:`PluginsFailedError` when a plugin cannot be imported, refuses its configuration or fails to
        start, after everything has been put back; :attr:`rows` is then what it was, so write the new rows to a file
        only after this has returned. Cancelling the caller does not tear a change apart: it is finished regardless.
        Changes run one after the other, and a plugin must not await one during its own start.

        :param resolve: validates these rows from now on, if that is not the function that validated the last ones.
        """
        checked = self._checked(rows)
        task = asyncio.get_running_loop().create_task(
            self._apply(checked, resolve or self._resolve), name="applying plugin rows"
        )
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        task.add_done_callback(retrieve)
        await asyncio.shield(task)

    async def aclose(self) -> None:
        """Stop all instances, then take their plugins out of the catalogue. May be called again."""
        self._closed = True
        # The instances first: a change in progress may be waiting for one of them to start.
        await self._stop_all()
        if self._changes:
            await asyncio.wait(self._changes)
            await self._stop_all()
        for row in self._rows.values():
            self.catalog.unload(row.use)

    # --- what there is -------------------------------------------------------------------------------------------

    def records(self) -> list[PluginRecord]:
        """One record per row, then per plugin without a row, then per refused claim. Imports nothing."""
        records = [self._record(row) for row in self._rows.values()]
        configured = {row.use for row in self._rows.values()}
        for name in self.catalog.names():
            if name not in configured:
                records.append(outline(self.catalog, PluginRow(name, name, enabled=False, source="not configured")))
        return records + refusals(self.catalog)

    def audit(self) -> list[Waiting]:
        """The instances that wait for services, and who could provide them."""
        waiting = []
        for id, instance in self.instances.items():
            if missing := instance.missing():
                waiting.append(Waiting(id, missing, {name: self._providers(name) for name in missing}))
        return waiting

    async def health(self, id: str) -> Mapping[str, Any] | None:
        """What the instance ``id`` says of itself; None when it is not active or says nothing.

        Raises :class:`KeyError` for an unknown id, :class:`TimeoutError`, and what the plugin raises.
        """
        if id not in self._rows:
            raise KeyError(id)
        instance = self.instances.get(id)
        if instance is None:
            return None
        async with asyncio.timeout(self._health_timeout):
            return await instance.health()

    # --- for the reconciliation ----------------------------------------------------------------------------------

    def launch(self, instance: Instance) -> None:
        """Run ``instance`` in a new fiber."""
        if self._closed:
            raise RuntimeError("the plugin host is closed")
        instance.launch(self.root)
        self.instances[instance.row.id] = instance
        self._failures.pop(instance.row.id, None)

    async def stop(self, instance: Instance) -> None:
        """Stop ``instance`` and wait for its end. Failures of its cleanups are kept for its record."""
        id = instance.row.id
        await instance.fiber.dispose()
        if self.instances.get(id) is instance:
            del self.instances[id]
        if (failure := instance.failure) is not None:
            self._failures[id] = failure

    # --- internals -----------------------------------------------------------------------------------------------

    async def _apply(self, rows: dict[str, PluginRow], resolve: Resolve) -> None:
        async with self._applying:
            await Reconciliation(self, self._rows, rows, resolve).run()
            self._resolve = resolve
            self._rows, before = rows, self._rows
            for id, failure in list(self._failures.items()):
                # How an instance stopped is worth showing as long as its row is there; the rest told of another row.
                if id not in rows or (failure.stage != "stop" and not same(before.get(id), rows[id])):
                    del self._failures[id]

    async def _stop_all(self) -> None:
        await asyncio.gather(*(self.stop(instance) for instance in reversed(self.instances.values())))

    def _checked(self, rows: Iterable[PluginRow]) -> dict[str, PluginRow]:
        checked: dict[str, PluginRow] = {}
        for row in rows:
            if row.id in checked:
                raise PluginError(
                    f"two plugin rows have the id {row.id!r} ({checked[row.id].source or '?'}, {row.source or '?'})",
                    plugin=row.id,
                    stage="configure",
                    code="PLUGIN_DUPLICATE_ROW",
                )
            if not row.enabled and self.catalog.essential(row.use):
                raise PluginError(
                    f"plugin {row.use!r} is a part of the host and cannot be disabled ({row.source or row.id})",
                    plugin=row.id,
                    stage="configure",
                    code="PLUGIN_ESSENTIAL",
                )
            checked[row.id] = row
        return checked

    def _current_failures(self) -> dict[str, PluginFailure]:
        failures = dict(self._failures)
        for id, instance in self.instances.items():
            if instance.fiber.state is FiberState.FAILED and (failure := instance.failure) is not None:
                failures[id] = failure
        return failures

    def _record(self, row: PluginRow) -> PluginRecord:
        record = outline(self.catalog, row)
        instance = self.instances.get(row.id)
        if instance is not None:
            record.state = instance.fiber.state.value
            record.error = instance.failure
            record.missing = instance.missing()
            record.mounts = instance.mounts()
        elif (failure := self._failures.get(row.id)) is not None:
            record.error = failure
            if record.state == "enabled":
                record.state = "broken"
        return record

    def _providers(self, service: str) -> tuple[str, ...]:
        return tuple(
            f"{id} is {instance.fiber.state}"
            for id, instance in self.instances.items()
            if any(key.name == service for key in instance.loaded.info.provides)
        )
