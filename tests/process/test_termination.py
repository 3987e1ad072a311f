"""Ending trees of real processes: escalation, survivors, the proof, and the disposal ladder."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from polyhost.kernel.signals import AbortController
from polyhost.process import Collect, ExitStatus, table
from polyhost.process.lifetime import TreeLifetime

TERM_CATCHER = """
import os, signal, sys
def caught(*_):
    os.write(1, b"caught\\n")
    os._exit(5)
signal.signal(signal.SIGTERM, caught)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""

TERM_IGNORER = ["sh", "-c", "trap '' TERM; echo ready; exec sleep 1000"]


@pytest.fixture
def group_signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every signal that is sent to a process group from now on; they are really sent."""
    sent: list[int] = []
    real = os.killpg

    def record(group: int, number: int) -> None:
        sent.append(number)
        real(group, number)

    monkeypatch.setattr(os, "killpg", record)
    return sent


@pytest.fixture(params=["process table and pidfd", "process group and thread"])
def any_view(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The full view of a tree, and the one of systems that have neither ``/proc`` nor pidfds."""
    if request.param == "process group and thread":
        monkeypatch.setattr(table, "available", lambda: False)
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.contract("PROC-8")
@pytest.mark.usefixtures("any_view")
async def test_an_abort_sends_sigterm_to_the_group(python) -> None:
    controller = AbortController()
    handle = await python(TERM_CATCHER, signal=controller.signal)
    assert await handle.stdout.readline() == b"ready\n"
    controller.abort("enough")
    assert await handle.stdout.readline() == b"caught\n"
    assert await handle.done == ExitStatus(5, None)
    assert await handle.wait_for_exit()


@pytest.mark.contract("PROC-8", "PROC-10")
@pytest.mark.usefixtures("any_view")
async def test_grandchildren_die_with_the_group(spawn, running) -> None:
    handle = await spawn("sh", "-c", "sleep 1000 & echo $!; sleep 1000 & echo $!; wait")
    grandchildren = [int(await handle.stdout.readline()) for _ in range(2)]
    handle.terminate()
    assert await handle.wait_for_exit()
    assert [running(pid) for pid in (handle.pid, *grandchildren)] == [False] * 3
    assert await handle.done == ExitStatus(None, signal.SIGTERM)


@pytest.mark.contract("PROC-9")
@pytest.mark.usefixtures("any_view")
async def test_a_trapped_sigterm_is_followed_by_sigkill(spawn, group_signals) -> None:
    handle = await spawn(*TERM_IGNORER, grace=0.3)
    assert await handle.stdout.readline() == b"ready\n"
    started = time.monotonic()
    handle.terminate()
    assert not await handle.wait_for_exit(0.2)
    handle.terminate()  # must neither signal again nor start the grace anew
    assert await handle.wait_for_exit()
    assert time.monotonic() - started >= 0.3
    assert await handle.done == ExitStatus(None, signal.SIGKILL)
    assert [number for number in group_signals if number == signal.SIGTERM] == [signal.SIGTERM]


async def test_the_stop_signal_can_be_another_one(spawn) -> None:
    script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.01; done"
    handle = await spawn("sh", "-c", script, stop_signal=signal.SIGINT)
    assert await handle.stdout.readline() == b"ready\n"
    handle.terminate()
    assert await handle.stdout.readline() == b"interrupted\n"
    assert await handle.done == ExitStatus(5, None)


@pytest.mark.contract("PROC-11")
async def test_the_escalation_ends_with_the_group_while_a_pipe_is_still_open(spawn, group_signals) -> None:
    handle = await spawn("sleep", "1000", stdout=Collect(100), grace=0.2)
    stranger = os.open(f"/proc/{handle.pid}/fd/1", os.O_WRONLY)  # keeps the output open, and is not of the tree
    try:
        handle.terminate()
        assert await handle.wait_for_exit()
        assert not handle.done.done()
        await handle.done  # a grace after the exit, and so after the time of the SIGKILL
        assert group_signals == [signal.SIGTERM]
    finally:
        os.close(stranger)


