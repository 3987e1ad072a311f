"""Sessions: the append-only event log of one conversation, its store, and the doors to it.

A session event exists once, as the LF-ended JSON line that was encoded when it was appended: memory, disk and every
wire splice those bytes. :class:`SessionEvent` is a light view of such a line. Envelope and types: agent-core 2.1, 2.2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey

if TYPE_CHECKING:
    from pathlib import Path

    from polyhost.interfaces.agents import Agent
    from polyhost.kernel.signals import AbortSignal

SurfaceOp: TypeAlias = "str | JsonObject"
"""``"append"`` or ``{op: "replace", start, end}``."""


class SessionError(PolyhostError):
    """A session could not be found, opened, written or changed; ``code`` says which."""

    default_code = "SESSION_ERROR"


class SessionEvent(Protocol):
    """A view of one committed event."""

    @property
    def line(self) -> bytes:
        """The event as one JSON object, ended by a line feed. Shared by everybody: the immutable snapshot."""
        ...

    @property
    def type(self) -> str: ...

    @property
    def seq(self) -> int: ...

    @property
    def time(self) -> int:
        """Epoch milliseconds."""
        ...

    @property
    def data(self) -> JsonObject:
        """The payload, decoded afresh at each access and detached: yours to change."""
        ...

    @property
    def envelope(self) -> JsonObject:
        """The whole event, decoded afresh at each access."""
        ...


class SessionHeader(NamedTuple):
    """Immutable facts of a session (agent-core 2.6). ``created_at`` in epoch milliseconds; ``cwd`` absolute."""

    id: str
    created_at: int
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: int | None = None
    origin: str | None = None
    delegation_depth: int | None = None
    agent_preset: str | None = None


Observer: TypeAlias = Callable[[SessionEvent], object]


class Session(Protocol):
    """A live log. All methods are synchronous and belong to the event loop's thread."""

    @property
    def id(self) -> str: ...

    @property
    def header(self) -> SessionHeader: ...

    def __len__(self) -> int:
        """How many events the log holds; also the seq of the next one."""
        ...

    def append(
        self,
        type: str,
        data: JsonValue,
        *,
        surface_op: SurfaceOp | None = None,
        source_seqs: Sequence[int] | None = None,
        ignorable: bool = False,
    ) -> SessionEvent:
        """Validate, commit and publish one event. Raises :class:`SessionError` and leaves the log as it was.

        Not re-entrant: an observer that wants to append defers to the next loop tick.
        """
        ...

    def lines(self, start: int = 0) -> Sequence[bytes]:
        """The event lines from ``start`` on, as a snapshot that does not grow."""
        ...

    def events(self, start: int = 0) -> Iterable[SessionEvent]: ...

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call ``observer(event)`` after each commit; its errors are contained. Returns the idempotent undo."""
        ...

    def messages(self) -> list[JsonObject]:
        """Derived model history: a fresh list of the messages on the surface."""
        ...

    def request_header(self) -> JsonObject | None:
        """The last ``request/header`` payload's header."""
        ...

    @property
    def last_turn(self) -> int:
        """Number of the last turn that was started, 0 when none."""
        ...

    @property
    def turn_open(self) -> bool: ...


class SessionStore(Protocol):
    """Live sessions by id (agent-core 2.9)."""

    def get(self, session_id: str) -> Session | None: ...

    def list(self) -> Sequence[Session]: ...

    async def written(self, session: Session) -> None:
        """Wait until everything appended so far reached the operating system: it survives the death of this process.

        Front ends await this before they answer a prompt. Raises :class:`SessionError` when the log cannot be written.
        """
        ...

    async def flush(self, session: Session) -> bool:
        """Wait until everything appended so far is durable; False when nothing takes part (no persistence)."""
        ...


class StoredSession(NamedTuple):
    """One row of a listing: header facts, where the log is, and when it last changed (epoch milliseconds).

    ``revision`` is opaque; another one means that the log has changed. ``title`` is the one that was given last, else
    the first words of the first prompt. ``events`` and ``turns`` are None where the log was not read for them.
    """

    header: SessionHeader
    path: str
    modified: int
    size: int
    title: str | None = None
    revision: str = ""
    events: int | None = None
    turns: int | None = None

    @property
    def cursor(self) -> str:
        """Where a listing goes on behind this row."""
        return f"{self.modified}.{self.header.id}"


