"""A whole turn with one tool call, event for event.

``golden_turn.jsonl`` is the log, with times left out and minted message ids as ``*``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polyhost.interfaces import (
    PROMPT_SECTION,
    BlockEnd,
    BlockStart,
    Finish,
    ModelInfo,
    PromptSection,
    ReasoningEffort,
    ToolCallDelta,
    UsageReport,
    user_message,
)
from polyhost.testing.scripted import text_script

if TYPE_CHECKING:
    from conftest import Bench

CALL = {"type": "tool-call", "id": "c-1", "name": "glob", "arguments": '{"pattern":"*"}'}
USAGE = {"inputTokens": 40, "outputTokens": 9}

GOLDEN = [json.loads(line) for line in Path(__file__).with_name("golden_turn.jsonl").read_text().splitlines()]


@pytest.mark.contract("LOOP-02", "LOOP-08")
async def test_the_log_of_a_tool_turn_is_the_golden_one(bench: Bench) -> None:
    async def execute(arguments: object, call: object) -> str:
        return "a.py"

    bench.tool("glob", execute)
    bench.root.mount(PROMPT_SECTION, "persona", PromptSection(0, "Be terse."))
    bench.model._model = ModelInfo(
        "scripted",
        "one",
        "One",
        context_window=1_000_000,
        default_max_tokens=256_000,
        efforts=(ReasoningEffort("high", "High"),),
        default_effort="high",
    )
    stream = [
        BlockStart(0, "tool-call"),
        ToolCallDelta(0, "c-1", '{"pattern":"*"}', "glob"),
        BlockEnd(0, CALL),
        UsageReport(USAGE),
        Finish({"kind": "tool-calls"}),
    ]
    agent = await bench.agent(stream, text_script("1"))
    agent.followup(user_message("list files") | {"id": "m-1"})
    await agent.when_idle()

    logged = [event.envelope for event in agent.session.events()]
    for envelope in logged:
        assert isinstance(envelope.pop("time"), int)
        if envelope["type"] != "user/message" and "message" in envelope["data"]:
            envelope["data"]["message"]["id"] = "*"
    assert logged == GOLDEN
    # The order of keys is that of the wire, too; absent optional fields are absent, not null.
    assert [[*event, *event["data"]] for event in logged] == [[*event, *event["data"]] for event in GOLDEN]


@pytest.mark.contract("LOOP-01", "RES-06")
async def test_a_prompt_on_an_idle_agent_is_received_and_claimed_before_followup_returns(bench: Bench) -> None:
    agent = await bench.agent(text_script("hi"))
    assert ("agent/session-start", "startup") in bench.heard
    bench.heard.clear()
    message = user_message("hello")
    agent.followup(message)
    assert bench.heard == [
        ("agent/inbox/spliced", 0),
        ("agent/inbox/inserted", message["id"]),
        ("agent/status", "running"),
        ("turn/start", 1),
        ("agent/inbox/spliced", 2),
        ("agent/inbox/claimed", (message["id"], 1)),
    ]
    assert agent.status == "running"
    await agent.when_idle()
    assert bench.heard[-2:] == [("turn/end", len(agent.session) - 1), ("agent/status", "idle")]
    assert bench.statuses == ["running", "idle"]
    assert agent.status == "idle"
