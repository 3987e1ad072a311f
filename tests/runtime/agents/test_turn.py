from __future__ import annotations

from typing import TYPE_CHECKING

from polyhost.testing.scripted import call_script, text_script

if TYPE_CHECKING:
    from conftest import Bench


async def test_one_prompt(bench: Bench) -> None:
    agent = await bench.agent(text_script("hi"))
    await bench.ask(agent)
    print(bench.types(agent), bench.heard)
    assert bench.reasons(agent) == [{"kind": "completed"}]


async def test_tool(bench: Bench) -> None:
    bench.tool("glob")
    agent = await bench.agent(call_script("glob", {"pattern": "*"}), text_script("done"))
    await bench.ask(agent)
    print(agent.session.lines())
    assert bench.reasons(agent) == [{"kind": "completed"}]