@pytest.mark.contract("PROC-12")
async def test_a_tree_that_is_gone_is_left_alone(spawn, group_signals, monkeypatch) -> None:
    handle = await spawn("true")
    await handle.done
    assert await handle.wait_for_exit()
    monkeypatch.setattr(table, "read_table", lambda: pytest.fail("looked again"))
    monkeypatch.setattr(table, "read_row", lambda _: pytest.fail("looked again"))
    handle.terminate()
    assert handle.kill_now()
    assert await handle.wait_for_exit()
    await handle.dispose()
    assert group_signals == []


@pytest.mark.contract("PROC-13")
async def test_a_tree_that_cannot_be_observed_is_not_proven_gone(spawn, monkeypatch) -> None:
    def unreadable() -> list[object]:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(table, "read_table", unreadable)
        handle = await spawn("true")
        await handle.done
        assert not await handle.wait_for_exit(0.05)
    assert await handle.wait_for_exit()


@pytest.mark.contract("PROC-14")
async def test_survivors_that_hold_a_pipe_delay_the_result_by_the_grace(spawn, running) -> None:
    handle = await spawn("sh", "-c", "sleep 1000 & echo $!; exit 3", stdout=Collect(100), grace=0.3)
    started = time.monotonic()
    assert await handle.done == ExitStatus(3, None)
    assert 0.25 <= time.monotonic() - started < 1.2
    survivor = int(handle.collected.stdout.read_from().text)
    assert running(survivor)  # the result is no reason to end it
    assert not await handle.wait_for_exit(0)


@pytest.mark.contract("PROC-14")
async def test_without_survivors_there_is_no_delay(spawn) -> None:
    handle = await spawn("echo", "x", stdout=Collect(100), grace=30)
    async with asyncio.timeout(10):
        await handle.done
    assert handle.collected.stdout.read_from().data == b"x\n"


@pytest.mark.contract("PROC-14")
async def test_survivors_can_go_on_writing_after_the_result(spawn, eventually, running) -> None:
    script = "exec 3<&0; (read go <&3; echo late; exec sleep 1000) & echo $!; exit 0"
    handle = await spawn("sh", "-c", script, stdin="pipe", stdout=Collect(100), grace=0.2)
    await handle.done
    result = handle.collected.stdout.read_from()
    handle.stdin.write(b"go\n")
    survivor = int(result.text)
    await eventually(lambda: b"sleep" in Path(f"/proc/{survivor}/cmdline").read_bytes())
    assert running(survivor)
    assert handle.collected.stdout.read_from() == result


@pytest.mark.contract("PROC-15")
@pytest.mark.usefixtures("any_view")
async def test_a_trapping_descendant_is_killed_after_its_leader_has_ended(spawn) -> None:
    handle = await spawn("sh", "-c", "trap '' TERM; sleep 1000 & exit 0", grace=0.3)
    assert await handle.done == ExitStatus(0, None)
    handle.terminate()
    assert not await handle.wait_for_exit(0.1)
    assert await handle.wait_for_exit()


async def test_sigkill_is_repeated_while_new_members_turn_up() -> None:
    class Forking:
        pid = 1
        sent: ClassVar[list[int]] = []

        def watch_leader(self, on_exit: Callable[[], None]) -> None: ...

        def leader_status(self) -> ExitStatus:
            return ExitStatus(0, None)

        def alive(self) -> bool:
            return self.sent.count(signal.SIGKILL) < 3

        def signal(self, number: int) -> None:
            self.sent.append(number)

    lifetime = TreeLifetime(Forking(), grace=0.01)
    lifetime.leader_ended()
    lifetime.terminate()
    assert await lifetime.wait_gone(10, None)
    assert Forking.sent == [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL, signal.SIGKILL]


async def test_an_aborted_wait_says_false_and_changes_nothing(spawn) -> None:
    handle = await spawn("cat", stdin="pipe")
    controller = AbortController()
    waiting = asyncio.create_task(handle.wait_for_exit(signal=controller.signal))
    await asyncio.sleep(0)
    controller.abort()
    assert not await waiting
    handle.close_stdin()
    assert await handle.wait_for_exit()