class SessionPage(NamedTuple):
    """One page of a listing.

    :param cursor: where the next page begins; None on the last one.
    :param left_out: how many logs are not in the listing because they cannot be read; a diagnosis explains them.
    """

    sessions: Sequence[StoredSession]
    cursor: str | None
    left_out: int


class SessionMatch(NamedTuple):
    """A session that a search found, and where: its best message, and the text around the words.

    :param role: ``user``, ``assistant``, or ``title``.
    """

    stored: StoredSession
    seq: int
    role: str
    snippet: str


class SessionDiagnosis(NamedTuple):
    """What is to be said about one stored log, without having changed it.

    :param notes: what opening it would repair, in words.
    :param problem: why it cannot be opened; None when it can.
    :param holder: who has it open now, in words; None when nobody has.
    """

    path: str
    header: SessionHeader | None
    events: int
    notes: Sequence[str]
    problem: SessionError | None
    holder: str | None = None


class SessionImport(NamedTuple):
    """What became of one log file: the session that it is now, or why it was not taken."""

    path: str
    stored: StoredSession | None
    problem: SessionError | None


class OpenedSession(NamedTuple):
    """A session opened through the directory. ``close()`` gives it back; it is memoized and shared."""

    agent: Agent
    close: Callable[[], Awaitable[None]]
    resumed: bool


class SessionDirectory(Protocol):
    """The one way to create, resume and own a session, live or stored."""

    async def open(
        self,
        session_id: str | None = None,
        *,
        cwd: str | None = None,
        model: str | None = None,
        create: bool = True,
        surface: str | None = None,
        mode: str | None = None,
        signal: AbortSignal | None = None,
    ) -> OpenedSession:
        """Open ``session_id``: the live one, else the stored one, else (when ``create``) a new one.

        Concurrent opens of one id share one resume. Raises :class:`SessionError` with SESSION_NOT_FOUND,
        SESSION_LOCKED (another process holds it; names pid and host), SESSION_CORRUPT, SESSION_UNSUPPORTED or
        SESSION_BUSY (this process holds it for another owner).

        :param cwd: absolute; needed for a new session, must agree with a stored one when given.
        :param model: ``provider/model`` for this agent; None takes the session's last, else the host's default.
        :param surface: id of the front end that owns the session and answers its approvals and questions.
        :param mode: permission mode that a new session starts with; None takes the surface's default.
        """
        ...

    async def fork(
        self,
        session_id: str,
        *,
        boundary: int | None = None,
        child_id: str | None = None,
        model: str | None = None,
        surface: str | None = None,
        signal: AbortSignal | None = None,
    ) -> OpenedSession:
        """Begin a new session with the events of another one, and open it; it is written when this returns.

        The source is live here or stored, may be open in another process, and is not changed. An interrupted turn at
        its end is closed in the child alone, unless somebody is still writing it. The child has the source's working
        directory, permission mode and last model; its header names the source and how much it inherited. Raises
        :class:`SessionError` with SESSION_NOT_FOUND, SESSION_CORRUPT, SESSION_UNSUPPORTED, SESSION_ALREADY_EXISTS
        (``child_id`` is live or stored), INVALID_BOUNDARY or OPEN_TURN, and nothing was created; or with
        SESSION_WRITE_FAILED.

        :param boundary: number of the last event to inherit, not inside a turn; None takes all.
        :param child_id: id of the new session; None mints one.
        :param model: see :meth:`open`, also for ``surface``.
        """
        ...

    async def stored(self, *, limit: int | None = None) -> Sequence[StoredSession]:
        """Stored sessions, most recently changed first. Unreadable ones are left out and logged."""
        ...

    async def read(self, session_id: str) -> tuple[StoredSession, Sequence[bytes]]:
        """A stored session's event lines, repaired in memory; works while another process holds it."""
        ...


