"""``hostctl run`` as a process: pipes, a pseudo-terminal, signals, and every way it can go wrong."""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HOSTCTL = str(Path(sys.executable).parent / "hostctl")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def environment(home: Path, tmp_path: Path) -> dict[str, str]:
    prefixes = ("POLYHOST", "DEEPSEEK", "OPENAI", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {**kept, "POLYHOST_HOME": str(home), "TMPDIR": str(scratch), "TERM": "dumb"}


class Run:
    """Runs ``hostctl`` with pipes."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self.environment = environment

    def __call__(self, *arguments: str, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [HOSTCTL, *arguments],
            input=input,
            capture_output=True,
            text=True,
            cwd=self._folder,
            env={**self.environment, **env},
            timeout=60,
            check=False,
        )
        assert not result.stderr.startswith("Traceback")
        assert "\nTraceback" not in result.stderr  # a tool's output is indented
        return result

    def demo(self, prompt: str, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A prompt to the demo model in this folder."""
        return self("run", "--model", "demo/demo", *options, prompt, **env)


@pytest.fixture
def run(folder: Path, environment: dict[str, str]) -> Run:
    return Run(folder, environment)


class Terminal:
    """``hostctl`` on a pseudo-terminal."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [HOSTCTL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""

    def expect(self, pattern: str, timeout: float = 30) -> str:
        """Read until ``pattern`` shows; returns the output up to its end and forgets it."""
        deadline = time.monotonic() + timeout
        while not (found := re.search(pattern, self.output)):
            assert time.monotonic() < deadline, f"{pattern!r} not in {self.output!r}"
            data = self._read()
            assert data, f"the end came before {pattern!r}: {self.output!r}"
            self.output += data
        seen, self.output = self.output[: found.end()], self.output[found.end() :]
        return seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        """Read the rest and return the exit code."""
        while data := self._read():
            self.output += data
        return self.process.wait(timeout=30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def _read(self, timeout: float = 30) -> str:
        ready, _, _ = select.select([self._master], [], [], timeout)
        assert ready, f"nothing came for {timeout} s after {self.output!r}"
        try:
            return os.read(self._master, 65536).decode(errors="replace")
        except OSError as error:
            if error.errno == errno.EIO:
                return ""
            raise


@pytest.fixture
def terminal(folder: Path, environment: dict[str, str]) -> Iterator[Any]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal(arguments, folder, environment))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def events(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.contract("DEF-8")
def test_the_demo_story_mends_the_sample_repository(run: Run, tmp_path: Path) -> None:
    result = run("run", "--demo")
    assert result.returncode == 0, result.stderr
    assert "All tests pass now" in result.stdout
    assert "max(price - discount, 0)" in result.stderr  # the diff, as progress
    folder = next((tmp_path / "scratch").glob("polyhost-demo-*"))
    assert "max(price - discount, 0)" in (folder / "shop/prices.py").read_text()


def test_a_pipe_gets_the_final_text_only(run: Run) -> None:
    result = run.demo("say hello world")
    assert (result.returncode, result.stdout) == (0, "hello world\n")
    assert "tokens:" in result.stderr


def test_the_prompt_can_come_from_stdin(run: Run) -> None:
    assert run("run", "--model", "demo/demo", "-", input="say from a pipe").stdout == "from a pipe\n"
    assert run("run", "--model", "demo/demo", input="say from a pipe").stdout == "from a pipe\n"
    empty = run("run", "--model", "demo/demo", "-", input="  \n")
    assert empty.returncode == 2
    assert "prompt is empty" in empty.stderr


def test_json_lines_are_the_log(run: Run) -> None:
    lines = events(run.demo("say one two", "--json"))
    assert lines[0]["type"] == "run/start"
    assert lines[0]["schema"] == 1
    assert lines[-1]["type"] == "run/result"
    assert lines[-1]["reason"] == {"kind": "completed"}
    logged = lines[1:-1]
    assert [event["seq"] for event in logged] == list(range(len(logged)))
    stored = run("sessions", "show", lines[0]["sessionId"], "--json")
    assert events(stored)[1:] == logged


def test_without_an_answerer_a_command_is_refused_and_says_so(run: Run, folder: Path) -> None:
    result = run.demo("run touch made")
    assert "no approval channel is available" in result.stdout
    assert not (folder / "made").exists()
    assert run.demo("run touch made", "--approve", "deny").returncode == 0
    assert not (folder / "made").exists()
    assert run.demo("run touch made", "--approve", "auto").returncode == 0
    assert (folder / "made").exists()


def test_modes_decide(run: Run, folder: Path) -> None:
    assert run.demo("write a.txt hello", "--mode", "workspace").returncode == 0
    assert (folder / "a.txt").read_text() == "hello\n"
    run.demo("write b.txt hello", "--mode", "read-only", "--approve", "auto")
    assert not (folder / "b.txt").exists()
    run.demo("run touch c.txt", "--mode", "full")
    assert (folder / "c.txt").exists()


def test_sessions_go_on_and_are_listed(run: Run, folder: Path) -> None:
    first = events(run.demo("say one", "--json"))[0]["sessionId"]
    again = events(run("run", "--continue", "--json", "say two"))
    assert (again[0]["sessionId"], again[0]["resumed"], again[-1]["turn"]) == (first, True, 2)
    by_prefix = events(run("run", "--session", first[:8], "--json", "say three"))
    assert by_prefix[-1]["turn"] == 3
    listed = json.loads(run("sessions", "list", "--json").stdout)
    assert [row["id"] for row in listed] == [first]
    assert listed[0]["cwd"] == str(folder)
    shown = run("sessions", "show", first).stdout
    assert shown.index("> say one") < shown.index("> say three")
    assert Path(run("sessions", "path", first).stdout.strip()).exists()
    missing = run("sessions", "show", "nope")
    assert missing.returncode == 2
    assert "hostctl sessions list" in missing.stderr


@pytest.mark.parametrize(("option", "words"), [("--max-steps", "1 step"), ("--token-budget", "its limit is 1")])
def test_a_limit_ends_the_turn(run: Run, folder: Path, option: str, words: str) -> None:
    (folder / "a.txt").write_text("x\n")
    lines = events(run.demo("read a.txt", "--json", option, "1"))
    assert lines[-1]["reason"]["kind"] == "aborted"
    assert words in lines[-1]["reason"]["reason"]["reason"]
    assert [event["type"] for event in lines].count("step/start") == 1


def test_a_timeout_cancels_the_turn_and_its_command(run: Run) -> None:
    started = time.monotonic()
    result = run.demo("run sleep 30", "--approve", "auto", "--timeout", "0.5", "--json")
    assert result.returncode == 1
    assert events(result)[-1]["reason"]["kind"] == "aborted"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "say x"), 2, ("model", "--demo")),
        (("run", "--model", "nope", "say x"), 2, ("provider/model",)),
        (("run", "--model", "nope/x", "say x"), 1, ("nope", "demo")),
        (("run", "--model", "demo/other", "say x"), 1, ("demo/demo",)),
        (("run", "--model", "deepseek-official/deepseek-v4-flash", "say x"), 1, ("hostctl auth set DEEPSEEK_API_KEY",)),
        (("run", "--cwd", "/does/not/exist", "say x"), 2, ("/does/not/exist",)),
        (("run", "--continue", "say x"), 2, ("no session", "--continue")),
        (("run", "--session", "a", "--continue", "x"), 2, ("--session",)),
        (("run", "--demo", "--model", "a/b", "x"), 2, ("--demo",)),
        (("models", "test", "nope/x"), 1, ("nope",)),
    ],
)
def test_each_wrong_use_is_one_message_and_an_exit_code(
    arguments: tuple[str, ...], code: int, words: tuple[str, ...], run: Run
) -> None:
    result = run(*arguments)
    assert result.returncode == code, result.stderr
    for word in words:
        assert word in result.stderr


@pytest.mark.case("CASE-15")
def test_an_unreachable_endpoint_is_named(run: Run, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[plugins.models.providers.local]\nbase_url = "http://127.0.0.1:9/v1"\n')
    result = run("run", "--model", "local/any", "say x")
    assert result.returncode == 1
    assert "127.0.0.1:9" in result.stderr
    assert "trying again" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_home_without_permission_is_named(run: Run, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    result = run.demo("say x", POLYHOST_HOME=str(locked / "home"))
    assert result.returncode != 0
    assert str(locked) in result.stderr


@pytest.mark.case("CASE-10")
def test_a_session_that_another_process_holds_is_refused_with_its_holder(run: Run, terminal: Any) -> None:
    holder = terminal("run", "--model", "demo/demo")
    holder.expect("> ")
    holder.type("say mine\n")
    holder.expect("tokens:")
    session = json.loads(run("sessions", "list", "--json").stdout)[0]["id"]
    refused = run("run", "--session", session, "--model", "demo/demo", "say theirs")
    assert refused.returncode == 1
    assert str(holder.process.pid) in refused.stderr
    assert "> say mine" in run("sessions", "show", session).stdout
    holder.type("/exit\n")
    assert holder.end() == 0
    assert run("run", "--session", session, "say theirs").stdout == "theirs\n"


def test_approval_at_the_terminal_shows_the_exact_arguments(terminal: Any, folder: Path) -> None:
    screen = terminal("run", "--model", "demo/demo", "run touch made && echo done")
    shown = screen.expect(r"Allow\?.*: ")
    assert "command: touch made && echo done" in shown
    screen.type("what\n")
    screen.expect(r"Allow\?.*: ")
    assert not (folder / "made").exists()
    screen.type("y\n")
    screen.expect("ended well")
    assert screen.end() == 0
    assert (folder / "made").exists()


def test_always_is_remembered_for_the_session(terminal: Any, folder: Path) -> None:
    screen = terminal("run", "--model", "demo/demo")
    screen.expect("> ")
    screen.type("run touch one\n")
    screen.expect(r"Allow\?.*: ")
    screen.type("a\n")
    screen.expect("tokens:")
    screen.type("run touch two\n")
    seen = screen.expect("tokens:")
    assert "Allow?" not in seen
    assert (folder / "two").exists()
    screen.type("/mode\n")
    screen.expect("ask")
    screen.type("\x04")
    assert screen.end() == 0


def test_a_question_is_asked_and_answered(terminal: Any) -> None:
    screen = terminal("run", "--model", "demo/demo", "ask Tabs or spaces?")
    screen.expect("Tabs or spaces")
    screen.expect("Your answer.*: ")
    screen.type("tabs\n")
    screen.expect("You answered: tabs")
    assert screen.end() == 0


def test_ctrl_c_cancels_the_turn_and_leaves_the_session_usable(terminal: Any) -> None:
    screen = terminal("run", "--model", "demo/demo", "--approve", "auto")
    screen.expect("> ")
    screen.type("run sleep 60\n")
    screen.expect("bash")
    screen.process.send_signal(signal.SIGINT)
    screen.expect(r"turn ended: cancelled by you")
    screen.type("say alive\n")
    screen.expect("alive")
    screen.type("/exit\n")
    assert screen.end() == 0


def test_ctrl_c_exits_130_from_a_single_prompt(terminal: Any) -> None:
    screen = terminal("run", "--model", "demo/demo", "--approve", "auto", "run sleep 60")
    screen.expect("bash")
    screen.process.send_signal(signal.SIGINT)
    assert screen.end() == 130


@pytest.mark.case("CASE-02", "CASE-05")
def test_sigterm_ends_tools_and_keeps_the_log(terminal: Any, run: Run, folder: Path) -> None:
    screen = terminal("run", "--model", "demo/demo", "--approve", "auto", "run echo $$ > pid; sleep 60")
    deadline = time.monotonic() + 30
    while not ((folder / "pid").exists() and (folder / "pid").read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = int((folder / "pid").read_text())
    screen.process.terminate()
    assert screen.end() == 130
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    session = json.loads(run("sessions", "list", "--json").stdout)[0]["id"]
    logged = events(run("sessions", "show", session, "--json"))
    assert logged[-1]["data"]["reason"] == {"kind": "aborted", "reason": {"kind": "disposed"}}


def test_sigterm_ends_the_json_stream_whole(folder: Path, environment: dict[str, str]) -> None:
    arguments = [HOSTCTL, "run", "--model", "demo/demo", "--approve", "auto", "--json", "run touch begun; sleep 60"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
        deadline = time.monotonic() + 30
        while not (folder / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        output, _ = process.communicate(timeout=30)
    lines = [json.loads(line) for line in output.splitlines()]
    assert process.returncode == 130
    assert [line["type"] for line in lines[-3:]] == ["step/end", "turn/end", "run/result"]
    assert lines[-1]["reason"] == {"kind": "aborted", "reason": {"kind": "disposed"}}


class JsonRun:
    """``hostctl run --json`` with its lines read one by one."""

    def __init__(self, prompt: str, folder: Path, environment: dict[str, str]) -> None:
        arguments = [HOSTCTL, "run", "--model", "demo/demo", "--approve", "auto", "--json", prompt]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=folder, env=environment
        )
        self.lines: list[dict[str, Any]] = []

    def until(self, type: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.lines.append(json.loads(line))
            if self.lines[-1]["type"] == type:
                return self.lines[-1]
        raise AssertionError(f"no {type} in {self.lines}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def json_run(folder: Path, environment: dict[str, str]) -> Iterator[Any]:
    opened: list[JsonRun] = []

    def start(prompt: str) -> JsonRun:
        opened.append(JsonRun(prompt, folder, environment))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize("last", ["agent/inbox/spliced", "tool/result", "turn/end", "run/result"])
def test_what_was_printed_survives_kill_9(last: str, json_run: Any, run: Run) -> None:
    victim = json_run("run echo hi")
    victim.until(last)
    victim.process.kill()
    victim.process.wait()
    session = victim.lines[0]["sessionId"]
    stored = events(run("sessions", "show", session, "--json"))[1:]
    printed = [line for line in victim.lines if "seq" in line]
    assert stored[: len(printed)] == printed


def test_json_lines_are_live(json_run: Any, folder: Path) -> None:
    waiting = json_run("run while [ ! -e go ]; do sleep 0.05; done")
    assert waiting.until("tool/call")["data"]["name"] == "bash"
    (folder / "go").touch()
    assert waiting.until("run/result")["reason"] == {"kind": "completed"}


def test_a_reader_that_leaves_cancels_the_turn(json_run: Any, folder: Path) -> None:
    abandoned = json_run("run while [ ! -e go ]; do echo x; sleep 0.05; done; touch late")
    abandoned.until("tool/call")
    abandoned.process.stdout.close()
    abandoned.process.send_signal(signal.SIGINT)
    assert abandoned.process.wait(timeout=30) == 130
    (folder / "go").touch()
    assert not (folder / "late").exists()


@pytest.mark.case("CASE-18")
def test_what_a_plugin_prints_does_not_mix_with_the_lines(run: Run, tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "noisy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[polyhost]\nnoisy = noisy\n")
    (site / "noisy.py").write_text(
        "from polyhost import PluginInfo, hookimpl\n"
        "from polyhost.interfaces import SESSION_EVENT\n"
        "@hookimpl\ndef polyhost_plugin():\n    return PluginInfo(name='noisy')\n"
        "@hookimpl\nasync def polyhost_start(ctx, config):\n"
        "    ctx.on(SESSION_EVENT, lambda session, event: print('noise', event.seq))\n"
    )
    result = run.demo("say x", "--json", PYTHONPATH=str(site))
    assert events(result)[-1]["type"] == "run/result"
    assert "noise" in result.stderr


def test_a_full_disk_is_a_failure(run: Run, tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk: appends fail in the middle of the turn."""
    script = f"ulimit -f 16; exec {HOSTCTL} run --model demo/demo --approve auto 'count 60000'"
    result = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        env=run.environment,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "cannot be written" in result.stderr


def test_files_go_along_with_the_prompt(run: Run, folder: Path) -> None:
    (folder / "note.txt").write_text("the note")
    sent = events(run.demo("say got it", "--json", "--attach", "note.txt"))
    prompts = [line["data"] for line in sent if line["type"] == "user/message"]
    (message,) = [message for message in prompts if message["source"] == {"kind": "user"}]
    assert message["content"][0] == {"type": "text", "text": "say got it"}
    assert "the note" in message["content"][1]["text"]
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    refused = run.demo("say x", "--attach", "picture.png")
    assert refused.returncode == 1
    assert "picture.png" in refused.stderr
    assert run.demo("say x", "--attach", "missing.png").returncode == 2
