"""A mark on a process that everything it starts inherits, and that no program takes off unknowingly.

It is the soft limit on the real-time CPU time of a thread (``RLIMIT_RTTIME``, in microseconds), set to a random number
of more than a hundred thousand years. Such a limit has no effect, and it survives new programs, new sessions, a cleared
environment, closed descriptors and lost ancestors. Only who sets this very limit is rid of it. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

_LEAST = 1 << 62
_RANDOM_BYTES = 7


class Mark:
    """One mark, which nothing but the descendants of the process it was put on can have."""

    def __init__(self) -> None:
        self._value = _LEAST + int.from_bytes(os.urandom(_RANDOM_BYTES), "big")
        self._text = b" %d " % self._value

    @contextlib.contextmanager
    def worn(self) -> Iterator[None]:
        """``with mark.worn():`` what this thread starts has the mark from its first moment on.

        The limit belongs to the whole process, so that what other threads start meanwhile has it too; it is taken off
        that again. In the main thread only, which alone can tell (see :meth:`_take_off_strangers`); does nothing in
        others, or where the limit may not be set.
        """
        import resource  # not there on every platform that imports this module

        soft, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        worn = False
        if threading.get_native_id() == os.getpid() and os.path.exists(_children_file(os.getpid(), os.getpid())):
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_RTTIME, (self._value, hard))
                worn = True
        try:
            yield
        finally:
            if worn:
                resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))
                self._take_off_strangers(soft)

    def put_on(self, pid: int) -> None:
        """Mark a process that was just started, and what it may have started already.

        Does nothing where that is not allowed: to another user's process, or below a hard limit.
        """
        _limit([pid], self._value)

    def is_on(self, pid: int) -> bool:
        """Whether a process has the mark; False also when there is no such process any more."""
        try:
            with open(f"/proc/{pid}/limits", "rb", buffering=0) as file:
                return self._text in file.read(8192)
        except OSError:
            return False

    def _take_off_strangers(self, soft: int) -> None:
        """Unmark what other threads have started. Orphans that were adopted are the main thread's children."""
        host = os.getpid()
        threads = (int(name) for name in os.listdir("/proc/self/task") if int(name) != host)
        strangers = [child for thread in threads for child in _children(host, thread) if self.is_on(child)]
        _limit(strangers, soft)


def _limit(pids: list[int], soft: int) -> None:
    """Set the limit of processes and of their descendants."""
    import resource

    while pids:
        pid = pids.pop()
        with contextlib.suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_RTTIME, (soft, resource.RLIM_INFINITY))
        pids += _children(pid, pid)  # those it starts from now on have it


def _children(pid: int, thread: int) -> list[int]:
    """The children of a thread, adopted ones included if it is the first; none where the kernel does not tell."""
    try:
        with open(_children_file(pid, thread), "rb", buffering=0) as file:
            return [int(child) for child in file.read(65_536).split()]
    except OSError:
        return []


def _children_file(pid: int, thread: int) -> str:
    return f"/proc/{pid}/task/{thread}/children"
