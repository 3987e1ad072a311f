"""Checkpoint before a tool: its call is on the disk before its body changes anything (agent-core, checkpoint policy).

The checkpoint before a model request is part of the step itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from polyhost.interfaces import SessionError, SessionStore, ToolCall, ToolError


class Checkpoint:
    """A listener around ``tools/execute``, the outermost, so that no tool's own time budget pays for the disk."""

    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions

    async def __call__(self, call: ToolCall, next: Callable[[], Awaitable[Any]]) -> Any:
        """Flush, then go on; nested calls rest on the outer one's flush. An unwritable log fails the call."""
        agent = call.agent
        if agent is not None and call.call_id == call.root_call_id and self._sessions.get(agent.id) is agent.session:
            try:
                await self._sessions.flush(agent.session)
            except SessionError as error:
                raise ToolError(
                    f"the call was not run, because the session log cannot be written: {error.message}", code=error.code
                ) from error
        return await next()
