"""``bash``: one command in a fresh shell, in a process group of its own.

A command that fails or runs out of time is a result, not an error: how it ended stands at the end of the text, where
:func:`parse_ending` finds it again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from polyhost.interfaces import JsonObject, Tool, ToolCall, ToolOutput, text_block
from polyhost.kernel.signals import AbortedError
from polyhost.process import (
    AbortedBeforeSpawnError,
    Collect,
    CollectedOutput,
    ProcessHandle,
    ProcessSupervisor,
    SpawnSpec,
)
from polyhost_tools.errors import ArgumentError
from polyhost_tools.files import require_plain, shown_path

TAIL_BYTES = 64_000
SPILL_BYTES = 64 * 1024 * 1024
KILL_GRACE = 3.0
DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 600_000

_PLAIN_OUTPUT = {"NO_COLOR": "1", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
_MANAGED_PREFIX = "POLYHOST_"
_TREE_VARIABLE = "POLYHOST_TREE"  # by which the supervisor of an outer host knows its own
_ENDING = re.compile(r"(?:^|\n)\[(?:exit code: (\d+)|killed by signal: (\w+)|timed out after \d+ms)\]\Z")

_STREAM: JsonObject = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "truncated": {"type": "boolean"},
        "fullPath": {"oneOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["text", "truncated", "fullPath"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "stdout": _STREAM,
        "stderr": _STREAM,
        "exitCode": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        "signal": {"oneOf": [{"type": "string"}, {"type": "null"}]},
        "timedOutMs": {"oneOf": [{"type": "number"}, {"type": "null"}]},
    },
    "required": ["stdout", "stderr", "exitCode", "signal", "timedOutMs"],
}


def _parameters(default_ms: int) -> JsonObject:
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The bash command to execute."},
            "description": {"type": "string", "description": "What the command does, in five to ten words."},
            "timeoutMs": {
                "type": "number",
                "description": f"Milliseconds that it may take: {default_ms} by default, at most {MAX_TIMEOUT_MS}.",
            },
            "workdir": {
                "type": "string",
                "description": "Directory to run it in, absolute or relative; the working directory when left out.",
            },
        },
        "required": ["command", "description"],
    }


class Shells:
    """Runs commands and knows what is still alive of them.

    :param home: the host's state directory, told to commands as ``POLYHOST_HOME``.
    :param redact: masks what the host knows to be secret; variables that hold such a thing are kept from commands.
    """

    def __init__(self, processes: ProcessSupervisor, home: str, redact: Callable[[str], str] = str) -> None:
        self._processes = processes
        self._home = home
        self._redact = redact
        self._running: dict[str | None, set[ProcessHandle]] = {}

    async def run(self, call: ToolCall, command: str, workdir: str, timeout_ms: float) -> JsonObject:
        """Run ``command`` to its end. Its descendants may go on; they end with the session, or by :meth:`end`.

        :raises AbortedError: the call was cancelled; the whole tree is being ended.
        :raises SpawnError: it could not be started.
        """
        spec = SpawnSpec(
            argv=["bash", "-c", command],
            cwd=workdir,
            stdin="ignore",
            stdout=Collect(TAIL_BYTES, SPILL_BYTES),
            stderr=Collect(TAIL_BYTES, SPILL_BYTES),
            grace=KILL_GRACE,
            env=environment(self._home, call.session_id, redact=self._redact),
            signal=call.signal,
        )
        try:
            handle = await self._processes.spawn(spec)
        except AbortedBeforeSpawnError as error:
            raise AbortedError(error.cause) from error
        self._keep(call.session_id, handle)
        timed_out = False

        def expire() -> None:
            nonlocal timed_out
            if handle.exit_status is None:
                timed_out = True
                handle.terminate()

        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, expire)
        try:
            status = await handle.done
        except asyncio.CancelledError:
            handle.terminate()
            raise
        finally:
            timer.cancel()
        call.signal.raise_if_aborted()
        return {
            "stdout": _collected(handle.collected.stdout),
            "stderr": _collected(handle.collected.stderr),
            "exitCode": status.exit_code,
            "signal": status.signal_name,
            "timedOutMs": timeout_ms if timed_out else None,
        }

    async def end(self, session_id: str | None) -> None:
        """End whatever commands of one session have left behind, and wait for it."""
        await self._end(self._running.pop(session_id, set()))

    async def aclose(self) -> None:
        """End what is left of all commands, and wait for it."""
        left = {handle for handles in self._running.values() for handle in handles}
        self._running.clear()
        await self._end(left)

    def _keep(self, session_id: str | None, handle: ProcessHandle) -> None:
        handles = self._running.setdefault(session_id, set())
        alive = set(self._processes.live)
        handles &= alive
        if handle in alive:
            handles.add(handle)

    async def _end(self, handles: set[ProcessHandle]) -> None:
        for handle in handles:
            handle.terminate()
        await asyncio.gather(*(handle.wait_for_exit(2 * KILL_GRACE) for handle in handles))


def bash_tool(shells: Shells, default_timeout_ms: int = DEFAULT_TIMEOUT_MS) -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        workdir = _checked_workdir(arguments, call)
        timeout_ms = min(arguments.get("timeoutMs", default_timeout_ms), MAX_TIMEOUT_MS)
        return await shells.run(call, arguments["command"], workdir, timeout_ms)

    async def preview(arguments: JsonObject, call: ToolCall) -> None:
        _checked_workdir(arguments, call)

    return Tool(
        name="bash",
        description=(
            "Execute a bash command in a fresh shell and return its output. Nothing is kept between calls: directory,"
            " variables and functions are lost. There is no input and no terminal. Prefer read, edit, write, glob and"
            " grep for what they do."
        ),
        parameters=_parameters(default_timeout_ms),
        output=ToolOutput(_VALUE, _render),
        execute=execute,
        access="execute",
        preview=preview,
    )


def _checked_workdir(arguments: JsonObject, call: ToolCall) -> str:
    """The directory to run in, when all arguments make sense."""
    for name in ("command", "description"):
        if not arguments[name].strip():
            raise ArgumentError(f"{name} must not be blank")
    if arguments.get("timeoutMs", 1) <= 0:
        raise ArgumentError("timeoutMs must be positive")
    require_plain(arguments["command"], "command")
    return shown_path(arguments.get("workdir", "."), call.cwd, "workdir")


def environment(
    home: str, session_id: str | None, ambient: Mapping[str, str] = os.environ, redact: Callable[[str], str] = str
) -> dict[str, str | None]:
    """The entries laid over the scrubbed environment: plain output, managed variables, and known secrets taken out."""
    managed: dict[str, str | None] = {
        name: None
        for name, value in ambient.items()
        if (name.upper().startswith(_MANAGED_PREFIX) and name != _TREE_VARIABLE) or redact(value) != value
    }
    managed |= _PLAIN_OUTPUT
    managed |= {"POLYHOST_HOME": home, "POLYHOST_SHELL": "1"}
    if session_id is not None:
        managed["POLYHOST_SESSION_ID"] = session_id
    return managed


def _collected(output: CollectedOutput | None) -> JsonObject:
    assert output is not None
    read = output.read_from()
    return {"text": read.text, "truncated": read.lossy, "fullPath": read.spill_path}


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    text = _stream_text(value["stdout"])
    if value["stderr"]["text"]:
        text = f"{_line_end(text)}[stderr]\n{_stream_text(value['stderr'])}"
    text = text or "(no output)"
    markers = []
    if value["timedOutMs"] is not None:
        markers.append(f"[timed out after {value['timedOutMs']:g}ms]")
    if value["signal"] is not None:
        markers.append(f"[killed by signal: {value['signal']}]")
    elif value["exitCode"]:
        markers.append(f"[exit code: {value['exitCode']}]")
    if markers:
        text = _line_end(text) + "\n".join(markers)
    elif _ENDING.search(text):
        text += "\n"  # output that looks like a marker is not at the very end
    return [text_block(text)]


def parse_ending(text: str) -> tuple[int | None, str | None]:
    """Exit code and signal name from the rendered text: ``(0, None)`` for a success; the inverse of the rendering."""
    ending = _ENDING.search(text)
    if ending is None:
        return 0, None
    return (int(ending[1]) if ending[1] else None), ending[2]


def _stream_text(stream: JsonObject) -> str:
    text: str = stream["text"]
    if not stream["truncated"]:
        return text
    return f"{_line_end(text)}[output truncated; full output: {stream['fullPath'] or '(unavailable)'}]\n"


def _line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
