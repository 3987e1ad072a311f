"""Which event types exist: the core's own and those that plugins mount.

A log with an unknown type that is not marked ``ignorable`` cannot be read, so types are known by name here before
anybody appends them. Payload rules of the types that the core reads itself are in ``shapes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyhost.interfaces.sessions import SessionError
from polyhost.runtime.sessions.events import surface_problem
from polyhost.runtime.sessions.shapes import SHAPES

RETIRED_TYPES = frozenset({"request/header-delta", "mode/set"})
"""Types of formats before the current one; refused by name."""

CORE_TYPES = frozenset(
    {
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "user/message",
        "assistant/chunk",
        "assistant/message",
        "tool/call",
        "tool/result",
        "request/header",
        "request/context",
        "agent/inbox/spliced",
        "session/end-seed",
        "approval/asked",
        "approval/decided",
        "approval/policy",
        "sandbox/mode",
        "permission/preset",
        "subagent/descriptor",
        "session/title",
        "llm/retry",
        "llm/retry-started",
        "todo/write",
        "command/run",
        "command/done",
        "compaction/start",
        "compaction/summary",
        "compaction/end",
        "compaction/prune",
        "tool/code-dispatch-start",
        "tool/code-dispatch",
        "agent-preset/selected",
        "plan/mode",
        "feedback/record",
        "hook/invoked",
        "hook/result",
        "goal/change",
        "schedule/change",
        "session/title-llm-request",
        "tool-workflow/agent-start",
        "tool-workflow/agent-end",
        "tool-workflow/run-start",
        "tool-workflow/run-end",
        "web/deepseek-search-llm-request",
    }
)
"""Every required type of the format (agent-core 2.2)."""


class EventCatalogue:
    """The known types of one host.

    :param mounted: says whether a plugin that is active now has this type.
    """

    __slots__ = ("_mounted",)

    def __init__(self, mounted: Callable[[str], bool] = lambda type: False) -> None:
        self._mounted = mounted

    def require(self, type: str, *, ignorable: bool, seq: int) -> None:
        """Raise SESSION_UNSUPPORTED for a type that nobody here knows and that must not be skipped."""
        if type in RETIRED_TYPES:
            raise SessionError(
                f"event {seq} has the retired type {type!r} of an older format", code="SESSION_UNSUPPORTED"
            )
        if type in CORE_TYPES or ignorable or self._mounted(type):
            return
        raise SessionError(
            f"event {seq} has the unknown required type {type!r}: it was written by a newer version or by a plugin "
            f"that is not active here",
            code="SESSION_UNSUPPORTED",
        )

    def problem(self, type: str, data: Any, surface_op: Any, source_seqs: Any, seq: int) -> str | None:
        """What is wrong with an event of a known type, in words; None when it is sound."""
        problem = surface_problem(type, surface_op, source_seqs, seq)
        if problem is not None:
            return problem
        shape = SHAPES.get(type)
        return shape(data) if shape is not None else None
