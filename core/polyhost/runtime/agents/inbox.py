"""The inbox of one agent: messages that were accepted and not yet claimed by a turn.

Two ordered lists. Every change is one splice, logged as ``agent/inbox/spliced`` *before* the lists change, so a
failed append leaves everything as it was, and a resumed session rebuilds the lists from its own splices. When a
message wakes the agent is the driver's business.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from polyhost.interfaces import InboxTarget, JsonObject, Session, SessionError
from polyhost.kernel.errors import PolyhostError

SPLICED = "agent/inbox/spliced"

NEXT_TURN: InboxTarget = "next-turn"
NEXT_STEP: InboxTarget = "next-step"


class InboxError(PolyhostError):
    """A message cannot be queued: it is no user-role message, or its id is already pending."""

    default_code = "INBOX_REFUSED"


class InboxObserver(Protocol):
    """Who is told of a change, after it is in the log and in the lists."""

    def inserted(self, message: JsonObject) -> None: ...

    def discarded(self, message: JsonObject, replacement: JsonObject | None) -> None: ...


class Splice(NamedTuple):
    """One checked change: at ``start`` of ``target``, ``removed`` messages go and ``inserted`` come."""

    target: InboxTarget
    start: int
    removed: int
    inserted: Sequence[JsonObject]


class AgentInbox:
    """The two lists of one session. Message ids are unique across both."""

    __slots__ = ("_lists", "_observer", "_session")

    def __init__(self, session: Session, observer: InboxObserver) -> None:
        """An inbox with what the session's own events left pending.

        Raises :class:`SessionError` (``SESSION_CORRUPT``) naming the seq of a stored splice that does not fit.
        """
        self._session = session
        self._observer = observer
        self._lists: dict[InboxTarget, list[JsonObject]] = {NEXT_TURN: [], NEXT_STEP: []}
        self._rebuild()

    @property
    def next_turn(self) -> Sequence[JsonObject]:
        return tuple(self._lists[NEXT_TURN])

    @property
    def next_step(self) -> Sequence[JsonObject]:
        return tuple(self._lists[NEXT_STEP])

    @property
    def pending(self) -> bool:
        return bool(self._lists[NEXT_TURN] or self._lists[NEXT_STEP])

    @property
    def has_next_step(self) -> bool:
        return bool(self._lists[NEXT_STEP])

    def ids(self) -> list[str]:
        """Ids of everything pending, next-step first."""
        return [message["id"] for target in (NEXT_STEP, NEXT_TURN) for message in self._lists[target]]

    def insert(self, target: InboxTarget, message: JsonObject) -> None:
        """Add ``message`` at the end of ``target``. Raises :class:`InboxError` or what the append raises."""
        self.splice(target, len(self._lists[target]), 0, (message,))

    def claim(self, *, new_turn: bool) -> list[JsonObject]:
        """Take all next-step messages and, for a new turn, then exactly one next-turn message."""
        claimed = self._take(NEXT_STEP, len(self._lists[NEXT_STEP]))
        if new_turn:
            claimed += self._take(NEXT_TURN, 1)
        return claimed

    def remove(self, message_id: str) -> bool:
        """Withdraw a pending message; False when it is not pending."""
        return self._exchange(message_id, ())

    def replace(self, message_id: str, message: JsonObject) -> bool:
        """Put ``message`` in the place of a pending one, of the same id or another; False when it is not pending."""
        return self._exchange(message_id, (message,))

    def discard(self, ids: Collection[str]) -> None:
        """Cancel the pending messages among ``ids``: one splice for each run of neighbours, next-step first."""
        for target in (NEXT_STEP, NEXT_TURN):
            start = 0
            while start < len(self._lists[target]):
                pending = self._lists[target]
                count = 0
                while start + count < len(pending) and pending[start + count]["id"] in ids:
                    count += 1
                if count:
                    self.splice(target, start, count)
                else:
                    start += 1

    def splice(
        self, target: InboxTarget, start: float, removed: float = 0, inserted: Sequence[JsonObject] = ()
    ) -> list[JsonObject]:
        """Replace ``removed`` messages from ``start`` with ``inserted``, as a cancellation of the removed ones.

        A negative ``start`` counts from the end, and both numbers are clamped to what is there. Returns the removed
        messages. A splice that changes nothing logs nothing.
        """
        checked = self._check(Splice(target, *self._normalise(target, start, removed), inserted))
        gone, came = self._commit(checked, canceled=checked.removed > 0)
        for index, message in enumerate(gone):
            self._observer.discarded(message, came[index] if index < len(came) else None)
        for message in came:
            self._observer.inserted(message)
        return gone

    def _take(self, target: InboxTarget, count: int) -> list[JsonObject]:
        count = min(count, len(self._lists[target]))
        return self._commit(Splice(target, 0, count, ()), canceled=False)[0]

    def _exchange(self, message_id: str, inserted: Sequence[JsonObject]) -> bool:
        for target, pending in self._lists.items():
            for index, message in enumerate(pending):
                if message["id"] == message_id:
                    self.splice(target, index, 1, inserted)
                    return True
        return False

    def _commit(self, splice: Splice, *, canceled: bool) -> tuple[list[JsonObject], list[JsonObject]]:
        """Log one splice, then apply it. Returns the removed messages and the inserted ones, detached."""
        if not splice.removed and not splice.inserted:
            return [], []
        data: JsonObject = {"target": splice.target, "start": splice.start}
        if splice.removed:
            data["removedCount"] = splice.removed
        data["inserted"] = list(splice.inserted)
        if canceled:
            data["outcome"] = "canceled"
        event = self._session.append(SPLICED, data)
        # Decoded from the log: what the caller does to its own message later must not reach the model.
        inserted = event.data["inserted"] if splice.inserted else []
        return self._apply(splice._replace(inserted=inserted)), inserted

    def _apply(self, splice: Splice) -> list[JsonObject]:
        pending = self._lists[splice.target]
        end = splice.start + splice.removed
        removed = pending[splice.start : end]
        pending[splice.start : end] = splice.inserted
        return removed

    def _normalise(self, target: InboxTarget, start: float, removed: float) -> tuple[int, int]:
        length = len(self._lists[target])
        first = _integer(start, length)
        first = max(0, length + first) if first < 0 else min(first, length)
        return first, min(max(0, _integer(removed, length)), length - first)

    def _check(self, splice: Splice) -> Splice:
        leaving = {m["id"] for m in self._lists[splice.target][splice.start : splice.start + splice.removed]}
        taken = set(self.ids()) - leaving
        for message in splice.inserted:
            _check_message(message)
            if message["id"] in taken:
                raise InboxError(f'message "{message["id"]}" is already pending')
            taken.add(message["id"])
        return splice

    def _rebuild(self) -> None:
        """Fold the session's own splices; those of an inherited seed belong to another agent."""
        own = self._session.header.seed_length or 0
        for event in self._session.events(own):
            if event.type != SPLICED:
                continue
            try:
                self._apply(self._check(self._stored(event.data)))
            except (InboxError, KeyError, TypeError, ValueError) as error:
                raise SessionError(
                    f"session {self._session.id}: the inbox splice at seq {event.seq} does not fit: {error}",
                    code="SESSION_CORRUPT",
                ) from error

    def _stored(self, data: JsonObject) -> Splice:
        target, start, removed, inserted = data["target"], data["start"], data.get("removedCount", 0), data["inserted"]
        if target not in self._lists or not isinstance(inserted, list):
            raise ValueError("unknown target or malformed messages")
        for number in (start, removed):
            if type(number) is not int or number < 0:
                raise ValueError("its coordinates are no non-negative integers")
        if start + removed > len(self._lists[target]):
            raise ValueError(f"it reaches beyond the {len(self._lists[target])} pending messages")
        return Splice(target, start, removed, inserted)


def _integer(number: float, length: int) -> int:
    """Towards zero; not-a-number is 0, and the infinities are as good as one beyond the ends."""
    if number != number:
        return 0
    return int(max(-length - 1, min(length + 1, number)))


def _check_message(message: Any) -> None:
    if not isinstance(message, dict) or message.get("role") != "user":
        raise InboxError("only user-role messages can be queued")
    if not isinstance(message.get("id"), str) or not message["id"]:
        raise InboxError("a queued message needs an id, a non-empty string")
    if not isinstance(message.get("content"), list) or not isinstance(message.get("source"), dict):
        raise InboxError(f'message "{message["id"]}" needs a content list and a source object')
