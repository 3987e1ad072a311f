"""Session titles: reading, renaming, and the one provider that may think of better ones (agent-core 2.22)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from polyhost.interfaces.sessions import Session, SessionEvent
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import MountKind, ServiceKey
from polyhost.kernel.signals import AbortSignal


class TitleError(PolyhostError):
    """A title is refused (TITLE_INVALID), there is nothing to make one of (TITLE_NO_TEXT), or its provider failed
    (TITLE_FAILED).
    """

    default_code = "TITLE_FAILED"


class TitleRequest(NamedTuple):
    """What a provider is asked.

    :param messages: ``(seq, text)`` of human messages, oldest first; at least one. Long texts are cut.
    """

    session: Session
    messages: Sequence[tuple[int, str]]
    signal: AbortSignal


class ProposedTitle(NamedTuple):
    """What a provider answers; ``model`` is the ``provider/model`` that thought of it."""

    title: str
    model: str | None = None


class TitleProvider(Protocol):
    """Makes titles, usually with one model request; it has 60 seconds. Failures never reach the session's turns."""

    @property
    def name(self) -> str: ...

    async def propose(self, request: TitleRequest) -> ProposedTitle | None:
        """A title, or None to leave the one that is there. Raises whatever goes wrong."""
        ...


class Titles(Protocol):
    """Titles are ``session/title`` events, of which the last counts.

    A session gets the start of its first human text, then what the provider proposes for it. A renamed session keeps
    its name until :meth:`refresh`.
    """

    def title(self, session: Session) -> str | None: ...

    def rename(self, session: Session, title: str) -> SessionEvent:
        """Log a title chosen by a person, cleaned and cut to 80 bytes; returns the event.

        Raises :class:`TitleError` (TITLE_INVALID) when nothing visible is left.
        """
        ...

    async def refresh(self, session: Session, signal: AbortSignal | None = None) -> str:
        """Make a title anew, also of a renamed session, and return the one that is in force then.

        Raises :class:`TitleError` with TITLE_NO_TEXT or TITLE_FAILED, :class:`AbortedError` for ``signal``.
        """
        ...


TITLES = ServiceKey[Titles]("titles")
TITLE_PROVIDER = MountKind[TitleProvider]("title-provider", scoped=False)
"""Mounted under the key None: there is one at a time."""
