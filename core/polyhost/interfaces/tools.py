"""The tool seam: how a plugin describes a tool, what its body receives, and what comes out of the pipeline.

A tool is mounted with ``ctx.mount(TOOL, tool.name, tool)``; mounted through an agent's scope it belongs to that agent
alone. The model sees name, description and parameters only. Pipeline, codes and texts follow agent-core 2.13.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey
from polyhost.kernel.signals import AbortSignal

if TYPE_CHECKING:
    from polyhost.interfaces.agents import Agent

ToolAccess: TypeAlias = Literal["none", "read", "write", "execute"]
"""What a call may touch, for the permission modes: nothing, read files, write files, run anything."""

SPILL_FOLDER: Final = "spill"
"""The folder of the host's home where output lies that is too large to show; models are told paths in it."""


class ToolError(PolyhostError):
    """A failure with a code that the model and clients see as ``tool/result.data.error = {name, code}``."""

    default_code = "TOOL_FAILED"

    def __init__(self, message: str, *, code: str | None = None, name: str | None = None) -> None:
        super().__init__(message, code=code)
        self.name = name or type(self).__name__


class ToolOutput:
    """How a tool's value is checked and shown.

    :param schema: JSON Schema subset (agent-core 2.13) that every value must satisfy.
    :param render: ``(arguments, value) -> content blocks`` for the model.
    :param meta: ``(arguments, value) -> JSON`` for user interfaces, or None.
    """

    __slots__ = ("meta", "render", "schema")

    def __init__(
        self,
        schema: JsonObject,
        render: Callable[[JsonObject, Any], list[JsonObject]],
        meta: Callable[[JsonObject, Any], JsonValue] | None = None,
    ) -> None:
        self.schema = schema
        self.render = render
        self.meta = meta


class Tool:
    """One tool, immutable after construction.

    :param parameters: JSON Schema subset with an open object at its root.
    :param execute: the body ``async (arguments, call) -> value``; it honours ``call.signal`` and is always awaited.
    :param access: what a call may touch; decides with the permission mode whether it runs, asks or is refused.
    :param writes: ``arguments -> paths`` that a call writes, so that ``workspace`` mode can tell inside from outside.
    :param preview: ``async (arguments, call) -> what the call would do, or None``, before a person is asked: shown
        with the question, as ``{"diffs": [{path, oldText, newText}]}`` or in a form of the tool's own. It changes
        nothing. When it raises, the call has failed and nobody is asked. Calls that need no answer are not previewed,
        so that the body checks for itself.
    :param timeout_ms: the body's own time budget (positive, finite), or None for no budget.
    :param concurrency_safe: ``arguments -> True`` lets the call overlap its neighbours in one step.
    :param finalize: last transform of the content blocks; None keeps them.
    :param spill: False keeps even a very large result whole in the conversation.
    """

    __slots__ = (
        "access",
        "concurrency_safe",
        "description",
        "execute",
        "finalize",
        "name",
        "output",
        "parameters",
        "preview",
        "spill",
        "timeout_ms",
        "writes",
    )

    def __init__(
        self,
        *,
        name: str,
        description: str,
        parameters: JsonObject,
        output: ToolOutput,
        execute: Callable[[JsonObject, ToolCall], Awaitable[Any]],
        access: ToolAccess = "execute",
        writes: Callable[[JsonObject], Sequence[str]] | None = None,
        preview: Callable[[JsonObject, ToolCall], Awaitable[JsonObject | None]] | None = None,
        timeout_ms: float | None = None,
        concurrency_safe: Callable[[JsonObject], bool] | None = None,
        finalize: Callable[[list[JsonObject]], list[JsonObject] | None] | None = None,
        spill: bool = True,
    ) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self.output = output
        self.execute = execute
        self.access = access
        self.writes = writes
        self.preview = preview
        self.timeout_ms = timeout_ms
        self.concurrency_safe = concurrency_safe
        self.finalize = finalize
        self.spill = spill


class ToolCall:
    """One execution, as its body and every pipeline stage see it.

    :param arguments: a detached copy of what the model sent (an object, or the raw text when that was not JSON).
        The pipeline renews it before each stage, so that no listener changes what a person approved.
    :param cwd: absolute working directory of the session, or None for a call without an agent.
    """

    __slots__ = (
        "__weakref__",
        "agent",
        "arguments",
        "call_id",
        "concluded",
        "contexts",
        "cwd",
        "name",
        "root_call_id",
        "signal",
    )

    def __init__(
        self,
        *,
        call_id: str,
        name: str,
        arguments: JsonValue,
        signal: AbortSignal,
        agent: Agent | None = None,
        cwd: str | None = None,
        root_call_id: str | None = None,
    ) -> None:
        self.call_id = call_id
        self.name = name
        self.arguments = arguments
        self.signal = signal
        self.agent = agent
        self.cwd = cwd
        self.root_call_id = root_call_id or call_id
        self.contexts: list[JsonObject] = []
        self.concluded = False

    @property
    def session_id(self) -> str | None:
        """The session on whose behalf the tool runs."""
        return self.agent.id if self.agent is not None else None

    def defer_context(self, message: JsonObject) -> None:
        """Add a user-role message that the model gets after this call's result."""
        self.contexts.append(message)

    def conclude_turn(self) -> None:
        """End the turn after this result, without another model request."""
        self.concluded = True


