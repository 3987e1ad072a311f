"""Bringing a running host from one list of rows to another, as a transaction.

What must go stops first, so that what takes its place finds the keys free; then new instances and changed
configurations come up together. When one of them fails, or something that ran before fails because of it, every step is
undone in reverse order. Imports come before all that: a plugin that cannot be imported costs nobody a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from polyhost.kernel.fibers import FiberState
from polyhost.kernel.instances import Instance, Setting
from polyhost.kernel.inventory import Resolve
from polyhost.kernel.plugins import PluginError, PluginFailure, PluginRow, PluginsFailedError

if TYPE_CHECKING:
    from polyhost.kernel.plugin_host import PluginHost

Undo = tuple[str, Callable[[], Awaitable[None]]]
"""The id of the row that a step was for, and what takes the step back."""


async def quiesce(instances: Iterable[Instance]) -> None:
    """Wait until none of ``instances`` is in a transition, whatever comes of it."""
    watched = tuple(instances)
    while busy := [instance for instance in watched if instance.busy]:
        await asyncio.gather(*(instance.fiber.settled() for instance in busy), return_exceptions=True)


class Reconciliation:
    """One change from the rows ``old`` to the rows ``new``, both by id; ``resolve`` validates the new ones."""

    def __init__(
        self, host: PluginHost, old: Mapping[str, PluginRow], new: Mapping[str, PluginRow], resolve: Resolve
    ) -> None:
        self._host = host
        self._resolve = resolve
        self._failures: dict[str, PluginFailure] = {}
        self._undo: list[Undo] = []
        # What is starting already is not waited for: it may take long, and has nothing to do with this change.
        self._calm = {instance for instance in host.instances.values() if not instance.busy}
        self._ran = {instance for instance in self._calm if instance.fiber.state is FiberState.ACTIVE}
        self._stopping: list[Instance] = []
        self._starting: list[PluginRow] = []
        self._changing: list[tuple[Instance, PluginRow]] = []
        self._kept: list[tuple[Instance, PluginRow]] = []
        self._plan(old, new)

    async def run(self) -> None:
        """Raises :class:`PluginsFailedError` after everything was put back."""
        host = self._host
        used = {instance.loaded.name for instance in self._stopping} | {row.use for row in self._starting}
        try:
            added = self._import()
            if not self._failures:
                await asyncio.gather(*(self._stop(instance) for instance in self._stopping))
                for instance in added:
                    self._start(instance)
                await asyncio.gather(*(self._change(instance, row) for instance, row in self._changing))
                await self._verify(added)
            if self._failures:
                raise PluginsFailedError("nothing was changed", self._failures, await self._roll_back())
        finally:
            for name in used - {instance.loaded.name for instance in host.instances.values()}:
                host.catalog.unload(name)
        for instance, row in self._kept:
            instance.relabel(Setting(row, self._resolve))

    def _plan(self, old: Mapping[str, PluginRow], new: Mapping[str, PluginRow]) -> None:
        instances = self._host.instances
        self._stopping = [instance for id, instance in instances.items() if id not in new]
        for id, row in new.items():
            instance = instances.get(id)
            if instance is None:
                # A row that could not be started before is tried again only when it is another row now.
                if row.enabled and not same(old.get(id), row):
                    self._starting.append(row)
            elif not row.enabled:
                self._stopping.append(instance)
            elif row.use != instance.row.use:
                self._stopping.append(instance)
                self._starting.append(row)
            elif same(instance.row, row):
                self._kept.append((instance, row))
            else:
                self._changing.append((instance, row))

    def _import(self) -> list[Instance]:
        added = []
        for row in self._starting:
            try:
                added.append(Instance(Setting(row, self._resolve), self._host.catalog.load(row.use)))
            except PluginError as error:
                self._failures[row.id] = PluginFailure.of(error, error.stage)
        return added

    async def _stop(self, instance: Instance) -> None:
        async def undo() -> None:
            self._host.launch(instance)

        await self._host.stop(instance)
        self._undo.append((instance.row.id, undo))

    def _start(self, instance: Instance) -> None:
        id = instance.row.id
        try:
            self._host.launch(instance)
        except Exception as error:
            self._failures[id] = PluginFailure.of(error, "start")
        else:
            self._undo.append((id, lambda: self._host.stop(instance)))

    async def _change(self, instance: Instance, row: PluginRow) -> None:
        before = instance.setting
        try:
            async with asyncio.timeout(self._host.start_timeout) as timeout:
                await instance.reconfigure(Setting(row, self._resolve))
        except Exception as error:
            self._failures[row.id] = PluginFailure.of(self._too_slow() if timeout.expired() else error, "start")
            if timeout.expired():
                self._undo.append((row.id, lambda: self._renew(instance, before)))
        else:
            self._undo.append((row.id, lambda: self._change_back(instance, before)))

    async def _change_back(self, instance: Instance, setting: Setting) -> None:
        try:
            if instance in self._ran:
                await instance.reconfigure(setting)
        except Exception:
            pass  # it runs on the new setting again, which must not stay
        if instance.setting is not setting:
            await self._renew(instance, setting)

    async def _renew(self, instance: Instance, setting: Setting) -> None:
        """Take a new fiber: for a start that hangs, and for a row that did not work before and need not now."""
        await self._host.stop(instance)
        instance.relabel(setting)
        self._host.launch(instance)

    async def _verify(self, added: Iterable[Instance]) -> None:
        """Wait for everything that this change sets in motion, and collect what failed because of it.

        An instance that only waited for a service, and fails now that it is there, is not held against the change.
        """
        await self._settle({*self._calm, *added, *(instance for instance, _ in self._changing)})
        affected = {*self._ran, *added, *(instance for instance, _ in self._changing)}.difference(self._stopping)
        for instance in affected:
            if instance.fiber.state is FiberState.FAILED and (failure := instance.failure) is not None:
                self._failures.setdefault(instance.row.id, failure)
            elif instance.busy:
                self._failures.setdefault(instance.row.id, PluginFailure.of(self._too_slow(), "start"))

    async def _settle(self, instances: Iterable[Instance]) -> None:
        try:
            async with asyncio.timeout(self._host.start_timeout):
                await quiesce(instances)
        except TimeoutError:
            pass  # the caller finds those that are still busy

    async def _roll_back(self) -> dict[str, PluginFailure]:
        """Undo all steps in reverse order, whatever fails on the way; returns what ran before and does not now."""
        problems: dict[str, PluginFailure] = {}
        for id, undo in reversed(self._undo):
            try:
                async with asyncio.timeout(self._host.start_timeout):
                    await undo()
            except Exception as error:
                problems[id] = PluginFailure.of(error, "start")
        await self._settle({*self._calm, *self._stopping, *(instance for instance, _ in self._changing)})
        for instance in self._ran:
            if instance.fiber.state is FiberState.FAILED and (failure := instance.failure) is not None:
                problems[instance.row.id] = failure
        # What did not work before need not work afterwards.
        return {instance.row.id: problems[instance.row.id] for instance in self._ran if instance.row.id in problems}

    def _too_slow(self) -> TimeoutError:
        return TimeoutError(f"it did not start within {self._host.start_timeout:g} s")


def same(one: PluginRow | None, other: PluginRow) -> bool:
    """Whether two rows ask for the same thing, whoever wrote them."""
    return one is not None and one.enabled == other.enabled and one.use == other.use and one.config == other.config
