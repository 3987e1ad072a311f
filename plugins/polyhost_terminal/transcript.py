"""A session's log as a conversation that people read: on a terminal, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from polyhost.interfaces import StoredSession, text_of
from polyhost.wire import json
from polyhost_terminal.renderers import describe_reason
from polyhost_terminal.screen import Screen
from polyhost_terminal.stored import when

_BACKTICKS = re.compile(r"`{3,}")


def show(screen: Screen, lines: Sequence[bytes]) -> None:
    """Prompts, answers, tool calls with the ends of their results, and turns that did not end well."""
    for event in map(json.loads, lines):
        data = event["data"]
        match event["type"]:
            case "user/message" if data["source"].get("kind") == "user":
                screen.line(f"\n> {text_of(data['content'])}", "bold")
            case "assistant/message":
                if text := text_of(data["message"]["content"]):
                    screen.line(text)
            case "tool/call":
                screen.tool_call(data["name"], data["arguments"])
            case "tool/result":
                block = data["message"]["content"][0]
                screen.tool_result(text_of(block["content"]), is_error=bool(block.get("isError")))
            case "turn/end" if data["reason"]["kind"] != "completed":
                screen.line(f"turn {data['turn']}: {describe_reason(data['reason'])}", "yellow")


def markdown(stored: StoredSession, lines: Sequence[bytes]) -> str:
    """The whole conversation; tool results in full."""
    header = stored.header
    title = next(_titles(lines), header.id)
    parts = [f"# {title}", f"Session `{header.id}`, begun {when(header.created_at)} in `{header.cwd or '-'}`"]
    for event in map(json.loads, lines):
        parts.extend(_paragraphs(event["type"], event["data"]))
    return "\n\n".join(parts) + "\n"


def _titles(lines: Sequence[bytes]) -> Iterator[str]:
    """Titles of the log, the last one first."""
    for line in reversed(lines):
        if line.startswith(b'{"type":"session/title"'):
            yield json.loads(line)["data"]["title"]


def _paragraphs(type: str, data: Any) -> Iterator[str]:
    match type:
        case "user/message" if data["source"].get("kind") == "user":
            yield "## Prompt"
            yield "\n".join(f"> {line}".rstrip() for line in text_of(data["content"]).split("\n"))
        case "assistant/message":
            if text := text_of(data["message"]["content"]):
                yield "## Answer"
                yield text
        case "tool/call":
            yield f"### Tool {data['name']}"
            yield _fenced(data["arguments"], "json")
        case "tool/result":
            block = data["message"]["content"][0]
            yield "Error:" if block.get("isError") else "Result:"
            yield _fenced(text_of(block["content"]))
        case "turn/end" if data["reason"]["kind"] != "completed":
            yield f"*Turn {data['turn']}: {describe_reason(data['reason'])}*"


def _fenced(text: str, language: str = "") -> str:
    """A code block whose fence the text cannot end."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