class StoredSessions(Protocol):
    """What is on the disk, live or not: to find one session among many, to look after it, to get rid of it.

    Listings come from an index that is derived from the logs and never the truth; how up to date they are is in
    :doc:`/sessions`. Methods that take an id raise :class:`SessionError` with SESSION_NOT_FOUND, SESSION_CORRUPT,
    SESSION_UNSUPPORTED or SESSION_UNREADABLE; those that change a log also with SESSION_LOCKED (another process has it;
    the message names it) or SESSION_BUSY (this one has it).
    """

    async def page(
        self, *, limit: int = 50, cursor: str | None = None, cwd: str | None = None, subagents: bool = True
    ) -> SessionPage:
        """Sessions, most recently changed first. What cannot be read is left out, counted and logged.

        :param cursor: of the page before; USAGE for anything else.
        :param cwd: only sessions of this working directory.
        :param subagents: False leaves out the sessions of subagents.
        """
        ...

    async def search(self, words: str, *, limit: int = 20, cwd: str | None = None) -> Sequence[SessionMatch]:
        """Sessions with a message of the human or the model that has all ``words``, best first.

        Words match from their beginning, without regard to case and accents. Raises USAGE without a word.
        """
        ...

    async def matching(self, prefix: str, *, limit: int = 2) -> Sequence[str]:
        """Ids that ``prefix`` can stand for: itself, where there is such a session, else those that begin with it."""
        ...

    async def locate(self, session_id: str) -> Path:
        """Where the log is, readable or not."""
        ...

    async def export(self, session_id: str) -> tuple[SessionHeader, str, bytes]:
        """Header, file name and stored text of a log: JSON lines, which can be imported again. Nothing is repaired."""
        ...

    async def rename(self, session_id: str, title: str) -> str:
        """Log a title chosen by a person and return it as it was accepted. Raises TITLE_INVALID for an empty one."""
        ...

    async def delete(self, session_id: str, *, unchanged_since: int | None = None) -> None:
        """Remove a session and all that is kept with its log. It need not be readable.

        :param unchanged_since: epoch milliseconds; SESSION_CHANGED when the log is younger.
        """
        ...

    async def diagnose(self, session_id: str | None = None) -> Sequence[SessionDiagnosis]:
        """What is to be said about each stored log, or about one. Nothing is changed."""
        ...

    async def repair(self, session_id: str) -> Sequence[str]:
        """Carry out what a diagnosis notes, as opening the session would, and return it."""
        ...

    async def rebuild_index(self) -> None:
        """Make the index anew out of all logs."""
        ...

    async def add(self, path: Path) -> Sequence[SessionImport]:
        """Take over logs from elsewhere: one file, or all those below a directory. The originals stay.

        A log whose id is stored already, or that cannot be read, is not taken. Raises SESSION_NOT_FOUND when there is
        no log at all.
        """
        ...


SESSIONS = ServiceKey[SessionStore]("sessions")
SESSION_DIRECTORY = ServiceKey[SessionDirectory]("session-directory")
STORED_SESSIONS = ServiceKey[StoredSessions]("stored-sessions")

SESSION_EVENT_TYPE = MountKind[str]("session-event-type")
"""A plugin's own event types: the key is the type, the value describes it in one line.

A log that holds such events cannot be read without the plugin, unless they were appended as ``ignorable``.
"""

SESSION_CREATED = EventKey[[Session]]("session/created", contained=False)
"""A raising listener vetoes the creation."""
SESSION_EVENT = EventKey[[Session, SessionEvent]]("session/event")
SESSION_FLUSH = EventKey[[Session]]("session/flush", EventMode.PARALLEL)
SESSION_DISPOSED = EventKey[[Session]]("session/disposed")
SESSION_DELETED = EventKey[[str]]("session/deleted")
"""A stored session, by its id, was removed from the disk: whoever keeps more of it elsewhere removes that."""
SESSION_HEALTH = EventKey[[Session, str | None]]("session/health")
"""The reason why a session's log cannot be written at the moment, or None when it can again."""
