"""polyhost: a plugin-based host for coding agents.

The names a plugin needs stand here and load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhost.kernel.context import Context as Context
    from polyhost.kernel.hookspecs import hookimpl as hookimpl
    from polyhost.kernel.plugins import PluginInfo as PluginInfo

__all__ = ["Context", "PluginInfo", "__version__", "hookimpl"]

_HOMES = {
    "Context": "polyhost.kernel.context",
    "PluginInfo": "polyhost.kernel.plugins",
    "hookimpl": "polyhost.kernel.hookspecs",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("polyhost")
    if home := _HOMES.get(name):
        from importlib import import_module

        return getattr(import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
