"""What every plugin may know of the host that it runs in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from polyhost.kernel.keys import ServiceKey

if TYPE_CHECKING:
    from polyhost.process import ProcessSupervisor


class HostInfo(NamedTuple):
    """Facts of this process. ``home`` holds all state; ``cwd`` is where the command was started.

    :param default_model: ``provider/model`` of the configuration's ``[host]`` table, or None.
    :param default_mode: permission mode of sessions whose front end says nothing.
    """

    version: str
    home: Path
    cwd: Path
    default_model: str | None
    default_mode: str = "ask"


class Credentials(Protocol):
    """Secrets by name: the credential store first, then the environment. Read at each use, never logged."""

    def get(self, name: str) -> str | None:
        """The trimmed secret, or None. Raises a typed error with INVALID_CREDENTIAL for an unusable one."""
        ...

    def require(self, name: str) -> str:
        """The trimmed secret. Raises a typed error with MISSING_CREDENTIAL or INVALID_CREDENTIAL."""
        ...


class Redactor(Protocol):
    """Keeps secrets out of texts that leave the process."""

    def add(self, value: str) -> None: ...

    def redact(self, text: str) -> str: ...


class Spill(Protocol):
    """Private files for output that is too large to show whole."""

    def save(self, session_id: str, name: str, content: bytes) -> Path:
        """Write a new file (0600, in a 0700 directory of that session). Raises OSError."""
        ...


HOST = ServiceKey[HostInfo]("host")
CREDENTIALS = ServiceKey[Credentials]("credentials")
REDACTOR = ServiceKey[Redactor]("redactor")
PROCESSES: ServiceKey[ProcessSupervisor] = ServiceKey("processes")
SPILL = ServiceKey[Spill]("spill")
