"""Registration, scopes and restrictions: which tools an agent has, and what the model sees of them."""

from __future__ import annotations

from typing import Any

import pytest

from polyhost.interfaces import TOOL, TOOLS_CHANGED, Tool, ToolError, ToolOutput
from polyhost.kernel.errors import MountConflictError


def names(bench: Any, agent: Any = None) -> list[str]:
    return [schema["name"] for schema in bench.tools.schemas(agent)]


@pytest.mark.contract("TOOL-01", "TOOL-22")
async def test_the_model_sees_name_description_and_parameters_only(bench: Any) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    bench.tool("b", description="Second", parameters=parameters, timeout_ms=5, concurrency_safe=lambda arguments: True)
    bench.tool("a")
    shown = bench.tools.schemas()
    assert shown == [
        {"name": "a", "description": "", "parameters": {"type": "object"}},
        {"name": "b", "description": "Second", "parameters": parameters},
    ]
    shown[1]["parameters"]["properties"].clear()
    assert bench.tools.schemas()[1]["parameters"] == parameters
    assert parameters["properties"]


OUTPUT = ToolOutput({}, lambda arguments, value: [])


@pytest.mark.contract("TOOL-03", "TOOL-21")
@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({"output": None}, "output declaration"),
        ({"output": ToolOutput({"type": "str"}, lambda a, v: [])}, "unsupported schema in output"),
        ({"output": ToolOutput({}, None)}, "output declaration"),  # type: ignore[arg-type]
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": float("inf")}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
        ({"parameters": {"type": "array"}}, "unsupported schema in parameters"),
        ({"parameters": {"type": "object", "minProperties": 1}}, "minProperties"),
        ({"name": "run_code"}, "reserved"),
        ({"name": ""}, "its own name"),
        ({"execute": None}, "callable body"),
        ({"preview": {}}, "preview"),
    ],
)
async def test_malformed_tools_are_refused(bench: Any, options: Any, phrase: str) -> None:
    async def body(arguments: Any, call: Any) -> None: ...

    tool = Tool(
        **{
            "name": "t",
            "description": "",
            "parameters": {"type": "object"},
            "output": OUTPUT,
            "execute": body,
            **options,
        }
    )
    with pytest.raises(ToolError, match=phrase):
        bench.mount(TOOL, tool.name, tool)
    assert names(bench) == []


@pytest.mark.contract("TOOL-03")
async def test_tools_come_and_go(bench: Any) -> None:
    changes: list[list[str]] = []
    bench.on(TOOLS_CHANGED, lambda: changes.append(names(bench)))
    token = bench.tool("a")
    with pytest.raises(MountConflictError):
        bench.tool("a")
    await token.withdraw()
    assert changes == [["a"], []]
    assert bench.tools.get("a") is None
    bench.tool("a")


@pytest.mark.contract("TOOL-03")
async def test_a_failing_change_listener_undoes_the_registration(bench: Any) -> None:
    def veto() -> None:
        raise RuntimeError("not this one")

    kept = bench.tool("kept")
    listening = bench.on(TOOLS_CHANGED, veto)
    with pytest.raises(RuntimeError, match="not this one"):
        bench.tool("a")
    assert names(bench) == ["kept"]
    await kept.withdraw()
    assert names(bench) == []
    await listening.withdraw()
    bench.tool("a")


@pytest.mark.contract("TOOL-16")
@pytest.mark.parametrize("scoped_first", [True, False])
async def test_an_agents_own_tool_shadows_the_global_one(bench: Any, scoped_first: bool) -> None:
    one, other = bench.agent("one"), bench.agent("other")

    def say(text: str) -> Any:
        async def body(arguments: Any, call: Any) -> str:
            return text

        return body

    mounts = [("global", None), ("scoped", one)]
    for text, agent in reversed(mounts) if scoped_first else mounts:
        bench.tool("t", say(text), agent=agent)
    assert (await bench.run("t", agent=one)).value == "scoped"
    assert (await bench.run("t", agent=other)).value == "global"
    assert (await bench.run("t")).value == "global"
    await one.scope.dispose()
    assert (await bench.run("t", agent=one)).value == "global"


@pytest.mark.contract("TOOL-17")
async def test_restrictions_mask_what_is_inherited(bench: Any) -> None:
    parent = bench.agent("parent")
    child = bench.agent("child", parent)
    for name in ("read", "write", "bash"):
        bench.tool(name)
    bench.tool("parents_own", agent=parent)
    bench.tool("childs_own", agent=child)
    undo = bench.tools.restrict(parent, allow=["read", "write"])
    assert names(bench, parent) == ["parents_own", "read", "write"]
    assert names(bench, child) == ["childs_own", "parents_own", "read", "write"]
    bench.tools.restrict(parent, deny=["write"])
    assert names(bench, parent) == ["parents_own", "read"]
    bench.tools.restrict(child, deny=["parents_own"])
    assert names(bench, child) == ["childs_own", "read"]
    assert names(bench, parent) == ["parents_own", "read"]
    undo()
    assert names(bench, parent) == ["bash", "parents_own", "read"]
    assert names(bench) == ["bash", "read", "write"]
    result = await bench.run("write", agent=parent)
    assert result.error_info == {"name": "ToolNotFoundError", "code": "UNKNOWN_TOOL"}


@pytest.mark.contract("TOOL-17")
async def test_a_restriction_dies_with_its_agent(bench: Any) -> None:
    agent = bench.agent()
    bench.tool("read")
    bench.tools.restrict(agent, deny=["read"])
    await agent.scope.dispose()
    assert names(bench, agent) == ["read"]


@pytest.mark.contract("TOOL-17")
@pytest.mark.parametrize("filters", [{}, {"allow": []}, {"deny": []}, {"allow": ["read", "nope"]}, {"deny": ["own"]}])
async def test_bad_restrictions_are_refused(bench: Any, filters: Any) -> None:
    agent = bench.agent()
    bench.tool("read")
    bench.tool("own", agent=agent)
    with pytest.raises(ToolError) as caught:
        bench.tools.restrict(agent, **filters)
    assert caught.value.code == "INVALID_TOOL_RESTRICTION"
    with pytest.raises(ToolError):
        bench.tools.restrict(None, allow=["read"])
    assert names(bench, agent) == ["own", "read"]


@pytest.mark.contract("TOOL-22")
@pytest.mark.parametrize(
    ("classifier", "parallel"),
    [
        (None, False),
        (lambda arguments: True, True),
        (lambda arguments: 1, False),
        (lambda arguments: "yes", False),
        (lambda arguments: arguments["n"] > 1, False),
        (lambda arguments: 1 / 0, False),
    ],
)
async def test_only_a_literal_true_is_parallel(bench: Any, classifier: Any, parallel: bool) -> None:
    bench.tool(
        "t", concurrency_safe=classifier, parameters={"type": "object", "properties": {"n": {"type": "integer"}}}
    )
    assert bench.tools.is_parallel(bench.call("t", {"n": 1})) is parallel
    assert bench.tools.is_parallel(bench.call("t", {"n": "x"})) is False
    assert bench.tools.is_parallel(bench.call("t", "not an object")) is False
    assert bench.tools.is_parallel(bench.call("missing")) is False
