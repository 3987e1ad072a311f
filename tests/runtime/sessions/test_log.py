"""The live log: envelopes, what is refused, observers, validators, folds, seeds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Finish,
    ReasoningDelta,
    SessionError,
    SessionHeader,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    text_block,
    user_message,
)
from polyhost.runtime.sessions import EventCatalogue, LiveSession
from polyhost.runtime.sessions.chunks import wire_form

REENTRY = "session append cannot reenter while another append is being published"


def refused(session: LiveSession, type: str, data: Any, **fields: Any) -> SessionError:
    """Append something that must be refused, and check that nothing changed."""
    before, surface = session.lines(), session.surface()
    with pytest.raises(SessionError) as caught:
        session.append(type, data, **fields)
    assert session.lines() == before
    assert session.surface() == surface
    return caught.value


def line(type: str, seq: int, data: Any, **fields: Any) -> bytes:
    return json.dumps({"type": type, "seq": seq, "time": 5, "data": data, **fields}).encode() + b"\n"


@pytest.mark.contract("EVT-01")
def test_events_are_numbered_from_zero_and_published_once_after_commit(session: LiveSession, talk: Any) -> None:
    heard: list[tuple[int, int]] = []
    session.observe(lambda event: heard.append((event.seq, len(session))))
    talk.whole_turn(answer="abc")
    assert [event.seq for event in session.events()] == list(range(len(session)))
    assert heard == [(seq, seq + 1) for seq in range(len(session))]


def test_the_envelope_has_the_exact_bytes_and_key_order(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    message = {"id": "m", "role": "user", "content": [{"type": "text", "text": "hé"}], "source": {"kind": "user"}}
    session.append("user/message", message, surface_op="append")
    session.append("user/message", message, surface_op={"op": "replace", "start": 2, "end": 2}, source_seqs=[2])
    session.append("feedback/seen", {}, ignorable=True)
    assert session.lines() == [
        b'{"type":"turn/start","seq":0,"time":1000,"data":{"turn":1}}\n',
        b'{"type":"step/start","seq":1,"time":1000,"data":{"turn":1,"step":1}}\n',
        '{"type":"user/message","seq":2,"time":1000,"data":{"id":"m","role":"user","content":[{"type":"text",'
        '"text":"hé"}],"source":{"kind":"user"}},"surfaceOp":"append"}\n'.encode(),
        '{"type":"user/message","seq":3,"time":1000,"data":{"id":"m","role":"user","content":[{"type":"text",'
        '"text":"hé"}],"source":{"kind":"user"}},"sourceEventSeqs":[2],'
        '"surfaceOp":{"op":"replace","start":2,"end":2}}\n'.encode(),
        b'{"type":"feedback/seen","seq":4,"time":1000,"data":{},"ignorable":true}\n',
    ]


@pytest.mark.parametrize(
    "chunk",
    [
        TextDelta(0, 'a"\\\n\x01é\u2028'),
        TextDelta(3, ""),
        TextDelta(0, "\ud800"),
        ReasoningDelta(1, "think"),
        ToolCallDelta(2, "c-1", '{"a":1}', "read"),
        ToolCallDelta(2, "c-1", "}"),
        BlockStart(0, "text"),
        BlockEnd(0, {"type": "text", "text": "Hello"}),
        UsageReport({"inputTokens": 1, "outputTokens": 2}),
        Finish({"kind": "stop"}),
        Finish({"kind": "stop"}, {"opaque": 1}),
    ],
)
def test_a_chunk_is_written_exactly_as_the_generic_append_would(new_session: Any, talk_to: Any, chunk: Any) -> None:
    written, appended = new_session(), new_session()
    for session in (written, appended):
        talk = talk_to(session)
        talk.start_turn()
        talk.start_step()
    seq = written.chunk_writer(1, 1).write(chunk)
    appended.append("assistant/chunk", {"turn": 1, "step": 1, "chunk": wire_form(chunk)})
    assert written.lines() == appended.lines()
    assert written.event(seq).data["chunk"] == wire_form(chunk)


def test_a_chunk_writer_is_good_for_its_own_step_only(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    with pytest.raises(SessionError):
        session.chunk_writer(1, 1)
    talk.start_step()
    writer = session.chunk_writer(1, 1)
    talk.end_step()
    talk.start_step()
    with pytest.raises(SessionError) as caught:
        writer.write(TextDelta(0, "late"))
    assert caught.value.code == "SESSION_TRACE"
    assert session.event(len(session) - 1).type == "step/start"


@pytest.mark.contract("EVT-02", "EVT-03")
def test_a_session_rebuilt_from_its_events_is_the_same(new_session: Any, talk_to: Any) -> None:
    session = new_session()
    talk = talk_to(session)
    talk.whole_turn()
    talk.start_turn()
    talk.end_turn("max-tokens")
    talk.start_turn()
    talk.end_turn("aborted", reason={"kind": "hook", "reason": "because"})
    rebuilt = new_session(seed=session.lines())
    assert rebuilt.lines()[: len(session)] == session.lines()
    assert rebuilt.messages() == session.messages()
    assert rebuilt.surface() == session.surface()
    assert rebuilt.last_turn == 3
    reasons = [event.data["reason"] for event in rebuilt.events() if event.type == "turn/end"]
    assert reasons[1:] == [{"kind": "max-tokens"}, {"kind": "aborted", "reason": {"kind": "hook", "reason": "because"}}]


@pytest.mark.contract("EVT-04")
def test_prompts_and_injected_context_become_user_messages_as_they_are(session: LiveSession) -> None:
    prompt = user_message("do it")
    context = user_message("facts", {"kind": "plugin", "plugin": "memory", "form": "notice", "summary": "s"})
    for message in (prompt, context):
        session.append("user/message", message, surface_op="append")
    assert session.messages() == [prompt, context]


@pytest.mark.contract("EVT-05")
def test_only_a_seeded_session_marks_the_end_of_its_seed_and_only_once(new_session: Any, talk_to: Any) -> None:
    fresh = new_session()
    assert len(fresh) == 0
    empty = new_session(seed=[])
    assert [event.type for event in empty.events()] == ["session/end-seed"]
    assert empty.event(0).data == {}
    talk_to(fresh).whole_turn()
    seeded = new_session(seed=fresh.lines())
    assert [event.type for event in seeded.events()][len(fresh) :] == ["session/end-seed"]
    again = new_session(seed=seeded.lines())
    assert again.lines() == seeded.lines()


DELTA = (
    b'{"type":"assistant/chunk","seq":%d,"time":5,"data":{"turn":1,"step":1,"chunk":'
    b'{"type":"text-delta","index":0,"text":%b}}}\n'
)
USER = {"id": "m", "role": "user", "content": [], "source": {"kind": "user"}}


@pytest.mark.contract("EVT-06", "HDR-02")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param([b"not json\n"], id="not JSON"),
        pytest.param([b"[]\n"], id="not an object"),
        pytest.param([line("turn/start", 1, {"turn": 1})], id="seq does not start at 0"),
        pytest.param([line("turn/start", 0, {"turn": 1}), line("turn/end", 2, {})], id="gap"),
        pytest.param([line("turn/start", True, {"turn": 1})], id="seq is a bool"),
        pytest.param([line("turn/start", 0, {"turn": 1}, extra=1)], id="unknown field"),
        pytest.param([line("turn/start", 0, {"turn": 1}, ignorable=False)], id="ignorable false"),
        pytest.param([line("turn/start", 0, {"turn": 1}, surfaceOp="append")], id="surface mark on a boundary"),
        pytest.param([line("turn/start", 0, {"turn": 1}, surfaceOp=None)], id="null surface mark"),
        pytest.param([line("user/message", 0, USER)], id="no surface mark"),
        pytest.param([line("user/message", 0, USER, surfaceOp="prepend")], id="unknown surface operation"),
        pytest.param([line("user/message", 0, {**USER, "role": "system"}, surfaceOp="append")], id="wrong role"),
        pytest.param([line("user/message", 0, {**USER, "id": None}, surfaceOp="append")], id="no id"),
        pytest.param([line("user/message", 0, {**USER, "content": "x"}, surfaceOp="append")], id="content no list"),
        pytest.param([line("user/message", 0, {**USER, "source": "x"}, surfaceOp="append")], id="source no object"),
        pytest.param([line("request/header", 0, {"header": {"model": "x"}, "reason": "initial"})], id="old header"),
        pytest.param(
            [line("request/header", 0, {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "fallback"})],
            id="retired header reason",
        ),
        pytest.param([line("request/header-delta", 0, {}, ignorable=True)], id="retired type"),
        pytest.param([line("mode/set", 0, {})], id="retired type without mark"),
        pytest.param([line("novel/type", 0, {})], id="unknown required type"),
        pytest.param([DELTA % (1, b'"x"')], id="delta out of order"),
        pytest.param([DELTA % (0, b'"\x01"')], id="delta with a control character"),
        pytest.param([DELTA % (0, b'"\xff"')], id="delta that is not UTF-8"),
        pytest.param([DELTA % (0, b'"x"}')], id="delta with too many braces"),
        pytest.param([json.dumps({"type": "turn/start", "seq": 0, "time": 1.5, "data": {"turn": 1}}).encode() + b"\n"]),
    ],
)
def test_an_unsound_seed_is_refused(new_session: Any, seed: list[bytes]) -> None:
    assert len(new_session(seed=[DELTA % (0, b'"x"')])) == 2
    with pytest.raises(SessionError) as caught:
        new_session(seed=seed)
    assert caught.value.code in ("SESSION_CORRUPT", "SESSION_UNSUPPORTED")


@pytest.mark.contract("EVT-07")
def test_messages_are_checked_for_shape_but_blocks_of_features_are_carried(session: LiveSession) -> None:
    novel = {**USER, "content": [{"type": "hologram", "beam": [1, 2]}], "source": {"kind": "novel", "more": 1}}
    session.append("user/message", novel, surface_op="append")
    assert session.messages() == [novel]
    for broken in ({"id": ""}, {"role": "assistant"}, {"content": None}, {"content": ["x"]}, {"content": [{}]}):
        refused(session, "user/message", {**USER, **broken}, surface_op="append")
    refused(session, "user/message", {**USER, "source": {}}, surface_op="append")
    refused(session, "user/message", "text", surface_op="append")


@pytest.mark.contract("EVT-08", "HDR-02")
@pytest.mark.parametrize(
    "header",
    [
        {"config": {"provider": "p"}},
        {"config": {"provider": "p", "model": ""}},
        {"config": {"provider": "p", "model": "m", "reasoningEffort": ""}},
        {"config": {"provider": "p", "model": "m", "reasoningEffort": 1}},
        {"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"maxTokens": False}},
        {"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"maxTokens": 1}},
        {"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"temperature": True}},
    ],
)
def test_a_wrong_request_header_is_refused(session: LiveSession, talk: Any, header: Any) -> None:
    talk.start_turn()
    refused(session, "request/header", {"header": header, "reason": "initial"})
    good = {"config": {"provider": "p", "model": "m", "reasoningEffort": "low"}, "adapterDefaults": {"maxTokens": True}}
    refused(session, "request/header", {"header": good, "reason": "fallback"})
    refused(session, "request/header-delta", {"header": good})
    session.append("request/header", {"header": good, "reason": "initial"})
    assert session.request_header() == good


@pytest.mark.contract("EVT-09")
@pytest.mark.parametrize(
    "payload",
    [2**60, float("nan"), -0.0, print, {1: 2}, {"a": {1, 2}}, object(), b"bytes", {"deep": [{"x": float("inf")}]}],
)
def test_a_payload_that_is_not_json_is_refused(session: LiveSession, payload: Any) -> None:
    assert refused(session, "feedback/record", {"text": payload}).code == "EVENT_DATA"
    cycle: list[Any] = []
    cycle.append(cycle)
    refused(session, "feedback/record", {"text": cycle})
    assert session.append("feedback/record", {"text": "fine"}).seq == 0


@pytest.mark.contract("EVT-10")
def test_surface_marks_belong_to_surface_types_and_to_all_of_them(session: LiveSession) -> None:
    refused(session, "user/message", USER)
    refused(session, "feedback/record", {}, surface_op="append")
    refused(session, "feedback/record", {}, source_seqs=[])


@pytest.mark.contract("EVT-11")
def test_the_log_is_out_of_reach_of_its_callers(new_session: Any) -> None:
    session = new_session()
    data: dict[str, Any] = {**USER, "content": [text_block("before")]}
    event = session.append("user/message", data, surface_op="append")
    data["content"][0]["text"] = "after"
    event.data["content"][0]["text"] = "after"
    session.messages()[0]["content"][0]["text"] = "after"
    seed = list(session.lines())
    copy = new_session(seed=seed)
    seed[0] = b""
    for reader in (session, copy):
        assert reader.messages()[0]["content"] == [text_block("before")]
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    session.append("feedback/record", {"text": deep})
    deep.append("more")
    decoded = session.event(1).data["text"]
    for _ in range(5000):
        (decoded,) = decoded
    assert decoded == []


@pytest.mark.contract("EVT-13")
def test_a_view_of_the_events_does_not_grow(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    lines, events = session.lines(), session.events()
    talk.start_step()
    assert len(lines) == 1
    assert [event.seq for event in events] == [0]


@pytest.mark.contract("EVT-14", "EVT-15")
def test_the_header_is_checked_and_minimal_by_default(new_session: Any) -> None:
    assert new_session("x").header == SessionHeader("x", 1000)
    assert new_session(delegation_depth=0).header.delegation_depth is None
    full = SessionHeader("x", 0, "/w", "parent", 3, "subagent", 2, "preset")
    assert LiveSession(full).header == full
    for wrong in (
        {"id": ""},
        {"id": 3},
        {"created_at": -1},
        {"created_at": 1.5},
        {"created_at": 2**53},
        {"created_at": True},
        {"cwd": "relative"},
        {"cwd": ""},
        {"seed_length": -1},
        {"delegation_depth": "1"},
        {"origin": "elsewhere"},
        {"agent_preset": {"a": 1}},
        {"parent_session": "\ud800"},
    ):
        with pytest.raises(SessionError) as caught:
            LiveSession(full._replace(**wrong))
        assert caught.value.code == "SESSION_HEADER"


@pytest.mark.contract("EVT-22")
def test_a_failing_observer_harms_nobody(session: LiveSession, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []
    session.observe(lambda event: 1 / 0)
    session.observe(lambda event: heard.append(event.seq))
    assert session.append("feedback/record", {}).seq == 0
    assert heard == [0]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.contract("EVT-23", "INV-03")
def test_a_validator_vetoes_before_the_commit_and_the_seq_is_used_again(session: LiveSession, talk: Any) -> None:
    seen: list[tuple[int, str]] = []
    heard: list[int] = []
    session.observe(lambda event: heard.append(event.seq))

    def strict(event: Any) -> None:
        seen.append((event.seq, event.data.get("text", event.type)))
        assert len(session) == event.seq
        if event.type == "turn/start" or event.data.get("text") == "no":
            raise SessionError("not this one", code="VETO")

    undo = session.validate(strict)
    assert refused(session, "feedback/record", {"text": "no"}).code == "VETO"
    assert session.append("feedback/record", {"text": "yes"}).seq == 0
    assert seen == [(0, "no"), (0, "yes")]
    refused(session, "turn/start", {"turn": 1})
    assert (session.last_turn, session.turn_open) == (0, False)
    undo()
    undo()
    session.append("turn/start", {"turn": 1})
    assert heard == [0, 1]


def test_a_validator_vetoes_chunks_too(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    talk.start_step()
    writer = session.chunk_writer(1, 1)
    undo = session.validate(lambda event: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.write(TextDelta(0, "x"))
    undo()
    assert writer.write(TextDelta(0, "x")) == 2


@pytest.mark.contract("EVT-24")
@pytest.mark.parametrize("way", ["append", "chunk"])
def test_appending_from_an_observer_is_refused_and_contained(
    session: LiveSession, talk: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    talk.start_turn()
    talk.start_step()
    writer = session.chunk_writer(1, 1)
    errors: list[str] = []
    heard: list[str] = []

    def appends(event: Any) -> None:
        try:
            if way == "append":
                session.append("feedback/record", {})
            else:
                writer.write(TextDelta(0, "again"))
        except SessionError as error:
            errors.append(error.message)
            raise

    session.observe(lambda event: heard.append(f"first {event.seq}"))
    session.observe(appends)
    session.observe(lambda event: heard.append(f"last {event.seq}"))
    session.append("feedback/record", {})
    writer.write(TextDelta(0, "x"))
    assert errors == [REENTRY, REENTRY]
    assert heard == ["first 2", "last 2", "first 3", "last 3"]
    assert len(session) == 4


@pytest.mark.contract("EVT-26")
def test_a_todo_list_is_a_snapshot_in_the_log_only(session: LiveSession, talk: Any) -> None:
    talk.start_turn()
    for todos in ([{"content": "a", "status": "pending"}], [{"content": "b", "status": "completed"}]):
        session.append("todo/write", {"todos": todos})
    assert [event.data["todos"] for event in session.events(1)][-1] == [{"content": "b", "status": "completed"}]
    assert session.messages() == []
    assert session.surface() == ()


@pytest.mark.contract("HDR-02", "HDR-03")
def test_request_header_and_context_are_the_last_ones_and_detached(new_session: Any, talk_to: Any) -> None:
    session = new_session()
    talk = talk_to(session)
    assert session.request_header() is None
    assert session.request_context() is None
    talk.start_turn()
    for model in ("one", "two"):
        header = {"config": {"provider": "p", "model": model}, "tools": [{"name": model}]}
        talk.add("request/header", {"header": header, "reason": "change"})
        talk.add("request/context", {"provider": "p", "model": model, "contextWindow": 10})
        session.request_header()["config"]["model"] = "changed"
        session.request_context()["model"] = "changed"
        assert session.request_header() == header
        assert session.request_context() == {"provider": "p", "model": model, "contextWindow": 10}
    rebuilt = new_session(seed=session.lines())
    assert rebuilt.request_header() == header
    assert rebuilt.request_context()["model"] == "two"


def test_time_does_not_run_backwards(session: LiveSession, talk: Any, clock: Any) -> None:
    clock.now = 5000
    talk.start_turn()
    talk.start_step()
    clock.now = 4000
    (chunk,) = talk.deltas("x")
    assert session.event(chunk).time == 5000
    clock.now = 6000
    assert session.event(talk.end_step()).time == 6000


def test_unknown_types_need_a_mount_or_the_mark(clock: Any) -> None:
    mounted: set[str] = set()
    session = LiveSession(SessionHeader("s", 1), clock=clock, catalogue=EventCatalogue(mounted.__contains__))
    assert refused(session, "weather/report", {}).code == "SESSION_UNSUPPORTED"
    mounted.add("weather/report")
    session.append("weather/report", {})
    mounted.clear()
    refused(session, "weather/report", {})
    session.append("weather/report", {}, ignorable=True)
    assert len(session) == 2


def test_undoing_an_observer_removes_one_registration(session: LiveSession) -> None:
    heard: list[int] = []

    def observer(event: Any) -> None:
        heard.append(event.seq)

    undo = session.observe(observer)
    session.observe(observer)
    undo()
    undo()
    session.append("feedback/record", {})
    assert heard == [0]
