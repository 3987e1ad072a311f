"""One tool call from its arguments to its result: the stages of agent-core 2.13, in three phases.

1. snapshot of the arguments; 2. cancelled already? 3. ``tools/pre-execute``; 4. preview and approval;
5. guards (*prepare*); 6. ``tools/execute`` around the body; 7. output validation and rendering (*run*);
8. ``tools/post-execute``; 9. final transforms and publication (*finish*). Failures become results; only the
cancellation of the calling task itself comes out as an exception. Which tools exist is in ``registry``; what failures
look like in ``results``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from polyhost.interfaces.interaction import Interactions
from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.messages import text_block
from polyhost.interfaces.tools import (
    TOOL_EXECUTE,
    TOOL_POST_EXECUTE,
    TOOL_PRE_EXECUTE,
    TOOL_RESULT,
    Accept,
    Allow,
    Ask,
    Block,
    Deny,
    Tool,
    ToolCall,
    ToolError,
    ToolGuard,
    ToolResult,
)
from polyhost.kernel.keys import EventKey
from polyhost.kernel.mounts import MountToken
from polyhost.kernel.signals import AbortedError, any_signal
from polyhost.runtime.containment import ends_task
from polyhost.runtime.models.errors import error_chain
from polyhost.runtime.tools.draining import DrainLimits, run_to_end
from polyhost.runtime.tools.results import (
    ToolArgsError,
    ToolDeniedError,
    ToolNotFoundError,
    ToolOutputError,
    aborted,
    aborted_before_dispatch,
    failure_of,
)
from polyhost.runtime.tools.schema import violations
from polyhost.wire.errors import WireError
from polyhost.wire.json import loads, snapshot

_log = logging.getLogger(__name__)


class PipelineHost(Protocol):
    """What the pipeline needs from around it, each as seen by the call's agent."""

    @property
    def drain_limits(self) -> DrainLimits: ...

    def find(self, call: ToolCall) -> MountToken[Tool] | None: ...

    def guards(self, call: ToolCall) -> Iterable[ToolGuard]: ...

    def interactions(self) -> Interactions | None: ...

    async def waterfall(
        self, event: EventKey[Any], call: ToolCall, *args: object, inner: Callable[[], Awaitable[Any]]
    ) -> Any: ...

    def emit(self, event: EventKey[Any], call: ToolCall, *args: object) -> None: ...

    async def fit(self, tool: Tool, call: ToolCall, result: ToolResult) -> ToolResult:
        """Replace content that is too large to stay in the conversation. Does not raise."""
        ...


