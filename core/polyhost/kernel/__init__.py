"""The container of the host: contexts, services, fibers, mounts and events. It knows nothing of agents or protocols.

The names below are its public face; each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhost.kernel.context import Context, Kernel
    from polyhost.kernel.drain import Limits
    from polyhost.kernel.events import (
        ANY_SCOPE,
        DISPATCH,
        FIBER_CREATED,
        FIBER_DISPOSED,
        FIBER_STATUS,
        LISTENER,
        MOUNT_CHANGED,
        TASK_CRASHED,
        Dispatcher,
        Emitter,
        EventBus,
        Listener,
        Target,
    )
    from polyhost.kernel.fibers import Fiber, FiberState
    from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey
    from polyhost.kernel.mounts import KindHandler, MountSet, MountTable
    from polyhost.kernel.scopes import Owner, Scope, ScopeLink, ScopeTree
    from polyhost.kernel.services import SERVICE, Provision, ServiceRegistry
    from polyhost.kernel.signals import AbortController, AbortedError, AbortSignal, any_signal
    from polyhost.kernel.startup import FiberSpec
    from polyhost.kernel.tokens import TASK, MountState, MountToken

_HOMES = {
    "context": "Context Kernel",
    "drain": "Limits",
    "events": "ANY_SCOPE DISPATCH FIBER_CREATED FIBER_DISPOSED FIBER_STATUS LISTENER MOUNT_CHANGED"
    " TASK_CRASHED Dispatcher Emitter EventBus Listener Target",
    "fibers": "Fiber FiberState",
    "keys": "EventKey EventMode MountKind ServiceKey",
    "mounts": "KindHandler MountSet MountTable",
    "scopes": "Owner Scope ScopeLink ScopeTree",
    "services": "SERVICE Provision ServiceRegistry",
    "signals": "AbortController AbortSignal AbortedError any_signal",
    "startup": "FiberSpec",
    "tokens": "TASK MountState MountToken",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "ANY_SCOPE",
    "DISPATCH",
    "FIBER_CREATED",
    "FIBER_DISPOSED",
    "FIBER_STATUS",
    "LISTENER",
    "MOUNT_CHANGED",
    "SERVICE",
    "TASK",
    "TASK_CRASHED",
    "AbortController",
    "AbortSignal",
    "AbortedError",
    "Context",
    "Dispatcher",
    "Emitter",
    "EventBus",
    "EventKey",
    "EventMode",
    "Fiber",
    "FiberSpec",
    "FiberState",
    "Kernel",
    "KindHandler",
    "Limits",
    "Listener",
    "MountKind",
    "MountSet",
    "MountState",
    "MountTable",
    "MountToken",
    "Owner",
    "Provision",
    "Scope",
    "ScopeLink",
    "ScopeTree",
    "ServiceKey",
    "ServiceRegistry",
    "Target",
    "any_signal",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value
