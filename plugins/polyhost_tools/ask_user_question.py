"""``ask_user_question``: questions to the person in front of the session."""

from __future__ import annotations

from typing import Any

from polyhost.interfaces import Interactions, JsonObject, Tool, ToolCall, ToolOutput, text_block
from polyhost.wire.json import dumps
from polyhost_tools.errors import ArgumentError

_OPTION: JsonObject = {
    "type": "object",
    "additionalProperties": True,
    "properties": {
        "label": {"type": "string", "description": "Short user-facing option label."},
        "description": {"type": "string", "description": "What choosing this option means."},
    },
    "required": ["label"],
}
_QUESTION: JsonObject = {
    "type": "object",
    "additionalProperties": True,
    "properties": {
        "id": {"type": "string", "description": "Identifies the question in the answers; unique."},
        "question": {"type": "string", "description": "The specific question to ask the user."},
        "header": {"type": "string", "description": "One or two words that name the subject."},
        "options": {
            "type": "array",
            "description": "Answers to choose from; the user may always answer in their own words instead.",
            "items": _OPTION,
        },
        "multi_select": {"type": "boolean", "description": "Whether several options may be chosen together."},
    },
    "required": ["id", "question"],
}
PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        "questions": {"type": "array", "description": "The questions, which are asked together.", "items": _QUESTION}
    },
    "required": ["questions"],
}
_VALUE: JsonObject = {
    "type": "object",
    "properties": {
        "answers": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string"},
                    "selected": {"type": "array", "items": {"type": "string"}},
                    "custom": {"type": "string"},
                },
                "required": ["id", "selected"],
            },
        }
    },
    "required": ["answers"],
}


def ask_user_question_tool(interactions: Interactions) -> Tool:
    async def execute(arguments: JsonObject, call: ToolCall) -> JsonObject:
        ids = [question["id"] for question in arguments["questions"]]
        if len(set(ids)) != len(ids):
            raise ArgumentError("each question needs an id of its own")
        for question in arguments["questions"]:
            labels = [option["label"] for option in question.get("options", ())]
            if len(set(labels)) != len(labels):
                raise ArgumentError(f'the options of question "{question["id"]}" need labels of their own')
        questions = [_question(question) for question in arguments["questions"]]
        return {"answers": await interactions.ask(call.agent, questions, call.signal)}

    return Tool(
        name="ask_user_question",
        description=(
            "Ask the user one or more questions and wait for the answers. Use it for decisions that only the user can"
            " take, not for what you can find out yourself."
        ),
        parameters=PARAMETERS,
        output=ToolOutput(_VALUE, _render),
        execute=execute,
        access="none",
    )


def _question(asked: JsonObject) -> JsonObject:
    """A question as front ends know it, from what the model sent."""
    question: JsonObject = {key: asked[key] for key in ("id", "question", "header") if key in asked}
    if "options" in asked:
        question["options"] = [
            {key: option[key] for key in ("label", "description") if key in option} for option in asked["options"]
        ]
    if "multi_select" in asked:
        question["multiSelect"] = asked["multi_select"]
    return question


def _render(arguments: JsonObject, value: Any) -> list[JsonObject]:
    return [text_block(dumps(value).decode())]
