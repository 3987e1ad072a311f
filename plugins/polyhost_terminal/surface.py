"""How the terminal answers approvals and questions: a person at the keyboard, or a fixed answer."""

from __future__ import annotations

import re

from polyhost.interfaces import ApprovalAnswer, ApprovalRequest, JsonObject, PermissionMode, QuestionRequest
from polyhost_terminal.keyboard import Keyboard
from polyhost_terminal.screen import Screen


class FixedSurface:
    """Answers every approval of one session the same way, without asking anybody."""

    def __init__(self, session_id: str, *, allowed: bool) -> None:
        self.name = "terminal"
        self._session_id = session_id
        self._allowed = allowed
        self.default_mode: PermissionMode | None = "ask"
        self.trusts_shell = False

    def serves(self, session_id: str) -> bool:
        return session_id == self._session_id

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer | None:
        return ApprovalAnswer(self._allowed)

    async def ask(self, request: QuestionRequest) -> list[JsonObject] | None:
        return None


class TerminalSurface:
    """Asks the person at the terminal.

    :param allowed: answer approvals like this without asking; None asks.
    """

    def __init__(self, session_id: str, screen: Screen, keyboard: Keyboard, *, allowed: bool | None = None) -> None:
        self.name = "terminal"
        self._session_id = session_id
        self._screen = screen
        self._keyboard = keyboard
        self._allowed = allowed
        self.default_mode: PermissionMode | None = "ask"
        self.trusts_shell = False

    def serves(self, session_id: str) -> bool:
        return session_id == self._session_id

    async def approve(self, request: ApprovalRequest) -> ApprovalAnswer | None:
        if self._allowed is not None:
            return ApprovalAnswer(self._allowed)
        screen = self._screen
        screen.line(f"  {request.tool} wants to run with:", "yellow")
        screen.arguments(request.arguments)
        if request.preview and request.preview.get("diffs"):
            screen.line("  which would change:", "yellow")
            screen.diffs(request.preview["diffs"])
        if request.reason:
            screen.line(f"    reason: {request.reason}")
        self._keyboard.discard()
        while True:
            screen.prompt("  Allow? [y] yes  [n] no  [a] always in this session: ")
            line = await self._line(request)
            match (line or "n").strip().lower():
                case "y" | "yes":
                    return ApprovalAnswer(True)
                case "a" | "always":
                    return ApprovalAnswer(True, remember=True)
                case "n" | "no":
                    return ApprovalAnswer(False)

    async def ask(self, request: QuestionRequest) -> list[JsonObject] | None:
        self._keyboard.discard()
        answers = []
        for question in request.questions:
            answer = await self._ask_one(question, request)
            if answer is None:
                return None
            answers.append(answer)
        return answers

    async def _line(self, request: ApprovalRequest | QuestionRequest) -> str | None:
        """The next line; raises when the request is withdrawn meanwhile. None at the end of input."""
        line = await request.signal.race(self._keyboard.line())
        if line is not None:
            self._screen.typed()
        return line

    async def _ask_one(self, question: JsonObject, request: QuestionRequest) -> JsonObject | None:
        screen = self._screen
        options = [option["label"] for option in question.get("options", ())]
        several = bool(question.get("multiSelect"))
        screen.line(f"  {question['question']}", "yellow")
        for number, option in enumerate(question.get("options", ()), 1):
            note = f" - {option['description']}" if option.get("description") else ""
            screen.line(f"    {number}. {option['label']}{note}")
        hint = "" if not options else " (numbers, or your own words)" if several else " (a number, or your own words)"
        while True:
            screen.prompt(f"  Your answer{hint}: ")
            line = await self._line(request)
            if line is None:
                return None
            if answer := parse_answer(line, options, several=several):
                return {"id": question["id"], **answer}


def parse_answer(line: str, options: list[str], *, several: bool) -> JsonObject | None:
    """``{selected, custom?}`` for a typed line: numbers and labels choose options, anything else is the answer itself.

    None for a blank line.
    """
    text = line.strip()
    if not text:
        return None
    selected = []
    for word in re.split(r"[\s,]+", text) if several else [text]:
        if word.isdigit() and 1 <= int(word) <= len(options):
            selected.append(options[int(word) - 1])
    if text in options:
        selected = [text]
    elif not selected or len(selected) != len(re.split(r"[\s,]+", text)):
        return {"selected": [], "custom": text}
    return {"selected": list(dict.fromkeys(selected))}