async def test_an_abort_after_the_end_signals_nobody(spawn, group_signals) -> None:
    controller = AbortController()
    handle = await spawn("true", signal=controller.signal)
    assert await handle.wait_for_exit()
    controller.abort()
    assert group_signals == []


async def test_a_tree_killed_at_once_is_gone_when_the_call_returns(spawn, running) -> None:
    handle = await spawn("sh", "-c", "trap '' TERM; sleep 1000 & echo $!; wait")
    grandchild = int(await handle.stdout.readline())
    assert handle.kill_now()
    assert not running(grandchild)
    assert await handle.done == ExitStatus(None, signal.SIGKILL)


async def test_dispose_lets_a_cooperative_child_end_by_itself(python, group_signals) -> None:
    # It flushes for longer than its grace, which only starts with a SIGTERM.
    source = "import sys, time; sys.stdin.read(); time.sleep(0.3); print('flushed')"
    handle = await python(source, stdin="pipe", grace=0.05)
    await handle.dispose(eof_grace=10)
    assert await handle.done == ExitStatus(0, None)
    assert group_signals == []


async def test_dispose_ends_a_child_deaf_to_end_of_file_by_sigterm(python) -> None:
    handle = await python(TERM_CATCHER, stdin="pipe")
    assert await handle.stdout.readline() == b"ready\n"
    await handle.dispose(eof_grace=0.05)
    assert await handle.done == ExitStatus(5, None)


async def test_dispose_ends_a_child_deaf_to_sigterm_by_sigkill(supervisor, spawn) -> None:
    handle = await spawn(*TERM_IGNORER, stdin="pipe", grace=0.1)
    assert await handle.stdout.readline() == b"ready\n"
    await handle.dispose(eof_grace=0.05)
    assert await handle.done == ExitStatus(None, signal.SIGKILL)
    assert supervisor.live == ()


async def test_dispose_does_not_wait_for_the_effect_of_an_end_of_file_it_cannot_send(spawn) -> None:
    handle = await spawn("sleep", "1000")
    async with asyncio.timeout(10):
        await handle.dispose(eof_grace=1000)


async def test_dispose_is_shared_and_survives_a_cancelled_caller(spawn, group_signals) -> None:
    handle = await spawn(*TERM_IGNORER, stdin="pipe", grace=0.2)
    assert await handle.stdout.readline() == b"ready\n"
    first = asyncio.create_task(handle.dispose(eof_grace=0.05))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.gather(handle.dispose(), handle.dispose())
    assert handle.exit_status == ExitStatus(None, signal.SIGKILL)
    assert group_signals.count(signal.SIGTERM) == 1


async def test_dispose_closes_what_the_caller_did_not_read(spawn, supervisor) -> None:
    handle = await spawn("yes", stdout="pipe", pipe_limit=1000)
    await handle.dispose()
    assert supervisor.live == ()


@pytest.mark.case("CASE-02")
async def test_disposing_a_wrapper_ends_the_agent_behind_it(spawn, running) -> None:
    agent = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read(); import signal; signal.pause()"
    handle = await spawn("sh", "-c", f'python3 -c "{agent}"; :', stdin="pipe")
    pid = int(await handle.stdout.readline())
    assert pid != handle.pid
    await handle.dispose(eof_grace=0.05)
    assert not running(pid)


async def test_a_status_taken_by_somebody_else_is_reported_as_unknown(spawn) -> None:
    handle = await spawn("true")
    take_status(handle.pid)
    assert await handle.done == ExitStatus(None, None)
    assert await handle.wait_for_exit()


def take_status(pid: int) -> None:
    os.waitpid(pid, 0)


async def test_no_thread_waits_for_a_child_where_there_are_pidfds(spawn) -> None:
    before = threading.active_count()
    await spawn("cat", stdin="pipe")
    assert threading.active_count() == before
