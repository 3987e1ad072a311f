"""Telling the event loop that a direct child has ended, without taking its exit status.

A pidfd on the loop where there is one, otherwise a waiting thread. asyncio's child watchers take no part: they would
reap the child, and free the id of its group while it may still have to be signalled.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable


def watch_exit(child: subprocess.Popen[bytes], on_exit: Callable[[], None]) -> None:
    """Call ``on_exit()`` once on the running loop after the child has ended."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(child.pid)
    except (AttributeError, OSError):
        threading.Thread(target=_wait, args=(child, loop, on_exit), name=f"exit-{child.pid}", daemon=True).start()
        return

    def readable() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        on_exit()

    loop.add_reader(descriptor, readable)


def _wait(child: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop, on_exit: Callable[[], None]) -> None:
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    except AttributeError:  # macOS before Python 3.13
        child.wait()
    except ChildProcessError:
        pass  # its status was taken: it has ended
    try:
        loop.call_soon_threadsafe(on_exit)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
