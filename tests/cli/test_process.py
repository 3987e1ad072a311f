"""The process around a command: streams that are missing or refuse, deleted folders, and what nobody should see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhost.cli import app

Hostctl = Callable[..., "subprocess.CompletedProcess[str]"]
MakePlugin = Callable[..., Path]
HOSTCTL = Path(sys.executable).parent / "hostctl"
SAY = ("run", "--model", "demo/demo", "say hi")

HEAD = """
import asyncio, logging, sys, threading, time
from polyhost import PluginInfo, hookimpl

@hookimpl
def polyhost_plugin():
    return PluginInfo(name="acme", api_version=1)
"""


@pytest.fixture
def shell(folder: Path, environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``shell(script, *arguments)``: ``"$@"`` in the script is ``hostctl`` with the arguments."""

    def run(script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script, "sh", str(HOSTCTL), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**environment, **variables},
            timeout=60,
            check=False,
        )

    return run


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_as_good_as_empty_ones(shell: Hostctl, closed: str) -> None:
    result = shell(f'"$@" {closed}', *SAY)
    assert result.returncode == 0
    assert result.stdout == ("" if "1>" in closed else "hi\n")
    assert shell(f'"$@" {closed}', "frobnicate").returncode == 2


def test_text_that_the_locale_cannot_show_is_escaped(shell: Hostctl) -> None:
    result = shell('"$@"', "run", "--model", "demo/demo", "say grüße", PYTHONIOENCODING="ascii:strict")
    assert (result.returncode, result.stdout) == (0, "gr\\xfc\\xdfe\n")


@pytest.mark.parametrize("arguments", [("--help",), ("plugins", "list"), SAY])
def test_an_output_that_cannot_be_written_is_told_once(shell: Hostctl, arguments: tuple[str, ...]) -> None:
    result = shell('"$@" > /dev/full', *arguments)
    assert result.returncode == 1
    assert result.stderr.count("No space left on device") == 1
    assert "Exception" not in result.stderr
    assert shell('"$@" > /dev/full 2>&1', *arguments).returncode == 1
    assert shell('"$@" 2> /dev/full', "frobnicate").returncode == 2


def test_a_deleted_folder_matters_only_where_one_is_needed(shell: Hostctl, tmp_path: Path) -> None:
    leave = 'mkdir gone; cd gone; rmdir ../gone; "$@"'
    assert shell(leave, "--help").returncode == 0
    assert shell(leave, "plugins", "list").returncode == 0
    elsewhere = shell(leave, "run", "--cwd", str(tmp_path), *SAY[1:])
    assert (elsewhere.returncode, elsewhere.stdout) == (0, "hi\n")
    for arguments in (SAY, ("--config", "x.toml", *SAY)):
        result = shell(leave, *arguments)
        assert result.returncode == 2
        assert "the current folder cannot be used" in result.stderr
        assert "--cwd" in result.stderr


@pytest.mark.parametrize(
    "arguments", [("x\x1b[31my",), ("--disable-plugin", "x\x1b[31my", *SAY), ("run", "--x\x1b[31my"), ("--x\x1b[31my",)]
)
def test_arguments_in_messages_do_not_drive_the_terminal(hostctl: Hostctl, arguments: tuple[str, ...]) -> None:
    result = hostctl(*arguments)
    assert result.returncode == 2
    assert "x\\x1b[31my" in result.stderr
    assert "\x1b" not in result.stderr


