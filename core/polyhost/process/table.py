"""The Linux process table: who descends from whom, read from ``/proc``.

Pure reading: nothing is signalled or reaped here. Every function raises :class:`OSError` where the table cannot be
observed, and treats a process that vanished while being read as gone.
"""

from __future__ import annotations

import os
from typing import NamedTuple

_CHUNK = 65_536
_ENDED = (b"Z", b"X", b"x")
_KERNEL_THREAD = 0x0020_0000


class ProcessRow(NamedTuple):
    """One process at the time of reading."""

    pid: int
    parent: int
    group: int
    session: int
    start: int
    """Start time in clock ticks since boot: with the pid, the identity of a process."""
    alive: bool
    """False for a zombie, which only waits for its parent to take its exit status."""


def available() -> bool:
    """Whether this system has such a table."""
    return os.path.exists("/proc/self/stat")


def read_row(pid: int) -> ProcessRow | None:
    """The row of ``pid``, or None when there is no such process (or it is hidden from us)."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return _parse(pid, file.read(_CHUNK))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def read_table() -> list[ProcessRow]:
    """Every process that this user can see."""
    rows = (read_row(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [row for row in rows if row is not None]


def environment_has(pid: int, text: bytes) -> bool | None:
    """Whether ``text`` stands in the environment that process ``pid`` was started with.

    False also when that is unreadable for us; None when it cannot be told right now, because the process is just
    replacing its program.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            kept = b""
            while chunk := file.read(_CHUNK):
                if text in kept + chunk:
                    return True
                kept = chunk[-len(text) :]
        if kept:
            return False
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = _fields(file.read(_CHUNK))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return False if _has_no_environment(fields) else None


def _fields(stat: bytes) -> list[bytes]:
    """The fields of a ``stat`` line from the state on."""
    # The command before them stands in parentheses and may itself contain any: split after the last one.
    return stat[stat.rindex(b")") + 2 :].split()


def _parse(pid: int, stat: bytes) -> ProcessRow:
    fields = _fields(stat)
    state, threads = fields[0], int(fields[17])
    # A program whose first thread has ended looks like a zombie, yet lives while it has other threads.
    alive = state not in _ENDED or threads > 1
    return ProcessRow(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]), alive)


def _has_no_environment(fields: list[bytes]) -> bool:
    """Whether a process that showed no environment really has none, rather than not yet."""
    start, end, flags = int(fields[47]), int(fields[48]), int(fields[6])
    return start == end != 0 or bool(flags & _KERNEL_THREAD) or fields[0] in _ENDED
