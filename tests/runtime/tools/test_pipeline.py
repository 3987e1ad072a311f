"""The pipeline of one call: its stages, its failures and what it protects."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from polyhost.interfaces import (
    TOOL_EXECUTE,
    TOOL_GUARD,
    TOOL_POST_EXECUTE,
    TOOL_PRE_EXECUTE,
    TOOL_RESULT,
    Accept,
    Allow,
    Ask,
    Block,
    Deny,
    ToolError,
    ToolOutput,
    ToolResult,
    text_block,
    user_message,
)
from polyhost.kernel.signals import AbortController

BEFORE = {"name": "AbortError", "code": "ABORTED_BEFORE_DISPATCH"}
ABORTED = {"name": "AbortError", "code": "ABORTED"}


def text(result: ToolResult) -> str:
    return "".join(block["text"] for block in result.content)


def code(result: ToolResult) -> str | None:
    return result.error_info and result.error_info["code"]


def answers(outcome: Any, seen: list[Any] | None = None) -> Any:
    class Broker:
        async def approve(self, agent: Any, tool: str, arguments: Any, **rest: Any) -> Any:
            if seen is not None:
                seen.append((tool, arguments, rest["call_id"], rest["reason"]))
            return outcome() if callable(outcome) else outcome

    return Broker()


# -- success and failure -----------------------------------------------------------------------------------


async def test_a_call_goes_all_the_way(bench: Any) -> None:
    bench.tool(output=ToolOutput({}, lambda a, v: [text_block(f"{a['x']} -> {v}")], lambda a, v: {"value": v}))
    result = await bench.run("echo", {"x": 1})
    assert result == ToolResult(
        is_error=False, content=[text_block("1 -> {'x': 1}")], value={"x": 1}, meta={"value": {"x": 1}}
    )
    assert bench.published == [result]


@pytest.mark.contract("TOOL-04")
async def test_unknown_tools_are_an_error_result(bench: Any) -> None:
    result = await bench.run("nope")
    assert text(result) == 'Error: unknown tool "nope"'
    assert result.error_info == {"name": "ToolNotFoundError", "code": "UNKNOWN_TOOL"}


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message for you")

    @property
    def code(self) -> str:
        raise RuntimeError("no code either")


@pytest.mark.contract("TOOL-04")
@pytest.mark.parametrize(
    ("error", "message", "info"),
    [
        (ValueError("bad thing"), "Error: bad thing", None),
        (ValueError(), "Error: ValueError", None),
        (ValueError("half \ud800 pair"), "Error: half \ufffd\ufffd\ufffd pair", None),
        (Hostile(), "Error: Hostile (its message could not be rendered)", None),
        (ToolError("no", code="X_Y"), "Error: no", {"name": "ToolError", "code": "X_Y"}),
        (ToolError("no", code="X_Y", name="Named"), "Error: no", {"name": "Named", "code": "X_Y"}),
        (SystemExit(3), "Error: the tool tried to exit the process with status 3", None),
        (asyncio.CancelledError(), "Error: tool call aborted", None),
        (GeneratorExit("closed"), "Error: closed", None),
        (BaseExceptionGroup("two", [SystemExit(1), ValueError("b")]), "Error: two [1; b]", None),
    ],
)
async def test_whatever_a_body_raises_becomes_a_result(
    bench: Any, error: BaseException, message: str, info: Any
) -> None:
    async def fail(arguments: Any, call: Any) -> None:
        raise error

    bench.tool("fail", fail)
    result = await bench.run("fail")
    assert result.is_error
    assert text(result) == message
    if info:
        assert result.error_info == info


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), BaseExceptionGroup("g", [SystemExit(1)])], ids=repr)
@pytest.mark.parametrize("place", ["pre", "around", "post", "render", "finalize", "guard"])
async def test_whatever_surrounds_a_body_cannot_end_more_than_its_call(
    bench: Any, error: BaseException, place: str
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    events = {"pre": TOOL_PRE_EXECUTE, "around": TOOL_EXECUTE, "post": TOOL_POST_EXECUTE}
    if place in events:
        bench.on(events[place], fail)
    if place == "guard":
        bench.mount(TOOL_GUARD, None, fail)
    output = ToolOutput({}, fail if place == "render" else lambda arguments, value: [text_block(str(value))])
    bench.tool("any", seven, output=output, finalize=fail if place == "finalize" else None)
    result = await bench.run("any")
    assert result.is_error


@pytest.mark.contract("TOOL-14")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, 'Error: invalid arguments: missing required property "n"'),
        ({"n": "x"}, 'Error: invalid arguments: "n" must be an integer, got string'),
        ("{not json", "Error: invalid arguments: the value must be an object, got string"),
        ([], "Error: invalid arguments: the value must be an object, got array"),
    ],
)
async def test_bad_arguments_never_reach_the_body(bench: Any, arguments: Any, message: str) -> None:
    bench.tool(parameters={"type": "object", "properties": {"n": {"type": "integer", "default": 4}}, "required": ["n"]})
    result = await bench.run("echo", arguments)
    assert text(result) == message
    assert result.error_info == {"name": "ToolArgsError", "code": "INVALID_ARGS"}


@pytest.mark.contract("TOOL-14")
async def test_extra_arguments_pass_and_defaults_are_not_filled_in(bench: Any) -> None:
    bench.tool(parameters={"type": "object", "properties": {"n": {"type": "integer", "default": 4}}})
    assert (await bench.run("echo", {"extra": 1})).value == {"extra": 1}


@pytest.mark.contract("TOOL-02")
@pytest.mark.parametrize(
    ("value", "output", "message"),
    [
        ("x", ToolOutput({"type": "integer"}, lambda a, v: []), "the value must be an integer, got string"),
        (float("nan"), ToolOutput({}, lambda a, v: []), "value: not a finite number"),
        (object(), ToolOutput({}, lambda a, v: []), "value: object is not JSON; pass plain builtin values"),
        (1, ToolOutput({}, lambda a, v: 1 / 0), "division by zero"),  # type: ignore[arg-type,return-value]
        (1, ToolOutput({}, lambda a, v: [], lambda a, v: v.missing), "'int' object has no attribute 'missing'"),
        (1, ToolOutput({}, lambda a, v: "text"), "content must be a list of blocks with a type"),  # type: ignore[arg-type,return-value]
        (1, ToolOutput({}, lambda a, v: [{"type": object()}]), "content[0].type: object is not JSON"),
    ],
)
async def test_bad_output_is_one_failure_before_the_review(
    bench: Any, value: Any, output: ToolOutput, message: str
) -> None:
    async def give(arguments: Any, call: Any) -> Any:
        return value

    reviewed: list[ToolResult] = []

    async def review(call: Any, result: ToolResult, next: Any) -> Any:
        reviewed.append(result)
        return await next()

    bench.tool("give", give, output=output)
    bench.on(TOOL_POST_EXECUTE, review)
    result = await bench.run("give")
    assert text(result).startswith(f'Error: tool "give" returned invalid output: {message}')
    assert code(result) == "INVALID_TOOL_OUTPUT"
    assert [code(seen) for seen in reviewed] == ["INVALID_TOOL_OUTPUT"]


# -- policy -----------------------------------------------------------------------------------


def decide(decision: Any) -> Any:
    async def listener(call: Any, next: Any) -> Any:
        return decision

    return listener


@pytest.mark.contract("TOOL-05")
@pytest.mark.parametrize(
    ("decision", "outcome", "message", "error_code"),
    [
        (Deny("not here"), None, "not here", "TOOL_DENIED"),
        (Ask("risky"), "rejected", 'the user rejected tool "echo"', "APPROVAL_REJECTED"),
        (Ask("risky"), "cancelled", 'approval for tool "echo" was cancelled', "APPROVAL_CANCELLED"),
        (
            Ask("risky"),
            "unavailable",
            'tool "echo" requires approval, but no approval channel is available',
            "APPROVAL_UNAVAILABLE",
        ),
        (
            Ask("risky"),
            "whatever",
            'tool "echo" requires approval, but no approval channel is available',
            "APPROVAL_UNAVAILABLE",
        ),
    ],
)
async def test_refusals(bench: Any, decision: Any, outcome: Any, message: str, error_code: str) -> None:
    ran: list[Any] = []

    async def body(arguments: Any, call: Any) -> None:
        ran.append(arguments)

    bench.tool("echo", body)
    bench.on(TOOL_PRE_EXECUTE, decide(decision))
    bench.broker = answers(outcome)
    result = await bench.run(agent=bench.agent())
    assert text(result) == f"Error: {message}"
    assert result.error_info == {"name": "ToolDeniedError", "code": error_code}
    assert not ran


@pytest.mark.contract("TOOL-05")
async def test_asking_needs_a_broker_and_an_agent(bench: Any) -> None:
    bench.tool()
    asking = bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    assert text(await bench.run(agent=bench.agent())) == 'Error: tool "echo" requires approval (not yet supported)'
    bench.broker = answers("allowed-once")
    assert text(await bench.run()) == (
        'Error: tool "echo" requires approval, but the call has no agent to route it through'
    )
    await asking.withdraw()
    bench.on(TOOL_PRE_EXECUTE, decide(Ask("my reason")))
    bench.broker = None
    assert text(await bench.run(agent=bench.agent())) == "Error: my reason"


async def test_an_approved_call_runs_with_exactly_what_was_shown(bench: Any) -> None:
    seen: list[Any] = []

    async def meddle(call: Any, next: Any) -> Any:
        call.arguments["command"] = "changed before"
        return Ask("why")

    bench.tool()
    bench.on(TOOL_PRE_EXECUTE, meddle)
    bench.broker = answers("allowed-once", seen)
    result = await bench.run("echo", {"command": "ls"}, agent=bench.agent())
    assert seen == [("echo", {"command": "ls"}, "call_1", "why")]
    assert result.value == {"command": "ls"}


# -- preview -----------------------------------------------------------------------------------------------


class Asked:
    """A broker that notes what it is asked to show, and answers yes."""

    def __init__(self) -> None:
        self.previews: list[Any] = []

    async def approve(self, *args: Any, preview: Any, **rest: Any) -> str:
        self.previews.append(preview)
        return "allowed-once"


async def test_who_is_asked_sees_what_the_call_would_do(bench: Any) -> None:
    async def preview(arguments: Any, call: Any) -> Any:
        return {"command": arguments.pop("command"), "id": call.call_id}

    bench.tool(preview=preview)
    bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = Asked()
    result = await bench.run("echo", {"command": "ls"}, agent=bench.agent())
    assert bench.broker.previews == [{"command": "ls", "id": "call_1"}]
    assert result.value == {"command": "ls"}


async def test_nobody_is_asked_about_a_call_that_cannot_succeed(bench: Any) -> None:
    async def exits() -> Any:
        raise SystemExit(3)

    async def returns(value: Any) -> Any:
        return value

    async def fails() -> Any:
        raise ToolError("it is not there", code="GONE")

    outcomes = iter([fails(), exits(), returns([1])])

    async def preview(arguments: Any, call: Any) -> Any:
        return await next(outcomes)

    ran: list[Any] = []

    async def body(arguments: Any, call: Any) -> None:
        ran.append(arguments)

    bench.tool("echo", body, preview=preview)
    bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = Asked()
    agent = bench.agent()
    assert code(await bench.run(agent=agent)) == "GONE"
    assert "exit the process" in text(await bench.run(agent=agent))
    assert "neither an object nor None" in text(await bench.run(agent=agent))
    assert ran == bench.broker.previews == []


async def test_what_needs_no_answer_is_not_previewed(bench: Any) -> None:
    async def preview(arguments: Any, call: Any) -> Any:
        raise ToolError("previewed")

    bench.tool(preview=preview, parameters={"type": "object", "required": ["x"], "properties": {"x": {}}})
    asked = bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = Asked()
    agent = bench.agent()
    assert code(await bench.run(agent=agent)) == "INVALID_ARGS"
    assert "no agent" in text(await bench.run("echo", {"x": 1}))
    assert "previewed" in text(await bench.run("echo", {"x": 1}, agent=agent))
    await asked.withdraw()
    assert (await bench.run("echo", {"x": 1}, agent=agent)).value == {"x": 1}


@pytest.mark.contract("TOOL-06")
@pytest.mark.parametrize("follows", [True, False])
async def test_a_call_that_is_cancelled_in_its_preview_never_ran(bench: Any, follows: bool) -> None:
    async def preview(arguments: Any, call: Any) -> Any:
        bench.caller.abort({"kind": "user"})
        if follows:
            call.signal.raise_if_aborted()

    bench.tool(preview=preview)
    bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = Asked()
    assert (await bench.run(agent=bench.agent())).error_info == BEFORE
    assert bench.broker.previews == []


async def test_a_preview_that_ignores_its_signal_is_ended(bench: Any) -> None:
    async def preview(arguments: Any, call: Any) -> Any:
        bench.caller.abort({"kind": "user"})
        await asyncio.Event().wait()

    bench.tool(preview=preview)
    bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = Asked()
    assert (await bench.run(agent=bench.agent())).error_info == BEFORE


@pytest.mark.contract("TOOL-19")
async def test_one_token_and_unchanged_arguments_go_through_all_stages(bench: Any) -> None:
    calls: list[Any] = []
    arguments = {"list": [1]}

    def note(call: Any) -> None:
        calls.append((call, list(call.arguments["list"])))
        call.arguments["list"].append(2)

    async def pre(call: Any, next: Any) -> Any:
        note(call)
        return await next()

    async def post(call: Any, result: Any, next: Any) -> Any:
        note(call)
        return await next()

    async def body(arguments: Any, call: Any) -> None:
        note(call)
        assert arguments is call.arguments

    bench.tool("echo", body, output=ToolOutput({}, lambda a, v: [text_block(str(a))]))
    bench.on(TOOL_PRE_EXECUTE, pre)
    bench.on(TOOL_POST_EXECUTE, post)
    bench.mount(TOOL_GUARD, None, note)
    bench.on(TOOL_RESULT, lambda call, result: note(call))
    result = await bench.run("echo", arguments)
    assert len({id(call) for call, _ in calls}) == 1
    assert [seen for _, seen in calls] == [[1]] * 5
    assert text(result) == "{'list': [1]}"
    assert arguments == {"list": [1]}


@pytest.mark.contract("TOOL-18")
async def test_guards_run_after_policy_and_can_only_deny(bench: Any) -> None:
    agent, order = bench.agent(), []

    def guard(name: str, verdict: Any) -> Any:
        def check(call: Any) -> Any:
            order.append(name)
            return verdict

        return check

    async def pre(call: Any, next: Any) -> Any:
        order.append("pre")
        return Allow()

    bench.tool()
    bench.mount(TOOL_GUARD, None, guard("scoped", Deny("scoped guard")), agent)
    bench.mount(TOOL_GUARD, None, guard("global", None))
    bench.on(TOOL_PRE_EXECUTE, pre)
    assert text(await bench.run(agent=agent)) == "Error: scoped guard"
    assert order == ["pre", "global", "scoped"]
    order.clear()
    assert not (await bench.run()).is_error
    assert order == ["pre", "global"]


@pytest.mark.contract("TOOL-12")
@pytest.mark.parametrize("event", [TOOL_PRE_EXECUTE, TOOL_EXECUTE, TOOL_POST_EXECUTE], ids=str)
async def test_failing_listeners_are_error_results_that_keep_their_code(bench: Any, event: Any) -> None:
    async def fail(*args: Any) -> None:
        raise ToolError("listener broke", code="MY_CODE", name="MyError")

    bench.tool()
    bench.on(event, fail)
    result = await bench.run()
    assert text(result) == "Error: listener broke"
    assert result.error_info == {"name": "MyError", "code": "MY_CODE"}


@pytest.mark.contract("TOOL-12")
async def test_a_failing_policy_skips_the_review(bench: Any) -> None:
    reviewed = []

    async def fail(*args: Any) -> None:
        raise RuntimeError("broken policy")

    async def review(call: Any, result: Any, next: Any) -> Any:
        reviewed.append(result)
        return await next()

    bench.tool()
    bench.on(TOOL_PRE_EXECUTE, fail)
    bench.on(TOOL_POST_EXECUTE, review)
    assert text(await bench.run()) == "Error: broken policy"
    assert not reviewed
    assert len(bench.published) == 1


# -- cancellation -----------------------------------------------------------------------------------


@pytest.mark.contract("TOOL-11")
async def test_a_call_that_was_cancelled_before_runs_nothing(bench: Any) -> None:
    touched = []

    async def listener(*args: Any) -> Any:
        touched.append(args)
        return await args[-1]()

    bench.tool()
    for event in (TOOL_PRE_EXECUTE, TOOL_EXECUTE, TOOL_POST_EXECUTE):
        bench.on(event, listener)
    bench.caller.abort({"kind": "user"})
    result = await bench.run()
    assert text(result) == "Error: tool call aborted before dispatch"
    assert result.error_info == BEFORE
    assert not touched
    assert bench.published == [result]


@pytest.mark.contract("TOOL-11")
async def test_arguments_that_cannot_be_taken_in_win_over_the_abort(bench: Any) -> None:
    bench.tool()
    bench.caller.abort({"kind": "user"})
    result = await bench.run("echo", {"x": float("inf")})
    assert text(result) == "Error: invalid arguments: arguments.x: not a finite number"
    assert code(result) == "INVALID_ARGS"


@pytest.mark.contract("TOOL-06")
@pytest.mark.parametrize("outcome", ["allowed-once", "cancelled"])
async def test_cancellation_that_overtakes_an_approval_is_before_dispatch(bench: Any, outcome: str) -> None:
    def answer() -> str:
        bench.caller.abort({"kind": "user"})
        return outcome

    bench.tool()
    bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = answers(answer)
    assert (await bench.run(agent=bench.agent())).error_info == BEFORE


@pytest.mark.contract("TOOL-06")
async def test_cancellation_that_overtakes_the_policy(bench: Any) -> None:
    async def policy(call: Any, next: Any) -> Any:
        bench.caller.abort({"kind": "user"})
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    bench.tool()
    bench.on(TOOL_PRE_EXECUTE, policy)
    verdict: Any = Allow()
    assert (await bench.run()).error_info == BEFORE
    bench.caller, verdict = AbortController(), Deny("settled")
    assert text(await bench.run()) == "Error: settled"
    bench.caller, verdict = AbortController(), ValueError("broke")
    assert text(await bench.run()) == "Error: broke"


@pytest.mark.contract("TOOL-06")
async def test_a_rejection_outlives_the_cancellation_that_follows_it(bench: Any) -> None:
    def rejecting() -> str:
        bench.caller.abort()
        return "rejected"

    bench.tool()
    bench.on(TOOL_PRE_EXECUTE, decide(Ask()))
    bench.broker = answers(rejecting)
    assert text(await bench.run(agent=bench.agent())) == 'Error: the user rejected tool "echo"'


@pytest.mark.contract("TOOL-10")
async def test_a_started_body_is_awaited_and_its_late_success_becomes_aborted(bench: Any) -> None:
    finished = []
    note = user_message("for later")

    async def slow(arguments: Any, call: Any) -> str:
        call.defer_context(note)
        await call.signal.wait()
        await asyncio.sleep(0)
        finished.append(True)
        return "done all the same"

    bench.tool("slow", slow)
    asyncio.get_running_loop().call_soon(bench.caller.abort, {"kind": "user"})
    result = await bench.run("slow")
    assert finished
    assert text(result) == "Error: tool call aborted"
    assert result.error_info == ABORTED
    assert result.contexts == (note,)


@pytest.mark.contract("TOOL-10")
async def test_a_started_body_keeps_its_own_failure(bench: Any) -> None:
    async def slow(arguments: Any, call: Any) -> str:
        await call.signal.wait()
        raise ToolError("could not stop cleanly", code="MESS")

    bench.tool("slow", slow)
    asyncio.get_running_loop().call_soon(bench.caller.abort)
    assert code(await bench.run("slow")) == "MESS"


async def test_a_body_that_ignores_its_signal_is_cancelled_after_a_grace(bench: Any) -> None:
    async def deaf(arguments: Any, call: Any) -> str:
        await asyncio.Event().wait()
        return "never"

    bench.tool("deaf", deaf)
    asyncio.get_running_loop().call_soon(bench.caller.abort)
    assert (await bench.run("deaf")).error_info == ABORTED


async def test_a_body_that_ignores_everything_is_abandoned_by_name(bench: Any, caplog: Any) -> None:
    release = asyncio.Event()

    async def undead(arguments: Any, call: Any) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    bench.tool("undead", undead)
    asyncio.get_running_loop().call_soon(bench.caller.abort)
    with caplog.at_level(logging.ERROR):
        result = await bench.run("undead")
    assert code(result) == "TOOL_ABANDONED"
    assert 'tool "undead" ignored its cancellation' in caplog.text
    release.set()


async def test_the_end_of_the_calling_task_ends_the_body_too(bench: Any) -> None:
    ended = asyncio.Event()

    async def body(arguments: Any, call: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    bench.tool("body", body)
    task = asyncio.ensure_future(bench.run("body"))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_withdrawing_a_tool_ends_its_calls(bench: Any) -> None:
    started = asyncio.Event()

    async def body(arguments: Any, call: Any) -> None:
        started.set()
        await call.signal.wait()

    token = bench.tool("body", body)
    task = asyncio.ensure_future(bench.run("body"))
    await started.wait()
    await token.withdraw("plugin unloaded")
    result = await task
    assert code(result) == "MOUNT_WITHDRAWN"
    assert code(await bench.run("body")) == "UNKNOWN_TOOL"


# -- wrappers -----------------------------------------------------------------------------------


@pytest.mark.contract("TOOL-09")
async def test_a_wrapper_replaces_the_signal_and_the_callers_is_fused_back(bench: Any) -> None:
    mine = AbortController()
    seen = []

    async def wrapper(call: Any, next: Any) -> Any:
        call.signal = mine.signal
        try:
            return await next()
        finally:
            seen.append(call.signal)

    async def body(arguments: Any, call: Any) -> Any:
        assert call.signal is not mine.signal
        source.abort({"kind": "x"})
        return call.signal.cause

    bench.tool("body", body)
    bench.on(TOOL_EXECUTE, wrapper)
    source = mine
    call = bench.call("body")
    caller = call.signal
    assert (await bench.tools.execute(call)).value == {"kind": "x"}
    assert seen == [mine.signal]
    assert call.signal is caller
    mine, source = AbortController(), bench.caller
    assert (await bench.run("body")).error_info == ABORTED


@pytest.mark.contract("TOOL-09")
async def test_cancellation_inside_a_wrapper_prevents_the_dispatch(bench: Any) -> None:
    ran = []

    async def wrapper(call: Any, next: Any) -> Any:
        bench.caller.abort()
        return await next()

    async def body(arguments: Any, call: Any) -> None:
        ran.append(True)

    bench.tool("body", body)
    bench.on(TOOL_EXECUTE, wrapper)
    assert (await bench.run("body")).error_info == BEFORE
    assert not ran


# -- review -----------------------------------------------------------------------------------


def review(verdict: Any) -> Any:
    async def listener(call: Any, result: Any, next: Any) -> Any:
        await next()
        return verdict

    return listener


DOUBLE = ToolOutput({"type": "integer"}, lambda a, v: [text_block(f"value {v}")], lambda a, v: {"v": v})


async def seven(arguments: Any, call: Any) -> int:
    return 7


@pytest.mark.contract("TOOL-07")
@pytest.mark.parametrize(
    ("verdict", "content", "value", "error_code"),
    [
        (Accept(), "value 7", 7, None),
        (Accept(content=[text_block("redacted")]), "redacted", 7, None),
        (Accept(value=8), "value 8", 8, None),
        (Accept(value="no"), None, None, "INVALID_TOOL_OUTPUT"),
        (Accept(content=[text_block("x")], value=8), None, None, "TOOL_FAILED"),
        (Accept(content=[{"no": "type"}]), None, None, "TOOL_FAILED"),
        (Block("try again"), "try again", None, None),
        ("nonsense", None, None, "TOOL_FAILED"),
    ],
)
async def test_the_review_may_replace_or_block(
    bench: Any, verdict: Any, content: Any, value: Any, error_code: Any
) -> None:
    bench.tool("seven", seven, output=DOUBLE)
    bench.on(TOOL_POST_EXECUTE, review(verdict))
    result = await bench.run("seven")
    assert (result.value, code(result)) == (value, error_code)
    assert result.is_error is (value is None)
    if content is not None:
        assert text(result) == content
    if isinstance(verdict, Accept) and value == 8:
        assert result.meta == {"v": 8}


@pytest.mark.contract("TOOL-07")
async def test_the_value_of_a_failure_cannot_be_replaced(bench: Any) -> None:
    bench.on(TOOL_POST_EXECUTE, review(Accept(value=1)))
    assert (await bench.run("missing")).is_error


@pytest.mark.contract("TOOL-05", "TOOL-07")
async def test_denials_and_failures_are_reviewed_too(bench: Any) -> None:
    bench.tool()
    bench.on(TOOL_POST_EXECUTE, review(Accept(content=[text_block("softened")])))
    denying = bench.on(TOOL_PRE_EXECUTE, decide(Deny("no")))
    result = await bench.run()
    assert (result.is_error, text(result)) == (True, "softened")
    await denying.withdraw()
    assert text(await bench.run("missing")) == "softened"


@pytest.mark.contract("TOOL-07", "TOOL-08")
async def test_contexts_come_in_order_and_survive_a_failing_body(bench: Any) -> None:
    tool, wrapper, post = (user_message(name) for name in ("tool", "wrapper", "post"))

    async def wrap(call: Any, next: Any) -> Any:
        call.defer_context(wrapper)
        return await next()

    async def body(arguments: Any, call: Any) -> None:
        call.defer_context(tool)
        if arguments.get("fail"):
            raise ValueError("broke")

    bench.tool("body", body)
    bench.on(TOOL_EXECUTE, wrap)
    reviewing = bench.on(TOOL_POST_EXECUTE, review(Accept(contexts=(post,))))
    for arguments in ({}, {"fail": True}):
        result = await bench.run("body", arguments)
        assert result.contexts == (tool, wrapper, post)
    await reviewing.withdraw()
    bench.on(TOOL_POST_EXECUTE, review(Block("no", contexts=(post,))))
    assert (await bench.run("body")).contexts == (post,)


async def test_concluding_the_turn_needs_success(bench: Any) -> None:
    async def body(arguments: Any, call: Any) -> None:
        call.conclude_turn()
        if arguments.get("fail"):
            raise ValueError("broke")

    bench.tool("body", body)
    assert (await bench.run("body")).concludes_turn
    assert not (await bench.run("body", {"fail": True})).concludes_turn


# -- the end -----------------------------------------------------------------------------------


@pytest.mark.contract("TOOL-13")
async def test_the_final_transform_comes_last(bench: Any) -> None:
    seen = []

    def shout(content: Any) -> Any:
        seen.append(text(ToolResult(False, content)))
        if mode == "keep":
            return None
        if mode == "fail":
            raise ToolError("cannot finalize", code="FINAL")
        return [text_block(content[0]["text"].upper())]

    bench.tool("seven", seven, output=DOUBLE, finalize=shout)
    bench.on(TOOL_POST_EXECUTE, review(Accept(content=[text_block("reviewed")])))
    mode = "shout"
    assert text(await bench.run("seven")) == "REVIEWED"
    mode = "keep"
    assert text(await bench.run("seven")) == "reviewed"
    mode = "fail"
    assert text(await bench.run("seven")) == "Error: cannot finalize"
    assert code(bench.published[-1]) == "FINAL"
    assert seen == ["reviewed"] * 3


@pytest.mark.contract("TOOL-20", "TOOL-23")
async def test_observers_cannot_change_or_break_the_outcome(bench: Any, caplog: Any) -> None:
    def meddle(call: Any, result: ToolResult) -> None:
        result.content.append(text_block("forged"))
        raise RuntimeError("observer broke")

    async def post(call: Any, result: ToolResult, next: Any) -> Any:
        result.content.clear()
        return await next()

    bench.tool("seven", seven, output=DOUBLE)
    bench.on(TOOL_RESULT, meddle)
    bench.on(TOOL_POST_EXECUTE, post)
    result = await bench.run("seven")
    assert text(result) == "value 7"
    assert "observer broke" in caplog.text


async def test_a_context_that_cannot_be_logged_is_a_failure(bench: Any) -> None:
    async def body(arguments: Any, call: Any) -> None:
        call.defer_context({"role": object()})

    bench.tool("body", body)
    assert (await bench.run("body")).is_error


@pytest.mark.contract("TOOL-23")
async def test_stages_come_in_order(bench: Any) -> None:
    order: list[str] = []

    def around(name: str) -> Any:
        async def listener(*args: Any) -> Any:
            order.append(f"{name} in")
            try:
                return await args[-1]()
            finally:
                order.append(f"{name} out")

        return listener

    async def body(arguments: Any, call: Any) -> None:
        order.append("body")

    bench.tool("body", body, finalize=lambda content: order.append("finalize"))
    bench.on(TOOL_PRE_EXECUTE, around("pre"))
    bench.on(TOOL_EXECUTE, around("execute"))
    bench.on(TOOL_POST_EXECUTE, around("post"))
    bench.mount(TOOL_GUARD, None, lambda call: order.append("guard"))
    bench.on(TOOL_RESULT, lambda call, result: order.append("result"))
    await bench.run("body")
    assert order == [
        "pre in",
        "pre out",
        "guard",
        "execute in",
        "body",
        "execute out",
        "post in",
        "post out",
        "finalize",
        "result",
    ]
