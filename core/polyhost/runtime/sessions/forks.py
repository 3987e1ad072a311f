"""What a fork inherits: the events of its source up to a boundary where no turn is open (agent-core 2.9)."""

from __future__ import annotations

from collections.abc import Sequence

from polyhost.interfaces.sessions import SessionError
from polyhost.runtime.sessions.events import view


def inherited(session_id: str, lines: Sequence[bytes], boundary: int | None) -> Sequence[bytes]:
    """The event lines up to and including number ``boundary``, all of them for None.

    :param session_id: of the source, for messages.
    :raises SessionError: INVALID_BOUNDARY or OPEN_TURN.
    """
    last = len(lines) - 1
    if boundary is not None and not 0 <= boundary <= last:
        has = f"its last is {last}" if lines else "it has none at all"
        raise SessionError(f"session {session_id!r} has no event {boundary} to fork at; {has}", code="INVALID_BOUNDARY")
    seed = lines[: (last if boundary is None else boundary) + 1]
    ended = _last(seed, "turn/end")
    if _last(seed, "turn/start") > ended:
        place = "no turn before it has ended" if ended < 0 else f"the last turn before it ended at event {ended}"
        raise SessionError(
            f"session {session_id!r} cannot be forked at event {len(seed) - 1}, inside a turn; {place}",
            code="OPEN_TURN",
        )
    return seed


def _last(lines: Sequence[bytes], type: str) -> int:
    """The number of the last event of that type, -1 without any."""
    return next((seq for seq in range(len(lines) - 1, -1, -1) if view(lines[seq]).type == type), -1)
