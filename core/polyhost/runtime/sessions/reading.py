"""Reading a stored log: what is sound, what may be cut off its end, what is corruption (agent-core 2.21).

Nothing is written here. :func:`read_log` says what a repair would keep; ``storage`` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from polyhost.interfaces.sessions import SessionError, SessionHeader
from polyhost.runtime.sessions import header as headers
from polyhost.runtime.sessions.catalogue import EventCatalogue
from polyhost.runtime.sessions.codec import Frame, first_frame, frames
from polyhost.runtime.sessions.events import LINE_DEPTH, read_foreign
from polyhost.runtime.sessions.layout import Encoding
from polyhost.runtime.sessions.packing import ROW_TYPES, match_delta, unpack
from polyhost.runtime.sessions.repair import closers
from polyhost.runtime.sessions.surface import Surface
from polyhost.wire.errors import WireError
from polyhost.wire.json import loads

_HEAD_BYTES = 64 * 1024


class StoredLog(NamedTuple):
    """What a log file holds.

    :ivar lines: its sound event lines, rows unpacked.
    :ivar keep: how many bytes at its start can stay; the rest is to be cut off.
    :ivar rescued: records among that rest that are sound and have to be written again.
    :ivar closers: event lines that end an interrupted turn.
    :ivar notes: what is wrong with the file, in words; empty when nothing is.
    """

    header: SessionHeader
    lines: list[bytes]
    keep: int
    rescued: list[bytes]
    closers: list[bytes]
    notes: list[str]


class _Record(NamedTuple):
    """One stored line; ``offset`` counts within the content of its frame."""

    line: bytes
    frame: Frame
    offset: int


class _Defect(Exception):
    """A record that may be a torn end."""


def read_log(raw: bytes, encoding: Encoding, path: str, catalogue: EventCatalogue) -> StoredLog:
    """Read a whole file.

    :raises SessionError: SESSION_CORRUPT or SESSION_UNSUPPORTED, with file and place; the file can stay as it is.
    """
    records = _records(raw, encoding, path)
    first = next(records, None)
    if first is None or not first.line.endswith(b"\n"):
        raise SessionError(f"{path}: it ends within its header", code="SESSION_CORRUPT")
    return _Reader(path, encoding, catalogue).read(headers.decode(first.line, path), first, records, len(raw))


def read_header(path: str, encoding: Encoding) -> SessionHeader:
    """The header alone, without reading the rest of the file.

    :raises SessionError: SESSION_CORRUPT or SESSION_UNSUPPORTED.
    :raises OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        line, found, _ = first_frame(head, encoding, path).partition(b"\n")
        if not found:
            line, found, _ = first_frame(head + file.read(), encoding, path).partition(b"\n")
    if not found:
        raise SessionError(f"{path}: it ends within its header", code="SESSION_CORRUPT")
    return headers.decode(line, path)


def _records(raw: bytes, encoding: Encoding, path: str) -> Iterator[_Record]:
    for frame in frames(raw, encoding, path):
        *lines, rest = frame.content.split(b"\n")
        offset = 0
        for line in lines:
            yield _Record(line + b"\n", frame, offset)
            offset += len(line) + 1
        if rest or not frame.complete:
            yield _Record(rest, frame, offset)


