"""The surface: append, replace, what is refused, and derived history."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import SessionError, SessionHeader, text_block, user_message
from polyhost.runtime.sessions import LiveSession
from polyhost.runtime.sessions.surface import fold, message_of


def replace(start: int, end: int) -> dict[str, Any]:
    return {"op": "replace", "start": start, "end": end}


def refused(session: LiveSession, append: Any) -> SessionError:
    before = (session.lines(), session.surface())
    with pytest.raises(SessionError) as caught:
        append()
    assert (session.lines(), session.surface()) == before
    return caught.value


@pytest.mark.contract("SUR-01")
def test_appended_events_stand_in_log_order(session: LiveSession, talk: Any) -> None:
    assert session.surface() == ()
    assert session.messages() == []
    first, second = talk.user("a"), talk.user("b")
    assert session.surface() == (first, second)
    assert [message["content"][0]["text"] for message in session.messages()] == ["a", "b"]


@pytest.mark.contract("SUR-02", "SUR-06")
def test_a_replacement_takes_the_place_of_its_run(session: LiveSession, talk: Any) -> None:
    for text in "abcd":
        talk.user(text)
    middle = talk.user("bc", surface_op=replace(1, 2), source_seqs=[1, 2])
    assert session.surface() == (0, middle, 3)
    single = talk.user("BC", surface_op=replace(middle, middle), source_seqs=[middle])
    assert session.surface() == (0, single, 3)
    whole = talk.user("all", surface_op=replace(0, 3), source_seqs=[0, single, 3, 1])
    assert session.surface() == (whole,)
    assert [message["content"][0]["text"] for message in session.messages()] == ["all"]


@pytest.mark.contract("SUR-03", "SUR-04")
@pytest.mark.parametrize(
    ("operation", "cited"),
    [
        (replace(9, 1), [0, 1]),
        (replace(0, 9), [0, 1]),
        (replace(1, 0), [0, 1]),
        (replace(0, 1), [0]),
        (replace(0, 1), None),
        (replace(0, 1), []),
        (replace(0, 0), [0, 0]),
        (replace(0, 0), [0, 3]),
        (replace(0, 0), [0, -1]),
        (replace(0, 0), [0, 1.0]),
        (replace(0, 0), [False]),
        ({"op": "replace", "start": 0}, [0]),
        ({**replace(0, 0), "more": 1}, [0]),
        ({"op": "insert", "start": 0, "end": 0}, [0]),
        (replace(True, 0), [0]),
        ("append", [3]),
        ("append", []),
        ("replace", [0]),
    ],
)
def test_an_impossible_replacement_changes_nothing(session: LiveSession, talk: Any, operation: Any, cited: Any) -> None:
    for text in "abc":
        talk.user(text)
    refused(session, lambda: talk.user("x", surface_op=operation, source_seqs=cited))


@pytest.mark.contract("SUR-04", "SUR-07")
def test_an_empty_answer_stays_in_the_log_but_not_in_history(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    seq = talk.assistant(source_seqs=[])
    assert session.event(seq).envelope["sourceEventSeqs"] == []
    assert session.surface() == (seq,)
    assert session.messages() == []


@pytest.mark.contract("SUR-05")
def test_a_replacing_tool_result_may_change_the_content_of_one_result_only(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    prompt = talk.user("go")
    talk.asks("c-1", "c-2")
    for call_id in ("c-1", "c-2"):
        talk.call(call_id)
    first, second = talk.result("c-1"), talk.result("c-2")
    data = session.event(first).data

    def prune(start: int, end: int, **changes: Any) -> Any:
        changed = {**data, **changes}
        cited = [node for node in session.surface() if start <= node <= end]
        return lambda: talk.add("tool/result", changed, surface_op=replace(start, end), source_seqs=cited)

    def content(**fields: Any) -> dict[str, Any]:
        (block,) = data["message"]["content"]
        return {**data["message"], "content": [{**block, **fields}]}

    refused(session, prune(first, second))
    refused(session, prune(prompt, prompt))
    refused(session, prune(second, second))
    refused(session, prune(first, first, step=2))
    refused(session, prune(first, first, meta={}))
    refused(session, prune(first, first, message=content(isError=True)))
    refused(session, prune(first, first, message={**content(), "id": "other"}))
    shorter = prune(first, first, message=content(content=[text_block("…")]))()
    assert session.surface()[-2:] == (shorter, second)


@pytest.mark.contract("SUR-08")
def test_a_window_folds_as_the_whole_and_refuses_to_reach_before_itself(session: LiveSession, talk: Any) -> None:
    for text in "abcd":
        talk.user(text)
    talk.user("cd", surface_op=replace(2, 3), source_seqs=[2, 3])
    envelopes = [event.envelope for event in session.events()]
    assert fold(envelopes) == session.surface() == (0, 1, 4)
    assert fold(envelopes[2:]) == (4,)
    with pytest.raises(SessionError):
        fold(envelopes[3:])


@pytest.mark.contract("SUR-09", "SUR-10", "SUR-06")
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=30))
def test_history_kept_up_is_history_folded_afresh(steps: list[tuple[int, int, bool]]) -> None:
    session = LiveSession(SessionHeader("s", 1), clock=lambda: 1)
    for start, length, appending in steps:
        surface = session.surface()
        if appending or not surface:
            session.append("feedback/record", {})
            session.append("user/message", user_message(f"at {len(session)}"), surface_op="append")
        else:
            run = surface[start % len(surface) :][: length + 1]
            message = user_message(f"instead of {run}")
            session.append("user/message", message, surface_op=replace(run[0], run[-1]), source_seqs=run)
        held = session.messages()
        copy = list(held)
        rebuilt = LiveSession(session.header, session.lines())
        assert rebuilt.messages() == held
        assert session.surface() == fold(event.envelope for event in session.events())
        each = [message_of(session.event(seq).envelope) for seq in session.surface()]
        assert each == held
        assert all(message_of(event.envelope) is None for event in session.events() if event.type != "user/message")
        session.append("feedback/record", {})
        assert held == copy
