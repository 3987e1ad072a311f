"""The hook specifications: everything that the host ever asks of a plugin, as typed, documented functions.

A plugin is a module (or another object) that implements some of these under the same names, marked with
:data:`hookimpl`. Only :func:`polyhost_plugin` is mandatory. An implementation may leave out arguments that it does not
need; new arguments can therefore be added here without breaking anyone.

Two kinds of hook:

- *static* ones are plain functions: pure, cheap, callable without a running host and without an event loop;
- *life-cycle* ones are called for one plugin instance at a time, inside a running host, and may be async.

Events are not hooks: what plugins tell each other goes through the event bus. Calling the hooks is the business of
``catalog`` (static) and ``plugin_host`` (life cycle).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from polyhost.kernel.context import Context
    from polyhost.kernel.plugins import CommandSpec, PluginInfo

PROJECT = "polyhost"
"""The pluggy project name, which is also the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def polyhost_plugin() -> PluginInfo:  # type: ignore[empty-body]
    """Say what this plugin is: name, API version, the services it needs and provides, where its config model stands.

    Static and mandatory. Called once, right after the import.
    """


@hookspec(firstresult=True)
def polyhost_cli() -> Sequence[CommandSpec] | None:
    """Declare the commands that this plugin adds to ``hostctl``.

    Static. A declaration carries the import path of its command, so that showing the list of commands imports none
    of them.
    """


@hookspec(firstresult=True)
def polyhost_config_defaults() -> Mapping[str, Any] | None:
    """Give default values of this plugin's configuration table, the layer below every file.

    Static. Same keys and value types as the table in a configuration file.
    """


@hookspec(firstresult=True)
def polyhost_check(ctx: Context, config: Any) -> Awaitable[None] | None:
    """Check what the config model cannot: several values together, the environment, a program on the path.

    Life cycle, sync or async. Called after the configuration was validated and before :func:`polyhost_start`; raise
    to refuse the configuration. Must not mount anything.
    """


@hookspec(firstresult=True)
def polyhost_start(
    ctx: Context, config: Any
) -> Awaitable[None] | AsyncGenerator[None, None] | AbstractAsyncContextManager[Any] | None:
    """Start one instance of the plugin: mount what it contributes, start what it runs.

    Life cycle. Either a coroutine; or an async generator with exactly one ``yield``, the code after it being the
    teardown; or an async context manager. What was mounted becomes visible together when start-up has succeeded, and
    is withdrawn before the teardown code runs. ``config`` is an instance of the config model (None without one).

    Raise to fail: everything done so far is undone, and the instance is shown as failed.
    """


@hookspec(firstresult=True)
def polyhost_config_changed(ctx: Context, old: Any, new: Any) -> Awaitable[bool] | bool | None:
    """Apply a changed configuration to the running instance.

    Life cycle, sync or async. Return True when ``new`` is now in force; anything else makes the host restart the
    instance with it. Raise to refuse ``new``: the instance must then still run on ``old``.
    """


@hookspec(firstresult=True)
def polyhost_health(ctx: Context) -> Awaitable[Mapping[str, Any]] | Mapping[str, Any] | None:
    """Report how the running instance is doing, as a small JSON object with at least ``{"ok": bool}``.

    Life cycle, sync or async. Called on demand, under a timeout; no answer means that nothing is known.
    ``{"checks": [{"subject", "ok", "detail"}]}`` adds one line each to ``hostctl doctor``; a detail says the way out.
    """
