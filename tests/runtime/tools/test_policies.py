"""What acts on every call: spill of large results, time budgets, the repeat reminder."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import (
    AGENT_INBOX_CLAIMED,
    TOOL_EXECUTE,
    TOOL_POST_EXECUTE,
    TOOL_PRE_EXECUTE,
    Accept,
    Block,
    Deny,
    ToolCall,
    ToolOutput,
    text_block,
    text_of,
    user_message,
)
from polyhost.runtime.tools.repeat import RepeatReminder
from polyhost.runtime.tools.spill import SpillFiles, SpillPolicy, preview
from polyhost.runtime.tools.timeouts import TimeoutPolicy

TEXT = ToolOutput({"type": "string"}, lambda a, v: [text_block(v)])


def saved_texts(root: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in root.glob("session-*/*")}


def saying(text: str) -> Any:
    async def body(arguments: Any, call: Any) -> str:
        return text

    return body


# -- spill -----------------------------------------------------------------------------------


@pytest.mark.contract("SPL-02")
def test_spill_files_are_private_and_distinct(tmp_path: Path) -> None:
    files = SpillFiles(tmp_path / "spill")
    first = files.save("session-1", "bash output.txt", b"one")
    second = files.save("session-1", "bash output.txt", b"two")
    evil = files.save("session-2", "../../etc/passwd", b"x")
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    assert first.parent.name == f"session-{hashlib.sha256(b'session-1').hexdigest()[:12]}"
    assert first.parent == second.parent != evil.parent
    assert evil.parent.parent == first.parent.parent
    token, name = first.name.split("-", 1)
    assert len(bytes.fromhex(token)) == 6
    assert name == "bash_output.txt"
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.parent.parent.stat().st_mode) == 0o700


@pytest.mark.contract("SPL-01")
async def test_a_large_text_is_saved_whole_and_previewed(bench: Any, tmp_path: Path) -> None:
    bench.service(SpillPolicy(SpillFiles(tmp_path), 1000))
    whole = "head " + "é" * 5000 + " tail"
    bench.tool("big", saying(whole), output=TEXT)
    result = await bench.run("big", agent=bench.agent("s"))
    shown = text_of(result.content)
    ((saved, content),) = saved_texts(tmp_path).items()
    assert content == whole
    assert saved.endswith("-big.txt")
    assert shown.startswith("head é")
    assert shown.endswith("é tail")
    assert f"{len(whole.encode())} bytes" in shown
    assert saved in shown
    assert len(shown.encode()) <= 1000
    assert result.value == whole


@pytest.mark.contract("SPL-01")
@pytest.mark.parametrize("case", ["small", "no session", "nested", "read", "blocks", "unwritable", "no room"])
async def test_what_is_never_replaced(bench: Any, tmp_path: Path, case: str) -> None:
    root = tmp_path / "file"
    if case == "unwritable":
        root.write_text("")
    bench.service(SpillPolicy(SpillFiles(root), 1000 if case != "no room" else 20))
    text = "x" * (1000 if case == "small" else 5000)
    blocks = [text_block(text)] + ([{"type": "image", "attachment": {}}] if case == "blocks" else [])
    bench.tool("big", saying(text), output=ToolOutput({}, lambda a, v: blocks), spill=case != "read")
    agent = None if case == "no session" else bench.agent()
    result = await bench.run("big", agent=agent, root_call_id="outer" if case == "nested" else None)
    assert result.content == blocks
    assert not result.is_error
    if case not in ("no room", "unwritable"):
        assert saved_texts(root) == {}


@pytest.mark.contract("SPL-01")
async def test_what_the_review_put_there_is_fitted_too(bench: Any, tmp_path: Path) -> None:
    bench.service(SpillPolicy(SpillFiles(tmp_path), 400))
    bench.tool("t", saying("short"), output=TEXT)
    verdict: Any = None

    async def review(call: Any, result: Any, next: Any) -> Any:
        return verdict

    bench.on(TOOL_POST_EXECUTE, review)
    for verdict in (
        Accept(content=[text_block("c" * 900)]),
        Accept(value="v" * 900),
        Block("b" * 900),
    ):
        result = await bench.run("t", agent=bench.agent())
        assert len(text_of(result.content)) <= 400
        assert result.is_error is isinstance(verdict, Block)
    assert {content[0] for content in saved_texts(tmp_path).values()} == {"c", "v", "b"}


@pytest.mark.contract("SPL-01")
@given(st.binary(min_size=300, max_size=2000), st.integers(0, 300))
def test_a_preview_never_exceeds_its_limit(data: bytes, limit: int) -> None:
    shown = preview(data, "/spill/file", limit)
    if shown is not None:
        assert len(shown.encode()) <= limit
        assert "/spill/file" in shown


# -- time budgets ----------------------------------------------------------------------------


@pytest.fixture
def timed(bench: Any) -> Any:
    bench.on(TOOL_EXECUTE, TimeoutPolicy(lambda call: bench.tools.get(call.name, call.agent)))
    return bench


async def until_aborted(arguments: Any, call: ToolCall) -> Any:
    await call.signal.wait()
    if arguments.get("fail"):
        raise ValueError("own failure")
    return call.signal.cause


@pytest.mark.contract("GRD-01")
@pytest.mark.parametrize("arguments", [{}, {"fail": True}])
async def test_a_deadline_replaces_any_outcome(timed: Any, arguments: Any) -> None:
    timed.tool("slow", until_aborted, timeout_ms=5)
    result = await timed.run("slow", arguments)
    assert text_of(result.content) == "Error: tool call timed out after 5ms"
    assert result.error_info == {"name": "ToolTimeoutError", "code": "TOOL_TIMEOUT"}
    assert not timed.caller.signal.aborted


@pytest.mark.contract("GRD-01")
async def test_a_tool_without_budget_gets_the_callers_signal(timed: Any) -> None:
    async def body(arguments: Any, call: ToolCall) -> bool:
        return call.signal.aborted

    timed.tool("free", body)
    timed.tool("quick", body, timeout_ms=60_000)
    assert (await timed.run("free")).value is False
    assert (await timed.run("quick")).value is False


@pytest.mark.contract("GRD-01")
async def test_the_first_of_deadline_and_caller_wins(timed: Any) -> None:
    timed.tool("slow", until_aborted, timeout_ms=60_000)
    asyncio.get_running_loop().call_soon(timed.caller.abort, {"kind": "user"})
    assert (await timed.run("slow")).error_info["code"] == "ABORTED"


@pytest.mark.contract("GRD-01")
async def test_a_deadline_outlives_a_later_abort(timed: Any) -> None:
    async def slow(arguments: Any, call: ToolCall) -> None:
        await call.signal.wait()
        timed.caller.abort({"kind": "user"})

    timed.tool("slow", slow, timeout_ms=5)
    assert (await timed.run("slow")).error_info["code"] == "TOOL_TIMEOUT"


# -- repetition ------------------------------------------------------------------------------


async def reminders(bench: Any, calls: list[tuple[str, Any]], agent: Any) -> list[int]:
    """Which of the calls, counted from 1, came back with a reminder."""
    found = []
    for number, (name, arguments) in enumerate(calls, 1):
        result = await bench.run(name, arguments, agent=agent)
        if result.contexts:
            (message,) = result.contexts
            assert message["source"]["plugin"] == "repeat-tool-reminder"
            found.append(number)
    return found


@pytest.mark.contract("GRD-02")
async def test_repetition_is_pointed_out_at_thresholds(bench: Any) -> None:
    bench.on(TOOL_POST_EXECUTE, RepeatReminder())
    bench.tool("t")
    one, other = bench.agent("one"), bench.agent("other")
    same = ("t", {"a": 1, "b": {"c": [1], "d": 2}})
    reordered = ("t", {"b": {"d": 2, "c": [1]}, "a": 1})
    assert await reminders(bench, [same, reordered] * 4 + [same], one) == [3, 5, 8]
    assert await reminders(bench, [same, same], other) == []
    assert await reminders(bench, [("t", {}), same, same, same], one) == [4]


@pytest.mark.contract("GRD-02")
async def test_a_new_prompt_or_another_call_resets(bench: Any) -> None:
    reminder = RepeatReminder([2], include=["t", "wait*"], exclude=["wait*"])
    bench.on(TOOL_POST_EXECUTE, reminder)
    bench.on(AGENT_INBOX_CLAIMED, reminder.reset)
    bench.tool("t")
    bench.tool("wait_a_bit")
    bench.tool("other")
    agent = bench.agent()
    await bench.run("t", agent=agent)
    bench.kernel.events.emit(AGENT_INBOX_CLAIMED, agent, user_message("x", {"kind": "plugin", "plugin": "p"}), 1)
    transparent = [("wait_a_bit", {}), ("wait_a_bit", {}), ("other", {}), ("other", {})]
    assert await reminders(bench, [*transparent, ("t", {})], agent) == [5]
    bench.kernel.events.emit(AGENT_INBOX_CLAIMED, agent, user_message("go on"), 2)
    assert await reminders(bench, [("t", {}), ("t", {"x": 1}), ("t", {}), ("t", {})], agent) == [4]


@pytest.mark.contract("GRD-02")
async def test_denied_calls_count_and_blocks_carry_the_reminder(bench: Any) -> None:
    async def deny(call: Any, next: Any) -> Any:
        return Deny("no")

    async def block(call: Any, result: Any, next: Any) -> Any:
        return Block("blocked")

    bench.on(TOOL_POST_EXECUTE, RepeatReminder([2]))
    bench.on(TOOL_POST_EXECUTE, block)
    bench.on(TOOL_PRE_EXECUTE, deny)
    bench.tool("t")
    assert await reminders(bench, [("t", {}), ("t", {})], bench.agent()) == [2]


@pytest.mark.contract("GRD-02")
@pytest.mark.parametrize("thresholds", [[], [1], [3, 3], [5, 3], [0, 2]])
def test_bad_thresholds_are_refused(thresholds: list[int]) -> None:
    with pytest.raises(ValueError, match="thresholds"):
        RepeatReminder(thresholds)


async def test_a_deleted_session_takes_its_spilled_files_along(tmp_path: Path) -> None:
    files = SpillFiles(tmp_path)
    kept, gone = files.save("one", "a.txt", b"x"), files.save("two", "b.txt", b"y")
    await files.remove("two")
    await files.remove("never-spilled")
    assert kept.exists()
    assert not gone.parent.exists()
