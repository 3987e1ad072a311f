"""One process tree: finding its members, signalling them, and proving that none is left.

There are two views. :class:`LinuxTree` reads the process table and also finds members that left the process group:
by their parents, by their session, by a mark that they inherit, and by a marker in their environment.
:class:`GroupTree` serves other POSIX systems and knows the process group only. Neither waits: who looks when is decided
in :mod:`polyhost.process.handle`.

The direct child is kept unreaped by :class:`LinuxTree` until the tree is gone. Its pid, which is also the id of the
group, can therefore not be given to another process while somebody may still signal it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import NamedTuple, Protocol

from polyhost.process import table
from polyhost.process.exit_watch import watch_exit
from polyhost.process.mark import Mark
from polyhost.process.table import ProcessRow

#: Names the trees that a process belongs to, outermost first, separated by colons. Set by the supervisor.
TREE_VARIABLE = "POLYHOST_TREE"


class ExitStatus(NamedTuple):
    """How the direct child ended: exactly one of the two is set, or none when its status was lost.

    A status is lost only when something else in the host process took it, or when SIGCHLD is ignored.
    """

    exit_code: int | None
    signal: int | None

    @property
    def signal_name(self) -> str | None:
        """The signal by its name, such as ``"SIGTERM"``, or by its number where it has none."""
        if self.signal is None:
            return None
        try:
            return signal.Signals(self.signal).name
        except ValueError:
            return str(self.signal)


class ProcessTree(Protocol):
    """A direct child, leader of its own session and process group, and everything that descends from it."""

    @property
    def pid(self) -> int:
        """The direct child, which is also the id of the group."""

    def watch_leader(self, on_exit: Callable[[], None]) -> None:
        """Call ``on_exit()`` once on the running loop after the direct child has ended."""

    def leader_status(self) -> ExitStatus | None:
        """How the direct child ended, or None while it runs."""

    def alive(self) -> bool:
        """Whether anything of the tree may still run, once the direct child has ended.

        True also when that cannot be observed. After a False the tree must not be asked or signalled any more.
        """

    def signal(self, number: int) -> None:
        """Send a signal to every member. Members that are gone or may not be signalled are passed over."""


def plant_tree(start: Callable[[], subprocess.Popen[bytes]], marker: str | None) -> ProcessTree:
    """Let ``start()`` start a child; the best view of its tree that this system allows."""
    if not table.available():
        return GroupTree(start())
    mark = Mark()
    with mark.worn():
        child = start()
    mark.put_on(child.pid)  # where it could not be worn
    return LinuxTree(child, marker, mark)


class GroupTree:
    """The process group of a child, through signal 0. Processes that left the group are not seen."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.pid = child.pid
        self._child = child

    def watch_leader(self, on_exit: Callable[[], None]) -> None:
        watch_exit(self._child, on_exit)

    def leader_status(self) -> ExitStatus | None:
        # A zombie would keep the group visible, so the child is reaped as soon as it has ended.
        code = self._child.poll()
        if code is None:
            return None
        return ExitStatus(None, -code) if code < 0 else ExitStatus(code, None)

    def alive(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True

    def signal(self, number: int) -> None:
        _signal_group(self.pid, number)


class LinuxTree:
    """A child and all its descendants, as the process table shows them.

    :param marker: text that stands in the environment of every descendant, unless one clears it; None without one.
    :param mark: what every descendant has inherited.
    """

    def __init__(self, child: subprocess.Popen[bytes], marker: str | None, mark: Mark) -> None:
        self.pid = child.pid
        self._child = child
        self._mark = mark
        self._marker = None if marker is None else marker.encode()
        row = table.read_row(child.pid)
        self._start = row.start if row is not None else 0
        self._living: list[ProcessRow] = []  # members found at the last look
        self._status: ExitStatus | None = None

    def watch_leader(self, on_exit: Callable[[], None]) -> None:
        watch_exit(self._child, on_exit)

    def leader_status(self) -> ExitStatus | None:
        if self._status is None:
            self._status = self._peek()
        return self._status

    def alive(self) -> bool:
        try:
            # A member can hide from one look by forking behind the reader's back and exiting ahead of it.
            if self._known_alive() or self._find_any() or self._find_any():
                return True
        except OSError:
            return True
        self._child.poll()  # reaps the leader, and with it frees the id of the group
        return False

    def signal(self, number: int) -> None:
        try:
            self._find_any()  # first, since the end of a parent hides whose child a stray was
        except OSError:
            pass  # those found before are still known
        _signal_group(self.pid, number)
        for row in self._living:
            if row.group != self.pid:
                _signal_process(row, number)

    def _peek(self) -> ExitStatus | None:
        """The direct child's status, leaving it to be taken later."""
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return ExitStatus(None, None)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return ExitStatus(found.si_status, None)
        return ExitStatus(None, found.si_status)

    def _known_alive(self) -> bool:
        """The cheap look: is one of those found last time still there?"""
        for known in self._living:
            row = table.read_row(known.pid)
            if row is not None and row.start == known.start and row.alive:
                return True
        return False

    def _find_any(self) -> bool:
        """Look through the whole table for living members, and reap adopted ones that have ended.

        True when there are members, and also when there may be: a process was just replacing its program.
        """
        host = os.getpid()
        rows = [row for row in table.read_table() if row.pid != host]
        members = _closure(rows, {row.pid for row in rows if self._is_seed(row)})
        marked, unsure = self._marked(rows, members)
        if marked:
            members = _closure(rows, members | marked)
        # Children that the host started itself share its session or lead their own: any other was adopted.
        own_session = os.getsid(0)
        for row in rows:
            adopted = row.pid in members or row.session not in (own_session, row.pid)
            if adopted and not row.alive and row.parent == host and row.pid != self.pid:
                _reap(row.pid)
        self._living = [row for row in rows if row.alive and row.pid in members]
        return bool(self._living) or unsure

    def _marked(self, rows: list[ProcessRow], members: set[int]) -> tuple[set[int], bool]:
        """Further members by what they inherited, and whether there was a process of which it could not be told."""
        marked: set[int] = set()
        unsure = False
        for row in rows:
            if row.alive and row.start >= self._start and row.pid not in members:
                found = self._mark.is_on(row.pid) or self._has_marker(row.pid)
                unsure = unsure or found is None
                if found:
                    marked.add(row.pid)
        return marked, unsure

    def _has_marker(self, pid: int) -> bool | None:
        return self._marker is not None and table.environment_has(pid, self._marker)

    def _is_seed(self, row: ProcessRow) -> bool:
        if self.pid in (row.group, row.session):
            return True
        return any(known.pid == row.pid and known.start == row.start for known in self._living)


def _closure(rows: list[ProcessRow], members: set[int]) -> set[int]:
    """Add everything whose parent is a member, or which is in a member's session: nobody joins one from outside."""
    host_session = os.getsid(0)  # never a tree's own: the host itself must be safe whatever the table says
    while True:
        sessions = {row.session for row in rows if row.pid in members and row.session != host_session}
        grown = members | {row.pid for row in rows if row.parent in members or row.session in sessions}
        if len(grown) == len(members):
            return grown
        members = grown


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def _signal_process(row: ProcessRow, number: int) -> None:
    """Signal exactly the process of this row, never another one that got its pid in the meantime."""
    try:
        descriptor = os.pidfd_open(row.pid)
    except OSError:
        return
    try:
        current = table.read_row(row.pid)
        if current is not None and current.start == row.start:
            signal.pidfd_send_signal(descriptor, number)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
