"""``write``: a whole file, new or overwritten."""

from __future__ import annotations

import asyncio
from typing import Any

from polyhost.interfaces import JsonObject, Tool, ToolCall, ToolOutput
from polyhost_tools.diffs import hunks
from polyhost_tools.errors import FileError
from polyhost_tools.files import LARGE, Change, Edit, FileChanges, Snapshot
from polyhost_tools.read import envelope
from polyhost_tools.text import decode, with_endings_of

PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "file_path": {
            "type": "string",
            "description": "Path of the file, absolute or relative to the working directory.",
        },
        "content": {"type": "string", "description": "Full UTF-8 text content to write."},
    },
    "required": ["file_path", "content"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "operation": {"type": "string", "enum": ["create", "update"]},
        "before": {"oneOf": [{"type": "string"}, {"type": "null"}]},
        "after": {"type": "string"},
    },
    "required": ["path", "operation", "before", "after"],
}


def write_tool(changes: FileChanges) -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        return _value(await changes.apply(call, arguments["file_path"], _edit(arguments)))

    async def preview(arguments: JsonObject, call: ToolCall) -> JsonObject:
        planned = await changes.preview(call, arguments["file_path"], _edit(arguments))
        return await asyncio.to_thread(_meta, arguments, _value(planned))

    return Tool(
        name="write",
        description="Write a text file, replacing what it holds. Read an existing file before overwriting it.",
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render, _meta),
        execute=execute,
        access="write",
        writes=lambda arguments: [arguments["file_path"]],
        preview=preview,
    )


def _edit(arguments: JsonObject) -> Edit:
    content: str = arguments["content"]

    def edit(now: Snapshot, path: str) -> tuple[str | None, str]:
        before = _text(now, path)
        return before, content if before is None else with_endings_of(before, content)

    return edit


def _value(change: Change) -> JsonObject:
    operation = "create" if change.created else "update"
    return {"path": change.path, "operation": operation, "before": change.before, "after": change.after}


def _text(now: Snapshot, path: str) -> str | None:
    """The text that is replaced; None when there is none, or none that could be shown."""
    try:
        return None if now.data is None else decode(now.data, path)
    except FileError:
        return None


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    return [envelope(value["path"], "Created file" if value["operation"] == "create" else "Updated file")]


def _meta(arguments: JsonObject, value: Any) -> JsonObject:
    unknown = value["operation"] == "update" and value["before"] is None
    if unknown or len(value["after"]) >= LARGE:
        return {"diffs": []}
    return {"diffs": hunks(value["path"], value["before"], value["after"])}
