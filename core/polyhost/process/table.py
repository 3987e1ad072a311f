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
        found = _search_environment(pid, text)
        if found is not None:
            return found
        # Empty, or not there yet. Empty it is if the same finished program stands before and after another look.
        program = _program(pid)
        found = _search_environment(pid, text)
        if found is None and program is not None and program == _program(pid):
            return False
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return found


def _search_environment(pid: int, text: bytes) -> bool | None:
    """Whether the environment of ``pid`` has ``text``; None when it is empty."""
    kept = b""
    with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            if text in kept + chunk:
                return True
            kept = chunk[-len(text) :]
    return False if kept else None


def _program(pid: int) -> tuple[bytes, ...] | None:
    """Where the program of ``pid`` has its code, stack and environment; None until its start is finished.

    The addresses are random, so that equal ones mean the same program. Ended processes and kernel threads have none,
    and will get none.
    """
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
        fields = _fields(file.read(_CHUNK))
    if fields[0] in _ENDED or int(fields[6]) & _KERNEL_THREAD:
        return ()
    code_end, stack, environment_start, environment_end = fields[24], fields[25], fields[47], fields[48]
    # The kernel tells where the code is last, when the environment is in place.
    return None if code_end == b"0" else (code_end, stack, environment_start, environment_end)


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
