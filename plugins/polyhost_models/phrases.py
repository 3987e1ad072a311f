"""What the demo model understands: a table of phrases, each a small plan that looks at the tool results so far.

A plan gets the words after the phrase and the :class:`Turn` so far, and answers with what to say and which tool to
use next. Plans are pure functions of the history.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from shlex import quote
from typing import NamedTuple, TypeAlias

from polyhost.interfaces import JsonObject, ModelRequest, text_of
from polyhost.testing import sample
from polyhost.wire import json
from polyhost.wire.errors import WireError

MAX_COUNT = 1_000_000
_WORD = re.compile(r"\s*\S+|\s+$")
_UNREAD = re.compile(r"\b(re-)?read\b(?!-only)")  # the way out that a write to a file unread or changed is given
_FAILED = "[exit code:"

HELP = """\
I am the offline demo model. I understand:
- say TEXT: I say it
- count N: I stream N numbered words
- read PATH: I read a file and tell its length
- write PATH TEXT: I write a file
- run COMMAND: I run a shell command and tell how it ended
- ask QUESTION: I ask you and repeat your answer
- delegate TASK: I hand a task to a subagent, where there is one
- fix the failing test: I play a story in the sample repository (hostctl run --demo)"""


class Say(NamedTuple):
    """Stream ``text`` word by word; ``upto`` streams that many numbered words instead, without building them first."""

    text: str = ""
    upto: int = 0

    def tokens(self) -> Iterator[str]:
        if self.upto:
            return (f"{number} " for number in range(1, self.upto + 1))
        return split_words(self.text)


class Use(NamedTuple):
    """Call ``tool``."""

    tool: str
    arguments: JsonObject


Action: TypeAlias = Say | Use


class Result(NamedTuple):
    """One tool result of this turn."""

    text: str
    is_error: bool


class Turn(NamedTuple):
    """What happened since the last human message, and which tools there are."""

    results: list[Result]
    tools: frozenset[str]


def split_words(text: str) -> Iterator[str]:
    """The words of ``text``, each with the white space before it; joined they are ``text`` again."""
    return (match[0] for match in _WORD.finditer(text))


def count_words(text: str) -> int:
    """How many words ``text`` has, without making any: it may be as large as a whole history."""
    return sum(1 for _ in re.finditer(r"\S+", text))


Plan: TypeAlias = Callable[[str, Turn], list[Action]]


def decide(request: ModelRequest) -> list[Action]:
    """The next actions for the history of ``request``."""
    prompt = ""
    results: list[Result] = []
    for message in request.messages:
        if message["role"] != "user":
            continue
        if message["source"].get("kind") in ("user", "coordinator"):
            prompt, results = text_of(message["content"]).strip(), []
        for block in message["content"]:
            if block.get("type") == "tool-result":
                text = text_of(block["content"]).removeprefix("Error: ")
                results.append(Result(text, bool(block.get("isError"))))
    if request.purpose is not None:
        return _upkeep(request.purpose, prompt)
    turn = Turn(results, frozenset(tool["name"] for tool in request.tools))
    for phrase, plan in _PHRASES:
        if match := re.fullmatch(phrase, prompt, re.IGNORECASE | re.DOTALL):
            return plan(match[1].strip() if match.groups() else "", turn)
    return [Say(HELP)]


def _upkeep(purpose: str, prompt: str) -> list[Action]:
    """The host's own requests, for a title or a summary: no phrase of the human is obeyed there."""
    if purpose == "session-title":
        return [Say(" ".join(prompt.split()[:5]) or "Demo session")]
    return [Say(f"The last thing that the human asked was: {prompt}")]


def _say(words: str, turn: Turn) -> list[Action]:
    return [Say(words)]


def _count(words: str, turn: Turn) -> list[Action]:
    number = int(words)
    if not 1 <= number <= MAX_COUNT:
        return [Say(f"I count from 1 up to {MAX_COUNT}.")]
    return [Say(upto=number)]


def _read(words: str, turn: Turn) -> list[Action]:
    if not turn.results:
        return _use(turn, "read", {"file_path": words}, f"I read {words}.")
    result = turn.results[-1]
    if result.is_error:
        return [Say(f"I could not read {words}: {result.text}")]
    lines = len(re.findall(r"^\d+: ", result.text, re.MULTILINE))
    return [Say(f"{words} shows {lines} line{'s' if lines != 1 else ''}.")]


