"""The tool calls of one step: which run together, and how their results get into the log in the model's order.

The stages of one call are the tool runtime's. Here is only the order between calls: policy runs in order, bodies of
parallel calls overlap, and results are committed in order, the finished prefix first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from polyhost.interfaces import (
    Agent,
    JsonObject,
    JsonValue,
    ToolCall,
    ToolExecution,
    ToolResult,
    ToolRuntime,
    tool_result_message,
)
from polyhost.kernel.signals import AbortSignal
from polyhost.wire.errors import WireError
from polyhost.wire.json import loads

PARALLEL_CALLS = 10
"""How many tool bodies of one step run at the same time."""


class _Slot:
    """One call with its place in the log, and the task of its body once it was started."""

    __slots__ = ("arguments", "body", "call", "execution", "parallel", "seq")

    execution: ToolExecution
    body: asyncio.Task[None]

    def __init__(self, call: ToolCall, arguments: str) -> None:
        self.call = call
        self.arguments = arguments
        self.parallel = False
        self.seq = 0


class ToolSchedule:
    """Runs the calls of one assistant message.

    :param defer: takes each context message that a call left for the next step.
    :param limit: how many bodies may run at the same time, at least 1.
    """

    def __init__(
        self,
        agent: Agent,
        tools: ToolRuntime,
        *,
        turn: int,
        step: int,
        signal: AbortSignal,
        defer: Callable[[JsonObject], None],
        limit: int = PARALLEL_CALLS,
    ) -> None:
        if limit < 1:
            raise ValueError(f"the number of parallel tool calls must be at least 1, not {limit}")
        self._agent = agent
        self._session = agent.session
        self._tools = tools
        self._place = {"turn": turn, "step": step}
        self._signal = signal
        self._defer = defer
        self._limit = limit
        self._open: deque[_Slot] = deque()  # started and not committed, in order
        self._concluded = False

    async def run(self, blocks: Sequence[JsonObject]) -> bool:
        """Run the tool-call ``blocks``. True when a result concludes the turn.

        When the signal aborts, started bodies are drained and committed; the tool runtime settles the rest without
        starting them, with results that say so. The caller checks the signal. Raises what an append raises, after all
        started bodies have ended.
        """
        waiting = deque(self._slot(block) for block in blocks)
        try:
            while waiting or self._open:
                if self._open and self._open[0].body.done():
                    await self._commit(self._open.popleft())
                elif waiting and self._may_start(waiting[0]):
                    await self._start(waiting.popleft())
                else:
                    await asyncio.wait(self._running(), return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            await self._drain(cancel=isinstance(error, asyncio.CancelledError))
            raise
        return self._concluded

    def _slot(self, block: JsonObject) -> _Slot:
        call = ToolCall(
            call_id=block["id"],
            name=block["name"],
            arguments=_parsed(block["arguments"]),
            signal=self._signal,
            agent=self._agent,
            cwd=self._session.header.cwd,
        )
        return _Slot(call, block["arguments"])

    def _may_start(self, slot: _Slot) -> bool:
        """Classified afresh each time: what may overlap can depend on what ran before."""
        slot.parallel = self._tools.is_parallel(slot.call)
        if not self._open:
            return True
        return slot.parallel and self._open[-1].parallel and len(self._running()) < self._limit

    async def _start(self, slot: _Slot) -> None:
        self._log_call(slot)
        slot.execution = self._tools.begin(slot.call)
        await slot.execution.prepare()
        slot.body = asyncio.get_running_loop().create_task(slot.execution.run(), name=f"tool call {slot.call.name}")
        self._open.append(slot)

    async def _commit(self, slot: _Slot) -> None:
        slot.body.result()
        result = await slot.execution.finish()
        self._log_result(slot, result)
        self._concluded = self._concluded or result.concludes_turn
        for message in result.contexts:
            self._defer(message)

    def _running(self) -> list[asyncio.Task[None]]:
        return [slot.body for slot in self._open if not slot.body.done()]

    async def _drain(self, *, cancel: bool) -> None:
        """Let started bodies end before a failure surfaces; nothing is committed any more."""
        running = self._running()
        if cancel:
            for body in running:
                body.cancel()
        if running:
            await asyncio.wait(running)
        for slot in self._open:
            if not slot.body.cancelled():
                slot.body.exception()  # retrieved: the failure that is surfacing is the one to report

    def _log_call(self, slot: _Slot) -> None:
        call = slot.call
        data = {**self._place, "callId": call.call_id, "name": call.name, "arguments": slot.arguments}
        slot.seq = self._session.append("tool/call", data).seq

    def _log_result(self, slot: _Slot, result: ToolResult) -> None:
        message = tool_result_message(slot.call.call_id, result.content, is_error=result.is_error)
        data: JsonObject = {**self._place, "message": message}
        if result.error_info is not None:
            data["error"] = result.error_info
        if result.meta is not None:
            data["meta"] = result.meta
        self._session.append("tool/result", data, surface_op="append", source_seqs=[slot.seq])


def _parsed(arguments: str) -> JsonValue:
    """The model's arguments as JSON; its raw text when that is none, so that the tool can say what is wrong."""
    if not arguments.strip():
        return {}
    try:
        return loads(arguments)
    except WireError:
        return arguments
