"""Supervised child processes: the only way in which the host starts programs.

A child gets a scrubbed environment, a session and process group of its own, and streams that never block it by
accident. Ending it means ending everything that descends from it, and proving that.

What a *tree* is, and with it what ``terminate``, ``wait_for_exit``, ``dispose`` and ``aclose`` guarantee:

Linux
    The process group of the child, all descendants by parentage, everything in sessions they founded, and every
    process that inherited the tree's mark (:mod:`polyhost.process.mark`) or its marker in the environment: a daemon
    that forked twice, called ``setsid`` and cleared its environment is a member. A process escapes only if, between
    two looks, it left the group, lost its ancestors, cleared its environment and set its own limit on real-time CPU
    time. A runaway that forks into a new session faster than the table can be read stays ahead of every signal.
    Children that other code of this process starts are nobody's members: they inherit neither mark nor marker. The
    child's id stays reserved until the tree is gone, so that no signal can reach a stranger. Where ``/proc`` is not
    mounted, the next paragraph holds.

Other POSIX systems
    The process group of the child. A process that leaves the group leaves the supervision.

Windows
    Nothing is started: ``spawn`` raises :class:`UnsupportedPlatformError`.

When the host ends by ``aclose``, ``sys.exit``, an uncaught exception, or a signal that it turns into one of these, no
member of a live tree is left. When the host is killed outright (SIGKILL, or a signal it does not handle), nothing of
it can run: its children see end of file on a piped stdin and broken output pipes, and are otherwise on their own;
what they are still doing goes on until they end or somebody ends them. Files with whole outputs that such a host has
left in the temporary directory are removed when a later host of the same user starts its first child.

Not here: what is said over the pipes (:mod:`polyhost.wire`), and any policy about which programs may be started.
"""

from __future__ import annotations

from polyhost.process.environment import exact_environment, scrubbed_environment
from polyhost.process.errors import (
    AbortedBeforeSpawnError,
    CleanupError,
    InvalidSpecError,
    ProcessError,
    SpawnError,
    SupervisorClosedError,
    SupervisorConflictError,
    TreeSurvivedError,
    UnsupportedPlatformError,
)
from polyhost.process.handle import ProcessHandle
from polyhost.process.output import CollectedOutput, OutputRead
from polyhost.process.spec import Collect, SpawnSpec
from polyhost.process.supervisor import ProcessSupervisor
from polyhost.process.tree import ExitStatus

__all__ = [
    "AbortedBeforeSpawnError",
    "CleanupError",
    "Collect",
    "CollectedOutput",
    "ExitStatus",
    "InvalidSpecError",
    "OutputRead",
    "ProcessError",
    "ProcessHandle",
    "ProcessSupervisor",
    "SpawnError",
    "SpawnSpec",
    "SupervisorClosedError",
    "SupervisorConflictError",
    "TreeSurvivedError",
    "UnsupportedPlatformError",
    "exact_environment",
    "scrubbed_environment",
]
