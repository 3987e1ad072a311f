"""The process around a command: its standard streams, ^C before anything can hear it, and an end that always comes.

Not here: the signals of a running host (``running``).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from threading import Thread

CANCELLED = 130

LAST_CALL = 5.0
"""Seconds that exit hooks, which end child processes, and buffered output get when the process leaves at once."""

THREAD_PATIENCE = 5.0
"""Seconds that the end of the process waits for threads that plugins left running."""

_left_behind: list[Any] = []
_leaving = False


def prepare() -> list[Thread]:
    """Make the process fit for a command: ^C ends it without a word, and all standard streams can be used.

    ^C is the default again from :func:`started` on. Returns the threads that there are.
    """
    _exchange_interrupt(signal.default_int_handler, _end_quietly)  # before the next import
    import threading

    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us; the lowest free descriptor is the one that it had
            stream = open(os.devnull, mode)  # noqa: SIM115 - lives as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
        if mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    return threading.enumerate()


def started() -> None:
    """A command begins: from now on ^C is a :class:`KeyboardInterrupt`, so that it can tidy up."""
    _exchange_interrupt(_end_quietly, signal.default_int_handler)


def abandon(things: Collection[Any]) -> None:
    """Remember tasks that cannot be ended: the process leaves without them, and nothing destroys them before that."""
    _left_behind.extend(things)


def finish(code: int, known: Collection[Thread]) -> int:
    """The end of the entry point: returns the exit code, and sees to it that the process does end.

    :param known: what :func:`prepare` returned; these threads may keep the process alive.
    """
    import threading

    _exchange_interrupt(signal.default_int_handler, _end_quietly)
    code = _flush(code)
    if _left_behind:
        leave(code)
    if any(not thread.daemon for thread in set(threading.enumerate()).difference(known)):
        # Workers of thread pools are told to end only while the interpreter shuts down: wait beside it, not here.
        threading.Thread(target=_leave_without_threads, args=(code, known), daemon=True).start()
    return code


def leave(code: int) -> NoReturn:
    """End the process now, from wherever this is called: a signal handler or a thread, whatever else goes on.

    Exit hooks and buffered output have :data:`LAST_CALL` seconds; a second call does not wait for them.
    """
    global _leaving
    if not _leaving:
        _leaving = True
        _call_last()
    os._exit(code)


def _call_last() -> None:
    import atexit
    import threading
    import time

    # In threads: what was interrupted may hold a lock that they need, and an output may have no reader.
    steps = (atexit._run_exitfuncs, lambda: _flush(0))
    threads = [threading.Thread(target=step, daemon=True) for step in steps]
    deadline = time.monotonic() + LAST_CALL
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    except RuntimeError:  # the interpreter is already shutting down
        pass


def _leave_without_threads(code: int, known: Collection[Thread]) -> None:
    import threading
    import time

    time.sleep(THREAD_PATIENCE)
    left = set(threading.enumerate()).difference(known, {threading.main_thread()})
    names = sorted(thread.name for thread in left if not thread.daemon)
    sys.stderr.write(f"hostctl: warning: leaving without threads that do not end: {', '.join(names)}\n")
    leave(code)


def _flush(code: int) -> int:
    """Write what is buffered; a failure is told, unless ``code`` says that one was, and the buffer is dropped."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            _drop(stream)
            if code == 0 and not isinstance(error, BrokenPipeError):
                sys.stderr.write(f"hostctl: {stream.name}: {error}\n")
            code = code or 1
    return code


def _drop(stream: Any) -> None:
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass


def _end_quietly(number: int, frame: object) -> None:
    os._exit(CANCELLED)


def _exchange_interrupt(old: Any, new: Any) -> None:
    """Exchange our own handlers only: who ignores SIGINT, or handles it, goes on doing so."""
    if signal.getsignal(signal.SIGINT) is old:
        try:
            signal.signal(signal.SIGINT, new)
        except ValueError:  # not in the main thread, which is where ^C arrives
            pass
