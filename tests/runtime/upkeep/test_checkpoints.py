"""Nothing is done that the log does not know of: flushes before model requests and tool bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import (
    AGENTS,
    MODEL_ADAPTER,
    SESSION_DIRECTORY,
    SESSIONS,
    TOOL,
    Session,
    SessionError,
    Tool,
    ToolCall,
    ToolOutput,
    text_block,
    user_message,
)
from polyhost.testing.host import running_host
from polyhost.testing.scripted import ScriptedAdapter, call_script, text_script


class Disk:
    """Notes the flushes of a host's sessions, and fails those that are asked to."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.broken_from = 10**9
        flush = store.flush

        async def noted(session: Session) -> bool:
            self.log.append("flush")
            if self.log.count("flush") >= self.broken_from:
                raise SessionError("no space left", code="SESSION_WRITE_FAILED")
            return bool(await flush(session))

        monkeypatch.setattr(store, "flush", noted)


async def turn(home: Path, monkeypatch: pytest.MonkeyPatch, *, broken_from: int = 10**9) -> tuple[Disk, list[Any]]:
    """One turn with a tool call and an answer; the order of what happened, and the events."""
    async with running_host(home) as host:
        store, directory, agents = (host.root.get(key) for key in (SESSIONS, SESSION_DIRECTORY, AGENTS))
        disk = Disk(store, monkeypatch)
        disk.broken_from = broken_from
        model = ScriptedAdapter([call_script("probe", {}), text_script("done")])
        host.root.mount(MODEL_ADAPTER, "scripted", model)

        async def body(arguments: Any, call: ToolCall) -> str:
            disk.log.append("body")
            return "ok"

        output = ToolOutput({"type": "string"}, lambda arguments, value: [text_block(value)])
        parameters = {"type": "object", "properties": {}}
        tool = Tool(name="probe", description="", parameters=parameters, output=output, execute=body, access="none")
        host.root.mount(TOOL, "probe", tool)
        opened = await directory.open(cwd=str(home), model="scripted/one")
        await agents.prompt(opened.agent, user_message("go")).outcome()
        events = [event.envelope for event in opened.agent.session.events()]
        disk.log.append(f"{len(model.requests)} requests")
        await opened.close()
        return disk, events


@pytest.mark.contract("CKP-01", "CKP-02")
async def test_the_log_is_flushed_before_each_request_and_each_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, _ = await turn(tmp_path, monkeypatch)
    assert disk.log == ["flush", "flush", "body", "flush", "2 requests"]


@pytest.mark.contract("CKP-01")
async def test_a_failed_flush_stops_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, events = await turn(tmp_path, monkeypatch, broken_from=1)
    assert disk.log == ["flush", "0 requests"]
    assert events[-1]["data"]["reason"]["error"]["code"] == "SESSION_WRITE_FAILED"


@pytest.mark.contract("CKP-02")
async def test_a_failed_flush_stops_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, events = await turn(tmp_path, monkeypatch, broken_from=2)
    assert "body" not in disk.log
    (result,) = [event["data"] for event in events if event["type"] == "tool/result"]
    assert result["error"]["code"] == "SESSION_WRITE_FAILED"
    assert "cannot be written" in result["message"]["content"][0]["content"][0]["text"]
