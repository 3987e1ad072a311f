"""The live log of one session: a list of encoded lines, and what is folded from them as they come.

Where logs are kept while live is in ``store``, where they are stored in ``storage``. Everything here is synchronous.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.sessions import Observer, SessionError, SessionEvent, SessionHeader, SurfaceOp
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.chunks import ChunkWriter
from polyhost.runtime.sessions.events import EventView, decode_line, encode_line, read_foreign, view
from polyhost.runtime.sessions.header import checked
from polyhost.runtime.sessions.invariants import TraceState
from polyhost.runtime.sessions.packing import match_delta
from polyhost.runtime.sessions.surface import Surface, message_of
from polyhost.wire.errors import WireError
from polyhost.wire.json import dumps, snapshot

END_SEED = "session/end-seed"

_CHUNK = b'{"type":"assistant/chunk",'
_REENTRY = "session append cannot reenter while another append is being published"

_logger = logging.getLogger(__name__)


def epoch_milliseconds() -> int:
    return time.time_ns() // 1_000_000


class LiveSession:
    """One append-only log; implements :class:`polyhost.interfaces.sessions.Session`.

    :param seed: event lines that the session starts with: a stored log, or inherited history. They are checked, and
        ``session/end-seed`` is appended unless it is their last. None, unlike an empty seed, means a fresh session.
    :param seed_checked: the seed comes from a live session or from the storage, which have checked it already.
    :param clock: epoch milliseconds; times never run backwards, even when the clock does.
    :raises SessionError: SESSION_HEADER, SESSION_CORRUPT or SESSION_UNSUPPORTED.
    """

    def __init__(
        self,
        header: SessionHeader,
        seed: Sequence[bytes] | None = None,
        *,
        seed_checked: bool = False,
        clock: Callable[[], int] = epoch_milliseconds,
        catalogue: EventCatalogue | None = None,
    ) -> None:
        self.header = checked(header)
        self.id = self.header.id
        self.store: object | None = None  # the one that this session has entered
        self._clock = clock
        self._catalogue = catalogue or EventCatalogue()
        self._lines: list[bytes] = []
        self._time = 0  # of the last event appended here
        self._surface = Surface(lambda seq: decode_line(self._lines[seq]))
        self._trace = TraceState()
        self._header_seq: int | None = None
        self._context_seq: int | None = None
        self._observers: tuple[Observer, ...] = ()
        self._validators: tuple[Observer, ...] = ()
        self._publishing = False
        if seed is not None:
            self._take_in(seed, seed_checked)

    def __len__(self) -> int:
        return len(self._lines)

    def __repr__(self) -> str:
        return f"<session {self.id}, {len(self._lines)} events>"

    # Reading

    def lines(self, start: int = 0) -> Sequence[bytes]:
        return self._lines[start:]

    def events(self, start: int = 0) -> Iterable[SessionEvent]:
        return map(view, self._lines[start:])

    def event(self, seq: int) -> SessionEvent:
        """One event. Raises IndexError."""
        if seq < 0:
            raise IndexError(seq)
        return view(self._lines[seq])

    def surface(self) -> Sequence[int]:
        """The numbers of the model-visible events, in model order."""
        return self._surface.nodes

    def messages(self) -> list[JsonObject]:
        derived = (message_of(decode_line(self._lines[seq])) for seq in self._surface.nodes)
        return [message for message in derived if message is not None]

    def request_header(self) -> JsonObject | None:
        if self._header_seq is None:
            return None
        header: JsonObject = decode_line(self._lines[self._header_seq])["data"]["header"]
        return header

    def request_context(self) -> JsonObject | None:
        """The last ``request/context`` payload."""
        if self._context_seq is None:
            return None
        context: JsonObject = decode_line(self._lines[self._context_seq])["data"]
        return context

    @property
    def last_turn(self) -> int:
        return self._trace.last_turn

    @property
    def turn_open(self) -> bool:
        return self._trace.turn_open

    @property
    def open_step(self) -> tuple[int, int] | None:
        """``(turn, step)`` of the open step."""
        return self._trace.open_step

    # Writing

    def append(
        self,
        type: str,
        data: JsonValue,
        *,
        surface_op: SurfaceOp | None = None,
        source_seqs: Sequence[int] | None = None,
        ignorable: bool = False,
        trusted: bool = False,
    ) -> EventView:
        """Validate, commit and publish one event; see :meth:`polyhost.interfaces.sessions.Session.append`.

        :param trusted: ``data`` was built by the runtime itself out of plain JSON values; the safety walk is skipped.
        :raises SessionError: SESSION_REENTRANT, SESSION_UNSUPPORTED (unknown type), EVENT_DATA, EVENT_INVALID,
            SESSION_TRACE, SURFACE_INVALID, or what a validator raised; the log is as it was.
        """
        self._refuse_reentry()
        seq = len(self._lines)
        self._catalogue.require(type, ignorable=ignorable, seq=seq)
        cited = None if source_seqs is None else list(source_seqs)
        try:
            payload = dumps(data) if trusted else snapshot(data, root="data")
        except WireError as error:
            raise SessionError(f"{type} is not lossless JSON: {error.message}", code="EVENT_DATA") from error
        problem = self._catalogue.problem(type, data, surface_op, cited, seq)
        if problem is not None:
            raise SessionError(f"{type}: {problem}", code="EVENT_INVALID")
        self._trace.check(type, data, surface_op)
        run = self._surface.check(type, data, surface_op, cited)
        now = self._now()
        line = encode_line(type, seq, now, payload, source_seqs=cited, surface_op=surface_op, ignorable=ignorable)
        event = EventView(line, type, seq, now)
        self._publishing = True
        try:
            for validator in self._validators:
                validator(event)
            self._commit(event, data, surface_op, run)
            self._publish(event)
        finally:
            self._publishing = False
        return event

    def chunk_writer(self, turn: int, step: int) -> ChunkWriter:
        """The writer for the stream of the open step. Raises :class:`SessionError` when another one is open."""
        open_step = self._trace.open_step
        if open_step != (turn, step):
            raise SessionError(f"step {turn}.{step} is not the open step", code="SESSION_TRACE")
        return ChunkWriter(self, open_step)

    def begin_chunk(self, step: tuple[int, int]) -> tuple[int, int]:
        self._refuse_reentry()
        if self._trace.open_step is not step:
            raise SessionError(f"step {step[0]}.{step[1]} is no longer open", code="SESSION_TRACE")
        return len(self._lines), self._now()

    def commit_chunk(self, event: EventView) -> None:
        self._publishing = True
        try:
            for validator in self._validators:
                validator(event)
            self._time = event.time
            self._lines.append(event.line)
            self._publish(event)
        finally:
            self._publishing = False

    # Being watched

    def observe(self, observer: Observer) -> Callable[[], None]:
        self._observers = (*self._observers, observer)
        active = True

        def undo() -> None:
            nonlocal active
            if active:
                active = False
                self._observers = _without(self._observers, observer)

        return undo

    def validate(self, validator: Observer) -> Callable[[], None]:
        """Call ``validator(event)`` before each commit; what it raises vetoes the event.

        Returns the idempotent undo.
        """
        self._validators = (*self._validators, validator)
        active = True

        def undo() -> None:
            nonlocal active
            if active:
                active = False
                self._validators = _without(self._validators, validator)

        return undo

    # Parts

    def _take_in(self, seed: Sequence[bytes], is_checked: bool) -> None:
        last = ""
        for seq, line in enumerate(seed):
            if line.startswith(_CHUNK) if is_checked else _is_delta(line, seq):
                self._lines.append(line)  # chunks change nothing but the log
                last = "assistant/chunk"
                continue
            envelope = read_foreign(line, seq, self._catalogue)
            last, data, surface_op = envelope["type"], envelope["data"], envelope.get("surfaceOp")
            run = self._surface.check(last, data, surface_op, envelope.get("sourceEventSeqs"))
            self._commit(EventView(line, last, seq, 0), data, surface_op, run)
        if last != END_SEED:
            self.append(END_SEED, {}, trusted=True)

    def _commit(self, event: EventView, data: JsonValue, surface_op: SurfaceOp | None, run: slice | None) -> None:
        self._time = event.time
        self._lines.append(event.line)
        self._surface.apply(event.seq, surface_op, run)
        self._trace.advance(event.type, data)
        if event.type == "request/header":
            self._header_seq = event.seq
        elif event.type == "request/context":
            self._context_seq = event.seq

    def _publish(self, event: EventView) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                _logger.exception("an observer of session %s failed at event %d (%s)", self.id, event.seq, event.type)

    def _refuse_reentry(self) -> None:
        if self._publishing:
            raise SessionError(_REENTRY, code="SESSION_REENTRANT")

    def _now(self) -> int:
        now = self._clock()
        return now if now > self._time else self._time


def _is_delta(line: bytes, seq: int) -> bool:
    delta = match_delta(line)
    return delta is not None and int(delta[1]) == seq


def _without(entries: tuple[Observer, ...], entry: Observer) -> tuple[Observer, ...]:
    index = next(index for index, other in enumerate(entries) if other is entry)
    return entries[:index] + entries[index + 1 :]
