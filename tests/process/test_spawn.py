"""Starting real children: what they get, what comes back, and how failures to start show."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polyhost.kernel.signals import AbortController
from polyhost.process import (
    AbortedBeforeSpawnError,
    Collect,
    ExitStatus,
    ProcessSupervisor,
    SpawnError,
    SupervisorClosedError,
    UnsupportedPlatformError,
)

MIB = 1024 * 1024


def content(path: str) -> bytes | None:
    return Path(path).read_bytes() if Path(path).exists() else None


@pytest.fixture
def open_stdin() -> Iterator[None]:
    """The host's own standard input is a pipe that never ends."""
    saved, (read_end, write_end) = os.dup(0), os.pipe()
    os.dup2(read_end, 0)
    yield
    os.dup2(saved, 0)
    for descriptor in (saved, read_end, write_end):
        os.close(descriptor)


@pytest.mark.contract("PROC-4")
async def test_arguments_reach_the_program_verbatim(python) -> None:
    handle = await python("import sys; print(sys.argv[1:])", stdout=Collect(1000))
    await handle.done
    assert handle.collected.stdout.read_from().text == "[]\n"


@pytest.mark.contract("PROC-4")
async def test_no_shell_interprets_arguments(spawn) -> None:
    handle = await spawn("printf", "%s|", "$HOME", "a b", "*", ";exit 3", stdout=Collect(1000))
    assert await handle.done == ExitStatus(0, None)
    assert handle.collected.stdout.read_from().text == "$HOME|a b|*|;exit 3|"


@pytest.mark.contract("PROC-5")
async def test_a_signal_aborted_before_starts_nothing(supervisor, spawn, monkeypatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr("subprocess.Popen", forbidden)
    controller = AbortController()
    controller.abort("user cancelled")
    with pytest.raises(AbortedBeforeSpawnError, match=r"^aborted before spawn: user cancelled$") as caught:
        await spawn("true", signal=controller.signal)
    assert caught.value.cause == "user cancelled"
    assert supervisor.live == ()


@pytest.mark.contract("PROC-5")
async def test_a_signal_aborted_while_the_pipes_open_starts_nothing(supervisor, spawn) -> None:
    controller = AbortController()
    asyncio.get_running_loop().call_soon(controller.abort, "late")
    with pytest.raises(AbortedBeforeSpawnError):
        await spawn("sleep", "1000", stdin="pipe", signal=controller.signal)
    assert supervisor.live == ()


async def test_a_cancelled_spawn_leaves_nothing(supervisor, spawn) -> None:
    task = asyncio.create_task(spawn("sleep", "1000", stdin="pipe", stderr=Collect(10)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert supervisor.live == ()


async def test_a_platform_without_process_groups_starts_nothing(supervisor, make_spec, monkeypatch) -> None:
    spec = make_spec("true")
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        starting = supervisor.spawn(spec)
        with pytest.raises(UnsupportedPlatformError):
            await starting
    assert supervisor.live == ()


@pytest.mark.contract("PROC-6")
@pytest.mark.parametrize(
    ("script", "status", "name"),
    [
        ("exit 0", ExitStatus(0, None), None),
        ("exit 143", ExitStatus(143, None), None),
        ("kill -TERM $$", ExitStatus(None, signal.SIGTERM), "SIGTERM"),
        ("kill -KILL $$", ExitStatus(None, signal.SIGKILL), "SIGKILL"),
        ("kill -40 $$", ExitStatus(None, 40), "40"),
    ],
)
async def test_the_exit_is_reported_as_it_was(spawn, script: str, status: ExitStatus, name: str | None) -> None:
    handle = await spawn("bash", "-c", script)
    assert await handle.done == status
    assert handle.exit_status == status
    assert status.signal_name == name


@pytest.mark.contract("PROC-7")
@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["true"], "/no/such/directory", r"'true': the working directory /no/such/directory is not"),
        (["true"], "/dev/null", r"the working directory /dev/null is not"),
        (["/no/such/program"], "/", r"'/no/such/program': No such file"),
        (["/etc/passwd"], "/", r"'/etc/passwd': Permission denied"),
    ],
)
async def test_a_failed_start_shows_in_the_handle(supervisor, spawn, argv, cwd, message) -> None:
    handle = await spawn(argv=argv, cwd=cwd, stdin="pipe", stdout=Collect(100), stderr="pipe")
    assert handle.pid == -1
    assert await handle.wait_for_exit()
    handle.terminate()
    await handle.dispose()
    assert handle.kill_now()
    for _ in range(2):
        with pytest.raises(SpawnError, match=message) as caught:
            await handle.done
        assert caught.value.code == "SPAWN_FAILED"
    assert supervisor.live == ()


async def test_no_descriptors_left_is_a_failed_start(spawn, monkeypatch) -> None:
    def exhausted() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.pipe", exhausted)
    handle = await spawn("true")
    with pytest.raises(SpawnError, match="Too many open files"):
        await handle.done


async def test_cancelling_one_waiter_leaves_the_result_to_the_others(spawn) -> None:
    handle = await spawn("cat", stdin="pipe")

    async def wait() -> ExitStatus:
        return await handle.done

    first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
    await asyncio.sleep(0)
    first.cancel()
    handle.close_stdin()
    assert await second == ExitStatus(0, None)


@pytest.mark.contract("PROC-16")
async def test_batch_input_is_written_and_closed(spawn) -> None:
    data = os.urandom(300_000)
    handle = await spawn("cat", stdin=data, stdout=Collect(MIB))
    assert await handle.done == ExitStatus(0, None)
    assert handle.stdin is None
    assert handle.collected.stdout.read_from().data == data


