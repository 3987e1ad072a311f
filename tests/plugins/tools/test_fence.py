"""What the file and search tools leave alone, and what they cannot be made to wait for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from polyhost_tools import search as search_module
from polyhost_tools.fence import Fence, Hidden

SECRET = "sk-secret"


@pytest.fixture
def home(bench: Any) -> Path:
    """The host's directory with its secrets, and the same words in the workspace."""
    made: Path = bench.home
    (made / "sessions").mkdir()
    (made / "spill" / "session-1").mkdir(parents=True)
    for name in ("credentials.json", "config.toml", "sessions/log.jsonl", "spill/session-1/out.txt"):
        (made / name).write_text(f"{SECRET}\n")
    bench.put("own.txt", f"not {SECRET}\n")
    return made


def names(home: Path) -> list[str]:
    return sorted(str(path) for path in home.rglob("*"))


async def test_the_host_keeps_its_files_to_itself(bench: Any, home: Path) -> None:
    (bench.root / "door").symlink_to(home)
    (bench.root / "key").symlink_to(home / "credentials.json")
    before = names(home)
    paths = [
        str(home / "credentials.json"),
        "../home/credentials.json",
        "door/config.toml",
        "key",
        "door/../home/sessions/log.jsonl",
        f"/proc/self/root{home}/credentials.json",
        str(home / "spill/../credentials.json"),
    ]
    for path in paths:
        for tool, more in [
            ("read", {}),
            ("write", {"content": "x"}),
            ("edit", {"old_string": SECRET, "new_string": "x"}),
        ]:
            code, message = await bench.failure(tool, file_path=path, **more)
            assert (code, "host's own directory" in message) == ("FS_PERMISSION_DENIED", True)
        assert (await bench.failure("grep", pattern=SECRET, path=path))[0] == "FS_PERMISSION_DENIED"
    assert (await bench.failure("write", file_path=str(home / "new/file"), content="x"))[0] == "FS_PERMISSION_DENIED"
    for path in (str(home), "door", "../home/sessions"):
        assert (await bench.failure("glob", pattern="*", path=path))[0] == "FS_PERMISSION_DENIED"
    assert names(home) == before
    assert (home / "credentials.json").read_text() == f"{SECRET}\n"


async def test_saved_output_may_be_read_and_searched_but_not_changed(bench: Any, home: Path) -> None:
    path = str(home / "spill/session-1/out.txt")
    assert SECRET in await bench.text("read", file_path=path)
    assert SECRET in await bench.text("grep", pattern=SECRET, path=path)
    assert (await bench.failure("write", file_path=path, content="x"))[0] == "FS_PERMISSION_DENIED"


@pytest.mark.contract("SRC-01")
@pytest.mark.parametrize("start", ["..", "absolute", "link"])
@pytest.mark.parametrize("told", [True, False])
async def test_a_search_of_what_holds_the_host_does_not_show_it(
    bench: Any, home: Path, monkeypatch: Any, start: str, told: bool
) -> None:
    if not told:  # what ripgrep finds in spite of what it was told is left out too
        monkeypatch.setattr(Hidden, "globs", lambda self: [])
    (bench.root / "link").symlink_to(bench.root.parent)
    path = str(bench.root.parent) if start == "absolute" else start
    found = await bench.run("grep", pattern=SECRET, path=path, include="*")
    assert [match["text"] for match in found.value["matches"]] == [f"not {SECRET}"]
    assert found.value["total"] == 1
    listed = await bench.run("glob", pattern="**/*.*", path=path)
    assert [os.path.basename(path) for path in listed.value["paths"]] == ["own.txt"]


@pytest.mark.parametrize("session", ["above", "beside"])
async def test_what_the_host_keeps_does_not_make_a_search_too_large(
    bench: Any, home: Path, monkeypatch: Any, session: str
) -> None:
    monkeypatch.setattr(search_module, "MAX_RAW_BYTES", 5000)
    (home / "sessions/log.jsonl").write_text(f"{SECRET}\n" * 1000)
    bench.agent("above", bench.root.parent)
    found = await bench.run("grep", session, pattern=SECRET, path=str(bench.root.parent))
    assert found.value["total"] == 1
    if session == "above":
        assert (await bench.run("grep", session, pattern=SECRET)).value["total"] == 1


@pytest.mark.parametrize("name", ["home", "h[o]m*e", "h!{o}me"])
def test_ripgrep_is_kept_out_of_the_host(tmp_path: Path, name: str) -> None:
    home = tmp_path.resolve() / name
    fence = Fence(str(home), str(home / "spill"))
    home.mkdir()
    root = str(tmp_path.resolve())
    literal = name.translate({ord(char): f"\\{char}" for char in "[]*!{}"})
    assert fence.hidden(root, ".", root).globs() == [f"--glob=!/{literal}", f"--glob=!**{root}/{literal}"]
    assert fence.hidden(str(home), ".", str(home)).globs() == []


async def test_a_session_may_work_in_a_workspace_inside_the_host(bench: Any, home: Path) -> None:
    workspace = home / "work"
    workspace.mkdir()
    (workspace / "f").write_text("mine\n")
    bench.agent("inside", workspace)
    bench.agent("at home", home)
    assert "mine" in await bench.text("read", "inside", file_path="f")
    assert "Updated file" in await bench.text("write", "inside", file_path="f", content="changed\n")
    assert await bench.text("grep", "inside", pattern="changed") == "Found 1 match\n\nf\nLine 1: changed"
    for session, path in [("inside", "../credentials.json"), ("at home", "credentials.json")]:
        assert (await bench.failure("read", session, file_path=path))[0] == "FS_PERMISSION_DENIED"
    assert (await bench.failure("grep", "at home", pattern=SECRET))[0] == "FS_PERMISSION_DENIED"
    assert (await bench.failure("grep", "inside", pattern=SECRET, path=".."))[0] == "FS_PERMISSION_DENIED"


async def test_environments_of_processes_are_closed(bench: Any) -> None:
    for path in ("/proc/self/environ", f"/proc/{os.getpid()}/environ", "/proc/thread-self/environ"):
        assert (await bench.failure("read", file_path=path))[0] == "FS_PERMISSION_DENIED"
        assert (await bench.failure("grep", pattern="PATH", path=path))[0] == "FS_PERMISSION_DENIED"
    assert (await bench.failure("grep", pattern="PATH", path="/proc"))[0] == "FS_PERMISSION_DENIED"
    assert "MemTotal" in await bench.text("read", file_path="/proc/meminfo")
    assert Fence("/nowhere", "/nowhere").hidden("/", ".", "/").covers("./proc/1/environ")


@pytest.mark.contract("FS-08")
@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/tty", "socket"])
async def test_nothing_waits_for_special_files(bench: Any, disk: Any, path: str) -> None:
    disk.fifo(bench.root / "pipe")
    disk.socket(bench.root / "socket")
    for tool, more in [
        ("read", {"file_path": path}),
        ("write", {"file_path": path, "content": "x"}),
        ("edit", {"file_path": path, "old_string": "a", "new_string": "b"}),
        ("grep", {"pattern": "x", "path": path}),
    ]:
        assert (await bench.failure(tool, **more))[0] == "FS_NOT_REGULAR_FILE"


@pytest.mark.contract("SRC-02")
async def test_searches_pass_over_special_files(bench: Any, disk: Any) -> None:
    disk.fifo(bench.root / "pipe")
    bench.put("f", "x\n")
    assert await bench.text("grep", pattern="x") == "Found 1 match\n\nf\nLine 1: x"
    await bench.text("glob", pattern="*")
