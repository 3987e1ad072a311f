"""How turns run: what goes in, when another step follows, and how a turn ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    AGENT_ERROR,
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_SESSION_START,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
    MODEL_STREAM,
    PROMPT_CONTEXT,
    PROMPT_SECTION,
    SESSION_EVENT,
    SESSION_FLUSH,
    TOOL_POST_EXECUTE,
    TOOL_PRE_EXECUTE,
    Accept,
    BlockEnd,
    BlockStart,
    Deny,
    Enter,
    Finish,
    PromptContext,
    PromptSection,
    Reject,
    SessionError,
    TextDelta,
    ToolCallDelta,
    ToolError,
    plugin_message,
    text_of,
    user_message,
)
from polyhost.runtime.agents.agent import AgentBusyError
from polyhost.runtime.agents.inbox import InboxError
from polyhost.testing.scripted import HANG, call_script, calls_script, failure_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

COMPLETED = {"kind": "completed"}


def texts(request: Any) -> list[str]:
    """The text of each message of a request."""
    return [text_of(message["content"]) for message in request.messages]


async def reached(agent: LiveAgent, type: str, count: int = 1) -> None:
    """Wait until the session has so many events of a type."""
    arrived = asyncio.Event()

    def observe(event: Any) -> None:
        nonlocal count
        count -= event.type == type
        if count <= 0:
            arrived.set()

    count -= sum(event.type == type for event in agent.session.events())
    undo = agent.session.observe(observe)
    if count > 0:
        await asyncio.wait_for(arrived.wait(), 5)
    undo()


# -- tools and steps


@pytest.mark.contract("LOOP-02", "SYS-08")
async def test_a_tool_result_is_in_the_next_request(bench: Bench) -> None:
    bench.tool("b")
    bench.tool("a")
    agent = await bench.agent(call_script("a", {}), text_script("done"))
    await bench.ask(agent)
    first, second = bench.model.requests
    assert [tool["name"] for tool in first.tools] == ["a", "b"]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    result = second.messages[2]["content"][0]
    assert (result["toolCallId"], result["content"]) == ("call-1", [{"type": "text", "text": "ok"}])


@pytest.mark.contract("LOOP-14")
async def test_a_concluding_tool_ends_the_turn_unless_somebody_steered(bench: Bench) -> None:
    steer = False

    async def conclude(arguments: Any, call: Any) -> str:
        call.conclude_turn()
        if steer:
            call.agent.steer(user_message("one more thing"))
        return "end"

    bench.tool("conclude", conclude)
    agent = await bench.agent(call_script("conclude", {}))
    await bench.ask(agent)
    assert len(bench.model.requests) == 1
    steer = True
    bench.script(call_script("conclude", {}), text_script("answer"))
    await bench.ask(agent)
    assert len(bench.model.requests) == 3
    assert texts(bench.model.requests[-1])[-1] == "one more thing"
    assert bench.reasons(agent) == [COMPLETED, COMPLETED]


@pytest.mark.contract("LOOP-30")
async def test_a_result_is_logged_under_the_models_call_id_whatever_listeners_make_of_it(bench: Bench) -> None:
    async def replace(call: Any, result: Any, next: Any) -> Accept:
        await next()
        return Accept(content=[{"type": "text", "text": "replaced"}])

    bench.tool("t")
    bench.root.on(TOOL_POST_EXECUTE, replace)
    agent = await bench.agent(call_script("t", {}, call_id="c-9"), text_script("done"))
    await bench.ask(agent)
    (result,) = bench.data(agent, "tool/result")
    assert result["message"]["source"] == {"kind": "tool", "callId": "c-9"}
    assert result["message"]["content"][0]["toolCallId"] == "c-9"
    assert text_of(result["message"]["content"][0]["content"]) == "replaced"


@pytest.mark.contract("LOOP-31")
async def test_raw_arguments_coded_errors_and_meta_reach_the_log(bench: Bench) -> None:
    seen: list[Any] = []

    async def body(arguments: Any, call: Any) -> str:
        seen.append(arguments)
        if len(seen) == 2:
            raise ToolError("no such file", code="ENOENT", name="FileError")
        return "fine"

    from polyhost.interfaces import ToolOutput, text_block

    output = ToolOutput({}, lambda a, v: [text_block(v)], lambda a, v: {"shown": v})
    bench.tool("t", body, output=output)
    agent = await bench.agent(
        calls_script(("c1", "t", ""), ("c2", "t", '{"a":1}'), ("c3", "t", "{broken")), text_script("done")
    )
    await bench.ask(agent)
    assert seen == [{}, {"a": 1}]
    first, second, third = bench.data(agent, "tool/result")
    assert first["meta"] == {"shown": "fine"}
    assert "error" not in first
    assert second["error"] == {"name": "FileError", "code": "ENOENT"}
    assert third["error"]["code"] == "INVALID_ARGS"
    assert [call["arguments"] for call in bench.data(agent, "tool/call")] == ["", '{"a":1}', "{broken"]


@pytest.mark.contract("LOOP-11", "PRE-07")
async def test_context_from_tools_comes_after_all_results_of_the_step(bench: Bench) -> None:
    async def body(arguments: Any, call: Any) -> str:
        call.defer_context(plugin_message("test", f"about {call.call_id}"))
        call.agent.inject(plugin_message("test", f"during {call.call_id}"))
        with pytest.raises(Exception, match="JSON"):
            call.agent.inject(plugin_message("test", "x", extra=object()))
        return "ok"

    bench.tool("t", body)
    agent = await bench.agent(calls_script(("c1", "t", {}), ("c2", "t", {})), text_script("done"), text_script("later"))
    await bench.ask(agent)
    second = bench.model.requests[1]
    assert [m["source"]["kind"] for m in second.messages] == ["user", "model", "tool", "tool", *["plugin"] * 4]
    assert texts(second)[4:] == ["during c1", "about c1", "during c2", "about c2"]
    await bench.ask(agent, "again")
    assert texts(bench.model.requests[2])[8:] == ["done", "again"]


@pytest.mark.contract("PRE-08")
async def test_a_denied_call_is_an_error_result_and_a_withdrawn_listener_is_silent(bench: Bench) -> None:
    async def deny(call: Any, next: Any) -> Deny:
        return Deny("not today")

    bench.tool("t")
    token = bench.root.on(TOOL_PRE_EXECUTE, deny)
    agent = await bench.agent(call_script("t", {}), text_script("oh"), call_script("t", {}), text_script("fine"))
    await bench.ask(agent)
    await token.withdraw()
    await bench.ask(agent)
    denied, allowed = (data["message"]["content"][0] for data in bench.data(agent, "tool/result"))
    assert (denied["isError"], text_of(denied["content"])) == (True, "Error: not today")
    assert allowed["isError"] is False


# -- messages in


@pytest.mark.contract("LOOP-09")
async def test_steering_joins_the_running_turn_and_opens_one_on_an_idle_agent(bench: Bench) -> None:
    async def body(arguments: Any, call: Any) -> str:
        call.agent.steer(user_message("also this"))
        return "ok"

    bench.tool("t", body)
    agent = await bench.agent(call_script("t", {}), text_script("both done"), text_script("third"))
    await bench.ask(agent, "first")
    assert texts(bench.model.requests[1])[-1] == "also this"
    assert agent.session.last_turn == 1
    agent.steer(user_message("on idle"))
    assert agent.status == "running"
    assert agent.session.turn_open
    await agent.when_idle()
    assert texts(bench.model.requests[2])[-1] == "on idle"


@pytest.mark.contract("LOOP-10")
async def test_injected_context_waits_for_the_next_prompt(bench: Bench) -> None:
    agent = await bench.agent(text_script("hi"))
    context = plugin_message("", "remember", form="notice")
    agent.inject(context)
    assert bench.types(agent) == ["agent/inbox/spliced"]
    assert agent.status == "idle"
    await bench.ask(agent, "now")
    first, second = bench.data(agent, "user/message")
    assert first == context
    assert text_of(second["content"]) == "now"


@pytest.mark.contract("LOOP-21")
async def test_a_send_inside_a_log_observer_is_refused_and_one_after_it_runs_next(bench: Bench) -> None:
    agent = await bench.agent(text_script("one"), text_script("two"))
    refused: list[str] = []

    def observe(session: Any, event: Any) -> None:
        if event.type == "step/start" and event.data["turn"] == 1:
            asyncio.get_running_loop().call_soon(agent.followup, user_message("deferred"))
            try:
                agent.followup(user_message("inside"))
            except Exception as error:
                refused.append(str(error))
                raise

    bench.root.on(SESSION_EVENT, observe)
    await bench.ask(agent)
    assert refused == ["session append cannot reenter while another append is being published"]
    assert not agent.inbox.pending
    assert [texts(request)[-1] for request in bench.model.requests] == ["hello", "deferred"]
    assert bench.reasons(agent) == [COMPLETED, COMPLETED]


@pytest.mark.contract("LOOP-21")
async def test_a_send_from_inside_the_adapter_is_the_next_turn(bench: Bench) -> None:
    def stream(request: Any) -> Any:
        agent.followup(user_message("from the adapter"))
        return text_script("one")

    agent = await bench.agent(stream, text_script("two"))
    await bench.ask(agent)
    assert texts(bench.model.requests[1])[-1] == "from the adapter"
    assert bench.reasons(agent) == [COMPLETED, COMPLETED]


@pytest.mark.contract("LOOP-22")
async def test_a_burst_gives_each_message_its_own_turn(bench: Bench) -> None:
    agent = await bench.agent(*[text_script(str(n)) for n in range(5)])
    messages = [user_message(f"m{n}") for n in range(5)]
    for message in messages[:4]:
        agent.followup(message)
    await agent.when_idle()
    agent.followup(messages[4])
    await agent.when_idle()
    claims = [detail for name, detail in bench.heard if name == "agent/inbox/claimed"]
    assert claims == [(message["id"], turn) for turn, message in enumerate(messages, 1)]
    assert bench.statuses == ["running", "idle", "running", "idle"]


# -- pre-step


@pytest.mark.contract("PRE-01", "PRE-02", "LOOP-16")
async def test_listeners_see_and_rewrite_what_a_step_begins_with(bench: Bench) -> None:
    proposals = []
    extra = plugin_message("test", "extra")

    async def listener(proposal: Any, next: Any) -> Any:
        started = bench.types(proposal.agent).count("step/start")
        proposals.append((proposal.turn, proposal.step, started, proposal.messages))
        decision = await next()
        return decision if proposal.turn == 1 else Enter((*decision.messages, extra))

    bench.root.on(AGENT_PRE_STEP, listener)
    bench.tool("t")
    agent = await bench.agent(call_script("t", {}), text_script("one"), text_script("two"))
    message = user_message("first")
    agent.followup(message)
    await agent.when_idle()
    await bench.ask(agent, "second")
    assert [(turn, step, started) for turn, step, started, _ in proposals] == [(1, 1, 0), (1, 2, 1), (2, 1, 2)]
    assert proposals[0][3] == (message,)
    assert isinstance(proposals[0][3], tuple)
    assert [text_of(m["content"]) for m in bench.data(agent, "user/message")] == ["first", "second", "extra"]
    assert bench.data(agent, "user/message")[0] == message


@pytest.mark.contract("PRE-03")
async def test_a_rejected_step_blocks_the_turn_and_parks_the_queue(bench: Bench) -> None:
    async def reject(proposal: Any, next: Any) -> Reject:
        return Reject()

    token = bench.root.on(AGENT_PRE_STEP, reject)
    agent = await bench.agent(text_script("later"))
    agent.followup(user_message("blocked"))
    agent.followup(user_message("parked"))
    await agent.when_idle()
    assert bench.reasons(agent) == [{"kind": "blocked"}]
    assert "step/start" not in bench.types(agent)
    assert bench.model.requests == []
    assert [text_of(m["content"]) for m in agent.inbox.next_turn] == ["parked"]
    await token.withdraw()
    agent.resume_queue()
    await agent.when_idle()
    assert bench.reasons(agent) == [{"kind": "blocked"}, COMPLETED]
    agent.resume_queue()
    assert agent.status == "idle"


@pytest.mark.contract("PRE-04")
async def test_input_staged_after_the_claim_is_for_later(bench: Bench) -> None:
    async def listener(proposal: Any, next: Any) -> Any:
        if proposal.step == 1:
            agent.inject(plugin_message("test", "staged"))
        return await next()

    bench.root.on(AGENT_PRE_STEP, listener)
    agent = await bench.agent(text_script("one"), text_script("two"))
    await bench.ask(agent)
    assert [texts(request) for request in bench.model.requests] == [["hello"], ["hello", "one", "staged"]]


@pytest.mark.contract("LOOP-12", "LOOP-34")
async def test_a_failing_listener_errors_the_turn_and_the_queue_waits_for_another_wake(bench: Bench) -> None:
    failing = True

    async def fail(proposal: Any, next: Any) -> Any:
        if failing:
            raise RuntimeError("broken policy")
        return await next()

    bench.root.on(AGENT_PRE_STEP, fail)
    agent = await bench.agent(text_script("one"), text_script("two"))
    agent.followup(user_message("fails"))
    agent.followup(user_message("waits"))
    await agent.when_idle()  # does not raise for the work
    assert bench.reasons(agent) == [{"kind": "error", "error": {"message": "broken policy", "code": "UNKNOWN"}}]
    assert [(turn, step, str(error)) for turn, step, error in bench.errors] == [(1, 0, "broken policy")]
    assert len(agent.inbox.next_turn) == 1
    failing = False
    await bench.ask(agent, "wakes")
    assert [texts(request)[-1] for request in bench.model.requests] == ["waits", "wakes"]
    await agent.when_idle()  # immediate


async def test_a_wake_from_an_error_listener_is_not_lost(bench: Bench) -> None:
    agent = await bench.agent(failure_script("AUTH"), text_script("recovered"))
    bench.root.on(AGENT_ERROR, lambda *_: agent.followup(user_message("try again")))
    await bench.ask(agent)
    assert [reason["kind"] for reason in bench.reasons(agent)] == ["error", "completed"]
    assert bench.statuses == ["running", "idle", "running", "idle"]


@pytest.mark.contract("LOOP-26")
async def test_a_batch_rewritten_to_nothing_completes_without_a_step(bench: Bench) -> None:
    async def empty(proposal: Any, next: Any) -> Enter:
        return Enter(())

    bench.root.on(AGENT_PRE_STEP, empty)
    agent = await bench.agent()
    await bench.ask(agent)
    assert bench.types(agent)[1:] == ["turn/start", "agent/inbox/spliced", "turn/end"]
    assert bench.reasons(agent) == [COMPLETED]


async def test_a_message_removed_before_the_claim_leaves_an_empty_turn(bench: Bench) -> None:
    agent = await bench.agent()
    bench.root.mount(PROMPT_CONTEXT, "mode", PromptContext(0, "context alone is nothing to answer"))
    bench.root.on(AGENT_STATUS, lambda a, status: status == "running" and a.inbox.remove("m-1"))
    agent.followup(user_message("gone") | {"id": "m-1"})
    await agent.when_idle()
    assert bench.types(agent) == ["agent/inbox/spliced", "agent/inbox/spliced", "turn/start", "turn/end"]
    assert bench.reasons(agent) == [COMPLETED]


@pytest.mark.contract("PRE-06")
async def test_session_start_may_inject_and_its_failure_does_no_harm(bench: Bench) -> None:
    def start(agent: LiveAgent, source: str) -> None:
        agent.inject(plugin_message("test", f"started by {source}"))
        raise RuntimeError("oops")

    bench.root.on(AGENT_SESSION_START, start)
    agent = await bench.agent(text_script("hi"))
    await bench.ask(agent)
    assert texts(bench.model.requests[0]) == ["started by startup", "hello"]
    assert [name for name, _ in bench.heard].count("agent/session-start") == 1


# -- the end of a turn


@pytest.mark.contract("LOOP-13")
async def test_a_turn_about_to_stop_can_be_steered_and_a_failure_there_is_the_turns(bench: Bench) -> None:
    mode = "steer"

    async def stopping(agent: LiveAgent, turn: int, signal: Any) -> None:
        nonlocal mode
        if mode == "steer":
            mode = "quiet"
            agent.steer(user_message("not so fast"))
        elif mode == "fail":
            raise RuntimeError("stop hook failed")

    bench.root.on(AGENT_TURN_STOPPING, stopping)
    agent = await bench.agent(text_script("one"), text_script("two"), text_script("three"))
    await bench.ask(agent)
    assert len(bench.data(agent, "step/start")) == 2
    mode = "fail"
    await bench.ask(agent)
    assert [reason["kind"] for reason in bench.reasons(agent)] == ["completed", "error"]


@pytest.mark.contract("LOOP-18")
async def test_the_output_cap_is_sticky_in_its_turn_and_cut_calls_are_dropped(bench: Bench) -> None:
    bench.tool("t")
    cut = [
        TextDelta(0, "safe"),
        ToolCallDelta(1, "c1", '{"a":', "t"),
        Finish({"kind": "max-tokens"}),
    ]
    steered = False

    async def stopping(agent: LiveAgent, turn: int, signal: Any) -> None:
        nonlocal steered
        if not steered:
            steered = True
            agent.steer(user_message("go on"))

    bench.root.on(AGENT_TURN_STOPPING, stopping)
    agent = await bench.agent(cut, text_script("rest"), text_script("next turn"))
    await bench.ask(agent)
    await bench.ask(agent)
    assert bench.reasons(agent) == [{"kind": "max-tokens"}, COMPLETED]
    assert bench.data(agent, "assistant/message")[0]["message"]["content"] == [{"type": "text", "text": "safe"}]
    assert bench.data(agent, "tool/call") == []


async def test_after_the_output_cap_a_steered_step_with_tools_still_shows_their_results(bench: Bench) -> None:
    bench.tool("t")
    agent = await bench.agent(text_script("cut", finish="max-tokens"), call_script("t", {}), text_script("seen"))
    steered = False

    async def stopping(agent: LiveAgent, turn: int, signal: Any) -> None:
        nonlocal steered
        if not steered:
            steered = True
            agent.steer(user_message("use the tool"))

    bench.root.on(AGENT_TURN_STOPPING, stopping)
    await bench.ask(agent)
    assert len(bench.model.requests) == 3
    assert bench.reasons(agent) == [{"kind": "max-tokens"}]


@pytest.mark.contract("LOOP-19")
@pytest.mark.parametrize("chunks", [[Finish({"kind": "stop"})], []])
async def test_an_empty_answer_is_still_a_message(bench: Bench, chunks: list[Any]) -> None:
    agent = await bench.agent(chunks)
    await bench.ask(agent)
    (message,) = [event.envelope for event in agent.session.events() if event.type == "assistant/message"]
    assert message["data"]["message"]["content"] == []
    assert "usage" not in message["data"]
    assert len(message["sourceEventSeqs"]) == len(chunks)
    assert bench.reasons(agent) == [COMPLETED]


@pytest.mark.contract("LOOP-23")
async def test_model_failures_keep_their_facts_and_others_their_chain_of_causes(bench: Bench) -> None:
    def unknown(request: Any) -> Any:
        try:
            raise OSError("disk")
        except OSError as error:
            raise RuntimeError("adapter broke") from error

    agent = await bench.agent(
        failure_script("AUTH", "no key", status=401),
        unknown,
        [Finish({"kind": "error", "failure": {"message": "odd"}})],
    )
    for _ in range(3):
        await bench.ask(agent)
    assert [reason["error"] for reason in bench.reasons(agent)] == [
        {"message": "no key", "code": "AUTH", "status": 401},
        {"message": "adapter broke: disk", "code": "UNKNOWN"},
        {"message": "odd", "code": "UNKNOWN"},
    ]
    assert "assistant/message" not in bench.types(agent)
    assert bench.types(agent).count("step/end") == 3
    assert [(turn, step) for turn, step, _ in bench.errors] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.contract("LOOP-25")
async def test_replay_state_stays_with_the_message(bench: Bench) -> None:
    answer = [TextDelta(0, "hi"), Finish({"kind": "stop"}, {"id": "resp-1"})]
    agent = await bench.agent(answer, text_script("two"))
    await bench.ask(agent)
    await bench.ask(agent)
    assert bench.data(agent, "assistant/message")[0]["message"]["source"]["replayState"] == {"id": "resp-1"}
    assert bench.model.requests[1].messages[1]["source"]["replayState"] == {"id": "resp-1"}


@pytest.mark.contract("LOOP-04")
async def test_a_prompt_that_cannot_be_rendered_errors_its_turn_only(bench: Bench) -> None:
    token = bench.root.mount(PROMPT_SECTION, "bad", PromptSection(1, "{{nothing}}"))
    agent = await bench.agent(text_script("fine"))
    await bench.ask(agent)
    await token.withdraw()
    await bench.ask(agent)
    assert [reason["kind"] for reason in bench.reasons(agent)] == ["error", "completed"]
    assert "nothing" in bench.reasons(agent)[0]["error"]["message"]
    assert bench.data(agent, "step/start") == [{"turn": 2, "step": 1}]


# -- vetoes, observers, other work


@pytest.mark.contract("LOOP-20")
async def test_a_vetoed_turn_start_leaves_no_trace_and_a_vetoed_end_is_reported_once(bench: Bench) -> None:
    veto = "turn/start"

    def validator(event: Any) -> None:
        if event.type == veto:
            raise RuntimeError(f"no {veto}")

    agent = await bench.agent(text_script("hi"))
    agent.session.validate(validator)
    await bench.ask(agent)
    assert bench.types(agent) == ["agent/inbox/spliced"]
    assert len(agent.inbox.next_turn) == 1
    veto = "turn/end"
    agent.resume_queue()
    await agent.when_idle()
    assert [str(error) for _, _, error in bench.errors] == ["no turn/start", "no turn/end"]
    assert bench.types(agent)[-1] == "step/end"
    assert agent.status == "idle"


@pytest.mark.contract("LOOP-20", "LOOP-29", "LOOP-32")
async def test_failing_observers_change_nothing(bench: Bench) -> None:
    started: list[bool] = []

    def fail(session: Any, event: Any) -> None:
        if event.type == "step/start":
            started.append(session.lines()[-1] == event.line)
        raise RuntimeError("observer")

    def fail_status(agent: Any, status: str) -> None:
        raise RuntimeError("status observer")

    bench.root.on(SESSION_EVENT, fail)
    bench.root.on(AGENT_STATUS, fail_status)
    handle = await bench.handle()
    bench.script(text_script("hi"))
    await bench.ask(handle.agent)
    assert bench.reasons(handle.agent) == [COMPLETED]
    assert started == [True]
    assert handle.agent.status == "idle"
    await handle.dispose()
    assert bench.registry.get("s") is None


@pytest.mark.contract("PRE-05")
async def test_a_failed_append_leaves_the_inbox_unchanged(bench: Bench) -> None:
    agent = await bench.agent()

    def refuse(event: Any) -> None:
        raise RuntimeError("disk full")

    undo = agent.session.validate(refuse)
    with pytest.raises(RuntimeError, match="disk full"):
        agent.inject(user_message("lost"))
    undo()
    assert not agent.inbox.pending
    agent.inject(user_message("kept") | {"id": "k"})
    agent.session.validate(refuse)
    with pytest.raises(RuntimeError):
        agent.inbox.remove("k")
    assert [message["id"] for message in agent.inbox.next_step] == ["k"]


@pytest.mark.contract("LOOP-33")
async def test_wakes_during_maintenance_are_replayed_or_cancelled_with_it(bench: Bench) -> None:
    agent = await bench.agent(text_script("after"))
    release = asyncio.Event()

    async def job(signal: Any) -> str:
        await signal.race(release.wait())
        return "tidy"

    work = asyncio.ensure_future(agent.maintain(job))
    await asyncio.sleep(0)
    agent.followup(user_message("wait"))
    assert agent.status == "idle"
    assert not agent.session.turn_open
    with pytest.raises(AgentBusyError):
        await agent.maintain(job)
    release.set()
    assert await work == "tidy"
    await agent.when_idle()
    assert bench.reasons(agent) == [COMPLETED]

    release.clear()
    work = asyncio.ensure_future(agent.maintain(job))
    await asyncio.sleep(0)
    agent.followup(user_message("dropped"))
    agent.cancel({"kind": "user"})
    with pytest.raises(Exception, match="aborted"):
        await work
    await agent.when_idle()
    assert not agent.inbox.pending
    assert agent.session.last_turn == 1

    work = asyncio.ensure_future(agent.maintain(job))
    await asyncio.sleep(0)
    message = user_message("removed")
    agent.followup(message)
    agent.inbox.remove(message["id"])
    release.set()
    await work
    assert agent.session.last_turn == 1
    assert bench.statuses == ["running", "idle"]


@pytest.mark.contract("LOOP-15", "LOOP-05")
async def test_listeners_may_give_or_replace_the_configuration(bench: Bench) -> None:
    change: dict[str, Any] = {"provider": "scripted", "model": "two", "temperature": 0.5}

    async def listener(build: Any, next: Any) -> Any:
        return {**await next(), **change}

    bench.root.on(AGENT_REQUEST, listener)
    agent = await bench.agent(text_script("one"), text_script("two"), model=None)
    await bench.ask(agent)
    change["temperature"] = 0.7
    await bench.ask(agent)
    headers = bench.data(agent, "request/header")
    assert [header["reason"] for header in headers] == ["initial", "change"]
    assert [header["header"]["config"]["temperature"] for header in headers] == [0.5, 0.7]
    assert [request.temperature for request in bench.model.requests] == [0.5, 0.7]


@pytest.mark.contract("LOOP-05")
async def test_without_a_model_the_step_fails_with_a_clear_error(bench: Bench) -> None:
    agent = await bench.agent(model=None)
    await bench.ask(agent)
    (reason,) = bench.reasons(agent)
    assert 'agent "s" has no provider/model' in reason["error"]["message"]
    assert bench.data(agent, "step/end") == [{"turn": 1, "step": 1}]


async def test_turns_can_be_bounded_in_steps_and_seconds(bench: Bench) -> None:
    bench.tool("t")
    agent = await bench.agent(call_script("t", {}), call_script("t", {}), HANG)
    agent.limit(max_steps=2)
    await bench.ask(agent)
    agent.limit(seconds=0.01)
    agent.followup(user_message("slow"))
    agent.followup(user_message("queued"))
    await agent.when_idle()
    causes = [reason["reason"] for reason in bench.reasons(agent)]
    assert [cause["kind"] for cause in causes] == ["hook", "hook"]
    assert [cause["reason"] for cause in causes] == [
        "the turn reached its limit of 2 steps",
        "the turn reached its limit of 0.01 seconds",
    ]
    assert len(agent.inbox.next_turn) == 1


async def test_turns_can_be_bounded_in_reported_tokens(bench: Bench) -> None:
    bench.tool("t")
    agent = await bench.agent(
        *[call_script("t", {})] * 2, call_script("t", {}), text_script("x" * 90), text_script("b")
    )
    agent.limit(tokens=22)  # each call of the model takes 11
    await bench.ask(agent)
    (reason,) = bench.reasons(agent)
    assert reason["reason"] == {"kind": "hook", "reason": "the turn was stopped after 22 tokens; its limit is 22"}
    assert bench.types(agent).count("tool/result") == 2, "the step that reached the bound was completed"
    agent.limit(tokens=23)
    await bench.ask(agent)
    assert bench.reasons(agent)[1] == {"kind": "completed"}, (
        "nothing is left to stop, and the first turn does not count"
    )
    agent.limit()
    await bench.ask(agent)
    assert bench.reasons(agent)[2] == {"kind": "completed"}


@pytest.mark.contract("LOOP-06")
async def test_an_empty_prompt_leaves_system_out(bench: Bench) -> None:
    agent = await bench.agent(text_script("hi"))
    await bench.ask(agent)
    (header,) = bench.data(agent, "request/header")
    assert set(header["header"]) == {"config"}
    assert bench.model.requests[0].system is None


async def test_a_request_that_cannot_be_made_durable_is_not_sent(bench: Bench) -> None:
    flushed: list[str] = []

    async def flush(session: Any) -> None:
        flushed.append(session.lines()[-1].decode())
        if len(flushed) == 2:
            raise OSError("disk full")

    bench.root.on(SESSION_FLUSH, flush)
    agent = await bench.agent(text_script("one"), text_script("two"))
    await bench.ask(agent)
    await bench.ask(agent)
    assert len(bench.model.requests) == 1
    assert "request/context" in flushed[0]
    assert bench.reasons(agent)[1]["error"]["message"] == "disk full"


@pytest.mark.case("CASE-13")
async def test_a_turn_that_ends_with_an_error_of_the_host_keeps_its_code(bench: Bench) -> None:
    async def flush(session: Any) -> None:
        full = OSError(28, "No space left on device", "/logs/s")
        raise SessionError(f"/logs/s cannot be written ({full.strerror})", code="SESSION_WRITE_FAILED") from full

    bench.root.on(SESSION_FLUSH, flush)
    agent = await bench.agent(text_script("one"))
    ticket = bench.registry.prompt(agent, user_message("go"))
    error = {"message": "/logs/s cannot be written (No space left on device)", "code": "SESSION_WRITE_FAILED"}
    outcome = await ticket.outcome()
    assert outcome.reason == {"kind": "error", "error": error}
    assert bench.reasons(agent) == [outcome.reason]


@pytest.mark.contract("LOOP-28")
async def test_a_fork_goes_on_counting_turns(bench: Bench) -> None:
    agent = await bench.agent(text_script("one"), text_script("two"))
    await bench.ask(agent)
    from polyhost.runtime.agents.loop import AgentSpec

    seed = agent.session.lines()
    handle = await bench.loop.create(AgentSpec(), "fork", seed=seed, seed_length=len(seed), cwd="/project")
    await bench.ask(handle.agent)
    assert handle.agent.model == "scripted/one"
    assert bench.data(handle.agent, "turn/start")[-1] == {"turn": 2}
    assert [header["reason"] for header in bench.data(handle.agent, "request/header")] == ["initial", "resume"]


async def test_only_user_messages_with_an_id_are_queued(bench: Bench) -> None:
    agent = await bench.agent()
    for message in ({"role": "assistant", "id": "x"}, {"role": "user"}, {"role": "user", "id": "x", "content": "text"}):
        with pytest.raises(InboxError):
            agent.followup(message)
    assert len(agent.session) == 0


async def test_a_caller_cannot_change_a_message_that_was_accepted(bench: Bench) -> None:
    agent = await bench.agent(text_script("hi"))
    message = user_message("as sent")
    agent.followup(message)
    message["content"][0]["text"] = "changed"
    await agent.when_idle()
    assert text_of(bench.data(agent, "user/message")[0]["content"]) == "as sent"


async def test_stream_listeners_wrap_every_attempt(bench: Bench) -> None:
    async def shout(request: Any, next: Any) -> Any:
        async for chunk in next():
            yield chunk._replace(text=chunk.text.upper()) if isinstance(chunk, TextDelta) else chunk

    bench.root.on(MODEL_STREAM, shout)
    agent = await bench.agent([BlockStart(0, "text"), TextDelta(0, "hi"), Finish({"kind": "stop"})])
    await bench.ask(agent)
    assert bench.data(agent, "assistant/message")[0]["message"]["content"] == [{"type": "text", "text": "HI"}]


async def test_block_ends_of_unknown_kinds_are_not_kept(bench: Bench) -> None:
    agent = await bench.agent([BlockEnd(0, {"type": "hologram"}), TextDelta(1, "hi"), Finish({"kind": "stop"})])
    await bench.ask(agent)
    assert bench.data(agent, "assistant/message")[0]["message"]["content"] == [{"type": "text", "text": "hi"}]
