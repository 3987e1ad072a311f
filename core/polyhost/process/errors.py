"""The errors of process supervision, under a base class of their own.

The process floor imports nothing from the rest of the host, so its base stands here; like every error of the host
it carries a stable ``code`` for programs and a ``message`` for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class ProcessError(Exception):
    """Base of every error that this package raises."""

    default_code: ClassVar[str] = "PROCESS_ERROR"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code


class InvalidSpecError(ProcessError, ValueError):
    """A spawn specification cannot be carried out; nothing was started."""

    default_code = "INVALID_SPAWN_SPEC"


class AbortedBeforeSpawnError(ProcessError):
    """The specification's signal was aborted before the child was started; ``cause`` is the signal's cause."""

    default_code = "ABORTED"

    def __init__(self, cause: object) -> None:
        super().__init__(f"aborted before spawn: {cause}")
        self.cause = cause


class SpawnError(ProcessError):
    """The operating system refused to start the child (no such program or directory, no permission, no resources)."""

    default_code = "SPAWN_FAILED"


class UnsupportedPlatformError(ProcessError):
    """Process groups do not exist on this platform, so a whole tree could not be ended; nothing was started."""

    default_code = "UNSUPPORTED_PLATFORM"


class SupervisorConflictError(ProcessError):
    """A supervisor is already live in this process."""

    default_code = "SUPERVISOR_CONFLICT"


class SupervisorClosedError(ProcessError):
    """The supervisor is closing or closed and starts nothing any more."""

    default_code = "SUPERVISOR_CLOSED"


class TreeSurvivedError(ProcessError):
    """A process tree was still there after SIGKILL and a further wait."""

    default_code = "TREE_SURVIVED"


class CleanupError(ProcessError):
    """Some trees could not be ended in an orderly way; ``failures`` holds one exception for each."""

    default_code = "PROCESS_CLEANUP_FAILED"

    def __init__(self, failures: Iterable[Exception]) -> None:
        self.failures = tuple(failures)
        super().__init__("; ".join(str(failure) or repr(failure) for failure in self.failures))
