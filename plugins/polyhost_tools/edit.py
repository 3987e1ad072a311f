"""``edit``: a literal replacement inside an existing file."""

from __future__ import annotations

import asyncio
from typing import Any

from polyhost.interfaces import JsonObject, Tool, ToolCall, ToolOutput, text_block
from polyhost_tools.diffs import hunks
from polyhost_tools.errors import ArgumentError, FileError
from polyhost_tools.files import LARGE, Change, Edit, FileChanges, Snapshot
from polyhost_tools.text import decode, replace_literal, to_lf

PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "file_path": {
            "type": "string",
            "description": "Path of the file, absolute or relative to the working directory.",
        },
        "old_string": {"type": "string", "description": "The text to replace, exactly as the file has it."},
        "new_string": {"type": "string", "description": "The text to put in its place; empty removes it."},
        "replace_all": {
            "type": "boolean",
            "description": "Replace every occurrence. Without it, old_string must occur exactly once.",
        },
    },
    "required": ["file_path", "old_string", "new_string"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "before": {"type": "string"},
        "after": {"type": "string"},
        "replacedAll": {"type": "boolean"},
    },
    "required": ["path", "before", "after", "replacedAll"],
}


def edit_tool(changes: FileChanges) -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        return _value(arguments, await changes.apply(call, arguments["file_path"], _edit(arguments)))

    async def preview(arguments: JsonObject, call: ToolCall) -> JsonObject:
        planned = await changes.preview(call, arguments["file_path"], _edit(arguments))
        return await asyncio.to_thread(_meta, arguments, _value(arguments, planned))

    return Tool(
        name="edit",
        description="Replace text in a file that was read before.",
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render, _meta),
        execute=execute,
        access="write",
        writes=lambda arguments: [arguments["file_path"]],
        preview=preview,
    )


def _edit(arguments: JsonObject) -> Edit:
    old, new = arguments["old_string"], arguments["new_string"]
    if not old:
        raise ArgumentError("old_string must not be empty; use write to create a file")
    if to_lf(old) == to_lf(new):
        raise ArgumentError("old_string and new_string are the same, so nothing would change")

    def edit(now: Snapshot, path: str) -> tuple[str, str]:
        before = _text(now, path)
        return before, replace_literal(before, old, new, every=_every(arguments), path=path)

    return edit


def _every(arguments: JsonObject) -> bool:
    every: bool = arguments.get("replace_all", False)
    return every


def _value(arguments: JsonObject, change: Change) -> JsonObject:
    return {"path": change.path, "before": change.before, "after": change.after, "replacedAll": _every(arguments)}


def _text(now: Snapshot, path: str) -> str:
    if now.absent:
        raise FileError(f"{path}: file not found", code="FS_NOT_FOUND")
    if now.data is None:
        raise FileError(f"{path}: the file is too large to edit ({LARGE} bytes or more)", code="FS_TOO_LARGE")
    return decode(now.data, path)


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    path = value["path"]
    if value["replacedAll"]:
        return [text_block(f"The file {path} has been updated. All occurrences were successfully replaced.")]
    return [text_block(f"The file {path} has been updated successfully.")]


def _meta(arguments: JsonObject, value: Any) -> JsonObject:
    return {"diffs": hunks(value["path"], value["before"], value["after"])}
