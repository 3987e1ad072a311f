"""Outcomes of tool calls: the coded failures of the pipeline, and how any exception becomes a result.

Whatever a tool, listener or guard raises ends here as text that can be logged, also when the exception itself is
hostile: its ``__str__`` raises, its attributes lie, or its message is not valid Unicode.
"""

from __future__ import annotations

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import text_block
from polyhost.interfaces.tools import ToolError, ToolResult
from polyhost.kernel.signals import AbortedError

MAX_MESSAGE_CHARS = 100_000
"""Longer failure messages are cut: they come from foreign code and have no other limit."""


class ToolNotFoundError(ToolError):
    """The model called a tool that this agent does not have."""

    default_code = "UNKNOWN_TOOL"

    def __init__(self, name: str) -> None:
        super().__init__(f'unknown tool "{name}"')


class ToolArgsError(ToolError):
    """The arguments do not match the tool's parameters; the message lists every violation."""

    default_code = "INVALID_ARGS"

    def __init__(self, problems: str) -> None:
        super().__init__(f"invalid arguments: {problems}")


class ToolOutputError(ToolError):
    """The tool, or a listener that replaced its value, produced something that its own declaration forbids."""

    default_code = "INVALID_TOOL_OUTPUT"

    def __init__(self, tool: str, problems: str) -> None:
        super().__init__(f'tool "{tool}" returned invalid output: {problems}')


class ToolTimeoutError(ToolError):
    """The tool's own time budget ran out."""

    default_code = "TOOL_TIMEOUT"

    def __init__(self, timeout_ms: float) -> None:
        super().__init__(f"tool call timed out after {timeout_ms:g}ms")


class ToolDeniedError(ToolError):
    """A policy, a guard or a person refused the call; ``code`` says which."""

    default_code = "TOOL_DENIED"


class ToolAbandonedError(ToolError):
    """A body ignored its signal and its task's cancellation, and was left behind."""

    default_code = "TOOL_ABANDONED"


def aborted_before_dispatch() -> ToolResult:
    """The call was cancelled before its body ran."""
    return failure("tool call aborted before dispatch", {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"})


def aborted() -> ToolResult:
    """The call was cancelled while its body ran."""
    return failure("tool call aborted", {"name": "AbortError", "code": "ABORTED"})


def failure(message: str, info: JsonObject | None = None) -> ToolResult:
    """A failed result with the canonical text ``Error: <message>``."""
    return ToolResult(is_error=True, content=[text_block(f"Error: {message}")], error_message=message, error_info=info)


def failure_of(error: BaseException) -> ToolResult:
    """The failed result for ``error``. ``error_info`` is there only when the exception carries a code."""
    if isinstance(error, AbortedError):
        return aborted()
    message = clean_text(_message_of(error))[:MAX_MESSAGE_CHARS]
    code = _text_attribute(error, "code")
    if not code:
        return failure(message)
    name = _text_attribute(error, "name") if isinstance(error, ToolError) else None
    return failure(message, {"name": clean_text(name or type(error).__name__), "code": clean_text(code)})


def clean_text(text: str) -> str:
    """``text`` as valid Unicode: lone surrogates become U+FFFD."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _message_of(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        return f"{type(error).__name__} (its message could not be rendered)"
    return text if text.strip() else type(error).__name__


def _text_attribute(error: BaseException, name: str) -> str | None:
    try:
        value = getattr(error, name, None)
    except Exception:
        return None
    return value if type(value) is str and value else None
