"""The errors that the kernel raises, under one base class for the whole host.

Every error that may reach a person or a peer derives from :class:`PolyhostError` and carries a stable,
machine-readable ``code`` (SCREAMING_SNAKE), so that nobody has to match on message text. Errors that belong to
one subsystem live beside that subsystem; only what the kernel itself raises lives here.
"""

from __future__ import annotations

from typing import ClassVar


class PolyhostError(Exception):
    """Base of every error of the host.

    :param message: what happened, where, and what to do about it; one paragraph, no trailing newline.
    :param code: stable identifier for programs; defaults to the class's ``default_code``.
    """

    default_code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code


class InactiveContextError(PolyhostError):
    """A mount, listener, task or child was asked of a context whose fiber is unloading or disposed."""

    default_code = "INACTIVE_EFFECT"


class ServiceUnavailableError(PolyhostError):
    """A required service has no active provider in this realm, or was never declared as required."""

    default_code = "SERVICE_UNAVAILABLE"


class MountConflictError(PolyhostError):
    """A key of a unique mount kind is already taken or reserved; the message names both owners."""

    default_code = "MOUNT_CONFLICT"


class MountWithdrawnError(PolyhostError):
    """A call came to, or was in flight on, a mount that is no longer active."""

    default_code = "MOUNT_WITHDRAWN"


class EventModeError(PolyhostError):
    """An event was dispatched in another mode than its key declares."""

    default_code = "EVENT_MODE"


class EventTargetError(PolyhostError):
    """A scoped event was dispatched without a target, or with a target that is not its subject (strict bus only)."""

    default_code = "EVENT_TARGET"


class NextCalledTwiceError(PolyhostError):
    """A waterfall listener called ``next`` a second time."""

    default_code = "NEXT_CALLED_TWICE"


class ServiceConflictError(MountConflictError):
    """A service already has a provider in this realm, or somebody else than its provider tried to replace its value."""

    default_code = "SERVICE_CONFLICT"


class ServiceTypeError(PolyhostError):
    """A published value is not an instance of the interface that its key names."""

    default_code = "SERVICE_TYPE"


class ScopeLinkError(PolyhostError):
    """A scope was given a second parent, or a parent that would close a cycle."""

    default_code = "SCOPE_LINK"
