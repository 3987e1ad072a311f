"""Results that are too large for the conversation: private files for the whole, a preview for the model.

:class:`SpillFiles` is the ``SPILL`` service that plugins use for their own large output. :class:`SpillPolicy` applies
it to the plain-text results of the pipeline.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path

from polyhost.interfaces.host import Spill
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import text_block, text_of
from polyhost.interfaces.tools import Tool, ToolCall, ToolResult

_log = logging.getLogger(__name__)

DEFAULT_MAX_INLINE_BYTES = 50_000

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS = 80


class SpillFiles:
    """Files ``<root>/session-<12 hex of the session>/<12 random hex>-<name>``, for the owner's eyes only."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def save(self, session_id: str, name: str, content: bytes) -> Path:
        """Write a new file (0600, in a 0700 directory). Blocking; raises OSError."""
        directory = self._directory(session_id)
        for path in (self._root, directory):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = directory / f"{os.urandom(6).hex()}-{_encoded(name)}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    async def remove(self, session_id: str) -> None:
        """Remove what a deleted session has spilled; a listener of ``session/deleted``."""
        import shutil

        await asyncio.to_thread(shutil.rmtree, self._directory(session_id), ignore_errors=True)

    def _directory(self, session_id: str) -> Path:
        from hashlib import sha256  # slow to import, and most sessions never spill

        return self._root / f"session-{sha256(session_id.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


class SpillPolicy:
    """Keeps plain-text results of outermost calls within ``max_inline_bytes`` of UTF-8."""

    def __init__(self, files: Spill, max_inline_bytes: int = DEFAULT_MAX_INLINE_BYTES) -> None:
        self._files = files
        self._limit = max_inline_bytes

    async def fit(self, tool: Tool, call: ToolCall, result: ToolResult) -> ToolResult:
        """The result with a preview in the place of its text; the result itself when it fits or cannot be saved."""
        text = plain_text(result.content)
        if text is None or call.session_id is None or not tool.spill or call.root_call_id != call.call_id:
            return result
        data = text.encode("utf-8", "surrogatepass")
        if len(data) <= self._limit:
            return result
        try:
            path = await asyncio.to_thread(self._files.save, call.session_id, f"{tool.name}.txt", data)
        except OSError as error:
            _log.warning('the result of tool "%s" could not be saved and stays whole: %s', tool.name, error)
            return result
        shown = preview(data, str(path), self._limit)
        return result if shown is None else result._replace(content=[text_block(shown)])


def plain_text(content: list[JsonObject]) -> str | None:
    """The text of content that is text only, else None."""
    return text_of(content) if all(block.get("type") == "text" for block in content) else None


def preview(data: bytes, path: str, limit: int) -> str | None:
    """Head and tail of ``data`` around a notice, at most ``limit`` bytes; None when not even the notice fits."""
    notice = f"\n\n[output truncated: {len(data)} bytes in total; full output: {path}]\n\n"
    room = limit - len(notice.encode("utf-8", "surrogatepass"))
    if room < 0:
        return None
    head = data[: room - room // 2].decode("utf-8", "ignore")
    tail = data[len(data) - room // 2 :].decode("utf-8", "ignore")
    return f"{head}{notice}{tail}"


def _encoded(name: str) -> str:
    """``name`` reduced to characters that are safe in a file name."""
    return _UNSAFE.sub("_", name).lstrip(".")[-_NAME_CHARS:] or "output"
