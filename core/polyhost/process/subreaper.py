"""Adoption of orphans on Linux: descendants whose parent has ended become children of the host, not of init.

Without it, they would go to a process outside, which in a container may never reap them. Where the system offers no
such thing, nothing happens; :mod:`polyhost.process.tree` does not depend on it to find members.
"""

from __future__ import annotations

import sys

from polyhost.process import table

_SET_CHILD_SUBREAPER = 36
_GET_CHILD_SUBREAPER = 37


class Subreaper:
    """Makes this process a child subreaper, and puts back what it was before."""

    def __init__(self) -> None:
        self._entered = False

    def enter(self) -> None:
        """Adopt orphans from now on; once is enough. Only where the ended ones can be found and reaped."""
        if self._entered or sys.platform != "linux" or not table.available():
            return
        self._entered = _get() == 0 and _set(1)

    def leave(self) -> None:
        """Stop adopting, unless somebody else had asked for it before."""
        if self._entered:
            self._entered = False
            _set(0)


def _get() -> int:
    import ctypes  # only where it is used: loading it costs milliseconds

    value = ctypes.c_int(0)
    result = ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return value.value if result == 0 else -1


def _set(value: int) -> bool:
    import ctypes

    result: int = ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, value, 0, 0, 0)
    return result == 0