class Execution:
    """One call on its way; see :class:`polyhost.interfaces.tools.ToolExecution`."""

    __slots__ = ("_arguments", "_call", "_host", "_mount", "_result", "_reviewed", "_tool")

    def __init__(self, host: PipelineHost, call: ToolCall) -> None:
        self._host = host
        self._call = call
        self._mount: MountToken[Tool] | None = None
        self._tool: Tool | None = None
        self._arguments = b"{}"
        self._result: ToolResult | None = None
        self._reviewed = True  # whether post-execute listeners see the result

    # -- prepare -----------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        call = self._call
        try:
            self._arguments = snapshot(call.arguments, root="arguments")
        except WireError as error:
            self._settle(failure_of(ToolArgsError(error.message)), reviewed=False)
            return
        self._mount = self._host.find(call)
        self._tool = self._mount.value if self._mount is not None else None
        if call.signal.aborted:
            self._settle(aborted_before_dispatch(), reviewed=False)
            return
        try:
            await self._decide()
        except BaseException as error:
            self._settle(failure_of(_own(error)), reviewed=False)

    async def _decide(self) -> None:
        call, host = self._call, self._host
        call.arguments = loads(self._arguments)
        decision = await host.waterfall(TOOL_PRE_EXECUTE, call, inner=_allow)
        if isinstance(decision, Deny):
            self._settle(_denied(decision.reason))
            return
        if not isinstance(decision, Allow | Ask):
            raise ToolError(f"a tools/pre-execute listener answered {decision!r:.80}, not Allow, Ask or Deny")
        if call.signal.aborted:
            self._settle(aborted_before_dispatch(), reviewed=False)
            return
        if (problem := self._argument_problem()) is not None:
            self._settle(failure_of(problem))
            return
        if isinstance(decision, Ask) and not await self._approved(decision):
            return
        call.arguments = loads(self._arguments)
        for guard in host.guards(call):
            if (verdict := guard(call)) is not None:
                self._settle(_denied(verdict.reason))
                return

    def _argument_problem(self) -> ToolError | None:
        if self._tool is None:
            return ToolNotFoundError(self._call.name)
        problems = "; ".join(violations(self._tool.parameters, loads(self._arguments)))
        return ToolArgsError(problems) if problems else None

    async def _approved(self, ask: Ask) -> bool:
        """Let a person decide. When the answer is not yes, the call is settled."""
        call, interactions = self._call, self._host.interactions()
        needs = f'tool "{call.name}" requires approval'
        if interactions is None:
            self._settle(_denied(ask.reason or f"{needs} (not yet supported)", "APPROVAL_UNSUPPORTED"))
            return False
        if call.agent is None:
            self._settle(_denied(f"{needs}, but the call has no agent to route it through", "APPROVAL_UNAVAILABLE"))
            return False
        try:
            preview = await self._preview()
        except Exception as error:
            cut_short = call.signal.aborted and isinstance(error, AbortedError)
            self._settle(aborted_before_dispatch() if cut_short else failure_of(error), reviewed=not cut_short)
            return False
        outcome = await interactions.approve(
            call.agent,
            call.name,
            loads(self._arguments),
            call_id=call.call_id,
            reason=ask.reason,
            signal=call.signal,
            preview=preview,
        )
        if outcome == "rejected":
            self._settle(_denied(f'the user rejected tool "{call.name}"', "APPROVAL_REJECTED"))
        elif call.signal.aborted and outcome in ("allowed-once", "cancelled"):
            self._settle(aborted_before_dispatch(), reviewed=False)
        elif outcome == "cancelled":
            self._settle(_denied(f'approval for tool "{call.name}" was cancelled', "APPROVAL_CANCELLED"))
        elif outcome != "allowed-once":
            self._settle(_denied(f"{needs}, but no approval channel is available", "APPROVAL_UNAVAILABLE"))
        return self._result is None

    async def _preview(self) -> JsonObject | None:
        """What the call would do, for the person who decides; raises what keeps it from being done."""
        call, mount = self._call, self._mount
        if mount is None or mount.value.preview is None:
            return None
        tool, call.arguments = mount.value, loads(self._arguments)
        preview = mount.call(_guarded, tool.preview, call)
        shown = await run_to_end(preview, call.signal, tool=tool.name, limits=self._host.drain_limits)
        call.signal.raise_if_aborted()
        if shown is not None and not isinstance(shown, dict):
            raise ToolError(f'tool "{tool.name}" gave a preview that is neither an object nor None')
        return shown

    # -- run ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        call, mount = self._call, self._mount
        if self._result is not None or mount is None:
            return
        caller = call.signal
        if caller.aborted:
            self._settle(aborted_before_dispatch(), reviewed=False)
            return
        body = _Body(mount, call, self._arguments, self._host.drain_limits)
        around = call.contexts
        call.contexts = []
        try:
            value = await self._host.waterfall(TOOL_EXECUTE, call, inner=body)
        except BaseException as error:
            error = _own(error)
            cut_short = caller.aborted and not body.started and isinstance(error, AbortedError)
            self._settle(aborted_before_dispatch() if cut_short else failure_of(error))
        else:
            if caller.aborted:
                self._settle(aborted() if body.started else aborted_before_dispatch())
            else:
                self._settle(self._rendered(mount.value, value))
        finally:
            call.signal = caller
            call.contexts = [*around, *body.contexts, *call.contexts]

    def _rendered(self, tool: Tool, value: JsonValue) -> ToolResult:
        """Validate a value and project it; a defect anywhere is one failed result."""
        try:
            image = snapshot(value, root="value")
            problems = "; ".join(violations(tool.output.schema, loads(image)))
            if problems:
                raise ToolOutputError(tool.name, problems)
            content = _content(tool.output.render(loads(self._arguments), loads(image)))
            meta = tool.output.meta(loads(self._arguments), loads(image)) if tool.output.meta else None
            return ToolResult(is_error=False, content=content, value=loads(image), meta=loads(snapshot(meta)))
        except ToolOutputError as error:
            return failure_of(error)
        except BaseException as error:
            return failure_of(ToolOutputError(tool.name, failure_of(_own(error)).error_message or ""))

    # -- finish ------------------------------------------------------------------------------------------------------

    async def finish(self) -> ToolResult:
        call = self._call
        result = self._result or failure_of(ToolError("the tool call was finished before it ran"))
        result = result._replace(contexts=tuple(call.contexts), concludes_turn=call.concluded and not result.is_error)
        if self._reviewed:
            result = await self._review(result)
        if self._tool is not None:
            result = _finalized(self._tool, result)
            result = await self._host.fit(self._tool, call, result)
        result = _frozen(result)
        call.arguments = loads(self._arguments)
        self._host.emit(TOOL_RESULT, call, _frozen(result))
        return result

    async def _review(self, result: ToolResult) -> ToolResult:
        self._call.arguments = loads(self._arguments)
        try:
            verdict = await self._host.waterfall(TOOL_POST_EXECUTE, self._call, _frozen(result), inner=_accept)
            return self._reviewed_as(result, verdict)
        except BaseException as error:
            return failure_of(_own(error))._replace(contexts=result.contexts)

    def _reviewed_as(self, result: ToolResult, verdict: object) -> ToolResult:
        if isinstance(verdict, Block):
            blocked = failure_of(ToolError(verdict.feedback))
            return blocked._replace(
                content=[text_block(verdict.feedback)], error_info=None, contexts=tuple(verdict.contexts)
            )
        if not isinstance(verdict, Accept):
            raise ToolError(f"a tools/post-execute listener answered {verdict!r:.80}, not Accept or Block")
        if verdict.content is not None and verdict.value is not None:
            raise ToolError("a tools/post-execute listener replaced both content and value; it may replace one")
        contexts = (*result.contexts, *verdict.contexts)
        if verdict.content is not None:
            result = result._replace(content=_content(verdict.content))
        elif verdict.value is not None:
            if result.is_error or self._tool is None:
                raise ToolError("a tools/post-execute listener replaced the value of a failed call")
            rendered = self._rendered(self._tool, verdict.value)
            result = rendered._replace(concludes_turn=result.concludes_turn and not rendered.is_error)
        return result._replace(contexts=contexts)

    def _settle(self, result: ToolResult, *, reviewed: bool = True) -> None:
        self._result = result
        self._reviewed = reviewed