@pytest.mark.contract("PROC-16")
@pytest.mark.usefixtures("open_stdin")
async def test_no_input_is_the_null_device(spawn) -> None:
    handle = await spawn("readlink", "/proc/self/fd/0", stdout=Collect(100))
    await handle.done
    assert handle.collected.stdout.read_from().text == "/dev/null\n"


@pytest.mark.contract("PROC-16")
async def test_input_that_nobody_reads_is_harmless(supervisor, spawn) -> None:
    handle = await spawn("true", stdin=b"x" * (8 * MIB), stdout=Collect(100))
    assert await handle.done == ExitStatus(0, None)
    assert await handle.wait_for_exit()
    await handle.close_streams()
    assert supervisor.live == ()


@pytest.mark.contract("PROC-17")
async def test_pipes_are_raw_and_the_callers(python) -> None:
    source = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data[::-1]); sys.stderr.write('e')"
    handle = await python(source, stdin="pipe", stdout="pipe", stderr="pipe")
    assert handle.collected == (None, None)
    handle.stdin.write(b"\x00\xff\n")
    handle.close_stdin()
    handle.close_stdin()
    assert await handle.done == ExitStatus(0, None)
    assert await handle.wait_for_exit()
    assert await handle.stdout.read() == b"\n\xff\x00"  # still there after the exit
    assert await handle.stderr.read() == b"e"


@pytest.mark.contract("PROC-17")
async def test_inherited_streams_are_the_hosts_and_expose_nothing(spawn) -> None:
    handle = await spawn("cat", stdin="pipe", stdout="inherit", stderr="inherit")
    assert (handle.stdout, handle.stderr, handle.collected) == (None, None, (None, None))
    for number in (1, 2):
        assert os.readlink(f"/proc/{handle.pid}/fd/{number}") == os.readlink(f"/proc/self/fd/{number}")


@pytest.mark.contract("PROC-17", "DEF-6")
async def test_collected_output_is_a_tail_with_the_whole_in_a_file(supervisor, spawn) -> None:
    handle = await spawn("seq", "100000", stdout=Collect(64_000, spill_bytes=64 * MIB), stderr=Collect(10))
    assert (handle.stdout, handle.stderr) == (None, None)
    await handle.done
    whole = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
    read = handle.collected.stdout.read_from()
    assert read.data == whole[-64_000:]
    assert read.lossy
    assert read.next_offset == len(whole)
    assert content(read.spill_path) == whole
    await supervisor.aclose()
    assert content(read.spill_path) is None


async def test_collected_output_can_be_followed_while_it_comes(spawn, eventually) -> None:
    handle = await spawn("cat", stdin="pipe", stdout=Collect(100))
    handle.stdin.write(b"first")
    await eventually(lambda: handle.collected.stdout.total_bytes == 5)
    read = handle.collected.stdout.read_from()
    handle.stdin.write(b"second")
    await eventually(lambda: handle.collected.stdout.total_bytes == 11)
    assert handle.collected.stdout.read_from(read.next_offset).data == b"second"


@pytest.mark.case("CASE-01")
@pytest.mark.parametrize("size", [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, MIB, 8 * MIB])
async def test_a_long_line_on_stderr_never_blocks_the_child(python, size: int) -> None:
    source = (
        f"import sys; sys.stderr.write('x' * {size}); sys.stderr.flush(); print('past it'); sys.stderr.write('\\nend')"
    )
    handle = await python(source, stdout="pipe", stderr=Collect(8192))
    assert await handle.stdout.readline() == b"past it\n"
    assert await handle.done == ExitStatus(0, None)
    tail = handle.collected.stderr
    assert tail.total_bytes == size + 4
    assert len(tail.read_from().data) == 8192
    assert tail.lines(1) == ["end"]


@pytest.mark.case("CASE-01")
@pytest.mark.parametrize("size", [64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, MIB, 8 * MIB])
async def test_a_long_line_on_a_piped_output_is_read_whole(python, size: int) -> None:
    handle = await python(f"print('x' * {size - 1})", stdout="pipe")
    line = await handle.stdout.readline()
    assert len(line) == size
    assert line.endswith(b"x\n")


async def test_chunks_are_passed_on_and_a_broken_listener_stops_nothing(spawn) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    seen: list[bytes] = []

    def listen(data: bytes) -> None:
        seen.append(data)
        raise RuntimeError("broken")

    handle = await spawn("seq", "100000", stdout=Collect(100, on_data=listen))
    assert await handle.done == ExitStatus(0, None)
    assert len(seen) == 1
    assert seen[0].startswith(b"1\n2\n")
    assert [str(context["exception"]) for context in reported] == ["broken"]
    assert handle.collected.stdout.lines(1) == ["100000"]


async def test_nothing_starts_once_the_supervisor_closes(make_spec: Callable) -> None:
    supervisor = ProcessSupervisor()
    opening = asyncio.create_task(supervisor.spawn(make_spec("sleep", "1000", stdin="pipe")))
    await asyncio.sleep(0)  # it is attaching its pipes
    closing = asyncio.create_task(supervisor.aclose())
    with pytest.raises(SupervisorClosedError):
        await opening
    await closing
    with pytest.raises(SupervisorClosedError, match="'sleep'"):
        await supervisor.spawn(make_spec("sleep", "1000"))
