"""``todo_write``: the model's own plan, logged so that user interfaces can show it."""

from __future__ import annotations

from typing import Any

from polyhost.interfaces import JsonObject, Tool, ToolCall, ToolError, ToolOutput, text_block
from polyhost_tools.errors import ArgumentError

STATES = ("pending", "in_progress", "completed")

_TODO: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "content": {"type": "string", "description": "What is to be done, in one sentence."},
        "status": {"type": "string", "description": "How far it is; keep one item in_progress.", "enum": [*STATES]},
    },
    "required": ["content", "status"],
}
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "todos": {"type": "array", "description": "The whole list; it replaces the last one.", "items": _TODO}
    },
    "required": ["todos"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {"todos": {"type": "array", "items": _TODO}},
    "required": ["todos"],
}


def todo_write_tool() -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        if call.agent is None:
            raise ToolError("a to-do list belongs to a session, and this call has none", code="NO_SESSION")
        todos: list[JsonObject] = arguments["todos"]
        if not all(todo["content"].strip() for todo in todos):
            raise ArgumentError("the content of a to-do must not be blank")
        call.agent.session.append("todo/write", {"todos": todos})
        return {"todos": todos}

    return Tool(
        name="todo_write",
        description=(
            "Keep a list of what is to be done, for work of several steps. Send the whole list each time, and mark"
            " items as soon as they are begun and completed."
        ),
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render),
        execute=execute,
        access="none",
    )


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    todos = value["todos"]
    if not todos:
        return [text_block("The to-do list is empty now.")]
    done = sum(todo["status"] == "completed" for todo in todos)
    return [text_block(f"The to-do list was updated: {done} of {len(todos)} completed.")]
