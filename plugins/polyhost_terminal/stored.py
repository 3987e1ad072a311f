"""What the commands share that name stored sessions: finding one by the start of its id, and its facts for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from polyhost.cli.hosting import CommandContext, on_host
from polyhost.cli.state import HostState
from polyhost.interfaces import STORED_SESSIONS, SessionError, StoredSession, StoredSessions


def with_sessions(state: HostState, work: Callable[[StoredSessions], Awaitable[int | None]]) -> int:
    """Run ``work`` on a host without front ends; it returns the exit code, or None for 0."""

    async def main(command: CommandContext) -> int:
        return await work(command.context.require(STORED_SESSIONS)) or 0

    return on_host(state, "sessions", main, requires=(STORED_SESSIONS,), plugins=())


async def resolve_id(sessions: StoredSessions, prefix: str) -> str:
    """The stored session that ``prefix`` names. Raises :class:`SessionError` when none or several do."""
    matches = await sessions.matching(prefix)
    if len(matches) == 1:
        return matches[0]
    problem = f"several sessions start with {prefix!r}" if matches else f"there is no session {prefix!r}"
    raise SessionError(f"{problem}; `hostctl sessions list` shows them", code="SESSION_NOT_FOUND")


async def latest_id(sessions: StoredSessions, cwd: str) -> str:
    """The session of a workspace that changed last. Raises :class:`SessionError` when there is none."""
    page = await sessions.page(limit=1, cwd=cwd, subagents=False)
    if page.sessions:
        return page.sessions[0].header.id
    raise SessionError(
        f"there is no session in {cwd} to continue; leave --continue out to start one", code="SESSION_NOT_FOUND"
    )


def facts(stored: StoredSession) -> dict[str, Any]:
    """One session as JSON; what is not known has no key. Times are epoch milliseconds."""
    header = stored.header
    known = {
        "id": header.id,
        "createdAt": header.created_at,
        "modifiedAt": stored.modified,
        "cwd": header.cwd,
        "title": stored.title,
        "parentSession": header.parent_session,
        "origin": header.origin,
        "path": stored.path,
        "bytes": stored.size,
        "events": stored.events,
        "turns": stored.turns,
    }
    return {key: value for key, value in known.items() if value is not None}


def when(milliseconds: int) -> str:
    """A time in the zone of the user."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
