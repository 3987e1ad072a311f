"""What a model is asked, and that the log explains every byte of it."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    AGENT_PRE_STEP,
    AGENT_REQUEST,
    AGENT_REQUEST_ERROR,
    MODEL_ADAPTER,
    MODEL_STREAM,
    PROMPT_CONTEXT,
    PROMPT_SECTION,
    Finish,
    ModelInfo,
    PromptContext,
    PromptSection,
    ReasoningEffort,
    TextDelta,
    text_of,
    user_message,
)
from polyhost.runtime.agents.loop import AgentSpec
from polyhost.runtime.agents.prompt import Prompts
from polyhost.runtime.agents.requests import request_header
from polyhost.testing.scripted import ScriptedAdapter, call_script, failure_script, text_script

if TYPE_CHECKING:
    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

COMPLETED = {"kind": "completed"}
THINKER = ModelInfo(
    "scripted",
    "one",
    "One",
    context_window=1000,
    default_max_tokens=64,
    efforts=(ReasoningEffort("low", "Low"), ReasoningEffort("high", "High")),
    default_effort="low",
)


def texts(request: Any) -> list[str]:
    return [text_of(message["content"]) for message in request.messages]


def replay(agent: LiveAgent) -> list[Any]:
    """The requests that the log alone explains: at each first chunk of an attempt, the surface and the last header."""
    surface: list[tuple[int, Any]] = []
    header: Any = None
    requests, streaming = [], False
    for event in agent.session.events():
        envelope = event.envelope
        data, op = envelope["data"], envelope.get("surfaceOp")
        if event.type == "request/header":
            header = data["header"]
        if event.type == "assistant/chunk":
            if not streaming:
                requests.append(([message for _, message in surface], header))
            streaming = data["chunk"]["type"] != "finish"
        elif op == "append":
            surface.append((event.seq, data if event.type == "user/message" else data["message"]))
        elif op is not None:
            inside = [index for index, (seq, _) in enumerate(surface) if op["start"] <= seq <= op["end"]]
            surface[inside[0] : inside[-1] + 1] = [(event.seq, data)]
    return requests


def sent(request: Any) -> Any:
    """A request in the form of :func:`replay`."""
    header: dict[str, Any] = {"system": request.system, "tools": list(request.tools)}
    return list(request.messages), {key: value for key, value in header.items() if value}


@pytest.mark.contract("REQ-01", "REQ-10", "REQ-06")
async def test_each_request_extends_the_last_and_the_log_explains_it(bench: Bench) -> None:
    bench.tool("t")
    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, "You work in {{cwd}}."))
    bench.root.mount(PROMPT_CONTEXT, "mode", PromptContext(1, "mode: ask"))
    agent = await bench.agent(
        call_script("t", {}), text_script("one"), failure_script("AUTH", partial="half"), text_script("two")
    )
    for text in ("first", "second", "third"):
        await bench.ask(agent, text)
    requests = bench.model.requests
    for earlier, later in itertools.pairwise(requests):
        assert later.messages[: len(earlier.messages)] == earlier.messages
    assert isinstance(requests[0].messages, tuple)

    first = next(event.seq for event in agent.session.events() if event.type == "user/message")
    surface = agent.session.surface()
    agent.session.append(
        "user/message",
        user_message("summary"),
        surface_op={"op": "replace", "start": first, "end": surface[-1]},
        source_seqs=list(surface),
    )
    bench.script(text_script("three"))
    await bench.ask(agent, "fourth")
    assert texts(requests[-1])[0] == "summary"
    rebuilt = [(messages, {k: h[k] for k in ("system", "tools") if k in h}) for messages, h in replay(agent)]
    assert json.dumps(rebuilt) == json.dumps([sent(request) for request in requests])


@pytest.mark.contract("REQ-02")
async def test_adapter_defaults_are_marked_and_resolved_afresh_and_explicit_values_stay(bench: Bench) -> None:
    bench.model._model = THINKER
    other = ScriptedAdapter([text_script("other")], model=ModelInfo("other", "x", "X", default_max_tokens=7))
    bench.root.mount(MODEL_ADAPTER, "other", other)
    wanted: dict[str, Any] = {}

    async def listener(build: Any, next: Any) -> Any:
        return {**await next(), **wanted}

    bench.root.on(AGENT_REQUEST, listener)
    agent = await bench.agent(text_script("1"), text_script("2"), text_script("3"), text_script("4"))
    await bench.ask(agent)
    bench.model._model = THINKER._replace(default_max_tokens=128)
    await bench.ask(agent)
    wanted = {"reasoningEffort": "high"}
    await bench.ask(agent)
    wanted = {}
    await bench.ask(agent)
    agent.set_model("other/x")
    await bench.ask(agent)
    headers = [data["header"] for data in bench.data(agent, "request/header")]
    both, cap = {"maxTokens": True, "reasoningEffort": True}, {"maxTokens": True}
    assert [
        (h["config"].get("maxTokens"), h["config"].get("reasoningEffort"), h["adapterDefaults"]) for h in headers
    ] == [
        (64, "low", both),
        (128, "low", both),
        (128, "high", cap),
        (7, None, cap),
    ]
    assert [request.reasoning_effort for request in bench.model.requests] == ["low", "low", "high", "high"]


@pytest.mark.contract("REQ-02")
async def test_what_was_chosen_once_holds_for_retries_and_later_turns(bench: Bench) -> None:
    async def choose(build: Any, next: Any) -> Any:
        return {**await next(), "temperature": 0.3}

    async def again(failure: Any, next: Any) -> bool:
        return True

    bench.root.on(AGENT_REQUEST, choose, once=True)
    bench.root.on(AGENT_REQUEST_ERROR, again)
    agent = await bench.agent(failure_script("SERVER"), text_script("1"), text_script("2"), text_script("3"))
    await bench.ask(agent)
    await bench.ask(agent)
    agent.set_model("scripted/one")
    await bench.ask(agent)
    assert [request.temperature for request in bench.model.requests] == [0.3, 0.3, 0.3, None]


@pytest.mark.contract("REQ-03")
async def test_a_call_stays_with_the_adapter_it_was_prepared_with(bench: Bench) -> None:
    late = ScriptedAdapter([text_script("late")])
    first = ScriptedAdapter([text_script("first")])
    token = bench.root.mount(MODEL_ADAPTER, "route", first)

    async def swap(request: Any, next: Any) -> Any:
        await token.withdraw()
        bench.root.mount(MODEL_ADAPTER, "route", late)
        async for chunk in next():
            yield chunk

    bench.root.on(MODEL_STREAM, swap, once=True)
    agent = await bench.agent(model="route/m")
    await bench.ask(agent)
    assert (len(first.requests), len(late.requests)) == (1, 0)


@pytest.mark.contract("REQ-04")
async def test_disposal_aborts_a_blocked_model_lookup(bench: Bench) -> None:
    looking = asyncio.Event()

    class Blocked(ScriptedAdapter):
        async def resolve_model(self, route: str, model: str, signal: Any) -> Any:
            looking.set()
            await asyncio.Event().wait()

    bench.root.mount(MODEL_ADAPTER, "blocked", Blocked())
    handle = await bench.handle(model="blocked/m")
    handle.agent.followup(user_message("hello"))
    await looking.wait()
    await asyncio.wait_for(handle.dispose(), 2)
    assert bench.reasons(handle.agent) == [{"kind": "aborted", "reason": {"kind": "disposed"}}]
    assert "request/header" not in bench.types(handle.agent)


@pytest.mark.contract("REQ-05")
async def test_a_stream_listener_may_serve_a_route_without_an_adapter(bench: Bench) -> None:
    async def serve(request: Any, next: Any) -> Any:
        yield TextDelta(0, f"served {request.provider}")
        yield Finish({"kind": "stop"})

    token = bench.root.on(MODEL_STREAM, serve)
    agent = await bench.agent(model="nowhere/m")
    await bench.ask(agent)
    await token.withdraw()
    await bench.ask(agent)
    assert [reason["kind"] for reason in bench.reasons(agent)] == ["completed", "error"]
    assert bench.reasons(agent)[1]["error"]["code"] == "NO_ADAPTER"
    assert bench.data(agent, "request/context") == [{"provider": "nowhere", "model": "m"}]


@pytest.mark.contract("REQ-07")
async def test_headers_are_logged_once_on_change_and_on_resume(bench: Bench) -> None:
    text = "one"
    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, lambda agent: text))
    agent = await bench.agent(*[text_script("x") for _ in range(4)])
    await bench.ask(agent)
    await bench.ask(agent)
    text = "two"
    await bench.ask(agent)
    await agent.close()
    seed = agent.session.lines()
    again = (await bench.loop.create(AgentSpec(), "again", seed=seed, cwd="/project")).agent
    await bench.ask(again)
    headers = bench.data(again, "request/header")
    assert [(data["reason"], data["header"]["system"]) for data in headers] == [
        ("initial", "one"),
        ("change", "two"),
        ("resume", "two"),
    ]


@pytest.mark.contract("HDR-01")
def test_what_is_empty_is_absent_and_every_other_difference_is_a_change() -> None:
    config = {"provider": "p", "model": "m"}
    tools = [{"name": name, "description": "", "parameters": {}} for name in ("a", "b")]
    assert request_header(config, {}, "", []) == {"config": config}
    full = request_header(config, {"maxTokens": True}, "s", tools)
    for other in (
        request_header({**config, "maxTokens": 1}, {"maxTokens": True}, "s", tools),
        request_header(config, {}, "s", tools),
        request_header(config, {"maxTokens": True}, "t", tools),
        request_header(config, {"maxTokens": True}, "s", tools[::-1]),
    ):
        assert other != full


@pytest.mark.contract("REQ-08")
async def test_context_injected_while_a_request_is_built_joins_the_next(bench: Bench) -> None:
    injected = False

    async def listener(build: Any, next: Any) -> Any:
        nonlocal injected
        if not injected:
            injected = True
            build.agent.inject(user_message("by the way"))
        return await next()

    bench.root.on(AGENT_REQUEST, listener)
    agent = await bench.agent(text_script("one"), text_script("two"))
    await bench.ask(agent)
    assert [texts(request) for request in bench.model.requests] == [["hello"], ["hello", "one", "by the way"]]


@pytest.mark.contract("REQ-11")
async def test_the_context_window_is_logged_when_the_route_or_its_capacity_changes(bench: Bench) -> None:
    bench.model._model = THINKER
    agent = await bench.agent(*[text_script("x") for _ in range(4)])
    await bench.ask(agent)
    await bench.ask(agent)
    bench.model._model = THINKER._replace(context_window=2000)
    await bench.ask(agent)
    bench.model._model = THINKER._replace(context_window=None)
    await bench.ask(agent)
    route = {"provider": "scripted", "model": "one"}
    assert bench.data(agent, "request/context") == [
        {**route, "contextWindow": 1000},
        {**route, "contextWindow": 2000},
        route,
    ]


@pytest.mark.contract("REQ-12")
@pytest.mark.parametrize("recovery", ["raises", "declines", "cancels", "retries"])
async def test_only_failed_attempts_are_offered_to_recovery(bench: Bench, recovery: str) -> None:
    offered: list[Any] = []
    built: list[int] = []

    async def build(build: Any, next: Any) -> Any:
        built.append(build.step)
        return await next()

    bench.root.on(AGENT_REQUEST, build)

    async def recover(failure: Any, next: Any) -> Any:
        offered.append((failure.provider, failure.failure["code"], failure.turn, failure.step))
        if recovery == "raises":
            raise RuntimeError("recovery broke")
        if recovery == "cancels":
            failure.agent.cancel({"kind": "user"})
        return True if recovery in ("cancels", "retries") else await next()

    bench.root.on(AGENT_REQUEST_ERROR, recover)
    agent = await bench.agent(failure_script("SERVER", partial="half"), text_script("whole"))
    await bench.ask(agent)
    assert offered == [("scripted", "SERVER", 1, 1)]
    assert len(built) == (2 if recovery == "retries" else 1)
    (reason,) = bench.reasons(agent)
    expected = {
        "raises": ("error", "recovery broke"),
        "declines": ("error", "scripted failure"),
        "cancels": ("aborted", None),
        "retries": ("completed", None),
    }[recovery]
    assert (reason["kind"], reason.get("error", {}).get("message")) == expected
    if recovery == "retries":
        assert texts(bench.model.requests[1]) == ["hello"]
        message = next(e.envelope for e in agent.session.events() if e.type == "assistant/message")
        cited = [agent.session.event(seq).data["chunk"] for seq in message["sourceEventSeqs"]]
        assert cited[0]["type"] == "block-start"
        assert not any(chunk.get("text") == "half" for chunk in cited)
        assert len(bench.data(agent, "step/start")) == 1


@pytest.mark.contract("REQ-12")
async def test_a_failing_stream_listener_is_not_offered_to_recovery(bench: Bench) -> None:
    offered: list[Any] = []

    async def fail(request: Any, next: Any) -> Any:
        raise RuntimeError("middleware")
        yield

    async def recover(failure: Any, next: Any) -> bool:
        offered.append(failure)
        return True

    bench.root.on(MODEL_STREAM, fail)
    bench.root.on(AGENT_REQUEST_ERROR, recover)
    agent = await bench.agent()
    await bench.ask(agent)
    assert offered == []
    assert bench.reasons(agent)[0]["error"]["message"] == "middleware"


@pytest.mark.contract("REQ-14")
async def test_tools_are_in_canonical_or_configured_order(bench: Bench) -> None:
    for name in ("zeta", "alpha", "mid"):
        bench.tool(name)
    agent = await bench.agent(text_script("1"), text_script("2"))
    await bench.ask(agent)
    bench.services.prompts = Prompts(bench.kernel.mounts, tool_order=["zeta", "<unlisted-tools>"])
    await bench.ask(agent)
    bench.services.prompts = Prompts(bench.kernel.mounts, tool_order=["gone", "<unlisted-tools>"])
    await bench.ask(agent)
    orders = [[tool["name"] for tool in data["header"]["tools"]] for data in bench.data(agent, "request/header")]
    assert orders == [["alpha", "mid", "zeta"], ["zeta", "alpha", "mid"]]
    assert bench.reasons(agent)[-1]["kind"] == "error"
    assert "gone" in bench.reasons(agent)[-1]["error"]["message"]
    assert len(bench.data(agent, "step/start")) == 2


# -- runtime context


@pytest.mark.contract("LOOP-07", "REQ-13")
async def test_runtime_context_is_told_when_it_changes(bench: Bench) -> None:
    facts = {"mode": "ask", "depth": "3"}
    for order, name in enumerate(facts):
        bench.root.mount(PROMPT_CONTEXT, name, PromptContext(order, lambda agent, name=name: facts[name] or None))
    agent = await bench.agent(*[text_script("x") for _ in range(9)])

    def snapshots() -> list[Any]:
        return [data for data in bench.data(agent, "user/message") if data["source"]["kind"] == "plugin"]

    await bench.ask(agent)
    await bench.ask(agent)
    (first,) = snapshots()
    assert text_of(first["content"]).splitlines()[-3:] == ["ask", "", "3"]
    assert first["source"]["form"] == "snapshot"
    assert first["source"]["sections"] == [{"name": "mode", "text": "ask"}, {"name": "depth", "text": "3"}]
    assert [m["source"]["kind"] for m in bench.model.requests[0].messages] == ["user", "plugin"]
    facts["mode"] = "full"
    await bench.ask(agent)
    assert len(snapshots()) == 2
    assert len(bench.data(agent, "request/header")) == 1

    surface = agent.session.surface()
    agent.session.append(
        "user/message",
        user_message("summary"),
        surface_op={"op": "replace", "start": surface[0], "end": surface[-1]},
        source_seqs=list(surface),
    )
    await bench.ask(agent)
    assert snapshots()[2]["source"] == snapshots()[1]["source"], "shadowed, so told again"
    facts.update(mode="", depth="")
    await bench.ask(agent)
    await bench.ask(agent)
    assert len(snapshots()) == 4
    assert "none" in text_of(snapshots()[3]["content"])
    assert "form" not in snapshots()[3]["source"]

    facts["mode"] = "ask"
    await bench.ask(agent)
    seed = agent.session.lines()
    resumed = (await bench.loop.create(AgentSpec(), "resumed", seed=seed, cwd="/project")).agent
    await bench.ask(resumed)
    assert len(bench.data(resumed, "user/message")) == len(bench.data(agent, "user/message")) + 1
    fresh = await bench.agent(session_id="fresh")
    await bench.ask(fresh)
    assert bench.data(fresh, "user/message")[1]["source"]["form"] == "snapshot"


@pytest.mark.contract("LOOP-07")
async def test_a_malformed_snapshot_is_replaced(bench: Bench) -> None:
    bench.root.mount(PROMPT_CONTEXT, "mode", PromptContext(0, "ask"))

    async def mangle(proposal: Any, next: Any) -> Any:
        decision = await next()
        if proposal.turn > 1:
            return decision
        *rest, snapshot = decision.messages
        return decision._replace(messages=(*rest, snapshot | {"content": []}))

    bench.root.on(AGENT_PRE_STEP, mangle)
    agent = await bench.agent(text_script("1"), text_script("2"), text_script("3"))
    for _ in range(3):
        await bench.ask(agent)
    contents = [m["content"] for m in bench.data(agent, "user/message") if m["source"]["kind"] == "plugin"]
    assert [len(content) for content in contents] == [0, 1]


# -- the model of an agent


@pytest.mark.contract("AGT-13")
async def test_a_selection_fixes_prompt_and_route_together(bench: Bench) -> None:
    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, "I am {{provider}}/{{model}}"))
    agent = await bench.agent(text_script("1"), text_script("2"))
    await bench.ask(agent)

    async def select(proposal: Any, next: Any) -> Any:
        agent.set_model("scripted/three")  # too late for this step: its prompt is made
        return await next()

    agent.set_model("scripted/two")
    bench.root.on(AGENT_PRE_STEP, select)
    await bench.ask(agent)
    assert [(r.system, r.model) for r in bench.model.requests] == [
        ("I am scripted/one", "one"),
        ("I am scripted/two", "two"),
    ]


@pytest.mark.contract("SYS-09")
async def test_a_session_goes_on_with_its_model_unless_told_otherwise(bench: Bench) -> None:
    bench.model._model = THINKER

    async def effort(build: Any, next: Any) -> Any:
        return {**await next(), "reasoningEffort": "high"}

    token = bench.root.on(AGENT_REQUEST, effort)
    agent = await bench.agent(*[text_script("x") for _ in range(4)], model="scripted/first")
    await bench.ask(agent)
    await token.withdraw()
    seed = agent.session.lines()
    loop = bench.loop
    loop.default_model = "scripted/default"
    efforts = []
    for name, model in (("same", None), ("named", "scripted/named"), ("fresh", None)):
        lines = seed if name != "fresh" else None
        made = (await loop.create(AgentSpec(model=model), name, seed=lines, cwd="/project")).agent
        await bench.ask(made)
        config = bench.data(made, "request/header")[-1]["header"]["config"]
        efforts.append((config["model"], config["reasoningEffort"]))
    assert efforts == [("first", "high"), ("named", "low"), ("default", "low")]

    bench.script(text_script("x"))
    bench.model._model = THINKER._replace(default_effort="high")
    filled_in = bench.registry.get("named").session.lines()  # type: ignore[union-attr]
    made = (await loop.create(AgentSpec(), "again", seed=filled_in, cwd="/project")).agent
    await bench.ask(made)
    header = bench.data(made, "request/header")[-1]["header"]
    assert (header["config"]["reasoningEffort"], header["adapterDefaults"]["reasoningEffort"]) == ("high", True)
