"""Projections: named, versioned folds over a session's committed events, and reading them (agent-core 2.22).

A plugin mounts a :class:`Projection` under its key and everybody reads its value through ``PROJECTIONS``. A projection
is synchronous and pure: its state is JSON, is never changed in place, and depends on header and events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.sessions import Session, SessionEvent, SessionHeader
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import MountKind, ServiceKey


class ProjectionError(PolyhostError):
    """A projection cannot be mounted (PROJECTION_INVALID, PROJECTION_VERSION), or a log or checkpoint does not fit
    what was folded before (PROJECTION_SHRUNK, PROJECTION_CHECKPOINT).
    """

    default_code = "PROJECTION_INVALID"


def _whole(state: Any) -> JsonValue:
    return state


class Projection(NamedTuple):
    """One fold.

    :param version: a positive integer, another one whenever ``init`` or ``apply`` mean something else: states of other
        versions are thrown away and folded anew.
    :param types: the event types that ``apply`` is called for. Leave ``assistant/chunk`` out where possible: it is
        most of a log.
    :param init: the state of an empty log.
    :param apply: the state after one more event; the same object when nothing has changed.
    :param view: the value that readers see; JSON.
    """

    version: int
    types: frozenset[str]
    init: Callable[[SessionHeader], Any]
    apply: Callable[[Any, SessionEvent], Any]
    view: Callable[[Any], JsonValue] = _whole


class Cut(NamedTuple):
    """Values by key, all as of one event; ``as_of_seq`` is -1 for an empty log."""

    as_of_seq: int
    values: JsonObject


ProjectionListener: TypeAlias = Callable[[str, JsonValue, int], object]
"""``listener(key, value, seq)``, with the seq of the event that changed the value."""


class Projections(Protocol):
    """Reads what is mounted. Everything is synchronous; values are detached and yours to change.

    A projection that raises is logged and has no value for that session; the others go on.
    """

    def read(self, session: Session) -> Cut:
        """Every value at this moment. What no reader and no listener wants is never folded."""
        ...

    def fold(self, header: SessionHeader, lines: Sequence[bytes], checkpoint: JsonObject | None = None) -> Cut:
        """The values of a log that is not live. Raises :class:`ProjectionError` like :meth:`restore`."""
        ...

    def watch(self, session: Session, listener: ProjectionListener) -> Callable[[], None]:
        """Call ``listener`` for each value that an event changes, right after its commit; returns the undo.

        The listener may not append. Its errors are logged.
        """
        ...

    def checkpoint(self, session: Session) -> JsonObject:
        """``{asOfSeq, units: {key: {version, state}}}``, detached, for :meth:`restore` in a later process."""
        ...

    def restore(self, session: Session, checkpoint: JsonObject) -> None:
        """Start from a checkpoint instead of the first event; units of other versions are folded anew.

        Raises :class:`ProjectionError`: PROJECTION_SHRUNK when the log is shorter than the checkpoint, which then
        belongs to another log; PROJECTION_CHECKPOINT when it is malformed. Nothing is taken over then.
        """
        ...


PROJECTIONS = ServiceKey[Projections]("projections")
PROJECTION = MountKind[Projection]("projection", unique=False, scoped=False)
"""Mounted under the projection's key. Several mounts of one key and version share one fold."""