class ToolResult(NamedTuple):
    """The canonical outcome of one call.

    :param content: what the model reads. ``error_info`` is ``{name, code}`` for failures that have a code.
    """

    is_error: bool
    content: list[JsonObject]
    value: JsonValue = None
    meta: JsonValue = None
    error_message: str | None = None
    error_info: JsonObject | None = None
    contexts: tuple[JsonObject, ...] = ()
    concludes_turn: bool = False


class Allow(NamedTuple):
    """Let the call run."""


class Deny(NamedTuple):
    """Refuse the call; the model reads ``reason``."""

    reason: str


class Ask(NamedTuple):
    """Let a person decide. Without an answerer the call is refused."""

    reason: str | None = None


Decision: TypeAlias = Allow | Deny | Ask


class Accept(NamedTuple):
    """Keep the result, replacing ``content`` or ``value`` (never both; None keeps what is there), adding contexts."""

    content: list[JsonObject] | None = None
    value: JsonValue = None
    contexts: tuple[JsonObject, ...] = ()


class Block(NamedTuple):
    """Turn the result into a failure whose content is ``feedback``."""

    feedback: str
    contexts: tuple[JsonObject, ...] = ()


Review: TypeAlias = Accept | Block

ToolGuard: TypeAlias = Callable[[ToolCall], "Deny | None"]
"""The last word before a body runs: it can only deny, and no later listener can undo it."""


class ToolExecution(Protocol):
    """One call on its way through the pipeline, in the three phases that a scheduler puts in order.

    Each phase is awaited once, in this order, whatever became of the one before; none raises for tool, policy or
    argument failures. Phases of several calls may interleave, but a scheduler that promises model order never
    overlaps two :meth:`prepare` or two :meth:`finish`.
    """

    async def prepare(self) -> None:
        """Policy: snapshot the arguments, ask listeners, preview and ask people, apply guards."""
        ...

    async def run(self) -> None:
        """The body with its wrappers, then output validation and rendering. Does nothing once settled."""
        ...

    async def finish(self) -> ToolResult:
        """Review by post-execute listeners, final transforms, and publication to ``tools/result``."""
        ...


class ToolRuntime(Protocol):
    """Registration view and the execution pipeline."""

    def schemas(self, agent: Agent | None = None) -> list[JsonObject]:
        """``[{name, description, parameters}]`` that this agent's model may call, sorted by name, detached."""
        ...

    def get(self, name: str, agent: Agent | None = None) -> Tool | None: ...

    def restrict(
        self, agent: Agent, *, allow: Sequence[str] | None = None, deny: Sequence[str] | None = None
    ) -> Callable[[], None]:
        """Mask inherited tools of one agent; restrictions intersect. Returns the undo."""
        ...

    def is_parallel(self, call: ToolCall) -> bool:
        """Whether the call may overlap its neighbours: its tool says exactly True for these arguments."""
        ...

    def begin(self, call: ToolCall) -> ToolExecution:
        """Put a call on its way. Starts nothing by itself."""
        ...

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run all phases of one call, one after the other."""
        ...


TOOLS = ServiceKey[ToolRuntime]("tools")
TOOL = MountKind[Tool]("tool")
TOOL_GUARD = MountKind[ToolGuard]("tool-guard", unique=False)
TOOLS_CHANGED = EventKey[[]]("tools/change", contained=False)
"""A tool appeared or went. A listener that raises undoes an appearance; a departure cannot be stopped."""
TOOL_PRE_EXECUTE = EventKey[[ToolCall, Callable[[], Awaitable[Decision]]]]("tools/pre-execute", EventMode.WATERFALL)
"""``async listener(call, next) -> Decision``."""
TOOL_EXECUTE = EventKey[[ToolCall, Callable[[], Awaitable[Any]]]]("tools/execute", EventMode.WATERFALL)
"""Around the body: ``async listener(call, next) -> value``; it may replace ``call.signal`` for the body."""
TOOL_POST_EXECUTE = EventKey[[ToolCall, ToolResult, Callable[[], Awaitable[Review]]]](
    "tools/post-execute", EventMode.WATERFALL
)
"""``async listener(call, result, next) -> Accept | Block``."""
TOOL_RESULT = EventKey[[ToolCall, ToolResult]]("tools/result")
"""The outcome of each call, once: a copy of what is about to be logged."""
