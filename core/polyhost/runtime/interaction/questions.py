"""The rules of questions: what may be asked, and what answers them (agent-core 2.16). Plain checks without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from polyhost.interfaces.interaction import QuestionError
from polyhost.interfaces.json_types import JsonObject, JsonValue


def check_questions(questions: Sequence[JsonObject]) -> None:
    """Refuse a batch that cannot be put.

    :raises QuestionError: EMPTY_QUESTIONS or BAD_INTENT.
    """
    if not questions:
        raise QuestionError("there is no question to ask", code="EMPTY_QUESTIONS")
    for question in questions:
        intent = question.get("intent")
        if intent is None:
            continue
        where = f"question {question.get('id')!r}"
        if not question.get("detail"):
            raise QuestionError(f"{where} needs a detail for its intent", code="BAD_INTENT")
        if intent.get("approve") not in _labels(question):
            raise QuestionError(
                f"{where}: the approving label {intent.get('approve')!r} is not among its options", code="BAD_INTENT"
            )


def check_answers(questions: Sequence[JsonObject], answers: JsonValue) -> None:
    """Refuse answers that do not belong to the questions.

    :raises QuestionError: BAD_ANSWER, naming the question.
    """
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise _bad("answers must be a list of objects")
    if [answer.get("id") for answer in answers] != [question["id"] for question in questions]:
        raise _bad("answers must have the ids of the questions, in their order")
    for question, answer in zip(questions, answers, strict=True):
        problem = _problem(question, answer)
        if problem is not None:
            raise _bad(f"question {question['id']!r}: {problem}")


def _problem(question: JsonObject, answer: JsonObject) -> str | None:
    selected, custom = answer.get("selected"), answer.get("custom")
    multiple = question.get("multiSelect") is True
    if answer.keys() - {"id", "selected", "custom"}:
        return "an answer has only id, selected and custom"
    if not isinstance(selected, list) or not all(isinstance(label, str) for label in selected):
        return "selected must be a list of labels"
    if len(set(selected)) != len(selected):
        return "a label is selected twice"
    if unknown := [label for label in selected if label not in _labels(question)]:
        return f"unknown labels: {', '.join(unknown)}"
    if len(selected) > 1 and not multiple:
        return "only one label may be selected"
    if custom is not None and (not isinstance(custom, str) or not custom.strip()):
        return "custom must not be blank"
    if custom is not None and selected and not multiple:
        return "custom and selected exclude each other"
    return None


def _labels(question: JsonObject) -> list[Any]:
    return [option.get("label") for option in question.get("options") or ()]


def _bad(message: str) -> QuestionError:
    return QuestionError(message, code="BAD_ANSWER")
