from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import (
    PROMPT_ASSEMBLE,
    PROMPT_CONTEXT,
    PROMPT_SECTION,
    PROMPT_VARIABLE,
    AssembledPrompt,
    PromptContext,
    PromptError,
    PromptSection,
)
from polyhost.kernel.errors import MountConflictError
from polyhost.runtime.agents.prompt import IDENTITY, Prompts, mount_defaults
from polyhost.testing.scripted import text_script

if TYPE_CHECKING:
    from conftest import Bench

    from polyhost.runtime.agents.agent import LiveAgent

TOOLS = [{"name": name, "description": "", "parameters": {}} for name in ("c", "a", "b")]


async def assemble(bench: Bench, agent: LiveAgent, **variables: Any) -> AssembledPrompt:
    return await bench.services.prompts.assemble(agent, variables, TOOLS)


@pytest.mark.contract("SYS-01", "LOOP-03")
async def test_identity_persona_and_guidance_come_in_order_with_variables(bench: Bench) -> None:
    mount_defaults(bench.root, persona="I use {{model}} of {{provider}} in {{cwd}}.")
    bench.root.mount(PROMPT_SECTION, "guidance", PromptSection(100, "Use tools."))
    bench.root.mount(PROMPT_SECTION, "empty", PromptSection(50, lambda agent: None))
    agent = await bench.agent(text_script("hi"))
    await bench.ask(agent)
    assert bench.model.requests[0].system == f"{IDENTITY}\n\nI use one of scripted in /project.\n\nUse tools."


@pytest.mark.contract("SYS-01")
async def test_identity_and_persona_can_be_left_out_and_texts_are_resolved_each_time(bench: Bench) -> None:
    mount_defaults(bench.root, identity="", persona="")
    count = 0

    async def counting(agent: Any) -> str:
        nonlocal count
        count += 1
        return str(count)

    bench.root.mount(PROMPT_SECTION, "n", PromptSection(0, counting))
    agent = await bench.agent()
    assert [(await assemble(bench, agent)).system for _ in range(2)] == ["1", "2"]


@pytest.mark.contract("SYS-02")
async def test_malformed_parts_are_refused_and_removal_is_symmetric(bench: Bench) -> None:
    for order in (math.inf, math.nan, "1", True):
        with pytest.raises(PromptError, match="finite"):
            bench.root.mount(PROMPT_SECTION, "x", PromptSection(order, "text"))  # type: ignore[arg-type]
    with pytest.raises(PromptError):
        bench.root.mount(PROMPT_CONTEXT, "x", PromptContext(1, 5))  # type: ignore[arg-type]
    for name in ("Upper", "1st", "with space", "", "dash-ed"):
        with pytest.raises(PromptError, match="variable"):
            bench.root.mount(PROMPT_VARIABLE, name, lambda agent: "x")
    token = bench.root.mount(PROMPT_SECTION, "x", PromptSection(1, "here"))
    with pytest.raises(MountConflictError):
        bench.root.mount(PROMPT_SECTION, "x", PromptSection(2, "twice"))
    agent = await bench.agent()
    assert (await assemble(bench, agent)).system == "here"
    await token.withdraw()
    assert (await assemble(bench, agent)).system == ""


@pytest.mark.contract("SYS-03")
async def test_listeners_compose_override_and_do_not_leak(bench: Bench) -> None:
    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, "{{who}}"))
    bench.root.mount(PROMPT_VARIABLE, "who", lambda agent: "mounted")
    seen: list[Any] = []

    async def outer(assembly: Any, next: Any) -> Any:
        prompt = await next()
        return prompt._replace(system=f"[{prompt.system}]")

    async def inner(assembly: Any, next: Any) -> Any:
        seen.append([tool["name"] for tool in assembly.tools])
        assembly.variables["who"] = "overridden"
        prompt = await next()
        prompt.tools.clear()
        return prompt

    outer_token = bench.root.on(PROMPT_ASSEMBLE, outer)
    inner_token = bench.root.on(PROMPT_ASSEMBLE, inner)
    agent = await bench.agent()
    assert (await assemble(bench, agent))[:2] == ("[overridden]", [])
    await inner_token.withdraw()
    prompt = await assemble(bench, agent)
    assert prompt.system == "[mounted]"
    assert len(prompt.tools) == 3
    assert seen == [["a", "b", "c"]]
    await outer_token.withdraw()

    async def short(assembly: Any, next: Any) -> Any:
        return AssembledPrompt("short", [], ())

    bench.root.on(PROMPT_ASSEMBLE, short)
    assert (await assemble(bench, agent)).system == "short"


