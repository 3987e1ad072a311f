"""The grammar of a log: turns, steps, streams, tool calls, approvals."""

from __future__ import annotations

from typing import Any

import pytest

from polyhost.interfaces import SessionError, text_block, tool_result_message
from polyhost.runtime.sessions import LiveSession


def result_data(place: dict[str, int], call_id: str, **more: Any) -> dict[str, Any]:
    return {**place, "message": tool_result_message(call_id, [text_block("x")], is_error=True), **more}


def assert_refused(session: LiveSession, type: str, data: Any, **fields: Any) -> None:
    before = session.lines()
    with pytest.raises(SessionError) as caught:
        session.append(type, data, **fields)
    assert caught.value.code == "SESSION_TRACE"
    assert session.lines() == before


@pytest.mark.contract("INV-01")
def test_turns_and_steps_are_counted_and_nested(session: LiveSession, talk: Any) -> None:
    reason = {"kind": "completed"}
    assert_refused(session, "turn/end", {"turn": 1, "reason": reason})
    assert_refused(session, "step/start", {"turn": 1, "step": 1})
    assert_refused(session, "turn/start", {"turn": 2})
    talk.start_turn()
    assert_refused(session, "turn/start", {"turn": 2})
    assert_refused(session, "turn/end", {"turn": 2, "reason": reason})
    assert_refused(session, "step/start", {"turn": 1, "step": 2})
    assert_refused(session, "step/start", {"turn": 2, "step": 1})
    assert_refused(session, "step/end", {"turn": 1, "step": 1})
    talk.start_step()
    assert_refused(session, "turn/end", {"turn": 1, "reason": reason})
    assert_refused(session, "step/start", {"turn": 1, "step": 2})
    assert_refused(session, "step/end", {"turn": 1, "step": 2})
    talk.end_step()
    assert_refused(session, "step/start", {"turn": 1, "step": 1})
    talk.start_step()
    talk.end_step()
    talk.end_turn()
    assert_refused(session, "turn/start", {"turn": 1})
    talk.start_turn()
    talk.start_step()


@pytest.mark.contract("INV-01")
def test_what_belongs_to_a_step_names_the_open_one(session: LiveSession, talk: Any) -> None:
    chunk = {"type": "text-delta", "index": 0, "text": "x"}
    talk.start_turn()
    assert_refused(session, "assistant/chunk", {"turn": 1, "step": 1, "chunk": chunk})
    talk.start_step()
    assert_refused(session, "assistant/chunk", {"turn": 1, "step": 2, "chunk": chunk})
    call = {"callId": "c", "name": "read", "arguments": "{}"}
    assert_refused(session, "tool/call", {"turn": 2, "step": 1, **call})
    session.append("tool/call", {"turn": 1, "step": 1, **call})
    assert_refused(session, "tool/result", result_data({"turn": 1, "step": 2}, "c"), surface_op="append")
    talk.end_step()
    assert_refused(session, "tool/result", result_data({"turn": 1, "step": 1}, "c"), surface_op="append")


@pytest.mark.contract("INV-01")
@pytest.mark.parametrize(
    ("type", "data"),
    [
        ("request/header", {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"}),
        ("request/context", {"provider": "p", "model": "m"}),
        ("todo/write", {"todos": []}),
        ("approval/asked", {"id": "a", "toolName": "bash"}),
        ("tool/code-dispatch", {}),
    ],
)
def test_what_belongs_to_a_turn_needs_one(session: LiveSession, talk: Any, type: str, data: Any) -> None:
    assert_refused(session, type, data)
    talk.start_turn()
    session.append(type, data)
    talk.end_turn()
    assert_refused(session, type, data)


@pytest.mark.contract("INV-02")
def test_a_result_answers_a_call_of_its_step_unless_the_call_never_started(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    talk.asks("c-1", "c-2", "c-3")
    talk.call("c-1")
    assert_refused(session, "tool/result", result_data(talk.place, "c-2"), surface_op="append")
    error = {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    session.append("tool/result", result_data(talk.place, "c-2", error=error), surface_op="append")
    talk.end_step()
    talk.start_step()
    assert_refused(session, "tool/result", result_data(talk.place, "c-1"), surface_op="append")


def test_an_approval_is_asked_once_and_decided_once(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    assert_refused(session, "approval/decided", {"id": "a", "outcome": "rejected"})
    talk.add("approval/asked", {"id": "a", "toolName": "bash"})
    assert_refused(session, "approval/asked", {"id": "a", "toolName": "bash"})
    talk.add("approval/decided", {"id": "a", "outcome": "rejected"})
    assert_refused(session, "approval/decided", {"id": "a", "outcome": "rejected"})


def test_a_replacing_tool_result_needs_an_open_turn(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    talk.asks("c-1")
    talk.call()
    seq = talk.result()
    talk.end_step()
    talk.end_turn()
    data = session.event(seq).data
    operation = {"op": "replace", "start": seq, "end": seq}
    assert_refused(session, "tool/result", data, surface_op=operation, source_seqs=[seq])
    talk.start_turn()
    session.append("tool/result", data, surface_op=operation, source_seqs=[seq])


@pytest.mark.contract("INV-03")
def test_the_position_is_known_after_a_rebuild(new_session: Any, talk_to: Any) -> None:
    session = new_session()
    talk = talk_to(session)
    talk.whole_turn()
    talk.start_turn()
    talk.start_step()
    talk.asks("c-1")
    talk.call()
    rebuilt = new_session(seed=session.lines())
    assert (rebuilt.last_turn, rebuilt.turn_open, rebuilt.open_step) == (2, True, (2, 1))
    assert_refused(rebuilt, "step/start", {"turn": 2, "step": 2})
    rebuilt.append("tool/result", result_data({"turn": 2, "step": 1}, "c-1"), surface_op="append")
