"""One turn: claimed input goes in, steps run until nothing is left to do, and the log is balanced whatever happens.

The turn decides whether another step follows and how it all ended. What happens inside a step is in ``step``; which
turns run is the driver's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from polyhost.interfaces import (
    AGENT_INBOX_CLAIMED,
    AGENT_PRE_STEP,
    AGENT_TURN_STOPPING,
    AssembledPrompt,
    Enter,
    JsonObject,
    Reject,
    StepProposal,
    TurnOutcome,
)
from polyhost.kernel.signals import AbortController
from polyhost.runtime.agents.grace import AbortGrace
from polyhost.runtime.agents.parts import AgentParts
from polyhost.runtime.agents.step import COMPLETED, MAX_TOKENS, RequestFailedError, Step
from polyhost.runtime.containment import ends_task
from polyhost.runtime.models.errors import failure_of

BLOCKED: JsonObject = {"kind": "blocked"}
DISPOSED: JsonObject = {"kind": "disposed"}


class _Ending(NamedTuple):
    """How a turn ended; ``more`` lets the driver go on with what is queued."""

    reason: JsonObject
    more: bool


class _Admitted(NamedTuple):
    """A proposed step that may run."""

    messages: Sequence[JsonObject]
    prompt: AssembledPrompt
    config: JsonObject


class Turn:
    """Turn ``number`` of an agent. First :meth:`open`, synchronously; then :meth:`run`, which closes it."""

    def __init__(self, parts: AgentParts, controller: AbortController) -> None:
        self._parts = parts
        self._session = parts.session
        self._controller = controller
        self._signal = controller.signal
        self.number = parts.session.last_turn + 1
        self.closing = False
        self._claimed: list[JsonObject] = []
        self._refused: BaseException | None = None
        self._step = 0
        self._text = ""
        self._usage: JsonObject = {}

    def open(self) -> bool:
        """Log the start and claim the input. False when the start was refused: then nothing happened."""
        try:
            self._session.append("turn/start", {"turn": self.number}, trusted=True)
        except Exception as error:
            self._parts.report(self.number, 0, error)
            return False
        try:
            self._claim(new_turn=True)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._refused = error  # the turn is in the log: it ends with this
        return True

    async def run(self) -> bool:
        """Run the steps and log the end. True when the driver may go on with queued work.

        Raises only the cancellation of the task itself and the user's interrupt, after the end is in the log with
        cause ``disposed``.
        """
        budget = self._start_budget()
        try:
            ending = await self._steps()
        except BaseException as error:
            if ends_task(error):
                self.cut_off()
                raise
            self.closing = True
            ending = _Ending(self._aborted() if self._signal.aborted else self._failed(error), more=False)
        finally:
            if budget is not None:
                budget.cancel()
        return self._close(ending.reason) and ending.more

    def cut_off(self) -> None:
        """Log the end of a turn whose task was cancelled, perhaps before :meth:`run` could begin."""
        self._controller.abort(DISPOSED)
        self._close(self._aborted())

    async def _steps(self) -> _Ending:
        if self._refused is not None:
            raise self._refused
        reason: JsonObject | None = None  # what the turn will end with
        done = False  # whether the last step left nothing for the model to answer
        while True:
            self._check_limits()
            admitted = await self._propose(done=done)
            if admitted is None:
                return _Ending(BLOCKED, more=False)
            if not admitted.messages:
                if self._step == 0:
                    return _Ending(COMPLETED, more=False)
                if reason is not None and done:
                    return _Ending(reason, more=True)
            self._step += 1
            result = await self._run_step(admitted)
            done = result is not None
            if result is not None and reason is not MAX_TOKENS:
                reason = result
            if reason is not None and done and not self._parts.inbox.has_next_step:
                await self._stopping()
                if not self._parts.inbox.has_next_step:
                    return _Ending(reason, more=True)
            self._claim(new_turn=False)

    async def _propose(self, *, done: bool) -> _Admitted | None:
        """Assemble the prompt and let listeners decide on the step; None when they reject it."""
        parts, claimed = self._parts, tuple(self._claimed)
        config = parts.requests.base()
        with AbortGrace(self._signal, parts.services.abort_grace):
            prompt = await parts.services.prompts.assemble(
                parts.agent, self._variables(config), parts.services.tools.schemas(parts.agent)
            )
            self._signal.raise_if_aborted()
            # Context alone is nothing to answer: it never opens a step that would not run without it.
            due = claimed or not (done or self._step == 0)
            context = parts.runtime_context.message(prompt.contexts) if due else None
            proposed = (*claimed, context) if context is not None else claimed

            async def enter() -> Enter | Reject:
                return Enter(proposed)

            proposal = StepProposal(parts.agent, claimed, self.number, self._step + 1, self._signal)
            decision = await parts.events.around(AGENT_PRE_STEP, proposal, inner=enter)
        self._signal.raise_if_aborted()
        if isinstance(decision, Reject):
            return None
        if not isinstance(decision, Enter):
            raise TypeError(f"an agent/pre-step listener answered {decision!r:.80}, not Enter or Reject")
        return _Admitted(decision.messages, prompt, config)

    async def _run_step(self, admitted: _Admitted) -> JsonObject | None:
        self._signal.raise_if_aborted()
        step = Step(self._parts, self.number, self._step, self._signal)
        try:
            reason = await step.run(admitted.messages, admitted.prompt, admitted.config)
        finally:
            self._text = step.text or self._text
            self._count(step.usage)
        self._signal.raise_if_aborted()
        return reason

    async def _stopping(self) -> None:
        """The last chance for listeners to steer before the turn ends."""
        with AbortGrace(self._signal, self._parts.services.abort_grace):
            await self._parts.events.serial(AGENT_TURN_STOPPING, self._parts.agent, self.number, self._signal)
        self._signal.raise_if_aborted()

    def _claim(self, *, new_turn: bool) -> None:
        self._claimed = self._parts.inbox.claim(new_turn=new_turn)
        for message in self._claimed:
            self._parts.tickets.claimed(message, self.number)
        for message in self._claimed:
            self._parts.emit(AGENT_INBOX_CLAIMED, message, self.number)

    def _count(self, usage: JsonObject) -> None:
        for name, count in usage.items():
            if isinstance(count, int):
                self._usage[name] = self._usage.get(name, 0) + count

    def _variables(self, config: JsonObject) -> JsonObject:
        return {"provider": config.get("provider"), "model": config.get("model"), "cwd": self._session.header.cwd}

    def _check_limits(self) -> None:
        """Refuse another step to a turn that has used up what it may; what its last step did stays."""
        steps, _, tokens = self._parts.limits
        used = self._usage.get("inputTokens", 0) + self._usage.get("outputTokens", 0)
        if steps is not None and self._step >= steps:
            self._controller.abort({"kind": "hook", "reason": f"the turn reached its limit of {steps} steps"})
        elif tokens is not None and used >= tokens:
            reason = f"the turn was stopped after {used} tokens; its limit is {tokens}"
            self._controller.abort({"kind": "hook", "reason": reason})
        self._signal.raise_if_aborted()

    def _start_budget(self) -> asyncio.TimerHandle | None:
        seconds = self._parts.limits.seconds
        if seconds is None:
            return None
        cause = {"kind": "hook", "reason": f"the turn reached its limit of {seconds:g} seconds"}
        return asyncio.get_running_loop().call_later(seconds, self._controller.abort, cause)

    def _aborted(self) -> JsonObject:
        return {"kind": "aborted", "reason": self._signal.cause}

    def _failed(self, error: BaseException) -> JsonObject:
        self._parts.report(self.number, self._step, error)
        failure = error.failure if isinstance(error, RequestFailedError) else failure_of(error)
        return {"kind": "error", "error": failure}

    def _close(self, reason: JsonObject) -> bool:
        """Log the end of the turn and settle who waits for it. False when the log refused it."""
        self.closing = True
        try:
            self._session.append("turn/end", {"turn": self.number, "reason": reason})
        except Exception as error:
            self._parts.report(self.number, self._step, error)
            return False
        finally:
            self._parts.tickets.turn_ended(TurnOutcome(self.number, reason, self._text, self._usage))
        return True
