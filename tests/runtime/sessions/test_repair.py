"""The events that close an interrupted turn."""

from __future__ import annotations

from typing import Any

import pytest

from polyhost.runtime.sessions import LiveSession
from polyhost.runtime.sessions.repair import closers
from polyhost.wire.json import loads


def closing(session: LiveSession) -> list[dict[str, Any]]:
    lines = closers(session.lines())
    assert closers(session.lines()) == lines
    rebuilt = LiveSession(session.header, [*session.lines(), *lines])
    assert not rebuilt.turn_open
    events = [loads(line) for line in lines]
    last = session.event(len(session) - 1) if len(session) else None
    assert [event["seq"] for event in events] == [len(session) + n for n in range(len(events))]
    assert all(event["time"] == last.time for event in events if last)
    assert closers([*session.lines(), *lines]) == []
    return events


@pytest.mark.contract("REP-01")
def test_balanced_and_empty_logs_need_nothing(session: LiveSession, talk: Any) -> None:
    assert closing(session) == []
    talk.whole_turn()
    assert closing(session) == []
    talk.add("feedback/record", {})
    assert closing(session) == []


@pytest.mark.contract("REP-02")
def test_an_open_turn_and_step_are_closed(session: LiveSession, talk: Any, clock: Any) -> None:
    talk.whole_turn()
    clock.now = 7777
    talk.start_turn()
    interrupted = {"type": "turn/end", "data": {"turn": 2, "reason": {"kind": "interrupted"}}, "time": 7777}
    (end,) = closing(session)
    assert end.items() >= interrupted.items()
    talk.start_step()
    talk.deltas("a", "b")
    step, end = closing(session)
    assert (step["type"], step["data"]) == ("step/end", {"turn": 2, "step": 1})
    assert end.items() >= interrupted.items()
    talk.end_step()
    (end,) = closing(session)
    assert end["type"] == "turn/end"


@pytest.mark.contract("REP-03", "PST-02")
def test_calls_get_the_result_that_fits_how_far_they_came(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    talk.asks("c-1", "c-2")
    call = talk.call("c-1")
    unknown, not_started, _, _ = closing(session)
    assert unknown["sourceEventSeqs"] == [call]
    assert unknown["data"]["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert "sourceEventSeqs" not in not_started
    assert not_started["data"]["error"] == {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    for call_id, event in (("c-1", unknown), ("c-2", not_started)):
        assert event["surfaceOp"] == "append"
        message = event["data"]["message"]
        assert message["id"] == f"interrupted-tool-result-{call_id}-{event['seq']}"
        assert message["source"] == {"kind": "tool", "callId": call_id}
        (block,) = message["content"]
        assert (block["type"], block["toolCallId"], block["isError"]) == ("tool-result", call_id, True)
    assert "may be repeated" in not_started["data"]["message"]["content"][0]["content"][0]["text"]
    assert "before repeating" in unknown["data"]["message"]["content"][0]["content"][0]["text"]


@pytest.mark.contract("REP-04")
def test_only_what_is_unanswered_in_the_open_step_is_answered_in_log_order(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    talk.asks("old")
    talk.call("old")
    talk.end_step()
    talk.end_turn()
    talk.start_turn()
    talk.start_step()
    talk.asks("closed")
    talk.end_step()
    talk.start_step()
    talk.asks("c-3", "c-1", "c-2")
    talk.call("c-1")
    talk.call("c-3")
    talk.result("c-1")
    events = closing(session)
    answered = [event["data"]["message"]["source"]["callId"] for event in events[:-2]]
    assert answered == ["c-3", "c-2"]
    assert [event["type"] for event in events[-2:]] == ["step/end", "turn/end"]
