"""``read``: a window of a text file, numbered."""

from __future__ import annotations

import asyncio
import codecs
import os
from typing import Any

from polyhost.interfaces import JsonObject, Tool, ToolCall, ToolOutput, text_block
from polyhost.kernel.signals import AbortSignal
from polyhost_tools.errors import ArgumentError, FileError
from polyhost_tools.fence import Fence
from polyhost_tools.files import LARGE, content_hash, open_regular, os_errors, shown_path, version_of
from polyhost_tools.observation import ABSENT, Observations

MAX_LINES = 2000
MAX_LINE_CHARS = 2000
MAX_BYTES = 50 * 1024
"""UTF-8 bytes of line text in one result."""

_CHUNK = 1024 * 1024
_CUT = f" [line cut after {MAX_LINE_CHARS} characters]"
_BOM = "\ufeff"

PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "file_path": {
            "type": "string",
            "description": "Path of the file, absolute or relative to the working directory.",
        },
        "offset": {"type": "number", "description": "Number of the first line to read, counted from 1."},
        "limit": {"type": "number", "description": f"How many lines to read, at most {MAX_LINES}."},
    },
    "required": ["file_path"],
}
_LINE: JsonObject = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["number", "text"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "offset": {"type": "integer"},
        "lines": {"type": "array", "items": _LINE},
        "totalLines": {"type": "integer"},
        "capped": {"type": "boolean"},
        "lang": {"type": "string"},
    },
    "required": ["path", "offset", "lines", "totalLines", "capped"],
}
_LANGUAGES = {
    ".c": "c",
    ".cc": "cpp",
    ".cpp": "cpp",
    ".cs": "csharp",
    ".css": "css",
    ".go": "go",
    ".h": "c",
    ".hpp": "cpp",
    ".html": "html",
    ".java": "java",
    ".js": "javascript",
    ".json": "json",
    ".jsx": "jsx",
    ".kt": "kotlin",
    ".lua": "lua",
    ".md": "markdown",
    ".php": "php",
    ".py": "python",
    ".pyi": "python",
    ".rb": "ruby",
    ".rs": "rust",
    ".scala": "scala",
    ".sh": "bash",
    ".sql": "sql",
    ".swift": "swift",
    ".toml": "toml",
    ".ts": "typescript",
    ".tsx": "tsx",
    ".xml": "xml",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def read_tool(observations: Observations, fence: Fence) -> Tool:
    """The tool; what it reads is noted in ``observations``."""

    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        offset = _whole(arguments.get("offset", 1), "offset")
        limit = _whole(arguments.get("limit", MAX_LINES), "limit", MAX_LINES)
        path = shown_path(arguments["file_path"], call.cwd)
        target = await asyncio.to_thread(fence.resolve, path, call.cwd, reading=True)
        try:
            window, version = await asyncio.to_thread(read_window, path, offset, limit, call.signal)
        except FileError as error:
            if error.code == "FS_NOT_FOUND" and call.session_id is not None:
                observations.note(call.session_id, target, ABSENT)
            raise
        if call.session_id is not None:
            observations.note(call.session_id, target, version)
        if offset > max(window.total, 1):
            raise FileError(
                f"{path}: offset {offset} is past the end of the file, which has {window.total} lines",
                code="FS_NOT_FOUND",
            )
        value: JsonObject = {
            "path": path,
            "offset": offset,
            "lines": window.lines,
            "totalLines": window.total,
            "capped": window.capped,
        }
        language = _LANGUAGES.get(os.path.splitext(path)[1].lower())
        return value if language is None else {**value, "lang": language}

    return Tool(
        name="read",
        description="Read a text file, or a part of it, with line numbers.",
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render, _meta),
        execute=execute,
        access="read",
        concurrency_safe=lambda arguments: True,
        spill=False,
    )


