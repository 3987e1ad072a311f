"""One step: admitted messages, one model request with its retries, the answer, and the tools that it calls.

The request is a pure function of the log: everything in it was appended before it is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from polyhost.interfaces import (
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    AssembledPrompt,
    Chunk,
    JsonObject,
    ModelError,
    ModelRequest,
    PreparedCall,
    RequestBuild,
    RequestFailure,
    assistant_message,
    text_of,
)
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.signals import AbortSignal
from polyhost.runtime.agents.grace import AbortGrace
from polyhost.runtime.agents.inbox import NEXT_STEP
from polyhost.runtime.agents.parts import AgentParts
from polyhost.runtime.agents.requests import request_header, require_route
from polyhost.runtime.agents.scheduler import ToolSchedule
from polyhost.runtime.models.assembler import Assembler
from polyhost.runtime.models.errors import clean_failure

COMPLETED: JsonObject = {"kind": "completed"}
MAX_TOKENS: JsonObject = {"kind": "max-tokens"}

_BURST = 32
"""Chunks between two looks at the clock."""

_BURST_SECONDS = 0.002
"""How long a stream may keep the loop to itself before others get a turn."""


class RequestFailedError(PolyhostError):
    """A model request failed for good. ``failure`` has the facts as in the stream's finish chunk."""

    def __init__(self, failure: JsonObject) -> None:
        super().__init__(failure["message"], code=failure["code"])
        self.failure = failure


class _Attempt:
    """What one attempt brought: the seqs of its chunks, their assembly, and why it failed, if it did."""

    __slots__ = ("assembly", "request", "seqs")

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.seqs: list[int] = []
        self.assembly = Assembler()

    @property
    def failure(self) -> JsonObject | None:
        finish = self.assembly.finish
        if finish.get("kind") not in ("error", "aborted"):
            return None
        return clean_failure(finish.get("failure"))