def test_an_unexpected_error_before_there_is_a_log_is_one_line(environment: dict[str, str], folder: Path) -> None:
    code = (
        "import sys\nfrom polyhost.cli import main\nfrom polyhost.cli.app import hostctl\n"
        "hostctl.main = lambda *a, **k: {}['missing']\nsys.exit(main(['--help']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=folder, check=False
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "unexpected error: KeyError: 'missing'. It happened in <string>, line 4." in result.stderr


@pytest.mark.parametrize(
    ("raised", "code", "message"), [("3", 3, ""), ("None", 0, ""), ("'sorry'", 1, "hostctl: sorry\n")]
)
def test_a_command_may_exit(
    raised: str, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app.hostctl, "main", lambda *args, **kwargs: sys.exit(eval(raised)))
    assert app.run([]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("flags", [("--no-plugins",), ("--disable-plugin", "acme")])
def test_what_was_asked_for_is_no_warning(hostctl: Hostctl, plugin: MakePlugin, flags: tuple[str, ...]) -> None:
    site = plugin("acme", "raise RuntimeError('broken')")
    assert "broken" in hostctl(*SAY, plugins=site).stderr
    result = hostctl(*flags, *SAY, plugins=site)
    assert result.returncode == 0
    assert "warning" not in result.stderr
    assert "acme" not in result.stderr


def test_a_log_that_cannot_be_written_is_told_once(hostctl: Hostctl, home: Path) -> None:
    (home / "logs").mkdir(parents=True)
    (home / "logs" / "polyhost.log").symlink_to("/dev/full")
    result = hostctl("--set", 'host.log_level="debug"', *SAY)
    assert (result.returncode, result.stdout) == (0, "hi\n")
    assert result.stderr.count("cannot be written: No space left on device") == 1
    assert "Logging error" not in result.stderr


def test_a_plugin_that_logs_badly_is_not_printed_about(hostctl: Hostctl, plugin: MakePlugin, home: Path) -> None:
    source = """
@hookimpl
def polyhost_start(ctx, config):
    logging.getLogger("polyhost.acme").error("%d", "no number")
    logging.getLogger("polyhost.acme").error("half a \\ud800 pair")
    other = logging.getLogger("acme")
    other.addHandler(logging.StreamHandler())
    other.error("%d", "no number")
"""
    result = hostctl(*SAY, plugins=plugin("acme", HEAD + source))
    assert (result.returncode, result.stdout) == (0, "hi\n")
    assert "Logging error" not in result.stderr
    assert "half a \\ud800 pair" in (home / "logs" / "polyhost.log").read_text()


class TestPluginsThatMisbehaveWhileTheyRun:
    WORK = ("run", "--model", "demo/demo", "--approve", "auto", "run while [ ! -e go ]; do sleep 0.02; done")

    def run(self, hostctl: Hostctl, plugin: MakePlugin, folder: Path, source: str) -> str:
        """Run until the plugin has made the file ``go``; returns stderr."""
        result = hostctl(*self.WORK, plugins=plugin("acme", HEAD + source))
        assert result.returncode == 0
        assert "It ran, and ended well." in result.stdout
        return result.stderr

    def test_a_crashed_task_is_told(self, hostctl: Hostctl, plugin: MakePlugin, folder: Path) -> None:
        source = """
async def tick():
    await asyncio.sleep(0.2)
    open("go", "w")
    raise ValueError("bo\\x1bom")

@hookimpl
def polyhost_start(ctx, config):
    ctx.spawn(tick(), name="ticker")
"""
        told = self.run(hostctl, plugin, folder, source)
        assert told.count("plugin acme: its background task 'ticker' crashed: ValueError: bo\\x1bom\n") == 1
        assert "has failed" not in told

    def test_exits_anywhere_are_failures_of_the_plugin(
        self, hostctl: Hostctl, plugin: MakePlugin, folder: Path, home: Path
    ) -> None:
        source = """
async def tick():
    await asyncio.sleep(0.2)
    open("go", "w")
    sys.exit(7)

async def alone():
    sys.exit(8)

@hookimpl
async def polyhost_start(ctx, config):
    ctx.spawn(tick(), name="ticker")
    asyncio.create_task(alone())
    asyncio.get_running_loop().call_later(0.1, sys.exit, 9)
    yield
    sys.exit(10)
"""
        told = self.run(hostctl, plugin, folder, source)
        assert "plugin acme: its background task 'ticker' crashed: EscapedError: SystemExit was raised: 7" in told
        assert "a plugin raised SystemExit(8) in a task of its own; the host goes on" in told
        assert "a plugin raised SystemExit(9)" in told
        assert "SystemExit was raised: 10" in (home / "logs" / "polyhost.log").read_text()

    def test_what_nobody_awaited_is_told_in_one_line(
        self, hostctl: Hostctl, plugin: MakePlugin, folder: Path, home: Path
    ) -> None:
        source = """
async def alone():
    open("go", "w")
    raise ValueError("boom")

@hookimpl
def polyhost_start(ctx, config):
    asyncio.get_running_loop().create_task(alone(), name="loner")
"""
        told = self.run(hostctl, plugin, folder, source)
        assert "Task exception was never retrieved (loner): ValueError: boom\n" in told
        assert "Traceback" in (home / "logs" / "polyhost.log").read_text()


IMPATIENT = """
import sys
from polyhost.cli import main, process, running
process.THREAD_PATIENCE = running.LEFTOVER_GRACE = 0.2
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("    threading.Thread(target=time.sleep, args=(600,), name='stuck').start()", "stuck"),
        ("    asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)", "asyncio_0"),
        ("    ctx.kernel.kept = asyncio.create_task(deaf(), name='deaf')", "deaf"),
    ],
)
def test_what_a_plugin_leaves_running_does_not_keep_the_process(
    source: str, name: str, plugin: MakePlugin, environment: dict[str, str], folder: Path
) -> None:
    deaf = """
async def deaf():
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass

@hookimpl
def polyhost_start(ctx, config):
"""
    site = plugin("acme", HEAD + deaf + source)
    result = subprocess.run(
        [sys.executable, "-c", IMPATIENT, *SAY],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(site)},
        cwd=folder,
        timeout=30,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "hi\n")
    assert result.stderr.endswith(f"end: {name}\n")
