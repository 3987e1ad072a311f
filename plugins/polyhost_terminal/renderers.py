"""What people see while an agent works: views of the event stream. What programs get is in ``json_output``."""

from __future__ import annotations

import sys
from typing import Protocol

from polyhost.interfaces import JsonObject, Session, SessionEvent, TurnOutcome, text_of
from polyhost_terminal.screen import Screen


class Renderer(Protocol):
    """Gets every event of the session while prompts run, then the outcome of each prompt."""

    def begin(self, session: Session, *, resumed: bool, mode: str) -> None: ...

    def event(self, event: SessionEvent) -> None: ...

    def finish(self, session: Session, outcome: TurnOutcome) -> None: ...

    async def flush(self) -> None:
        """Bring out what is held back, before the program ends."""
        ...


class LiveRenderer:
    """For a terminal: text as it streams, tools, diffs, and the tokens of each turn."""

    def __init__(self, screen: Screen, *, text: bool = True) -> None:
        self._screen = screen
        self._text = text
        self._unasked = 0

    def begin(self, session: Session, *, resumed: bool, mode: str) -> None:
        if resumed:
            self._screen.line(f"session {session.id}, {session.last_turn} turns so far, mode {mode}", "dim")

    def event(self, event: SessionEvent) -> None:
        if handler := _LIVE_HANDLERS.get(event.type):
            handler(self, event.data)

    def finish(self, session: Session, outcome: TurnOutcome) -> None:
        screen = self._screen
        reason = outcome.reason or {"kind": "cancelled"}
        if reason["kind"] == "error":
            screen.line(f"error: {reason['error'].get('message')} [{reason['error'].get('code')}]", "red")
        elif reason["kind"] != "completed":
            screen.line(f"turn ended: {describe_reason(reason)}", "yellow")
        if self._unasked:
            calls = "1 call was" if self._unasked == 1 else f"{self._unasked} calls were"
            screen.line(f"{calls} refused because nobody could be asked; see --approve and --mode", "yellow")
            self._unasked = 0
        usage = ", ".join(f"{outcome.usage[key]} {word}" for key, word in _USAGE_WORDS if outcome.usage.get(key))
        screen.line(f"tokens: {usage or 'none reported'}; session {session.id}", "dim")

    async def flush(self) -> None:
        """Nothing is held back."""

    def _chunk(self, data: JsonObject) -> None:
        chunk = data["chunk"]
        match chunk["type"]:
            case "text-delta" if self._text:
                self._screen.stream(chunk["text"])
            case "reasoning-delta" if self._text:
                self._screen.stream(chunk["text"], "dim")
            case "block-start" | "block-end":
                self._screen.end_line()

    def _tool_call(self, data: JsonObject) -> None:
        self._screen.tool_call(data["name"], data["arguments"])

    def _tool_result(self, data: JsonObject) -> None:
        block = data["message"]["content"][0]
        self._unasked += (data.get("error") or {}).get("code") == "APPROVAL_UNAVAILABLE"
        meta = data.get("meta")
        if isinstance(meta, dict) and meta.get("diffs"):
            self._screen.diffs(meta["diffs"])
        elif isinstance(meta, dict) and "totalLines" in meta:
            self._screen.line(f"  {len(meta['lines'])} of {meta['totalLines']} lines", "dim")
        else:
            self._screen.tool_result(text_of(block["content"]), is_error=bool(block.get("isError")))

    def _retry(self, data: JsonObject) -> None:
        seconds = data["delayMs"] / 1000
        self._screen.line(f"{data['failure']['message']}; trying again in {seconds:.1f} s", "yellow")


_LIVE_HANDLERS = {
    "assistant/chunk": LiveRenderer._chunk,
    "tool/call": LiveRenderer._tool_call,
    "tool/result": LiveRenderer._tool_result,
    "llm/retry": LiveRenderer._retry,
}
_USAGE_WORDS = (
    ("inputTokens", "in"),
    ("cacheReadTokens", "cached"),
    ("outputTokens", "out"),
    ("reasoningTokens", "reasoning"),
)


class FinalTextRenderer:
    """For a pipe: the final answer on stdout, what happens meanwhile on stderr."""

    def __init__(self, progress: LiveRenderer) -> None:
        self._progress = progress
        self.begin = progress.begin
        self.event = progress.event
        self.flush = progress.flush

    def finish(self, session: Session, outcome: TurnOutcome) -> None:
        self._progress.finish(session, outcome)
        if outcome.text:
            sys.stdout.write(outcome.text if outcome.text.endswith("\n") else outcome.text + "\n")
            sys.stdout.flush()


_CAUSES = {"user": "cancelled by you", "disposed": "cancelled because the program ended", "hook": "stopped"}


def describe_reason(reason: JsonObject) -> str:
    """A ``turn/end`` reason in words."""
    match reason["kind"]:
        case "aborted":
            cause = reason.get("reason") or {}
            return _CAUSES.get(str(cause.get("kind")), "cancelled") + (
                f": {cause['reason']}" if cause.get("reason") else ""
            )
        case "max-tokens":
            return "the model reached its output limit"
        case "blocked":
            return "a policy refused the next step"
        case "cancelled":
            return "the prompt was withdrawn before it ran"
        case kind:
            return str(kind)
