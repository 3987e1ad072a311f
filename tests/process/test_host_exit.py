"""A whole host ends, in every way that lets it run code: nothing of its trees is left behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from polyhost.process import table

pytestmark = pytest.mark.skipif(not table.available(), reason="needs /proc")

# Starts a wrapper whose child ignores SIGTERM, and a daemon that left the group; prints the pids of both.
HOST = """
import asyncio, atexit, os, signal, sys
from polyhost.process import ProcessSupervisor, SpawnSpec, table

def running(pid):
    row = table.read_row(pid)
    return row is not None and row.alive

async def start(supervisor, *argv):
    return await supervisor.spawn(SpawnSpec(
        argv=argv, cwd="/", stdin="pipe", stdout="pipe", stderr="inherit", grace=0.2))

async def trees(supervisor):
    wrapper = await start(supervisor, "sh", "-c", "trap '' TERM; sh -c 'echo $$; sleep 1000; :' ; :")
    daemon = await start(supervisor, "sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000' >&1 & exit 0")
    pids = [int(await handle.stdout.readline()) for handle in (wrapper, daemon)]
    print(*pids, flush=True)
    return wrapper, daemon, pids
"""


def run_host(ending: str, send: int | None = None) -> tuple[int, list[int], str]:
    """Run a host that ends as ``ending`` says; its exit code, the pids it started, and what else it printed."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST + ending], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    first = host.stdout.readline()
    if send is not None:
        host.send_signal(send)
    try:
        rest, errors = host.communicate(timeout=20)
    finally:
        host.kill()
    return host.returncode, [int(pid) for pid in first.split()], rest + errors


def left(pids: list[int]) -> list[int]:
    assert len(pids) == 2
    rows = [table.read_row(pid) for pid in pids]
    return [row.pid for row in rows if row is not None and row.alive]


@pytest.mark.case("CASE-02")
@pytest.mark.contract("PROC-19")
@pytest.mark.parametrize("number", [15, 2])
def test_a_signal_that_the_host_turns_into_a_shutdown(number: int) -> None:
    code, pids, output = run_host(
        """
async def main():
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with ProcessSupervisor() as supervisor:
        await trees(supervisor)
        await stop.wait()
    assert not supervisor.live
asyncio.run(main())
""",
        send=number,
    )
    assert (code, left(pids), output) == (0, [], "")


@pytest.mark.case("CASE-02")
@pytest.mark.contract("PROC-20")
@pytest.mark.parametrize(
    ("handler", "expected"), [("lambda *_: sys.exit(143)", 143), ("signal.default_int_handler", -2)]
)
def test_a_signal_that_the_host_turns_into_an_exception(handler: str, expected: int) -> None:
    code, pids, _ = run_host(
        f"""
signal.signal(signal.SIGTERM, {handler})
async def main():
    await trees(ProcessSupervisor())
    await asyncio.Event().wait()
asyncio.run(main())
""",
        send=15,
    )
    assert (code, left(pids)) == (expected, [])


@pytest.mark.contract("PROC-20")
@pytest.mark.parametrize(
    ("statement", "expected"),
    [("sys.exit(7)", 7), ("raise RuntimeError('unexpected')", 1), ("return", 0)],
)
def test_a_host_that_ends_without_closing(statement: str, expected: int) -> None:
    code, pids, output = run_host(f"""
async def main():
    await trees(ProcessSupervisor())
    {statement}
asyncio.run(main())
""")
    assert (code, left(pids)) == (expected, [])
    assert ("RuntimeError: unexpected" in output) == (expected == 1)


@pytest.mark.contract("PROC-20")
def test_older_exit_hooks_find_the_trees_gone() -> None:
    code, _, output = run_host("""
pids = []
atexit.register(lambda: print([running(pid) for pid in pids]))
async def main():
    *_, started = await trees(ProcessSupervisor())
    pids.extend(started)
    sys.exit(3)
asyncio.run(main())
""")
    assert (code, output) == (3, "[False, False]\n")


@pytest.mark.contract("PROC-20")
def test_one_tree_that_cannot_be_killed_does_not_save_the_other() -> None:
    code, pids, _ = run_host("""
async def main():
    supervisor = ProcessSupervisor()
    await trees(supervisor)
    real, first = type(supervisor.live[0]).kill_now, supervisor.live[0]
    def kill_now(handle):
        real(handle)
        if handle is first:
            raise OSError("cannot")
    type(first).kill_now = kill_now
    sys.exit(4)
asyncio.run(main())
""")
    assert (code, left(pids)) == (4, [])


@pytest.mark.contract("PROC-20")
def test_a_forked_copy_of_the_host_does_not_kill_the_hosts_trees() -> None:
    code, pids, output = run_host("""
async def main():
    supervisor = ProcessSupervisor()
    *_, pids = await trees(supervisor)
    if (copy := os.fork()) == 0:
        sys.exit(0)
    os.waitpid(copy, 0)
    print([running(pid) for pid in pids])
    await supervisor.aclose()
asyncio.run(main())
""")
    assert code == 0
    assert "[True, True]" in output
    assert left(pids) == []
