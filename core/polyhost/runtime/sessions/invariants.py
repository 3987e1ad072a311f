"""How events must follow each other: turns, steps, streams, tool calls and approvals (agent-core 3.12).

:class:`TraceState` is the log's position in that grammar. ``check`` judges a candidate before it is committed,
``advance`` takes in a committed event; logs written elsewhere are only taken in. Costs per event are constant.
"""

from __future__ import annotations

from typing import Any

from polyhost.interfaces.sessions import SessionError, SurfaceOp

NOT_STARTED = "TOOL_NOT_STARTED"
"""Error code of the synthetic result of a tool request that never became a call."""

_IN_STEP = frozenset({"assistant/chunk", "assistant/message", "tool/call", "tool/result"})
_IN_TURN = frozenset(
    {
        "request/header",
        "request/context",
        "todo/write",
        "approval/asked",
        "approval/decided",
        "tool/code-dispatch-start",
        "tool/code-dispatch",
    }
)


class TraceState:
    """Where the log stands. ``open_step`` is the pair (turn, step) of the open step; it is new for every step."""

    __slots__ = ("_asked", "_called", "_decided", "last_step", "last_turn", "open_step", "turn_open")

    def __init__(self) -> None:
        self.last_turn = 0
        self.turn_open = False
        self.last_step = 0
        self.open_step: tuple[int, int] | None = None
        self._called: set[str] = set()  # call ids of the open step
        self._asked: set[str] = set()
        self._decided: set[str] = set()

    def check(self, type: str, data: Any, surface_op: SurfaceOp | None = None) -> None:
        """Refuse an event that may not come now.

        :raises SessionError: SESSION_TRACE, with what was expected.
        """
        if type in _IN_STEP:
            self._check_in_step(type, data, surface_op)
        elif type in _IN_TURN:
            if not self.turn_open:
                raise _violation(type, "needs an open turn")
            self._check_approval(type, data)
        elif type == "turn/start":
            self._check_turn_start(data["turn"])
        elif type == "turn/end":
            self._check_turn_end(data["turn"])
        elif type == "step/start":
            self._check_step_start(data["turn"], data["step"])
        elif type == "step/end" and self.open_step != (data["turn"], data["step"]):
            raise _violation(type, f"names step {data['turn']}.{data['step']}; {self._where()}")

    def advance(self, type: str, data: Any) -> None:
        """Take in a committed event."""
        if type == "turn/start":
            self.last_turn = data["turn"]
            self.turn_open = True
            self.last_step = 0
            self.open_step = None
        elif type == "turn/end":
            self.turn_open = False
            self.open_step = None
        elif type == "step/start":
            self.last_step = data["step"]
            self.open_step = (data["turn"], data["step"])
            self._called = set()
        elif type == "step/end":
            self.open_step = None
        elif type == "tool/call":
            self._called.add(data["callId"])
        elif type == "approval/asked":
            self._asked.add(data["id"])
        elif type == "approval/decided":
            self._decided.add(data["id"])

    def _check_turn_start(self, turn: int) -> None:
        if self.turn_open:
            raise _violation("turn/start", f"turn {self.last_turn} is still open")
        if turn != self.last_turn + 1:
            raise _violation("turn/start", f"names turn {turn}; turn {self.last_turn + 1} is next")

    def _check_turn_end(self, turn: int) -> None:
        if not self.turn_open or turn != self.last_turn:
            raise _violation("turn/end", f"names turn {turn}; {self._where()}")
        if self.open_step is not None:
            raise _violation("turn/end", f"step {self.last_step} is still open")

    def _check_step_start(self, turn: int, step: int) -> None:
        if not self.turn_open or turn != self.last_turn:
            raise _violation("step/start", f"names turn {turn}; {self._where()}")
        if self.open_step is not None:
            raise _violation("step/start", f"step {self.last_step} is still open")
        if step != self.last_step + 1:
            raise _violation("step/start", f"names step {step}; step {self.last_step + 1} is next")

    def _check_in_step(self, type: str, data: Any, surface_op: SurfaceOp | None) -> None:
        if surface_op is not None and surface_op != "append":
            if type == "tool/result" and not self.turn_open:
                raise _violation(type, "a replacing tool result needs an open turn")
            return
        if self.open_step != (data["turn"], data["step"]):
            raise _violation(type, f"names step {data['turn']}.{data['step']}; {self._where()}")
        if type == "tool/result":
            call_id = data["message"]["source"]["callId"]
            if call_id not in self._called and not _is_not_started(data):
                raise _violation(type, f"answers {call_id!r}, which was not called in this step")

    def _check_approval(self, type: str, data: Any) -> None:
        if type == "approval/asked" and data["id"] in self._asked:
            raise _violation(type, f"approval {data['id']!r} was asked before")
        if type == "approval/decided" and (data["id"] not in self._asked or data["id"] in self._decided):
            raise _violation(type, f"approval {data['id']!r} is not waiting for a decision")

    def _where(self) -> str:
        if self.open_step is not None:
            return f"step {self.open_step[0]}.{self.open_step[1]} is open"
        return f"turn {self.last_turn} is open, without a step" if self.turn_open else "no turn is open"


def _is_not_started(data: Any) -> bool:
    error = data.get("error")
    return isinstance(error, dict) and error.get("code") == NOT_STARTED


def _violation(type: str, message: str) -> SessionError:
    return SessionError(f"{type}: {message}", code="SESSION_TRACE")
