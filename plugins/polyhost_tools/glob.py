"""``glob``: files by name, the oldest first."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from polyhost.interfaces import JsonObject, Spill, Tool, ToolCall, ToolOutput, text_block
from polyhost_tools.errors import ArgumentError, FileError
from polyhost_tools.files import require_plain, shown_path
from polyhost_tools.search import TIMEOUT_MS, Search, fitting, path_parameter, save_full

MAX_PATHS = 100

_EXCLUDED = (".git", ".svn", ".hg", ".bzr", ".jj", ".sl")

PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "pattern": {"type": "string", "description": "Glob pattern of the files to find, such as **/*.py."},
        "path": path_parameter("Directory to search"),
    },
    "required": ["pattern"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "paths": {"type": "array", "items": {"type": "string"}},
        "total": {"type": "integer"},
        "fullPath": {"type": "string"},
        "complaint": {"type": "string"},
    },
    "required": ["paths", "total"],
}


def glob_tool(search: Search, spill: Spill | None) -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        pattern: str = arguments["pattern"]
        require_plain(pattern, "pattern")
        if not pattern.strip():
            raise ArgumentError("pattern must not be blank")
        path = arguments.get("path")
        if path is not None:
            await asyncio.to_thread(_require_directory, shown_path(path, call.cwd, "path"))
        vector = ["--files", f"--glob={pattern}", "--sort=modified", "--no-ignore", "--hidden", "--null"]
        found = await search.run(call, [*vector, *(f"--glob=!{name}" for name in _EXCLUDED)], path)
        root = shown_path(".", call.cwd)
        names = [os.fsdecode(name) for name in found.stdout.split(b"\0") if name]
        shown = [_relative(name, root) for name in names if not found.hidden.covers(name)]
        paths = [name.encode("utf-8", "replace").decode() for name in shown]
        value: JsonObject = {"paths": paths[:MAX_PATHS], "total": len(paths)}
        if len(paths) > MAX_PATHS:
            full = await asyncio.to_thread(save_full, spill, call, "glob.txt", "\n".join(paths) + "\n")
            value.update({"fullPath": full} if full is not None else {})
        return value if found.complaint is None else {**value, "complaint": found.complaint}

    return Tool(
        name="glob",
        description="Find files by a glob pattern. Lists paths sorted by modification time, the oldest first.",
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render, _meta),
        execute=execute,
        access="read",
        timeout_ms=TIMEOUT_MS,
        concurrency_safe=lambda arguments: True,
    )


def _require_directory(path: str) -> None:
    if not os.path.isdir(path):
        code = "FS_NOT_DIRECTORY" if os.path.exists(path) else "FS_NOT_FOUND"
        raise FileError(f"{path}: there is no such directory", code=code)


def _relative(path: str, root: str) -> str:
    """``path`` as seen from the working directory, when it lies in it."""
    absolute = os.path.normpath(os.path.join(root, path))
    inside = os.path.commonpath([absolute, root]) == root
    return os.path.relpath(absolute, root) if inside else absolute


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    lines: list[str] = list(value["paths"]) or ["No files found"]
    if value["total"] > len(value["paths"]):
        more = f"all of them: {value['fullPath']}" if "fullPath" in value else "narrow the pattern to see the others"
        lines.append(f"(Showing {len(value['paths'])} of {value['total']} paths; {more})")
    if "complaint" in value:
        lines.append(f"(Incomplete: {value['complaint']})")
    return [text_block("\n".join(lines))]


def _meta(arguments: JsonObject, value: Any) -> JsonObject:
    return {"paths": fitting(value["paths"]), "total": value["total"]}
