"""Who belongs to a tree on Linux: daemons that left the group are caught, strangers are left alone."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from polyhost.process import ProcessSupervisor, table
from polyhost.process.mark import Mark
from polyhost.process.subreaper import Subreaper
from polyhost.process.tree import TREE_VARIABLE, LinuxTree

pytestmark = pytest.mark.skipif(not table.available(), reason="needs /proc")

# Forks twice with a session of its own in between, lets the middle process end, and closes every inherited stream.
DAEMON = """
import os, signal, sys
if (middle := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        os.closerange(0, 3)
        while True:
            signal.pause()
    os._exit(0)
os.waitpid(middle, 0)
"""


@pytest.mark.case("CASE-02")
@pytest.mark.parametrize("leader", ["ends", "stays"])
async def test_a_daemon_that_left_group_and_ancestors_is_ended_with_the_tree(python, running, leader: str) -> None:
    handle = await python(DAEMON + ("sys.stdin.read()" if leader == "stays" else ""), stdin="pipe")
    daemon = int(await handle.stdout.readline())
    if leader == "ends":
        await handle.done
        assert not await handle.wait_for_exit(0.05)
    assert running(daemon)
    assert os.getpgid(daemon) != handle.pid
    await handle.dispose(eof_grace=0.05)
    assert not running(daemon)


@pytest.mark.case("CASE-02")
async def test_a_daemon_that_ignores_sigterm_is_killed_after_the_grace(python, running) -> None:
    source = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + DAEMON
    handle = await python(source, grace=0.2)
    daemon = int(await handle.stdout.readline())
    await handle.done
    handle.terminate()
    assert not await handle.wait_for_exit(0.1)
    assert await handle.wait_for_exit()
    assert not running(daemon)


@pytest.mark.parametrize("wrapper", [["setsid"], ["env", "-i", "setsid"]])
async def test_a_descendant_in_another_session_is_found_by_its_parents(spawn, running, wrapper: list[str]) -> None:
    command = " ".join(wrapper)
    handle = await spawn("sh", "-c", f"{command} sh -c 'echo $$; exec sleep 1000' & wait", inherit_env=False)
    stray = int(await handle.stdout.readline())
    assert os.getpgid(stray) == stray
    handle.terminate()
    assert await handle.wait_for_exit()
    assert not running(stray)


async def test_an_orphan_in_a_members_session_is_found(spawn, running, eventually) -> None:
    script = "setsid sh -c '(sleep 1000 & echo $!); exec sleep 1000' & wait"
    handle = await spawn("sh", "-c", script, inherit_env=False)
    orphan = int(await handle.stdout.readline())
    await eventually(lambda: table.read_row(orphan).parent == os.getpid())
    handle.terminate()
    assert await handle.wait_for_exit()
    assert not running(orphan)


@pytest.mark.case("CASE-02")
@pytest.mark.parametrize("inherit_env", [True, False])
async def test_an_orphan_without_group_ancestors_environment_and_descriptors_is_found(
    spawn, running, eventually, stranger, inherit_env: bool
) -> None:
    other = stranger("sh", "-c", "exec env -i sleep 1000", start_new_session=True)
    inner = "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exit"
    handle = await spawn("sh", "-c", f"(env -i setsid sh -c '{inner}' &) | cat", inherit_env=inherit_env)
    orphan = int(await handle.stdout.readline())
    await handle.done
    await eventually(lambda: table.read_row(orphan).parent == os.getpid())
    assert not await handle.wait_for_exit(0.05)
    handle.terminate()
    assert await handle.wait_for_exit()
    assert not running(orphan)
    assert running(other.pid)


def test_a_mark_reaches_what_was_forked_before_it(stranger) -> None:
    child = stranger("sh", "-c", "sleep 1000 & echo $!; wait", stdout=subprocess.PIPE)
    inner = int(child.stdout.readline())
    mark = Mark()
    assert not mark.is_on(child.pid)
    mark.put_on(child.pid)
    assert [mark.is_on(pid) for pid in (child.pid, inner, os.getpid())] == [True, True, False]
    assert not Mark().is_on(child.pid)
    child.kill()
    child.wait()
    os.kill(inner, signal.SIGKILL)
    assert not mark.is_on(child.pid)
    mark.put_on(child.pid)  # too late, and no error


def test_a_worn_mark_stays_on_what_this_thread_started_only(stranger) -> None:
    limit = resource.getrlimit(resource.RLIMIT_RTTIME)
    mark = Mark()
    with ThreadPoolExecutor(1) as pool, mark.worn():
        own = stranger("sleep", "1000")
        script = "sleep 1000 & echo $!; wait"
        other = pool.submit(stranger, "sh", "-c", script, stdout=subprocess.PIPE, start_new_session=True).result()
        inner = int(other.stdout.readline())
        assert mark.is_on(inner)
    later = stranger("sleep", "1000")
    assert [mark.is_on(pid) for pid in (own.pid, other.pid, inner, later.pid)] == [True, False, False, False]
    assert resource.getrlimit(resource.RLIMIT_RTTIME) == limit
    os.killpg(other.pid, signal.SIGKILL)


def test_only_the_main_thread_wears_marks(stranger) -> None:
    mark = Mark()

    def start() -> subprocess.Popen[bytes]:
        with mark.worn():
            return stranger("sleep", "1000")

    with ThreadPoolExecutor(1) as pool:
        assert not mark.is_on(pool.submit(start).result().pid)


async def test_what_a_member_forks_between_two_looks_is_killed_too(python) -> None:
    # Each process forks its successor and ends: nobody is there for two looks in a row.
    source = "import os\nprint(flush=True)\nwhile True:\n    if os.fork():\n        os._exit(0)"
    handle = await python(source, grace=0.05)
    await handle.stdout.readline()
    handle.terminate()
    assert await handle.wait_for_exit()


async def test_no_stranger_is_a_member(spawn, python, stranger, running) -> None:
    leading = stranger("sleep", "1000", start_new_session=True)
    other = await spawn("cat", stdin="pipe")
    handle = await python(DAEMON)
    await handle.stdout.readline()
    await handle.dispose()
    assert running(leading.pid)
    assert running(other.pid)


async def test_adopted_members_are_reaped_and_other_children_keep_their_status(python, stranger, eventually) -> None:
    plain = stranger("sh", "-c", "exit 5")
    leading = stranger("sh", "-c", "exit 6", start_new_session=True)
    await eventually(lambda: not table.read_row(plain.pid).alive and not table.read_row(leading.pid).alive)
    watched = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    handle = await python(DAEMON)
    daemon = int(await handle.stdout.readline())
    await handle.dispose()
    assert await handle.wait_for_exit()
    assert table.read_row(daemon) is None  # not even as a zombie
    assert (plain.poll(), leading.poll()) == (5, 6)
    watched.stdin.close()
    assert await watched.wait() == 0


async def test_an_orphan_that_was_never_seen_alive_is_reaped(python, eventually) -> None:
    source = DAEMON.replace("os.closerange(0, 3)", "os.read(0, 1)").replace("while True:", "os._exit(0)")
    source = source.replace("            signal.pause()\n", "") + "sys.stdout.close(); signal.pause()"
    handle = await python(source, stdin="pipe", inherit_env=False)
    orphan = int(await handle.stdout.readline())
    handle.close_stdin()

    def zombie() -> bool:
        row = table.read_row(orphan)
        return row is not None and not row.alive and row.parent == os.getpid()

    await eventually(zombie)
    handle.terminate()
    assert await handle.wait_for_exit()
    assert table.read_row(orphan) is None


async def test_nested_hosts_keep_the_outer_marker(spawn, monkeypatch) -> None:
    monkeypatch.setenv(TREE_VARIABLE, "outer")
    handle = await spawn("sh", "-c", f"echo ${TREE_VARIABLE}")
    outer, own = (await handle.stdout.readline()).decode().strip().split(":")
    assert outer == "outer"
    assert len(own) == 32


@pytest.mark.contract("PROC-13")
async def test_a_group_of_zombies_counts_as_gone(stranger, eventually) -> None:
    child = stranger("sh", "-c", "sleep 1000 & kill -KILL $!; wait $!; exit 0", start_new_session=True)
    await eventually(lambda: not table.read_row(child.pid).alive)
    tree = LinuxTree(child, None, Mark())
    os.killpg(child.pid, 0)  # the group still exists
    assert not tree.alive()
    assert child.returncode == 0


async def test_a_process_whose_first_thread_ended_is_alive(stranger, eventually) -> None:
    source = "import ctypes, sys, threading\nthreading.Thread(target=sys.stdin.read).start()\n"
    child = stranger(sys.executable, "-c", source + "ctypes.CDLL(None).pthread_exit(None)", stdin=subprocess.PIPE)
    await eventually(lambda: b"State:\tZ" in Path(f"/proc/{child.pid}/status").read_bytes())
    assert table.read_row(child.pid).alive


async def test_a_hostile_command_name_cannot_confuse_the_table(stranger, eventually) -> None:
    name = b") Z 1 1 (1"
    source = f"import ctypes; ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0); input()"
    child = stranger(sys.executable, "-c", source, stdin=subprocess.PIPE)
    await eventually(lambda: name in Path(f"/proc/{child.pid}/stat").read_bytes())
    row = table.read_row(child.pid)
    assert (row.parent, row.group, row.session) == (os.getpid(), os.getpgrp(), os.getsid(0))
    assert row.alive


def test_a_marker_is_found_anywhere_in_a_large_environment(stranger) -> None:
    environment = {f"PAD{number}": "x" * 1021 for number in range(200)} | {"LAST": "needle"}
    for _ in range(20):
        child = stranger("sleep", "1000", env=environment)
        # The start of a program is not over when Popen returns: until it is, the answer is "not known", never "no".
        while (found := table.environment_has(child.pid, b"needle")) is None:
            pass
        assert found
        assert table.environment_has(child.pid, b"absent") is False
        child.kill()
        child.wait()
        assert table.environment_has(child.pid, b"needle") is False


async def test_an_empty_environment_is_no_riddle(stranger, eventually) -> None:
    child = stranger("/bin/sleep", "1000", env={})
    await eventually(lambda: table.environment_has(child.pid, b"needle") is False)


async def test_adoption_lasts_as_long_as_the_supervisor(make_spec) -> None:
    probe = Subreaper()
    async with ProcessSupervisor() as supervisor:
        handle = await supervisor.spawn(make_spec("true"))
        await handle.wait_for_exit()
        probe.enter()
        assert not probe._entered  # it already was
    probe.enter()
    assert probe._entered
    probe.leave()


async def test_a_host_that_does_not_adopt_still_catches_daemons(make_spec, running) -> None:
    async with ProcessSupervisor(adopt_orphans=False) as supervisor:
        handle = await supervisor.spawn(make_spec(sys.executable, "-c", DAEMON))
        daemon = int(await handle.stdout.readline())
        assert table.read_row(daemon).parent != os.getpid()
        await handle.dispose()
        assert not running(daemon)
    assert handle.exit_status.exit_code == 0 or handle.exit_status.signal == signal.SIGTERM
