"""bash with real shells: output, endings, limits, environment, and what is left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import TOOL_EXECUTE
from polyhost.kernel.signals import AbortController
from polyhost_tools import bash as bash_module
from polyhost_tools.bash import environment, parse_ending


async def shell(bench: Any, command: str, session: str | None = "s1", **more: Any) -> str:
    return str(await bench.text("bash", session, command=command, description="a test", **more))


@pytest.mark.contract("SH-01", "SH-02")
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo tool-output", "tool-output\n"),
        ("echo tool-output; exit 3", "tool-output\n[exit code: 3]"),
        ("printf x; exit 3", "x\n[exit code: 3]"),
        ("true", "(no output)"),
        ("false", "(no output)\n[exit code: 1]"),
        ("echo out; echo err >&2", "out\n[stderr]\nerr\n"),
        ("printf out; printf err >&2; exit 2", "out\n[stderr]\nerr\n[exit code: 2]"),
        ("echo err >&2", "[stderr]\nerr\n"),
        ("kill -KILL $$", "(no output)\n[killed by signal: SIGKILL]"),
        ("printf '[exit code: 5]'", "[exit code: 5]\n"),
        ("echo '[exit code: 5]'", "[exit code: 5]\n"),
        ("no-such-program-here 2>/dev/null", "(no output)\n[exit code: 127]"),
        ("cat", "(no output)"),
    ],
)
async def test_rendering(bench: Any, command: str, expected: str) -> None:
    assert await shell(bench, command) == expected


MARKERS = st.sampled_from(
    ["", "x", "x\n", "[exit code: 1]", "\n[exit code: 1]", "[killed by signal: SIGTERM]", "[exit code: 1]\n"]
)


@pytest.mark.contract("SH-01")
@given(MARKERS, MARKERS, st.sampled_from([0, 1, 7, None]))
def test_the_ending_is_never_misread(stdout: str, stderr: str, exit_code: int | None) -> None:
    value = {
        "stdout": {"text": stdout, "truncated": False, "fullPath": None},
        "stderr": {"text": stderr, "truncated": False, "fullPath": None},
        "exitCode": exit_code,
        "signal": None if exit_code is not None else "SIGSEGV",
        "timedOutMs": None,
    }
    (block,) = bash_module._render({}, value)
    assert parse_ending(block["text"]) == (exit_code, value["signal"])


@pytest.mark.contract("SH-01", "SH-02", "SH-05", "DEF-1")
async def test_a_timeout_is_a_result(bench: Any) -> None:
    text = await shell(bench, "echo begun; sleep 600", timeoutMs=200)
    assert text == "begun\n[timed out after 200ms]\n[killed by signal: SIGTERM]"
    text = await shell(bench, "trap 'exit 4' TERM; echo begun; sleep 600 & wait", timeoutMs=200)
    assert text == "begun\n[timed out after 200ms]\n[exit code: 4]"


@pytest.mark.contract("SH-05")
async def test_a_command_that_ignores_sigterm_is_killed(bench: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(bash_module, "KILL_GRACE", 0.2)
    text = await shell(bench, "trap '' TERM; while :; do sleep 0.05; done", timeoutMs=100)
    assert text == "(no output)\n[timed out after 100ms]\n[killed by signal: SIGKILL]"


@pytest.mark.contract("SH-05")
async def test_the_timeout_is_capped(bench: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(bash_module, "MAX_TIMEOUT_MS", 150)
    assert "[timed out after 150ms]" in await shell(bench, "sleep 600", timeoutMs=500_000)


@pytest.mark.contract("SH-02", "SH-05")
async def test_an_abort_ends_the_whole_group(bench: Any, disk: Any) -> None:
    started = disk.fifo(bench.root / "started")
    running = asyncio.ensure_future(
        bench.failure("bash", command="sleep 601 & echo $! > started; wait", description="a test")
    )
    pid = await asyncio.to_thread(started.read_text)
    assert disk.alive(pid)
    bench.caller.abort({"kind": "user"})
    assert await running == ("ABORTED", "Error: tool call aborted")
    for handle in bench.processes.live:
        assert await handle.wait_for_exit(5)
    assert not disk.alive(pid)


@pytest.mark.contract("SH-02")
async def test_an_abort_by_a_wrapper_is_an_abort_too(bench: Any, disk: Any) -> None:
    started = disk.fifo(bench.root / "started")
    mine = AbortController()

    async def wrap(call: Any, next: Any) -> Any:
        call.signal = mine.signal
        return await next()

    bench.kernel.root.on(TOOL_EXECUTE, wrap)
    running = asyncio.ensure_future(bench.failure("bash", command="echo > started; sleep 601", description="a test"))
    await asyncio.to_thread(started.read_text)
    mine.abort({"kind": "hook"})
    assert (await running)[0] == "ABORTED"


@pytest.mark.contract("SH-02", "SH-03")
async def test_working_directories(bench: Any, tmp_path: Path) -> None:
    bench.put("sub/f", "")
    (tmp_path / "other").mkdir()
    bench.agent("s2", tmp_path / "other")
    assert await shell(bench, "pwd; cd /") == f"{bench.root}\n"
    assert await shell(bench, "pwd") == f"{bench.root}\n"
    assert await shell(bench, "pwd", workdir="sub") == f"{bench.root}/sub\n"
    assert await shell(bench, "pwd", "s2") == f"{bench.root.parent}/other\n"
    code, message = await bench.failure("bash", command="pwd", description="d", workdir="missing")
    assert code == "SPAWN_FAILED"
    assert "missing is not an existing directory" in message


@pytest.mark.contract("SH-02")
@pytest.mark.parametrize(
    "arguments",
    [
        {"command": " ", "description": "d"},
        {"command": "true", "description": ""},
        {"command": "true", "description": "d", "timeoutMs": 0},
        {"command": "true", "description": "d", "timeoutMs": -5},
        {"command": "true", "description": "d", "workdir": " "},
        {"command": "a\0b", "description": "d"},
        {"command": "true"},
    ],
)
async def test_argument_errors(bench: Any, arguments: Any) -> None:
    assert (await bench.failure("bash", **arguments))[0] == "INVALID_ARGS"


@pytest.mark.contract("SH-06", "SH-08")
async def test_the_environment(bench: Any, monkeypatch: Any) -> None:
    for name in (
        "MY_API_KEY",
        "db_password",
        "A_SECRET_B",
        "GITHUB_TOKEN",
        "DSH_HOME",
        "POLYHOST__PLUGINS__X",
        "HARMLESS",
    ):
        monkeypatch.setenv(name, "ambient")
    names = dict(line.split("=", 1) for line in (await shell(bench, "env")).split("\n") if "=" in line)
    assert names["HARMLESS"] == "ambient"
    assert {name for name in names if name.startswith(("MY_", "db_", "A_S", "GITHUB", "DSH", "POLYHOST__"))} == set()
    assert {name: names[name] for name in ("NO_COLOR", "TERM", "PAGER", "GIT_PAGER")} == {
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }
    assert {
        name: value for name, value in names.items() if name.startswith("POLYHOST_") and name != "POLYHOST_TREE"
    } == {
        "POLYHOST_HOME": str(bench.home),
        "POLYHOST_SHELL": "1",
        "POLYHOST_SESSION_ID": "s1",
    }
    assert "POLYHOST_SESSION_ID" not in await shell(bench, "env", None)


@pytest.mark.contract("SH-08")
async def test_parameters_that_nobody_provides_for_are_ignored(bench: Any) -> None:
    properties = bench.tools.get("bash").parameters["properties"]
    assert set(properties) == {"command", "description", "timeoutMs", "workdir"}
    text = await shell(bench, "env", env={"POLYHOST_HOME": "/forged"}, run_in_background=True)
    assert "/forged" not in text


def test_ambient_managed_variables_are_removed() -> None:
    assert environment("/h", None, {"POLYHOST_SESSION_ID": "outer", "POLYHOST_TREE": "t", "X": "1"}) == {
        "POLYHOST_SESSION_ID": None,
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "POLYHOST_HOME": "/h",
        "POLYHOST_SHELL": "1",
    }


@pytest.mark.contract("SH-06")
async def test_standard_input_is_at_its_end(bench: Any) -> None:
    assert await shell(bench, "read line || echo end of file") == "end of file\n"


@pytest.mark.contract("SH-07")
async def test_long_output_keeps_its_tail_and_is_saved_whole(unspilled: Any, disk: Any) -> None:
    text = await shell(unspilled, "seq 1 20000; seq 1 20000 >&2; exit 1")
    stdout, _, stderr = text.partition("[stderr]\n")
    assert stderr.endswith("]\n[exit code: 1]")
    for part in (stdout, stderr):
        shown, _, rest = part.partition("[output truncated; full output: ")
        assert len(shown) == 64_000
        assert shown.endswith("\n20000\n")
        path = rest.partition("]")[0]
        assert disk.text(path) == "".join(f"{number}\n" for number in range(1, 20_001))
        assert disk.mode(path) == 0o600


@pytest.mark.contract("SH-01", "SPL-01")
async def test_a_spilled_result_still_ends_with_its_ending(bench: Any) -> None:
    text = await shell(bench, "seq 1 20000; exit 9")
    assert len(text) <= 50_000
    assert "full output: " in text
    assert parse_ending(text) == (9, None)


@pytest.mark.contract("SH-07")
async def test_output_beyond_the_spill_limit_has_no_file(unspilled: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(bash_module, "SPILL_BYTES", 100_000)
    text = await shell(unspilled, "seq 1 50000")
    assert text.endswith("50000\n[output truncated; full output: (unavailable)]\n")


@pytest.mark.contract("SH-05")
async def test_survivors_do_not_hold_the_result_and_end_with_the_session(
    bench: Any, monkeypatch: Any, disk: Any
) -> None:
    monkeypatch.setattr(bash_module, "KILL_GRACE", 0.3)
    text = await shell(bench, "sleep 602 & echo $!")
    pid = int(text)
    assert disk.alive(pid)
    quiet = int(await shell(bench, "sleep 603 >/dev/null 2>&1 & echo $!"))
    bench.dispose("s1")
    for handle in bench.processes.live:
        assert await handle.wait_for_exit(5)
    for survivor in (pid, quiet):
        assert not disk.alive(survivor)
