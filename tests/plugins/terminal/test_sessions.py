"""``hostctl sessions``: what it prints, what it asks, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polyhost.cli.app import run as hostctl
from polyhost.interfaces import SessionHeader, assistant_message, text_block, tool_result_message, user_message
from polyhost.runtime.sessions.header import encode
from polyhost.runtime.sessions.layout import directory
from polyhost.runtime.sessions.lock import acquire

HOSTCTL = str(Path(sys.executable).parent / "hostctl")


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in os.environ:
        if name.startswith(("POLYHOST", "DEEPSEEK", "OPENAI")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("POLYHOST_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def run(home: Path, folder: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Result]]:
    """Runs ``hostctl`` in this process, without a terminal."""

    def run_here(*arguments: str) -> Result:
        code = hostctl(arguments)
        output = capfdbinary.readouterr()
        return Result(code, output.out.decode(), output.err.decode())

    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield run_here


@pytest.fixture
def sessions(run: Any) -> Any:
    return lambda *arguments: run("sessions", *arguments)


@pytest.fixture
def store(home: Path, folder: Path) -> Callable[..., Path]:
    """Writes a plain log with one turn, last changed at ``modified`` (seconds)."""

    def write(session_id: str, prompt: str = "hi", *, modified: int = 1000, cwd: Path | None = None) -> Path:
        header = SessionHeader(session_id, 1000, str(cwd or folder))
        place = {"turn": 1, "step": 1}
        call = {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"command": "ls"}'}
        events: list[tuple[str, Any, str | None]] = [
            ("turn/start", {"turn": 1}, None),
            ("step/start", place, None),
            ("user/message", user_message(prompt), "append"),
            (
                "assistant/message",
                {**place, "message": assistant_message([text_block("an answer"), call], provider="p", model="m")},
                "append",
            ),
            ("tool/call", {**place, "callId": "c", "name": "bash", "arguments": '{"command": "ls"}'}, None),
            (
                "tool/result",
                {**place, "message": tool_result_message("c", [text_block("```\nx\n```")], is_error=False)},
                "append",
            ),
            ("step/end", place, None),
            ("turn/end", {"turn": 1, "reason": {"kind": "completed"}}, None),
        ]
        lines = [encode(header)]
        for seq, (type, data, operation) in enumerate(events):
            event = {"type": type, "seq": seq, "time": 1000, "data": data}
            if operation is not None:
                event["surfaceOp"] = operation
            lines.append(json.dumps(event).encode() + b"\n")
        path = directory(home / "sessions", header) / "session.jsonl"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"".join(lines))
        os.utime(path, (modified, modified))
        return path

    home.mkdir(mode=0o700)
    (home / "sessions").mkdir(mode=0o700)
    return write


def listed(result: Result) -> list[str]:
    assert result.returncode == 0, result.stderr
    return [row["id"] for row in json.loads(result.stdout)]


def test_lists_come_in_pages_and_by_workspace(sessions: Any, store: Any, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for number in range(5):
        store(f"s-{number}", f"prompt {number}\x1b[31m", modified=1000 + number)
    store("elsewhere", modified=5000, cwd=other)
    assert listed(sessions("list", "--json", "--limit", "2")) == ["s-4", "s-3"]
    rows = json.loads(sessions("list", "--json", "--limit", "2").stdout)
    assert rows[0]["title"] == "prompt 4"
    assert (rows[0]["events"], rows[0]["turns"], rows[0]["modifiedAt"]) == (8, 1, 1_004_000)
    assert listed(sessions("list", "--json", "--cursor", rows[-1]["cursor"])) == ["s-2", "s-1", "s-0"]
    assert listed(sessions("list", "--json", "--all-workspaces"))[0] == "elsewhere"
    assert listed(sessions("list", "--json", "--cwd", str(other))) == ["elsewhere"]

    shown = sessions("list", "--limit", "2")
    assert shown.stdout.splitlines()[1].split() == ["s-4", *shown.stdout.splitlines()[1].split()[1:3], "prompt", "4"]
    assert f"--cursor {rows[-1]['cursor']}" in shown.stderr
    assert "WORKSPACE" not in shown.stdout
    assert str(other) in sessions("list", "--all-workspaces").stdout
    nothing = sessions("list", "--cwd", str(tmp_path))
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "--all-workspaces" in nothing.stderr
    assert sessions("list", "--cursor", "nonsense").returncode == 2
    assert sessions("list", "--cwd", str(other), "--all-workspaces").returncode == 2


def test_a_search_shows_where_the_words_are(sessions: Any, store: Any) -> None:
    store("fruit", "sort the apples")
    store("prices", "why does it fail")
    found = sessions("search", "apples")
    assert "fruit" in found.stdout
    assert "user: sort the apples" in found.stdout
    assert "prices" not in found.stdout
    [row] = json.loads(sessions("search", "it", "fail", "--json").stdout)
    assert (row["id"], row["seq"], row["role"], row["snippet"]) == ("prices", 2, "user", "why does it fail")
    none = sessions("search", "nowhere")
    assert (none.returncode, none.stdout) == (0, "")
    assert sessions("search").returncode == 2


def test_exports(sessions: Any, store: Any, tmp_path: Path) -> None:
    path = store("abc", "sort\nthe apples")
    assert sessions("export", "ab").stdout == path.read_text()
    target = tmp_path / "out.md"
    assert sessions("export", "abc", "--format", "markdown", "--output", str(target)).stdout == ""
    text = target.read_text()
    assert text.startswith("# abc\n")
    assert "> sort\n> the apples" in text
    assert "## Answer\n\nan answer" in text
    assert "### Tool bash\n\n```json\n" in text
    assert "Result:\n\n````\n```\nx\n```\n````\n" in text
    assert target.stat().st_mode & 0o777 == 0o600
    failed = sessions("export", "abc", "--output", str(tmp_path / "no" / "where"))
    assert failed.returncode == 1
    assert str(tmp_path / "no" / "where") in failed.stderr


@pytest.mark.contract("FRK-03", "FRK-04")
def test_a_session_is_forked_also_while_another_process_has_it(sessions: Any, store: Any) -> None:
    path = store("abc", "sort the apples")
    before = path.read_bytes()
    lock = acquire(path.parent, "abc")
    forked = sessions("fork", "ab")
    assert forked.returncode == 0, forked.stderr
    lock.release()
    child = forked.stdout.strip()
    assert path.read_bytes() == before
    rows = {row["id"]: row for row in json.loads(sessions("list", "--json").stdout)}
    assert (rows[child]["parentSession"], rows[child]["title"]) == ("abc", "sort the apples")
    assert "sort the apples" in sessions("show", child).stdout
    inside = sessions("fork", "abc", "--at", "3")
    assert (inside.returncode, inside.stdout) == (1, "")
    assert "inside a turn" in inside.stderr
    assert sessions("fork", "abc", "--at", "7").returncode == 0
    assert "its last is 7" in sessions("fork", "abc", "--at", "99").stderr
    assert len(listed(sessions("list", "--json"))) == 3


def test_an_exported_session_is_imported_into_another_home(
    sessions: Any, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store("abc", "sort the apples")
    copy = tmp_path / "copy.jsonl"
    sessions("export", "abc", "--output", str(copy))
    again = sessions("import", str(copy))
    assert (again.returncode, again.stdout) == (1, "")
    assert "stored already" in again.stderr
    monkeypatch.setenv("POLYHOST_HOME", str(tmp_path / "second"))
    assert sessions("import", str(copy)).stdout == "imported abc\n"
    assert listed(sessions("list", "--json")) == ["abc"]
    assert "> sort the apples" in sessions("show", "abc").stdout
    assert sessions("import", str(tmp_path / "missing")).returncode == 2
    monkeypatch.setenv("POLYHOST_HOME", str(tmp_path / "third"))
    whole = sessions("import", str(tmp_path / "home" / "sessions"))
    assert (whole.returncode, whole.stdout) == (0, "imported abc\n")


@pytest.mark.contract("TTL-02")
def test_a_renamed_session_shows_its_title(sessions: Any, store: Any) -> None:
    store("abc", "sort the apples")
    assert sessions("rename", "abc", " Fruit \x07 salad ").stdout == "Fruit salad\n"
    assert json.loads(sessions("list", "--json").stdout)[0]["title"] == "Fruit salad"
    assert sessions("rename", "abc", " ").returncode == 2
    assert sessions("export", "abc", "--format", "markdown").stdout.startswith("# Fruit salad\n")


@pytest.mark.case("CASE-10")
def test_sessions_are_deleted_by_name_but_not_while_they_are_open(sessions: Any, store: Any) -> None:
    kept, open_one, gone = store("kept"), store("open"), store("gone")
    unasked = sessions("delete", "gone")
    assert unasked.returncode == 2
    assert "--yes" in unasked.stderr
    lock = acquire(open_one.parent, "open")
    refused = sessions("delete", "open", "gone", "--yes")
    assert refused.returncode == 1
    assert f"pid {os.getpid()}" in refused.stderr
    assert not gone.exists()
    assert open_one.exists()
    lock.release()
    assert sessions("delete", "open", "nope", "--yes").returncode == 2
    assert open_one.exists(), "nothing is deleted when one of the names is wrong"
    assert sessions("delete", "open", "--yes").returncode == 0
    assert listed(sessions("list", "--json")) == ["kept"]
    assert kept.exists()


@pytest.fixture
def keyboard() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 1), ("n", 1)])
def test_a_terminal_is_asked_before_anything_is_deleted(
    store: Any, folder: Path, keyboard: tuple[int, int], answer: str, code: int
) -> None:
    path = store("gone")
    master, slave = keyboard
    os.write(master, f"{answer}\n".encode())
    command = [HOSTCTL, "sessions", "delete", "gone"]
    result = subprocess.run(command, stdin=slave, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == code, result.stderr
    assert "Delete 1 session? [y/N]" in result.stdout
    assert path.exists() == (code != 0)


def test_old_sessions_are_pruned(sessions: Any, store: Any, tmp_path: Path) -> None:
    os.utime(store("young"))
    paths = {"old": store("old", cwd=tmp_path / "other"), "open": store("open")}
    lock = acquire(paths["open"].parent, "open")
    dry = sessions("prune", "--older-than", "30d", "--dry-run")
    assert dry.returncode == 0
    assert {line.split()[0] for line in dry.stdout.splitlines()} == {"old", "open"}
    assert all(path.exists() for path in paths.values())
    assert sessions("prune", "--older-than", "30d").returncode == 2
    pruned = sessions("prune", "--older-than", "30d", "--yes")
    assert pruned.returncode == 1
    assert f"pid {os.getpid()}" in pruned.stderr
    lock.release()
    assert sessions("prune", "--older-than", "30d", "--yes").returncode == 0
    assert listed(sessions("list", "--json", "--all-workspaces")) == ["young"]
    for wrong in ("30", "d", "-1d", "30y", ""):
        result = sessions("prune", "--older-than", wrong, "--dry-run")
        assert result.returncode == 2, wrong


@pytest.mark.case("CASE-11")
def test_the_doctor_explains_without_writing_and_repairs_on_request(sessions: Any, store: Any, home: Path) -> None:
    sound, torn, corrupt = store("sound"), store("torn"), store("corrupt")
    torn.write_bytes(torn.read_bytes()[:-10])
    corrupt.write_bytes(corrupt.read_bytes().replace(b'"seq": 1,', b'"seq": 7,'))
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.glob("sessions/*/*/*")}
    told = sessions("doctor")
    assert told.returncode == 1
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in home.glob("sessions/*/*/*")} == before
    assert not (home / "sessions" / "index.sqlite").exists()
    assert f"torn  {torn}\n  would be repaired: {torn}, byte " in told.stdout
    assert f"corrupt  {corrupt}\n  cannot be opened: {corrupt}, byte " in told.stdout
    assert "sound" not in told.stdout
    assert "3 logs, 1 of them cannot be opened" in told.stderr
    assert f"sound  {sound}\n  sound, 8 events" in sessions("doctor", "sound").stdout
    assert sorted(listed(sessions("list", "--json"))) == ["corrupt", "sound", "torn"]

    fixed = sessions("doctor", "--fix")
    assert fixed.returncode == 1
    assert "  repaired: " in fixed.stdout
    assert corrupt.read_bytes() == before[corrupt][0]
    assert sessions("doctor", "torn").returncode == 0
    assert "sound, " in sessions("doctor", "torn").stdout
    assert sessions("delete", "corrupt", "--yes").returncode == 0
    assert sessions("doctor").returncode == 0


def test_a_log_without_header_is_counted_not_listed(sessions: Any, store: Any) -> None:
    store("fine")
    store("broken").write_bytes(b"junk\n")
    result = sessions("list", "--json")
    assert listed(result) == ["fine"]
    assert "1 log cannot be read" in result.stderr
    assert "sessions doctor" in result.stderr


def test_a_stored_session_is_gone_on_with(run: Any, store: Any) -> None:
    store("abc", "sort the apples", modified=1000)
    store("abd", "other", modified=900)
    result = run("run", "--session", "abc", "--model", "demo/demo", "say hello")
    assert (result.returncode, result.stdout) == (0, "hello\n"), result.stderr
    result = run("run", "--session", "ab", "--model", "demo/demo", "say hello")
    assert result.returncode == 2
    assert "several sessions start with 'ab'" in result.stderr
    assert run("run", "--continue", "--model", "demo/demo", "say again").stdout == "again\n"
    rows = json.loads(run("sessions", "list", "--json").stdout)
    assert [(row["id"], row["turns"]) for row in rows] == [("abc", 3), ("abd", 1)]
