"""Which calls run, ask or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import Allow, Ask, Deny, Tool, ToolCall, ToolOutput
from polyhost.kernel.signals import AbortSignal
from polyhost.runtime.interaction.permissions import Permissions, Rule

OUTPUT = ToolOutput({}, lambda arguments, value: [])


async def nothing(arguments: Any, call: Any) -> None: ...


def tool(name: str, access: Any, writes: Any = None) -> Tool:
    parameters = {"type": "object"}
    return Tool(
        name=name, description="", parameters=parameters, output=OUTPUT, execute=nothing, access=access, writes=writes
    )


TOOLS = {
    "think": tool("think", "none"),
    "read": tool("read", "read"),
    "write": tool("write", "write", lambda arguments: [arguments["file_path"]]),
    "blind": tool("blind", "write"),
    "bash": tool("bash", "execute"),
}


async def decision(
    name: str, mode: Any, *, cwd: Path | None = None, trusts: bool = False, rules: Any = (), **arguments: Any
) -> Any:
    policy = Permissions(
        lambda call: TOOLS.get(call.name), mode=lambda agent: mode, trusts_shell=lambda agent: trusts, rules=rules
    )
    signal = AbortSignal()
    call = ToolCall(call_id="c", name=name, arguments=arguments, signal=signal, cwd=str(cwd) if cwd else None)

    async def inner() -> Allow:
        return Allow()

    return await policy(call, inner)


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("read-only", {"think": Allow, "read": Allow, "write": Deny, "blind": Deny, "bash": Deny}),
        ("ask", {"think": Allow, "read": Allow, "write": Ask, "blind": Ask, "bash": Ask}),
        ("workspace", {"think": Allow, "read": Allow, "write": Allow, "blind": Ask, "bash": Ask}),
        ("full", {"think": Allow, "read": Allow, "write": Allow, "blind": Allow, "bash": Allow}),
    ],
)
async def test_the_table_of_modes(tmp_path: Path, mode: str, kinds: dict[str, type]) -> None:
    for name, kind in kinds.items():
        assert type(await decision(name, mode, cwd=tmp_path, file_path="x")) is kind
    assert isinstance(await decision("unknown", mode), Allow)


async def test_a_trusted_shell_runs_in_workspace_mode_only(tmp_path: Path) -> None:
    assert isinstance(await decision("bash", "workspace", cwd=tmp_path, trusts=True), Allow)
    assert isinstance(await decision("bash", "ask", cwd=tmp_path, trusts=True), Ask)
    assert isinstance(await decision("bash", "read-only", cwd=tmp_path, trusts=True), Deny)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "work-other").mkdir()
    (root / "out").symlink_to(tmp_path / "work-other")
    (root / "dangling").symlink_to(tmp_path / "nowhere" / "file")
    (root / "in").symlink_to(root / "sub")
    return root


@pytest.mark.contract("FS-11")
@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("file", True),
        ("sub/../file", True),
        ("in/file", True),
        ("new/deep/file", True),
        ("{root}/file", True),
        ("..", False),
        ("../work-other/file", False),
        ("sub/../../escape", False),
        ("out/file", False),
        ("out/../work/file", True),
        ("in/../../work-other/file", False),
        ("dangling", False),
        ("/etc/hosts", False),
        ("{root}-other/file", False),
    ],
)
async def test_inside_is_judged_where_a_path_really_lies(workspace: Path, path: str, inside: bool) -> None:
    verdict = await decision("write", "workspace", cwd=workspace, file_path=path.format(root=workspace))
    assert isinstance(verdict, Allow if inside else Ask)
    if not inside:
        assert "outside the workspace" in verdict.reason


async def test_a_workspace_may_itself_be_reached_through_a_link(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(workspace)
    assert isinstance(await decision("write", "workspace", cwd=tmp_path / "link", file_path="file"), Allow)
    assert isinstance(
        await decision("write", "workspace", cwd=tmp_path / "link", file_path=str(workspace / "f")), Allow
    )


async def test_what_cannot_be_placed_asks(workspace: Path) -> None:
    assert isinstance(await decision("write", "workspace", cwd=workspace), Ask)
    assert isinstance(await decision("write", "workspace", cwd=workspace, file_path=5), Ask)
    assert isinstance(await decision("write", "workspace", cwd=workspace, file_path="nul\0"), Ask)
    assert isinstance(await decision("write", "workspace", file_path="file"), Ask)


@pytest.mark.parametrize(("decide", "kind"), [("allow", Allow), ("ask", Ask), ("deny", Deny)])
async def test_the_first_matching_rule_outranks_the_mode(decide: Any, kind: type) -> None:
    rules = [Rule("ba*", decide), Rule("*", "deny")]
    for mode in ("read-only", "ask", "workspace"):
        assert isinstance(await decision("bash", mode, rules=rules), kind)
        assert isinstance(await decision("read", mode, rules=rules), Deny)


async def test_where_nobody_is_asked_a_rule_that_asks_refuses_and_says_why() -> None:
    rules = [Rule("bash", "ask"), Rule("read", "allow")]
    refused = await decision("bash", "full", rules=rules)
    assert isinstance(refused, Deny)
    assert "mode full" in refused.reason
    assert isinstance(await decision("read", "full", rules=rules), Allow)


async def test_the_stricter_of_two_policies_wins() -> None:
    policy = Permissions(lambda call: TOOLS["read"], mode=lambda agent: "ask", trusts_shell=lambda agent: False)
    strict = Permissions(lambda call: TOOLS["bash"], mode=lambda agent: "ask", trusts_shell=lambda agent: False)
    call = ToolCall(call_id="c", name="t", arguments={}, signal=AbortSignal())

    async def deny() -> Deny:
        return Deny("inner")

    async def ask() -> Ask:
        return Ask("inner")

    assert await policy(call, deny) == Deny("inner")
    assert await policy(call, ask) == Ask("inner")
    assert await strict(call, deny) == Deny("inner")
    assert await strict(call, ask) == Ask("inner")