class Step:
    """Step ``number`` of a turn.

    :ivar text: the text of the assistant message, once there is one.
    :ivar usage: token counts of the answer, empty without a report.
    """

    def __init__(self, parts: AgentParts, turn: int, number: int, signal: AbortSignal) -> None:
        self._parts = parts
        self._session = parts.session
        self._turn = turn
        self._number = number
        self._signal = signal
        self._place = {"turn": turn, "step": number}
        self.text = ""
        self.usage: JsonObject = {}

    async def run(
        self, messages: Sequence[JsonObject], prompt: AssembledPrompt, config: JsonObject
    ) -> JsonObject | None:
        """Run the step; ``step/end`` is logged whatever happens.

        Returns why the turn may end, or None when another step must follow. Raises what fails.

        :param config: what the first attempt's request starts from.
        """
        self._session.append("step/start", self._place, trusted=True)
        try:
            for message in messages:
                event = self._session.append("user/message", message, surface_op="append")
                self._parts.runtime_context.logged(message, event.seq)
            self._signal.raise_if_aborted()
            answer = await self._ask(prompt, config)
            return await self._act(self._log_answer(answer), answer.assembly.finish)
        finally:
            self._session.append("step/end", self._place, trusted=True)

    async def _ask(self, prompt: AssembledPrompt, config: JsonObject) -> _Attempt:
        """Send the request until an attempt succeeds or nobody wants another one."""
        while True:
            with AbortGrace(self._signal, self._parts.services.abort_grace):
                call, request = await self._build(prompt, config)
                attempt = _Attempt(request)
                await self._receive((call or self._parts.services.models).stream(request), attempt)
            self._signal.raise_if_aborted()
            failure = attempt.failure
            if failure is None:
                return attempt
            if not await self._recover(request.provider, failure, call):
                raise RequestFailedError(failure)
            config = self._parts.requests.base()

    async def _build(self, prompt: AssembledPrompt, base: JsonObject) -> tuple[PreparedCall | None, ModelRequest]:
        """Decide on the configuration, bind it to its adapter, and log all that the request will carry."""
        parts, signal = self._parts, self._signal
        messages = tuple(self._session.messages())

        async def unchanged() -> JsonObject:
            return base

        build = RequestBuild(parts.agent, self._turn, self._number, signal)
        config = require_route(await parts.events.around(AGENT_REQUEST, build, inner=unchanged), parts.agent.id)
        signal.raise_if_aborted()
        call = await self._prepare(config)
        signal.raise_if_aborted()
        if call is not None:
            config = call.config
        defaults = call.adapter_defaults if call else {}
        parts.requests.log(request_header(config, defaults, prompt.system, prompt.tools))
        parts.requests.log_context(config, call.context_window if call else None)
        await parts.services.sessions.flush(self._session)
        signal.raise_if_aborted()
        return call, ModelRequest(
            provider=config["provider"],
            model=config["model"],
            messages=messages,
            system=prompt.system or None,
            tools=prompt.tools,
            reasoning_effort=config.get("reasoningEffort"),
            temperature=config.get("temperature"),
            max_tokens=config.get("maxTokens"),
            stop=config.get("stop"),
            signal=signal,
            session_id=self._session.id,
        )

    async def _prepare(self, config: JsonObject) -> PreparedCall | None:
        """The call bound to its adapter; None for a route without one, which a stream listener may serve."""
        try:
            return await self._parts.services.models.prepare(config, self._signal)
        except ModelError as error:
            if error.code == "NO_ADAPTER":
                return None
            raise

    async def _receive(self, stream: AsyncGenerator[Chunk, None], attempt: _Attempt) -> None:
        """Log and assemble each chunk as it comes. The only code that runs for every delta."""
        signal = self._signal
        write = self._session.chunk_writer(self._turn, self._number).write
        feed, note = attempt.assembly.feed, attempt.seqs.append
        countdown, since = _BURST, time.perf_counter()
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                if signal.aborted:
                    return
                note(write(chunk))
                feed(chunk)
                countdown -= 1
                if not countdown:
                    countdown = _BURST
                    if time.perf_counter() - since > _BURST_SECONDS:
                        await asyncio.sleep(0)
                        since = time.perf_counter()

    async def _recover(self, provider: str, failure: JsonObject, call: PreparedCall | None) -> bool:
        """Ask whether the failed attempt is to be repeated in this step."""

        async def final() -> bool:
            return False

        policy = call.retry_policy if call else None
        facts = RequestFailure(self._parts.agent, self._turn, self._number, provider, failure, policy, self._signal)
        with AbortGrace(self._signal, self._parts.services.abort_grace):
            again = await self._parts.events.around(AGENT_REQUEST_ERROR, facts, inner=final)
        self._signal.raise_if_aborted()
        return again is True

    def _log_answer(self, answer: _Attempt) -> list[JsonObject]:
        """Append the assistant message, also without content; returns its blocks."""
        assembly, request = answer.assembly, answer.request
        content = assembly.content()
        message = assistant_message(
            content, provider=request.provider, model=request.model, replay_state=assembly.replay_state
        )
        data: JsonObject = {**self._place, "message": message}
        if assembly.usage is not None:
            data["usage"] = self.usage = assembly.usage
        self._session.append("assistant/message", data, surface_op="append", source_seqs=answer.seqs)
        self.text = text_of(content)
        return content

    async def _act(self, content: list[JsonObject], finish: JsonObject) -> JsonObject | None:
        """Run the tool calls of the answer; says why the turn may end."""
        if finish.get("kind") == "max-tokens":
            return MAX_TOKENS
        calls = [block for block in content if block["type"] == "tool-call"]
        if not calls:
            return COMPLETED
        schedule = ToolSchedule(
            self._parts.agent,
            self._parts.services.tools,
            turn=self._turn,
            step=self._number,
            signal=self._signal,
            defer=lambda message: self._parts.inbox.insert(NEXT_STEP, message),
            limit=self._parts.services.parallel_tools,
        )
        return COMPLETED if await schedule.run(calls) else None
