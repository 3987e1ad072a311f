"""Typed names: how a service, an event or a kind of mount is spoken of.

Keys are compared by value and carry the type that mypy checks at each use. They hold no state; the registries
that interpret them are in ``services``, ``events`` and ``mounts``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")


@dataclass(frozen=True)
class ServiceKey(Generic[T]):
    """A service of type ``T`` under ``name``, for example ``SESSIONS = ServiceKey[SessionStore]("sessions")``.

    :param interface: class or runtime-checkable protocol that an implementation must be an instance of; checked when
        it is published. Not part of the key's identity.
    """

    name: str
    interface: type[T] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


class EventMode(StrEnum):
    """How an event is dispatched; part of the event's contract.

    ``EMIT`` calls listeners in order, synchronously, and returns nothing. ``PARALLEL`` awaits all. ``SERIAL`` awaits
    one after the other up to the first answer. ``BAIL`` is the synchronous ``SERIAL``. ``WATERFALL`` composes
    listeners around an inner function, the first registered outermost. An answer is anything but None and False.
    """

    EMIT = "emit"
    PARALLEL = "parallel"
    SERIAL = "serial"
    BAIL = "bail"
    WATERFALL = "waterfall"


@dataclass(frozen=True)
class EventKey(Generic[P]):
    """An event whose listeners take the parameters ``P``.

    :param contained: for ``EMIT``: True logs a failing listener and goes on; False lets its error propagate and
        skips the later listeners, which makes it a veto.
    :param scoped: True when every dispatch must carry a target; checked only when the bus is strict.
    :param subject: for a scoped event, takes the arguments and returns the scope that the target must name.

    ``P`` is what a listener takes. For ``WATERFALL`` its last parameter is ``next``, a function without parameters.
    """

    name: str
    mode: EventMode = EventMode.EMIT
    contained: bool = True
    scoped: bool = field(default=False, compare=False, repr=False)
    subject: Callable[..., object] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class MountKind(Generic[V]):
    """A kind of thing that plugins publish, with values of type ``V``.

    :param unique: True when one key has one owner at a time in a scope; False for anonymous registrations.
    :param scoped: False when mounts of this kind are seen from every scope, wherever they were made.
    """

    name: str
    unique: bool = True
    scoped: bool = True

    def __str__(self) -> str:
        return self.name
