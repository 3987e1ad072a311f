"""``grep``: lines by a regular expression, grouped by file."""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from typing import Any

from polyhost.interfaces import JsonObject, Spill, Tool, ToolCall, ToolOutput, text_block
from polyhost.wire.json import loads
from polyhost_tools.errors import ArgumentError, FileError
from polyhost_tools.fence import Hidden
from polyhost_tools.files import open_regular, require_plain, shown_path
from polyhost_tools.search import TIMEOUT_MS, Search, fitting, path_parameter, save_full

MAX_MATCHES = 250
MAX_PREVIEW_BYTES = 2000

_NOT_TEXT = "[line is not valid UTF-8]"

PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Regular expression to search for."},
        "path": path_parameter("File or directory to search"),
        "include": {"type": "string", "description": "Glob pattern of the files to search, such as *.py."},
    },
    "required": ["pattern"],
}
_MATCH: JsonObject = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}, "text": {"type": "string"}},
    "required": ["path", "line", "text"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "matches": {"type": "array", "items": _MATCH},
        "total": {"type": "integer"},
        "fullPath": {"type": "string"},
        "complaint": {"type": "string"},
    },
    "required": ["matches", "total"],
}


def grep_tool(search: Search, spill: Spill | None) -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        pattern: str = arguments["pattern"]
        for name in ("pattern", "include"):
            require_plain(arguments.get(name, ""), name)
        if not pattern:
            raise ArgumentError("pattern must not be empty")
        path = arguments.get("path")
        if path is not None:
            await asyncio.to_thread(_require_searchable, shown_path(path, call.cwd, "path"))
        vector = ["--json", f"--regexp={pattern}"]
        if "include" in arguments:
            vector.append(f"--glob={arguments['include']}")
        found = await search.run(call, vector, path)
        matches = await asyncio.to_thread(parse_matches, found.stdout, found.hidden)
        value: JsonObject = {"matches": matches[:MAX_MATCHES], "total": len(matches)}
        if len(matches) > MAX_MATCHES:
            text = "\n".join(_listing(matches)) + "\n"
            full = await asyncio.to_thread(save_full, spill, call, "grep.txt", text)
            value.update({"fullPath": full} if full is not None else {})
        return value if found.complaint is None else {**value, "complaint": found.complaint}

    return Tool(
        name="grep",
        description="Search the contents of files with a regular expression. Files that are ignored by version control"
        " are left out.",
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render, _meta),
        execute=execute,
        access="read",
        timeout_ms=TIMEOUT_MS,
        concurrency_safe=lambda arguments: True,
    )


def _require_searchable(path: str) -> None:
    """ripgrep waits for pipes and never ends with some devices."""
    if not os.path.exists(path):
        raise FileError(f"{path}: there is no such file or directory", code="FS_NOT_FOUND")
    if not os.path.isdir(path):
        os.close(open_regular(path))


def parse_matches(stdout: bytes, hidden: Hidden) -> list[JsonObject]:
    """``{path, line, text}`` of each matching line, grouped by file in the order in which files came up.

    :param hidden: what is left out.
    """
    groups: dict[str, list[JsonObject]] = {}
    for line in stdout.splitlines():
        record = loads(line)
        if record["type"] != "match":
            continue
        data = record["data"]
        if hidden.covers(_file_name(data["path"])):
            continue
        path = _text(data["path"], "[path is not valid UTF-8]").removeprefix("./")
        match = {"path": path, "line": data["line_number"], "text": preview(_text(data["lines"], _NOT_TEXT))}
        groups.setdefault(path, []).append(match)
    return [match for group in groups.values() for match in group]


def _text(value: JsonObject, placeholder: str) -> str:
    text: str = value.get("text", placeholder)
    return text


def _file_name(value: JsonObject) -> str:
    text: str | None = value.get("text")
    return os.fsdecode(b64decode(value["bytes"])) if text is None else text


def preview(line: str) -> str:
    """A line without its end, cut to the bytes that are shown, between characters."""
    data = line.rstrip("\r\n").encode()
    if len(data) <= MAX_PREVIEW_BYTES:
        return data.decode()
    return data[:MAX_PREVIEW_BYTES].decode("utf-8", "ignore") + "…"


def _listing(matches: list[JsonObject]) -> list[str]:
    lines: list[str] = []
    path = None
    for match in matches:
        if match["path"] != path:
            path = match["path"]
            lines += ["", path] if lines else [path]
        lines.append(f"Line {match['line']}: {match['text']}")
    return lines


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    shown, total = len(value["matches"]), value["total"]
    if total == 0:
        lines = ["No matches found"]
    else:
        some = f"{shown} of {total}" if total > shown else str(total)
        lines = [f"Found {some} match{'' if total == 1 else 'es'}", "", *_listing(value["matches"])]
    if total > shown:
        more = f"all of them: {value['fullPath']}" if "fullPath" in value else "narrow the pattern to see the others"
        lines += ["", f"(Showing {shown} of {total} matches; {more})"]
    if "complaint" in value:
        lines += ["", f"(Incomplete: {value['complaint']})"]
    return [text_block("\n".join(lines))]


def _meta(arguments: JsonObject, value: Any) -> JsonObject:
    return {"matches": fitting(value["matches"]), "total": value["total"]}