class _Body:
    """The innermost step of ``tools/execute``: the tool itself, under the signals of its caller, wrappers and mount."""

    __slots__ = ("_arguments", "_call", "_caller", "_limits", "_mount", "contexts", "started")

    def __init__(self, mount: MountToken[Tool], call: ToolCall, arguments: bytes, limits: DrainLimits) -> None:
        self._mount = mount
        self._call = call
        self._caller = call.signal
        self._arguments = arguments
        self._limits = limits
        self.started = False
        self.contexts: list[JsonObject] = []

    async def __call__(self) -> Any:
        call, tool = self._call, self._mount.value
        wrapped, outer_contexts = call.signal, call.contexts
        self._mount.require_active()
        signals = dict.fromkeys((self._caller, wrapped, self._mount.aborted))  # the first two are mostly one
        signal, unlink = any_signal(*signals)
        call.signal, call.contexts, call.arguments = signal, self.contexts, loads(self._arguments)
        try:
            signal.raise_if_aborted()
            self.started = True
            body = self._mount.call(_guarded, tool.execute, call)
            return await run_to_end(body, signal, tool=tool.name, limits=self._limits)
        finally:
            unlink()
            call.signal, call.contexts = wrapped, outer_contexts


async def _guarded(function: Callable[[JsonObject, ToolCall], Awaitable[Any]], call: ToolCall) -> Any:
    try:
        return await function(call.arguments, call)
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except SystemExit as error:  # it would end the event loop
        raise ToolError(f"the tool tried to exit the process with status {error.code!r}") from error
    except BaseException as error:  # tasks and generators have meanings of their own for these
        raise ToolError(error_chain(error)) from error


async def _allow() -> Allow:
    return Allow()


async def _accept() -> Accept:
    return Accept()


def _denied(reason: str, code: str = "TOOL_DENIED") -> ToolResult:
    return failure_of(ToolDeniedError(reason, code=code))


def _content(blocks: object) -> list[JsonObject]:
    """A detached copy of content blocks.

    :raises ToolError: when they are none, or not lossless JSON.
    """
    try:
        copy = loads(snapshot(blocks, root="content"))
    except WireError as error:
        raise ToolError(error.message) from error
    if not isinstance(copy, list) or not all(isinstance(b, dict) and isinstance(b.get("type"), str) for b in copy):
        raise ToolError("content must be a list of blocks with a type")
    return copy


def _finalized(tool: Tool, result: ToolResult) -> ToolResult:
    if tool.finalize is None:
        return result
    try:
        content = tool.finalize(_content(result.content))
        return result if content is None else result._replace(content=_content(content))
    except BaseException as error:
        return failure_of(_own(error))._replace(contexts=result.contexts)


def _frozen(result: ToolResult) -> ToolResult:
    """A copy that shares nothing with ``result``, so that nobody can change what others see."""
    try:
        image = snapshot([result.content, result.value, result.meta, result.error_info, list(result.contexts)])
    except WireError as error:
        return failure_of(ToolError(f"a context that was added to the result cannot be logged: {error.message}"))
    content, value, meta, info, contexts = loads(image)
    return result._replace(content=content, value=value, meta=meta, error_info=info, contexts=tuple(contexts))


def _own(error: BaseException) -> BaseException:
    """``error``, unless it is not the call's own but the end of the task or of the process: then it is raised."""
    if ends_task(error):
        raise error
    return error