class _Reader:
    def __init__(self, path: str, encoding: Encoding, catalogue: EventCatalogue) -> None:
        self._path = path
        self._encoding = encoding
        self._catalogue = catalogue
        self._lines: list[bytes] = []
        self._surface = Surface(lambda seq: loads(self._lines[seq]))

    def read(self, header: SessionHeader, first: _Record, records: Iterator[_Record], size: int) -> StoredLog:
        frame, intact = first.frame, [first.line]  # the frame being read, and its sound records
        for record in records:
            if record.frame is not frame:
                frame, intact = record.frame, []
            try:
                self._take_in(record)
            except _Defect as defect:
                self._refuse_later_turn_end(record, records, defect)
                return self._cut(header, record, intact, size, defect)
            intact.append(record.line)
        return self._stored(header, size, [], [])

    def _cut(
        self, header: SessionHeader, record: _Record, intact: list[bytes], size: int, defect: _Defect
    ) -> StoredLog:
        if self._encoding == "plain":
            keep, rescued = record.offset, []
        else:
            keep, rescued = record.frame.start, intact
        note = f"{self._place(record)}: {defect}; the log ends before it, {size - keep} bytes are cut off"
        if rescued:
            note += f" and {len(rescued)} records out of them written again"
        return self._stored(header, keep, rescued, [note])

    def _stored(self, header: SessionHeader, keep: int, rescued: list[bytes], notes: list[str]) -> StoredLog:
        closing = closers(self._lines)
        if closing:
            notes.append(f"{self._path}: the last turn was interrupted; {len(closing)} events close it")
        return StoredLog(header, self._lines, keep, rescued, closing, notes)

    def _take_in(self, record: _Record) -> None:
        seq = len(self._lines)
        line = record.line
        if not line.endswith(b"\n"):
            if self._encoding == "zstd" and record.frame.complete:
                raise self._corrupt(record, "a record without its end in a complete frame")
            raise _Defect("the last record is torn")
        delta = match_delta(line)
        if delta is not None and int(delta[1]) == seq:
            self._lines.append(line)
            return
        value = _decode(line)
        type_ = value.get("type")
        if isinstance(type_, str) and type_ in ROW_TYPES:
            self._take_in_row(value, seq)
            return
        if value.get("seq") != seq:
            raise _Defect(f"event {seq} is missing, {value.get('seq')!r} comes instead")
        if line.endswith(b"\r\n"):
            line = line[:-2] + b"\n"
        self._take_in_event(record, line, seq)

    def _take_in_row(self, row: Any, seq: int) -> None:
        try:
            lines = unpack(row)
        except ValueError as error:
            raise _Defect(str(error)) from error
        if row["seq0"] != seq:
            raise _Defect(f"event {seq} is missing, a row from {row['seq0']} on comes instead")
        self._lines.extend(lines)

    def _take_in_event(self, record: _Record, line: bytes, seq: int) -> None:
        try:
            event = read_foreign(line, seq, self._catalogue)
            operation = event.get("surfaceOp")
            run = self._surface.check(event["type"], event["data"], operation, event.get("sourceEventSeqs"))
        except SessionError as error:
            code = "SESSION_UNSUPPORTED" if error.code == "SESSION_UNSUPPORTED" else "SESSION_CORRUPT"
            raise SessionError(f"{self._place(record)}: {error.message}", code=code) from error
        self._lines.append(line)
        self._surface.apply(seq, operation, run)

    def _refuse_later_turn_end(self, defective: _Record, rest: Iterator[_Record], defect: _Defect) -> None:
        """Only what comes after the last end of a turn may be cut off."""
        for record in (defective, *rest):
            try:
                type_ = _decode(record.line).get("type")
            except _Defect:
                continue
            if type_ == "turn/end" and record.line.endswith(b"\n"):
                raise self._corrupt(defective, f"{defect}, and a turn ends after it")

    def _corrupt(self, record: _Record, reason: str) -> SessionError:
        return SessionError(f"{self._place(record)}: {reason}. The file is left as it is", code="SESSION_CORRUPT")

    def _place(self, record: _Record) -> str:
        if self._encoding == "plain":
            return f"{self._path}, byte {record.offset}"
        return f"{self._path}, byte {record.offset} of the frame at byte {record.frame.start}"


def _decode(line: bytes) -> Any:
    try:
        value = loads(line, max_depth=LINE_DEPTH)
    except WireError as error:
        raise _Defect(f"a record is not JSON ({error.message})") from error
    if not isinstance(value, dict):
        raise _Defect("a record is not an object")
    return value
