"""A conversation that writes itself into a session, and hosts to keep sessions in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import (
    SessionHeader,
    TextDelta,
    assistant_message,
    text_block,
    tool_result_message,
    user_message,
)
from polyhost.kernel import Kernel
from polyhost.runtime.sessions import JsonlStorage, LiveSession, LiveSessions


class Talk:
    """Appends well-formed events to ``session``, keeping track of turn and step."""

    def __init__(self, session: LiveSession) -> None:
        self.session = session
        self.turn = session.last_turn
        self.step = 0

    def add(self, type: str, data: Any, **fields: Any) -> int:
        return self.session.append(type, data, **fields).seq

    @property
    def place(self) -> dict[str, int]:
        return {"turn": self.turn, "step": self.step}

    def start_turn(self) -> int:
        self.turn += 1
        self.step = 0
        return self.add("turn/start", {"turn": self.turn})

    def start_step(self) -> int:
        self.step += 1
        return self.add("step/start", self.place)

    def end_step(self) -> int:
        return self.add("step/end", self.place)

    def end_turn(self, kind: str = "completed", **reason: Any) -> int:
        return self.add("turn/end", {"turn": self.turn, "reason": {"kind": kind, **reason}})

    def user(self, text: str = "hi", **fields: Any) -> int:
        return self.add("user/message", user_message(text), **{"surface_op": "append", **fields})

    def deltas(self, *texts: str) -> list[int]:
        write = self.session.chunk_writer(self.turn, self.step).write
        return [write(TextDelta(0, text)) for text in texts]

    def assistant(self, *blocks: dict[str, Any], **fields: Any) -> int:
        message = assistant_message(list(blocks), provider="demo", model="demo")
        return self.add("assistant/message", {**self.place, "message": message}, **{"surface_op": "append", **fields})

    def asks(self, *call_ids: str) -> int:
        return self.assistant(
            *({"type": "tool-call", "id": call_id, "name": "read", "arguments": "{}"} for call_id in call_ids)
        )

    def call(self, call_id: str = "c-1") -> int:
        return self.add("tool/call", {**self.place, "callId": call_id, "name": "read", "arguments": "{}"})

    def result(self, call_id: str = "c-1", text: str = "ok", **fields: Any) -> int:
        data = {**self.place, "message": tool_result_message(call_id, [text_block(text)], is_error=False)}
        return self.add("tool/result", data, **{"surface_op": "append", **fields})

    def whole_turn(self, prompt: str = "hi", answer: str = "hello") -> None:
        """One turn with one streamed answer."""
        self.start_turn()
        self.start_step()
        self.user(prompt)
        cited = self.deltas(*answer)
        self.assistant(text_block(answer), source_seqs=cited)
        self.end_step()
        self.end_turn()


class Clock:
    """Epoch milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def new_session(clock: Clock) -> Callable[..., LiveSession]:
    def new(session_id: str = "s-1", seed: list[bytes] | None = None, **facts: Any) -> LiveSession:
        return LiveSession(SessionHeader(session_id, 1000, **facts), seed, clock=clock)

    return new


@pytest.fixture
def session(new_session: Callable[..., LiveSession]) -> LiveSession:
    return new_session()


@pytest.fixture
def talk(session: LiveSession) -> Talk:
    return Talk(session)


@pytest.fixture
def talk_to() -> type[Talk]:
    return Talk


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    kernel = Kernel(strict=True)
    yield kernel
    await kernel.aclose()


@pytest.fixture
def store(kernel: Kernel, clock: Clock) -> LiveSessions:
    return LiveSessions(kernel.events, clock=clock)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "sessions"


@pytest.fixture
async def open_storage(root: Path) -> AsyncIterator[Callable[..., JsonlStorage]]:
    """Makes storages, each as good as another process but for the lock; closes them in the end."""
    made: list[JsonlStorage] = []

    def new(**options: Any) -> JsonlStorage:
        made.append(JsonlStorage(root, **options))
        return made[-1]

    yield new
    for storage in made:
        await storage.close()


@pytest.fixture
async def storage(open_storage: Callable[..., JsonlStorage]) -> JsonlStorage:
    return open_storage()


@pytest.fixture
def until() -> Callable[..., Any]:
    """Waits for a condition by letting the loop run; for effects that come from another thread."""

    async def wait(condition: Callable[[], object]) -> None:
        for _ in range(5000):
            if condition():
                return
            await asyncio.sleep(0.001)
        pytest.fail("the condition never came true")

    return wait