class Window:
    """Collects some lines of a text that is fed in pieces, and counts all of them.

    :ivar lines: ``{number, text}`` of the lines that were asked for, within the limits.
    :ivar total: how many lines the text has.
    :ivar capped: whether lines are missing because of :data:`MAX_BYTES`.
    """

    def __init__(self, offset: int, limit: int) -> None:
        self.lines: list[JsonObject] = []
        self.total = 0
        self.capped = False
        self._wanted = range(offset, offset + limit)
        self._room = MAX_BYTES
        self._line = ""  # the beginning of the line that is being fed, no more than is shown of it
        self._begun = False

    def feed(self, text: str) -> None:
        first, *rest = text.split("\n")
        self._extend(first)
        for piece in rest:
            self._end_line()
            self._extend(piece)

    def close(self) -> None:
        """The text is complete. A line feed at its end does not begin another line."""
        if self._begun:
            self._end_line()

    def _extend(self, piece: str) -> None:
        if piece:
            self._begun = True
            self._line += piece[: MAX_LINE_CHARS + 2 - len(self._line)]

    def _end_line(self) -> None:
        self.total += 1
        if self.total in self._wanted and not self.capped:
            self._add(self._line.removesuffix("\r"))
        self._line, self._begun = "", False

    def _add(self, line: str) -> None:
        text = line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + _CUT
        self._room -= len(text.encode()) + 1
        if self._room < 0 and self.lines:
            self.capped = True
        else:
            self.lines.append({"number": self.total, "text": text})


def read_window(path: str, offset: int, limit: int, signal: AbortSignal) -> tuple[Window, str]:
    """Lines ``offset`` to ``offset + limit - 1`` of a file, and the file's version. Blocking; follows ``signal``.

    :raises FileError: FS_NOT_TEXT, FS_ABORTED, or what opening and reading say.
    """
    descriptor = open_regular(path)
    window, size, content = Window(offset, limit), 0, content_hash()
    decoder = codecs.getincrementaldecoder("utf-8")()
    with os_errors(path), open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        while True:
            chunk: bytes | None = file.read(_CHUNK)
            if chunk is None:
                raise FileError(f"{path}: it has nothing to read now, and reading would wait", code="FS_IO_ERROR")
            if signal.aborted:
                raise FileError(f"{path}: reading was aborted", code="FS_ABORTED")
            window.feed(_decoded(decoder, chunk, path, first=size == 0))
            if not chunk:
                break
            size += len(chunk)
            content.update(chunk)
    window.close()
    return window, content.hexdigest() if size < LARGE else version_of(status, None)


def _decoded(decoder: codecs.IncrementalDecoder, chunk: bytes, path: str, *, first: bool) -> str:
    if b"\0" in chunk:
        raise FileError(f"{path}: it is a binary file, not text", code="FS_NOT_TEXT")
    try:
        text = decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: it is not valid UTF-8", code="FS_NOT_TEXT") from error
    return text.removeprefix(_BOM) if first else text


def _whole(value: float, name: str, most: int | None = None) -> int:
    if value != int(value) or value < 1 or (most is not None and value > most):
        upto = f" and at most {most}" if most is not None else ""
        raise ArgumentError(f'"{name}" must be a whole number of at least 1{upto}')
    return int(value)


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    lines: list[JsonObject] = value["lines"]
    last = lines[-1]["number"] if lines else 0
    if value["capped"]:
        footer = f"(Output capped. Showing lines {value['offset']}-{last}. Use offset={last + 1} to continue.)"
    elif last < value["totalLines"]:
        footer = (
            f"(Showing lines {value['offset']}-{last} of {value['totalLines']}. Use offset={last + 1} to continue.)"
        )
    else:
        footer = f"(End of file - total {value['totalLines']} lines)"
    numbered = [f"{line['number']}: {line['text']}" for line in lines]
    return [envelope(value["path"], "\n".join([*numbered, "", footer]))]


def envelope(path: str, body: str) -> JsonObject:
    """The block in which models see a file, or what became of it."""
    return text_block(f"<path>{path}</path>\n<type>file</type>\n<content>\n{body}\n</content>")


def _meta(arguments: JsonObject, value: Any) -> JsonObject:
    return {key: value[key] for key in ("path", "offset", "lines", "totalLines", "lang") if key in value}