def _write(words: str, turn: Turn) -> list[Action]:
    path, _, text = words.partition(" ")
    if not text:
        return [Say("Tell me what to write: write PATH TEXT.")]
    write = {"file_path": path, "content": text + "\n"}
    if not turn.results:
        return _use(turn, "write", write, f"I write {path}.")
    result = turn.results[-1]
    if result.is_error and len(turn.results) == 1 and _UNREAD.search(result.text):
        return [Say(f"{path} exists, so I read it first."), Use("read", {"file_path": path})]
    if len(turn.results) == 2 and not result.is_error:
        return [Say("Now I write it."), Use("write", write)]
    return [Say(f"I could not write {path}: {result.text}" if result.is_error else f"I wrote {path}.")]


def _run(words: str, turn: Turn) -> list[Action]:
    if not turn.results:
        return _use(turn, "bash", {"command": words, "description": "Run what was asked for"}, "I run it.")
    result = turn.results[-1]
    if result.is_error:
        return [Say(f"It did not run: {result.text}")]
    return [Say(f"It ran, {_ending(result.text)}.")]


def _ask(words: str, turn: Turn) -> list[Action]:
    if not turn.results:
        question = {"id": "question", "question": words}
        return _use(turn, "ask_user_question", {"questions": [question]}, "I have a question.")
    result = turn.results[-1]
    if result.is_error:
        return [Say(f"I got no answer: {result.text}")]
    return [Say(f"You answered: {_answer(result.text)}")]


def _delegate(words: str, turn: Turn) -> list[Action]:
    if not turn.results:
        arguments = {"description": "Do the delegated task", "prompt": words}
        return _use(turn, "subagent", arguments, "I hand it over.")
    result = turn.results[-1]
    return [Say(f"The subagent failed: {result.text}" if result.is_error else f"The subagent says: {result.text}")]


def _fix(words: str, turn: Turn) -> list[Action]:
    """Run the tests, read what fails, mend it, run them again."""
    test = {"command": f"{quote(sys.executable)} -m unittest -v", "description": "Run the unit tests"}
    results = turn.results
    if results and results[-1].is_error:
        return [Say(f"I stop here: {results[-1].text}")]
    match len(results):
        case 0:
            return _use(turn, "bash", test, "I run the tests to see what fails.")
        case 1 if sample.FAILING_TEST not in results[0].text:
            return [Say("No failing test that I know. My story needs the sample repository: hostctl run --demo")]
        case 1 if _FAILED not in results[0].text:
            return [Say("All tests pass already. There is nothing to fix.")]
        case 1:
            return [Say(f"{sample.FAILING_TEST} fails. I look at the code."), Use("read", {"file_path": sample.MODULE})]
        case 2:
            edit = {"file_path": sample.MODULE, "old_string": sample.BROKEN, "new_string": sample.MENDED}
            return [Say(sample.DIAGNOSIS), Use("edit", edit)]
        case 3:
            return [Say("I run the tests again."), Use("bash", test)]
    if _FAILED in results[-1].text:
        return [Say("The tests still fail, I give up.")]
    return [Say(f"All tests pass now. {sample.SUMMARY}")]


def _use(turn: Turn, tool: str, arguments: JsonObject, words: str) -> list[Action]:
    if tool not in turn.tools:
        return [Say(f"I would use the tool {tool}, but this host does not offer it to me.")]
    return [Say(words), Use(tool, arguments)]


def _ending(text: str) -> str:
    match = re.search(r"\[(exit code: \d+|killed by signal: \w+|timed out after \d+ms)\]$", text)
    return f"and ended with {match[1]}" if match else "and ended well"


def _answer(text: str) -> str:
    """The human's words in a result of ``ask_user_question``."""
    try:
        answer = json.loads(text)["answers"][0]
        return answer.get("custom") or ", ".join(answer["selected"])
    except (WireError, LookupError, TypeError, AttributeError):
        return text


_PHRASES: tuple[tuple[str, Plan], ...] = (
    (r"say (.+)", _say),
    (r"count (\d{1,9})", _count),
    (r"read (.+)", _read),
    (r"write (.+)", _write),
    (r"run (.+)", _run),
    (r"ask (.+)", _ask),
    (r"delegate (.+)", _delegate),
    (r"fix the failing test\.?", _fix),
)
