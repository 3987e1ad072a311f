"""Writing for people: streamed text, one line per tool call, diffs; styled only where the stream is a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from polyhost.config.errors import printable
from polyhost.interfaces import JsonObject
from polyhost.wire import json
from polyhost.wire.errors import WireError

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_HEAD_LINES = 4
_TAIL_LINES = 8
_ARGUMENT_WIDTH = 100


class Screen:
    """One output stream. Control characters of models and tools never reach a terminal as such."""

    def __init__(self, stream: TextIO, *, styled: bool) -> None:
        self._stream = stream
        self._styled = styled
        self._at_line_start = True

    def style(self, text: str, *names: str) -> str:
        """``text`` in the named styles, or as it is on a stream without styles."""
        if not self._styled or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"

    def stream(self, text: str, *names: str) -> None:
        """Write a piece of running text."""
        if not text:
            return
        safe = _visible(text)
        self._stream.write(self.style(safe, *names) if names else safe)
        self._stream.flush()
        self._at_line_start = safe.endswith("\n")

    def line(self, text: str = "", *names: str) -> None:
        """Write whole lines, on a line of their own."""
        self.end_line()
        for part in _visible(text).split("\n"):
            self._stream.write(self.style(part, *names) + "\n")
        self._stream.flush()

    def prompt(self, text: str) -> None:
        """Write a question and leave the cursor behind it, until :meth:`typed`."""
        self.end_line()
        self._stream.write(text)
        self._stream.flush()
        self._at_line_start = False

    def typed(self) -> None:
        """A line was typed behind the prompt; the terminal has shown its end."""
        self._at_line_start = True

    def end_line(self) -> None:
        if not self._at_line_start:
            self._stream.write("\n")
            self._at_line_start = True

    def tool_call(self, name: str, raw_arguments: str) -> None:
        """One line: the tool and its most telling argument, from the text that the model sent."""
        arguments = _object(raw_arguments)
        words = printable(_telling(arguments))
        if len(words) > _ARGUMENT_WIDTH:
            words = words[: _ARGUMENT_WIDTH - 1] + "…"
        self.end_line()
        self._stream.write(f"{self.style('●', 'cyan')} {self.style(printable(name), 'bold')} {words}\n")
        self._stream.flush()

    def tool_result(self, text: str, *, is_error: bool) -> None:
        """The first and the last lines of a result, indented; how it ended is usually at the end."""
        lines = text.rstrip("\n").split("\n")
        if (hidden := len(lines) - _HEAD_LINES - _TAIL_LINES) > 1:
            lines[_HEAD_LINES:-_TAIL_LINES] = [f"… {hidden} more lines …"]
        for line in lines:
            self.line(f"  {line}", "red" if is_error else "dim")

    def diffs(self, diffs: Sequence[JsonObject]) -> None:
        """Hunks ``{path, oldText, newText}`` as removed and added lines."""
        for hunk in diffs:
            self.line(f"  {hunk.get('path', '')}", "bold")
            old, new = (hunk.get("oldText") or "").splitlines(), (hunk.get("newText") or "").splitlines()
            for mark, line in _changes(old, new):
                self.line(f"  {mark} {line}", {"-": "red", "+": "green"}.get(mark, "dim"))

    def arguments(self, arguments: object) -> None:
        """Every argument in full: what is approved is exactly what is shown."""
        if not isinstance(arguments, dict):
            self.line(f"    {arguments}")
            return
        for key, value in arguments.items():
            lines = str(value).split("\n")
            if len(lines) == 1:
                self.line(f"    {key}: {lines[0]}")
            else:
                self.line(f"    {key}:")
                for line in lines:
                    self.line(f"      {line}")


def _telling(arguments: JsonObject) -> str:
    """The argument that says most about a call; of an unknown tool, all of them."""
    for key in ("command", "file_path", "pattern", "prompt"):
        if key in arguments:
            return str(arguments[key])
    if isinstance(questions := arguments.get("questions"), list):
        return "; ".join(str(question.get("question", "")) for question in questions if isinstance(question, dict))
    return json.dumps(arguments).decode() if arguments else ""


def _object(text: str) -> JsonObject:
    try:
        value = json.loads(text or "{}")
    except WireError:
        return {}
    return value if isinstance(value, dict) else {}


def _changes(old: list[str], new: list[str]) -> list[tuple[str, str]]:
    from difflib import ndiff

    return [(line[0], line[2:]) for line in ndiff(old, new) if line[0] in "+- "]


def _visible(text: str) -> str:
    """``text`` with line feeds and tabs kept and every other control character made visible."""
    if text.isprintable():
        return text
    return "".join(char if char in "\n\t" or char.isprintable() else printable(char) for char in text)
