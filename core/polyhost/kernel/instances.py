"""One configured instance of a plugin in a running host: its fiber, and the life-cycle hooks called for it.

Which instances there should be, and what happens when one cannot be brought up, is decided in ``plugin_host``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from polyhost.kernel.catalog import LoadedPlugin
from polyhost.kernel.context import Context
from polyhost.kernel.discovery import contained
from polyhost.kernel.fibers import Fiber, FiberState
from polyhost.kernel.inventory import Resolve
from polyhost.kernel.mounts import MountState
from polyhost.kernel.plugins import PluginError, PluginFailure, PluginRow, Stage, one_line
from polyhost.kernel.scopes import OwnerInfo
from polyhost.kernel.startup import FiberSpec, Started, enter


class Setting(NamedTuple):
    """What an instance is to run with: its row, and the function that validates it."""

    row: PluginRow
    resolve: Resolve


class _Cell:
    """Where a fiber's resolver finds its setting, so that it can be exchanged without a restart."""

    __slots__ = ("setting",)

    def __init__(self, setting: Setting) -> None:
        self.setting = setting


class Instance:
    """A row and the fiber that runs it.

    :ivar loaded: the plugin.
    :ivar fiber: of the latest :meth:`launch`.
    """

    __slots__ = ("_cell", "_config", "fiber", "loaded")

    fiber: Fiber

    def __init__(self, setting: Setting, loaded: LoadedPlugin) -> None:
        self.loaded = loaded
        self._cell = _Cell(setting)
        self._config: object = None

    @property
    def setting(self) -> Setting:
        """The setting in force."""
        return self._cell.setting

    @property
    def row(self) -> PluginRow:
        """The row in force."""
        return self.setting.row

    @property
    def busy(self) -> bool:
        """Whether a transition is in progress."""
        return self.fiber.state in (FiberState.LOADING, FiberState.UNLOADING)

    @property
    def failure(self) -> PluginFailure | None:
        """Why it is failed, or what went wrong when it last stopped; None when there is nothing to say."""
        if self.fiber.state is FiberState.FAILED and self.fiber.error is not None:
            return PluginFailure.of(self.fiber.error, "run")
        if self.fiber.teardown_errors:
            return PluginFailure.of(self.fiber.teardown_errors[0], "stop")
        return None

    def launch(self, root: Context) -> None:
        """Run in a new fiber under ``root``. Returns at once; the fiber tells the outcome."""
        spec = FiberSpec(self.row.id, self._start, self.loaded.info.requires, self._resolver(self._cell))
        self.fiber = root.install(spec)

    async def reconfigure(self, setting: Setting) -> None:
        """Put ``setting``, for the same plugin, in force: in place when the plugin can do that, else by a restart.

        When it raises, the previous setting is in force and what ran before runs again, in the same fiber.
        """
        if not await self._change_in_place(setting):
            cell = _Cell(setting)
            await self.fiber.update(self._resolver(cell))
            self._cell = cell

    def relabel(self, setting: Setting) -> None:
        """Take over another setting for the next start, without telling a running fiber."""
        self._cell.setting = setting

    async def health(self) -> Mapping[str, Any] | None:
        """What ``polyhost_health`` answers; None when the instance is not active or has no such hook."""
        if self.fiber.state is not FiberState.ACTIVE:
            return None
        answer = await self._call("run", "polyhost_health", ctx=self.fiber.context)
        if not isinstance(answer, Mapping | None):
            raise TypeError(f"polyhost_health() must return a mapping, not {type(answer).__name__}")
        return answer

    def missing(self) -> tuple[str, ...]:
        """Names of the services that it waits for."""
        return tuple(key.name for key in self.fiber.missing) if self.fiber.state is FiberState.PENDING else ()

    def mounts(self) -> dict[str, int]:
        """The number of its mounts by kind, those in its scopes included."""
        return dict(sorted(_mount_kinds(self.fiber.owner.info()).items()))

    async def _change_in_place(self, setting: Setting) -> bool:
        context = self.fiber.context
        if self.fiber.state is not FiberState.ACTIVE or "polyhost_config_changed" not in self.loaded.hooks:
            return False
        new = self._resolver(_Cell(setting))()
        await self._call("configure", "polyhost_check", ctx=context, config=new)
        changed = await self._call("configure", "polyhost_config_changed", ctx=context, old=self._config, new=new)
        if changed is not True:
            return False
        if self.fiber.context is not context or self.fiber.state is not FiberState.ACTIVE:
            return False  # it was restarted meanwhile, with the old configuration
        self._cell.setting = setting
        self._config = new
        return True

    def _resolver(self, cell: _Cell) -> Callable[[], object]:
        def resolve() -> object:
            row = cell.setting.row
            with contained("configure", row.id, "its configuration is invalid"):
                return cell.setting.resolve(self.loaded.info, row)

        return resolve

    async def _start(self, context: Context, config: object) -> None:
        """The fiber's start: the plugin's check, then its own start in whatever form it comes."""
        await self._call("configure", "polyhost_check", ctx=context, config=config)
        self._config = config
        with self._stage("start"):
            await enter(FiberSpec(self.row.id, self._begin), context, config)

    def _begin(self, context: Context, config: object) -> Started:
        started: Started = self.loaded.call("polyhost_start", ctx=context, config=config)
        return started

    async def _call(self, stage: Stage, hook: str, **arguments: Any) -> Any:
        """A life-cycle hook's answer, awaited when it is async."""
        with self._stage(stage):
            answer = self.loaded.call(hook, **arguments)
            return await answer if inspect.isawaitable(answer) else answer

    @contextmanager
    def _stage(self, stage: Stage) -> Iterator[None]:
        """Say of an error where it happened, and contain the escapes from ``Exception`` that would end the loop."""
        try:
            yield
        except (PluginError, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise PluginError(
                f"plugin instance {self.row.id!r}: {stage}: {type(error).__name__}: {one_line(error)}",
                plugin=self.row.id,
                stage=stage,
            ) from error


def _mount_kinds(info: OwnerInfo) -> Counter[str]:
    kinds = Counter(kind for _, kind, _, state in info.mounts if state is MountState.ACTIVE)
    for child in info.children:
        kinds += _mount_kinds(child)
    return kinds
