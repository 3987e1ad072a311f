"""The one service of a host that starts children, and that leaves none behind when the host ends."""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
from types import TracebackType
from typing import Final

from polyhost.process.environment import exact_environment, scrubbed_environment
from polyhost.process.errors import (
    AbortedBeforeSpawnError,
    CleanupError,
    SpawnError,
    SupervisorClosedError,
    SupervisorConflictError,
    TreeSurvivedError,
    UnsupportedPlatformError,
)
from polyhost.process.handle import ProcessHandle
from polyhost.process.spec import SpawnSpec
from polyhost.process.spills import SpillDirectory, sweep
from polyhost.process.stdio import ChildEnds, Stdio
from polyhost.process.subreaper import Subreaper
from polyhost.process.tree import TREE_VARIABLE, ProcessTree, plant_tree

#: Seconds that :meth:`ProcessSupervisor.aclose` waits for a tree after its SIGKILL.
KILL_PATIENCE: Final = 5.0

_live_supervisor: ProcessSupervisor | None = None


class ProcessSupervisor:
    """Starts children and knows every tree that is still live. One per process, used from one event loop.

    :meth:`aclose` ends every live tree and proves it. Should the process exit without it (``sys.exit``, an uncaught
    exception), an exit hook kills the live trees. A host must turn SIGTERM into one of the two: a signal that kills
    the interpreter itself, SIGKILL above all, runs no hook.

    :param adopt_orphans: on Linux, become the parent of descendants whose own parent has ended, and reap them.
    :raises SupervisorConflictError: when another supervisor is live in this process.
    """

    def __init__(self, *, adopt_orphans: bool = True) -> None:
        global _live_supervisor
        if _live_supervisor is not None:
            raise SupervisorConflictError("a process supervisor is already live here: close it first, or use that one")
        _live_supervisor = self
        self._owner = os.getpid()
        self._live: set[ProcessHandle] = set()
        self._spills = SpillDirectory()
        self._swept = False
        self._subreaper = Subreaper() if adopt_orphans else None
        self._closing: asyncio.Task[None] | None = None
        atexit.register(self._at_exit)

    @property
    def live(self) -> tuple[ProcessHandle, ...]:
        """Handles whose tree is not yet proven gone, or whose pipes are still open."""
        return tuple(self._live)

    async def spawn(self, spec: SpawnSpec) -> ProcessHandle:
        """Start a child in a session and process group of its own.

        When the operating system refuses, a handle is returned all the same: its ``pid`` is -1 and its ``done``
        raises :class:`SpawnError`.

        :raises AbortedBeforeSpawnError: when the specification's signal is aborted already.
        :raises SupervisorClosedError: after :meth:`aclose` was called.
        :raises UnsupportedPlatformError: on Windows.
        """
        self._admit(spec)
        if self._subreaper is not None:
            self._subreaper.enter()
        if not self._swept:
            self._swept = True
            sweep()
        stdio = Stdio(spec, self._spills)
        try:
            tree = await self._start(spec, stdio)
        except (OSError, ValueError) as error:
            stdio.abandon()
            return ProcessHandle(spec, stdio, _spawn_error(spec, error), self._live.discard)
        except BaseException:
            stdio.abandon()
            raise
        handle = ProcessHandle(spec, stdio, tree, self._live.discard)
        self._live.add(handle)
        handle.watch()
        return handle

    async def aclose(self) -> None:
        """Admit no more children, terminate every live tree, and wait until they are gone. Idempotent.

        Bounded by the longest grace among the live trees and :data:`KILL_PATIENCE`; what is left then is killed
        once more, without a proof.

        :raises CleanupError: with every failure, after all trees had their turn.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="process supervisor: close")
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> ProcessSupervisor:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _admit(self, spec: SpawnSpec) -> None:
        if os.name != "posix":
            raise UnsupportedPlatformError("child processes need POSIX process groups, which this platform lacks")
        if self._closing is not None:
            raise SupervisorClosedError(f"cannot start {spec.argv[0]!r}: the process supervisor is closed")
        if spec.signal is not None and spec.signal.aborted:
            raise AbortedBeforeSpawnError(spec.signal.cause)

    async def _start(self, spec: SpawnSpec, stdio: Stdio) -> ProcessTree:
        ends = await stdio.open()
        self._admit(spec)  # again: both may have changed while the pipes were attached
        environment, marker = _environment(spec)
        return plant_tree(lambda: _popen(spec, ends, environment), marker)

    async def _close(self) -> None:
        global _live_supervisor
        handles = self.live
        try:
            outcomes = await asyncio.gather(*(self._end(handle) for handle in handles), return_exceptions=True)
        finally:
            self._kill_all()
            atexit.unregister(self._at_exit)
            self._spills.remove()
            if self._subreaper is not None:
                self._subreaper.leave()
            _live_supervisor = None
        if failures := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
            raise CleanupError(failures)

    async def _end(self, handle: ProcessHandle) -> None:
        try:
            handle.terminate()
            if not await handle.wait_for_exit(handle.grace + KILL_PATIENCE):
                raise TreeSurvivedError(f"the tree of {handle.argv[0]!r} (pid {handle.pid}) outlived SIGKILL")
        finally:
            await handle.close_streams()

    def _at_exit(self) -> None:
        if os.getpid() == self._owner:  # not in a forked copy of the host
            self._kill_all()

    def _kill_all(self) -> None:
        for handle in self.live:
            try:
                handle.kill_now()
            except Exception:  # one tree's failure must not save the others
                continue


def _environment(spec: SpawnSpec) -> tuple[dict[str, str], str | None]:
    """The child's environment, and the marker in it by which its descendants are known."""
    if not spec.inherit_env:
        return exact_environment(spec.env), None
    environment = scrubbed_environment(spec.env)
    marker = os.urandom(16).hex()
    outer = environment.get(TREE_VARIABLE)  # this host may itself be in a supervised tree, and stays in it
    environment[TREE_VARIABLE] = f"{outer}:{marker}" if outer else marker
    return environment, marker


def _popen(spec: SpawnSpec, ends: ChildEnds, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        spec.argv,
        cwd=spec.cwd,
        env=environment,
        stdin=ends.stdin,
        stdout=ends.stdout,
        stderr=ends.stderr,
        start_new_session=True,
    )


def _spawn_error(spec: SpawnSpec, error: Exception) -> SpawnError:
    if not os.path.isdir(spec.cwd):
        reason = f"the working directory {spec.cwd} is not an existing directory"
    else:
        reason = getattr(error, "strerror", None) or str(error)
    failure = SpawnError(f"cannot start {spec.argv[0]!r}: {reason}")
    failure.__cause__ = error
    return failure