@pytest.mark.contract("SYS-04")
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{{known}} and {{twice}}", "yes and {{known}}"),
        ("a lone {{ stays", "a lone {{ stays"),
        ("closing }} too", "closing }} too"),
        ("{{unknown}}", None),
        ("{{valueless}}", None),
        ("{{ known }}", None),
        ("{{}}", None),
        ("{{__class__}}", None),
        ("{{keys}}", None),
    ],
)
async def test_variables(bench: Bench, text: str, result: str | None) -> None:
    bench.root.mount(PROMPT_VARIABLE, "known", lambda agent: "yes")
    bench.root.mount(PROMPT_VARIABLE, "twice", lambda agent: "{{known}}")
    bench.root.mount(PROMPT_VARIABLE, "valueless", lambda agent: None)
    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, text))
    agent = await bench.agent()
    if result is not None:
        assert (await assemble(bench, agent)).system == result
        return
    with pytest.raises(PromptError, match="known variables: cwd, known, twice, valueless"):
        await assemble(bench, agent, cwd=None)


@pytest.mark.contract("SYS-05")
async def test_a_complete_section_replaces_all_and_two_are_an_error(bench: Bench) -> None:
    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, "usual"))
    bench.root.mount(PROMPT_SECTION, "all", PromptSection(9, "everything", complete=True))
    agent = await bench.agent()
    assert (await assemble(bench, agent)).system == "everything"
    bench.root.mount(PROMPT_SECTION, "all2", PromptSection(9, "more", complete=True))
    with pytest.raises(PromptError, match="all, all2"):
        await assemble(bench, agent)


@pytest.mark.contract("SYS-06")
async def test_contexts_are_dropped_when_empty_suppressed_as_a_whole_and_named_when_they_fail(bench: Bench) -> None:
    bench.root.mount(PROMPT_CONTEXT, "b", PromptContext(2, "second"))
    bench.root.mount(PROMPT_CONTEXT, "a", PromptContext(1, "first"))
    bench.root.mount(PROMPT_CONTEXT, "none", PromptContext(0, lambda agent: ""))
    agent = await bench.agent()
    assert (await assemble(bench, agent)).contexts == (("a", "first"), ("b", "second"))

    async def suppress(assembly: Any, next: Any) -> Any:
        return (await next())._replace(contexts=())

    token = bench.root.on(PROMPT_ASSEMBLE, suppress)
    assert (await assemble(bench, agent)).contexts == ()
    await token.withdraw()

    def fail(agent: Any) -> str:
        raise OSError("no disk")

    bench.root.mount(PROMPT_CONTEXT, "bad", PromptContext(3, fail))
    with pytest.raises(PromptError, match='prompt context "bad" failed: no disk'):
        await assemble(bench, agent)


@pytest.mark.contract("SYS-07")
async def test_a_scope_shadows_for_its_agent_alone(bench: Bench) -> None:
    consulted: list[str] = []

    def note(name: str) -> Any:
        def text(agent: Any) -> str:
            consulted.append(name)
            return name

        return text

    bench.root.mount(PROMPT_SECTION, "p", PromptSection(0, note("global")))
    one = await bench.agent(session_id="one")
    two = await bench.agent(session_id="two")
    one.context.mount(PROMPT_SECTION, "p", PromptSection(0, note("own")))
    assert (await assemble(bench, one)).system == "own"
    assert (await assemble(bench, two)).system == "global"
    assert consulted == ["own", "global"]


@pytest.mark.contract("SYS-08")
def test_a_tool_order_has_the_rest_marker_once_and_no_repeats(bench: Bench) -> None:
    for order in (["a"], ["a", "a", "<unlisted-tools>"], ["<unlisted-tools>", "<unlisted-tools>"]):
        with pytest.raises(PromptError, match="once"):
            Prompts(bench.kernel.mounts, tool_order=order)


@pytest.mark.contract("SYS-08")
async def test_a_configured_order_puts_the_rest_at_its_marker(bench: Bench) -> None:
    agent = await bench.agent()
    prompts = Prompts(bench.kernel.mounts, tool_order=["c", "<unlisted-tools>", "a"])
    assert [tool["name"] for tool in (await prompts.assemble(agent, {}, TOOLS)).tools] == ["c", "b", "a"]
