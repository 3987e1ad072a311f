"""Signals: heard at any time, by a host that a plugin blocks too, and never against who ignores them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MakePlugin = Callable[..., Path]
HOSTCTL = Path(sys.executable).parent / "hostctl"
RUN = ("run", "--model", "demo/demo", "--approve", "auto")
Start = Callable[..., "subprocess.Popen[str]"]

HEAD = """
import asyncio, os, sys, time
from polyhost import PluginInfo, hookimpl

def block():
    print("blocked", file=sys.stderr, flush=True)
    time.sleep(600)

@hookimpl
def polyhost_plugin():
    return PluginInfo(name="acme", api_version=1)
"""


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Iterator[Start]:
    """``start(*arguments, plugins=None, code=None)``; ``code`` is run in the place of ``hostctl``."""
    processes: list[subprocess.Popen[str]] = []

    def run(*arguments: str, plugins: Path | None = None, code: str | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments] if code else [HOSTCTL, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**environment, **({"PYTHONPATH": str(plugins)} if plugins else {})},
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stderr is not None
    for found in process.stderr:
        if found.rstrip("\n") == line:
            return
    raise AssertionError(f"it ended without saying {line!r}")


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return path.read_text()


def signal_until_it_ends(process: subprocess.Popen[str], number: int) -> int:
    """Send a signal each half second, as an impatient person does; returns how many it took."""
    for sent in range(1, 10):
        process.send_signal(number)
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        return sent
    raise AssertionError("it does not end")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "source",
    [
        "@hookimpl\ndef polyhost_start(ctx, config):\n    block()",
        "@hookimpl\nasync def polyhost_start(ctx, config):\n    yield\n    block()",
    ],
    ids=["start", "teardown"],
)
def test_the_second_signal_ends_a_host_that_is_blocked(
    source: str, number: int, start: Start, plugin: MakePlugin
) -> None:
    process = start(*RUN, "say hi", plugins=plugin("acme", HEAD + source))
    read_until(process, "blocked")
    assert signal_until_it_ends(process, number) == 2
    assert process.returncode == 130
    assert process.communicate()[1] == ""


def test_a_blocked_host_that_is_ended_leaves_no_child(start: Start, plugin: MakePlugin, folder: Path) -> None:
    source = """
async def work():
    while not os.path.exists("pid"):
        await asyncio.sleep(0.01)
    block()

@hookimpl
def polyhost_start(ctx, config):
    ctx.spawn(work(), name="work")
"""
    process = start(*RUN, "run trap '' TERM; echo $$ > pid; sleep 600", plugins=plugin("acme", HEAD + source))
    read_until(process, "blocked")
    pid = int(wait_for(folder / "pid"))
    assert signal_until_it_ends(process, signal.SIGTERM) == 2
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_signal_ends_a_blocked_host_in_the_end(start: Start, plugin: MakePlugin) -> None:
    code = """
import sys
from polyhost.cli import main, running
running.ORDERLY_END = 0.5
sys.exit(main(sys.argv[1:]))
"""
    source = "@hookimpl\ndef polyhost_start(ctx, config):\n    block()"
    process = start(*RUN, "say hi", plugins=plugin("acme", HEAD + source), code=code)
    read_until(process, "blocked")
    process.terminate()
    assert process.wait(timeout=30) == 130


def test_a_signal_that_comes_twice_at_once_is_one(start: Start, folder: Path) -> None:
    process = start(*RUN, "run echo $$ > pid; sleep 600")
    wait_for(folder / "pid")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=30) == 130
    assert "turn ended" in process.communicate()[1]  # an orderly end tells what became of the turn


def test_a_repeated_signal_does_not_disturb_the_end_of_the_command(start: Start) -> None:
    code = """
import asyncio, os, signal
from polyhost.cli.running import CommandLoop

async def work():
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await asyncio.Event().wait()
    finally:
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(10):
            await asyncio.sleep(0)
        print("tidied")

async def close():
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0)
    print("closed")

try:
    CommandLoop().run(work(), close)
except asyncio.CancelledError:
    print("cancelled")
"""
    assert start(code=code).communicate(timeout=30) == ("tidied\nclosed\ncancelled\n", "")


def test_an_ignored_signal_stays_ignored(start: Start, folder: Path) -> None:
    code = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from polyhost.cli import main
sys.exit(main(sys.argv[1:]))
"""
    process = start(*RUN, "run echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done", code=code)
    wait_for(folder / "pid")
    process.send_signal(signal.SIGHUP)
    (folder / "go").touch()
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, "It ran, and ended well.\n")


@pytest.mark.parametrize("module", ["polyhost.cli.app", "polyhost.cli.state", "polyhost_terminal.conversation"])
def test_an_interrupt_while_modules_load_is_quiet(start: Start, module: str) -> None:
    code = f"""
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            print("loading", file=sys.stderr)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from polyhost.cli import main
sys.exit(main(sys.argv[1:]))
"""
    process = start(*RUN, "say hi", code=code)
    assert process.communicate(timeout=30) == ("", "loading\n")
    assert process.returncode == 130
