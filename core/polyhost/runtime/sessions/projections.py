"""The registry of projections: folds what is mounted over live and stored logs, no further than somebody asks.

Which projections the host itself ships is in ``folds``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.projections import PROJECTION, Cut, Projection, ProjectionError, ProjectionListener
from polyhost.interfaces.sessions import Session, SessionEvent, SessionHeader
from polyhost.kernel.mounts import KindHandler, MountTable
from polyhost.runtime.sessions.events import view
from polyhost.wire.json import dumps, loads

_logger = logging.getLogger(__name__)

_CHUNK_TYPE = "assistant/chunk"
_CHUNK = b'{"type":"assistant/chunk",'


class ProjectionKind(KindHandler[Projection]):
    """Refuses what is no projection, and a second meaning of a key that is in use."""

    def __init__(self, mounts: MountTable) -> None:
        self._mounts = mounts

    def validate(self, key: Hashable, value: Projection) -> None:
        if not isinstance(key, str) or not key:
            raise ProjectionError(f"a projection's key is a name, not {key!r}")
        if not isinstance(value, Projection) or type(value.version) is not int or value.version < 1:
            raise ProjectionError(f"projection {key!r} needs a Projection with a positive version, not {value!r:.80}")
        for token in self._mounts.tokens(PROJECTION):
            if token.key == key and token.value.version != value.version:
                raise ProjectionError(
                    f"projection {key!r} is mounted in version {token.value.version} by {token.owner.name}; "
                    f"version {value.version} needs another key",
                    code="PROJECTION_VERSION",
                )


class _Log(Protocol):
    """What a fold reads: a live session, or stored lines."""

    @property
    def id(self) -> str: ...

    @property
    def header(self) -> SessionHeader: ...

    def __len__(self) -> int: ...

    def lines(self, start: int = 0) -> Sequence[bytes]: ...


class _StoredLines:
    __slots__ = ("_lines", "header", "id")

    def __init__(self, header: SessionHeader, lines: Sequence[bytes]) -> None:
        self.header = header
        self.id = header.id
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def lines(self, start: int = 0) -> Sequence[bytes]:
        return self._lines[start:]


class Fold:
    """One projection over one log.

    :ivar upto: how many events the state has seen.
    :ivar failed: the projection raised; it has no value for this log any more.
    """

    __slots__ = ("failed", "key", "state", "unit", "upto")

    def __init__(self, key: str, unit: Projection, header: SessionHeader) -> None:
        self.key = key
        self.unit = unit
        self.upto = 0
        self.failed = False
        self.state: Any = None
        self._guard(header.id, lambda: unit.init(header))

    def take(self, event: SessionEvent, log_id: str) -> None:
        """Take in the next event of a type that the projection wants."""
        if not self.failed:
            self._guard(log_id, lambda: self.unit.apply(self.state, event))

    def _guard(self, log_id: str, step: Callable[[], Any]) -> None:
        try:
            self.state = step()
        except Exception:
            self.failed = True
            _logger.exception("projection %r has no value for session %s: it failed", self.key, log_id)


class _Watch:
    """The listeners of one session, and the values that they know."""

    __slots__ = ("known", "listeners", "undo")

    def __init__(self) -> None:
        self.listeners: tuple[ProjectionListener, ...] = ()
        self.known: dict[str, JsonValue] = {}
        self.undo: Callable[[], None] = lambda: None


class ProjectionRegistry:
    """See :class:`polyhost.interfaces.projections.Projections`."""

    def __init__(self, mounts: MountTable) -> None:
        self._mounts = mounts
        self._folds: WeakKeyDictionary[Session, dict[str, Fold]] = WeakKeyDictionary()
        self._watches: WeakKeyDictionary[Session, _Watch] = WeakKeyDictionary()
        self._units: Mapping[str, Projection] = {}
        self._types: frozenset[str] = frozenset()
        self._seen_version = -1

    def read(self, session: Session) -> Cut:
        folds = self._current(session)
        _advance(session, folds.values(), len(session))
        return Cut(len(session) - 1, _values(folds.values()))

    def state(self, session: Session, key: str) -> Any:
        """The state of one projection, shared: not to be changed. Raises KeyError for an unknown or failed one."""
        fold = self._current(session)[key]
        _advance(session, (fold,), len(session))
        if fold.failed:
            raise KeyError(key)
        return fold.state

    def fold(self, header: SessionHeader, lines: Sequence[bytes], checkpoint: JsonObject | None = None) -> Cut:
        log = _StoredLines(header, lines)
        folds: dict[str, Fold] = {}
        _renew(folds, self._known_units(), header)
        if checkpoint is not None:
            _take_over(folds, checkpoint, log)
        _advance(log, folds.values(), len(log))
        return Cut(len(log) - 1, _values(folds.values()))

    def watch(self, session: Session, listener: ProjectionListener) -> Callable[[], None]:
        watch = self._watches.get(session)
        if watch is None:
            watch = self._watches[session] = _Watch()
            watch.known = self.read(session).values
            watch.undo = session.observe(lambda event: self._follow(session, event))
        watch.listeners = (*watch.listeners, listener)
        active = True

        def undo() -> None:
            nonlocal active
            if not active:
                return
            active = False
            at = next(index for index, other in enumerate(watch.listeners) if other is listener)
            watch.listeners = watch.listeners[:at] + watch.listeners[at + 1 :]
            if not watch.listeners:
                watch.undo()
                self._watches.pop(session, None)

        return undo

    def checkpoint(self, session: Session) -> JsonObject:
        folds = self._current(session)
        _advance(session, folds.values(), len(session))
        units = {
            fold.key: {"version": fold.unit.version, "state": fold.state} for fold in folds.values() if not fold.failed
        }
        saved: JsonObject = _detached({"asOfSeq": len(session) - 1, "units": units})
        return saved

    def restore(self, session: Session, checkpoint: JsonObject) -> None:
        _take_over(self._current(session), checkpoint, session)

    def _follow(self, session: Session, event: SessionEvent) -> None:
        """An event of a watched session: fold what wants it, and tell of values that it changed."""
        if event.type == _CHUNK_TYPE and event.type not in self._types:
            return  # most events; whoever mounts a fold of chunks now starts with the next other event
        units = self._known_units()
        if event.type not in self._types:
            return
        watch = self._watches[session]
        current = self._current(session)
        folds = [current[key] for key, unit in units.items() if event.type in unit.types]
        for fold in folds:
            if fold.key not in watch.known:  # mounted since: what it was before this event is nobody's news
                _advance(session, (fold,), event.seq)
                watch.known.update(_values((fold,)))
        _advance(session, folds, event.seq + 1)
        for key, value in _values(folds).items():
            if key not in watch.known or watch.known[key] != value:
                watch.known[key] = value
                self._tell(watch, session, key, value, event.seq)

    def _tell(self, watch: _Watch, session: Session, key: str, value: JsonValue, seq: int) -> None:
        for listener in watch.listeners:
            try:
                listener(key, _detached(value), seq)
            except Exception:
                _logger.exception("a listener of projection %r failed in session %s", key, session.id)

    def _current(self, session: Session) -> dict[str, Fold]:
        """The folds of a session, one for each mounted projection, as far as they were folded."""
        folds = self._folds.get(session)
        if folds is None:
            folds = self._folds[session] = {}
        _renew(folds, self._known_units(), session.header)
        return folds

    def _known_units(self) -> Mapping[str, Projection]:
        version = self._mounts.version(PROJECTION)
        if version != self._seen_version:
            units: dict[str, Projection] = {}
            for key, unit in self._mounts.items(PROJECTION):
                units.setdefault(key, unit)
            self._units = units
            self._types = frozenset[str]().union(*(unit.types for unit in units.values()))
            self._seen_version = version
        return self._units


def _renew(folds: dict[str, Fold], units: Mapping[str, Projection], header: SessionHeader) -> None:
    """Drop the folds of what is gone or has another version, and begin those of what is new."""
    for key in [key for key, fold in folds.items() if key not in units or units[key].version != fold.unit.version]:
        del folds[key]
    for key, unit in units.items():
        if key in folds:
            folds[key].unit = unit  # the same version: whose object it is does not matter
        else:
            folds[key] = Fold(key, unit, header)


def _advance(log: _Log, folds: Collection[Fold], end: int) -> None:
    """Fold every event before ``end`` that a fold has not seen, in one pass."""
    late = [fold for fold in folds if fold.upto != end]
    if not late:
        return
    if any(fold.upto > len(log) for fold in late):
        raise _shrunk(log, max(fold.upto for fold in late))
    wanted: dict[str, list[Fold]] = {}
    for fold in late:
        for type_ in fold.unit.types:
            wanted.setdefault(type_, []).append(fold)
    start = min(fold.upto for fold in late)
    for event in _events(log.lines(start)[: max(0, end - start)], chunks=_CHUNK_TYPE in wanted):
        for fold in wanted.get(event.type, ()):
            if fold.upto <= event.seq:
                fold.take(event, log.id)
    for fold in late:
        fold.upto = max(fold.upto, end)


def _events(lines: Sequence[bytes], *, chunks: bool) -> Iterable[SessionEvent]:
    if chunks:
        return map(view, lines)
    return (view(line) for line in lines if not line.startswith(_CHUNK))


def _values(folds: Iterable[Fold]) -> JsonObject:
    """Detached values of the folds that have one."""
    values: JsonObject = {}
    for fold in folds:
        if fold.failed:
            continue
        try:
            values[fold.key] = _detached(fold.unit.view(fold.state))
        except Exception:
            fold.failed = True
            _logger.exception("projection %r has no value: its view failed", fold.key)
    return values


def _take_over(folds: Mapping[str, Fold], checkpoint: JsonObject, log: _Log) -> None:
    as_of, units = checkpoint.get("asOfSeq"), checkpoint.get("units")
    if type(as_of) is not int or as_of < -1 or not isinstance(units, dict):
        raise ProjectionError("a checkpoint needs asOfSeq and units", code="PROJECTION_CHECKPOINT")
    if not all(isinstance(saved, dict) and "version" in saved and "state" in saved for saved in units.values()):
        raise ProjectionError("each unit of a checkpoint needs version and state", code="PROJECTION_CHECKPOINT")
    if as_of >= len(log):
        raise _shrunk(log, as_of + 1)
    for key, fold in folds.items():
        saved = units.get(key)
        if saved is not None and saved["version"] == fold.unit.version and fold.upto <= as_of and not fold.failed:
            fold.state = _detached(saved["state"])
            fold.upto = as_of + 1


def _shrunk(log: _Log, before: int) -> ProjectionError:
    return ProjectionError(
        f"session {log.id!r} has {len(log)} events, fewer than the {before} that were folded before: it is another log",
        code="PROJECTION_SHRUNK",
    )


def _detached(value: Any) -> Any:
    return loads(dumps(value))
