"""The one service of a host: what is live, how it closes, and that there is only one."""

from __future__ import annotations

import asyncio
import gc
import signal
import weakref

import pytest

from polyhost.process import (
    CleanupError,
    ExitStatus,
    ProcessSupervisor,
    SpawnError,
    SupervisorConflictError,
    TreeSurvivedError,
)
from polyhost.process import supervisor as supervisor_module


@pytest.mark.contract("PROC-21")
async def test_a_second_supervisor_is_refused_while_one_is_live() -> None:
    async with ProcessSupervisor():
        with pytest.raises(SupervisorConflictError) as caught:
            ProcessSupervisor()
        assert caught.value.code == "SUPERVISOR_CONFLICT"
    async with ProcessSupervisor():
        pass


@pytest.mark.contract("PROC-19")
async def test_closing_ends_every_live_tree_and_waits_for_it(make_spec, running) -> None:
    supervisor = ProcessSupervisor()
    trapping = await supervisor.spawn(make_spec("sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait", grace=0.1))
    leaderless = await supervisor.spawn(make_spec("sh", "-c", "sleep 1000 & echo $!; exit 0"))
    ended = await supervisor.spawn(make_spec("true"))
    failed = await supervisor.spawn(make_spec("/no/such/program"))
    survivors = [int(await handle.stdout.readline()) for handle in (trapping, leaderless)]
    await ended.wait_for_exit()
    await asyncio.gather(supervisor.aclose(), supervisor.aclose())
    assert [running(pid) for pid in survivors] == [False, False]
    assert supervisor.live == ()
    assert await trapping.done == ExitStatus(None, signal.SIGKILL)
    with pytest.raises(SpawnError):
        await failed.done


@pytest.mark.contract("PROC-19")
async def test_failures_are_collected_and_what_is_left_is_killed(make_spec, running, monkeypatch) -> None:
    supervisor = ProcessSupervisor()
    broken, stubborn, fine = [await supervisor.spawn(make_spec("sleep", "1000", grace=0.05)) for _ in range(3)]

    def fail() -> None:
        raise RuntimeError("cannot terminate")

    monkeypatch.setattr(supervisor_module, "KILL_PATIENCE", 0.05)
    monkeypatch.setattr(broken, "terminate", fail)
    monkeypatch.setattr(stubborn, "terminate", lambda: None)
    with pytest.raises(CleanupError) as caught:
        await supervisor.aclose()
    assert caught.value.code == "PROCESS_CLEANUP_FAILED"
    assert {type(failure) for failure in caught.value.failures} == {RuntimeError, TreeSurvivedError}
    assert f"pid {stubborn.pid}" in caught.value.message
    assert [running(handle.pid) for handle in (broken, stubborn, fine)] == [False] * 3
    assert supervisor.live == ()
    async with ProcessSupervisor():
        pass  # a failed close has still made room


async def test_closing_during_a_disposal_does_not_wait_for_the_end_of_file_grace(make_spec) -> None:
    supervisor = ProcessSupervisor()
    handle = await supervisor.spawn(make_spec("sleep", "1000", stdin="pipe"))
    disposal = asyncio.create_task(handle.dispose(eof_grace=1000))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await supervisor.aclose()
        await disposal


async def test_a_cancelled_close_goes_on(make_spec, eventually) -> None:
    supervisor = ProcessSupervisor()
    await supervisor.spawn(make_spec("sleep", "1000"))
    closing = asyncio.create_task(supervisor.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await supervisor.aclose()
    assert supervisor.live == ()


async def test_live_are_those_not_yet_gone_or_read(spawn, supervisor, eventually) -> None:
    handle = await spawn("cat", stdin="pipe")
    assert supervisor.live == (handle,)
    handle.close_stdin()
    await eventually(lambda: supervisor.live == ())


@pytest.mark.contract("PROC-20")
async def test_the_exit_hook_goes_with_the_supervisor() -> None:
    supervisor = ProcessSupervisor()
    kept = weakref.ref(supervisor)
    del supervisor
    gc.collect()
    held = kept()  # by the hook
    assert held is not None
    await held.aclose()
    del held
    gc.collect()
    assert kept() is None


async def test_the_first_child_of_a_host_sweeps_after_dead_hosts(make_spec, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "polyhost-spill-dead").mkdir(mode=0o700)
    (tmp_path / "polyhost-spill-dead" / "output").touch()
    async with ProcessSupervisor() as supervisor:
        await supervisor.spawn(make_spec("true"))
    assert list(tmp_path.iterdir()) == []
