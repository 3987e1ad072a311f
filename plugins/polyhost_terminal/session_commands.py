"""``hostctl sessions``: what is stored, without disturbing who works on it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import click

from polyhost.cli.hosting import CommandContext, on_host
from polyhost.cli.output import print_json, print_table
from polyhost.cli.state import HostState
from polyhost.interfaces import SESSION_DIRECTORY, SessionDirectory, StoredSession, text_of
from polyhost.wire import json
from polyhost_terminal.conversation import resolve_id
from polyhost_terminal.renderers import describe_reason
from polyhost_terminal.screen import Screen


@click.group()
def sessions() -> None:
    """List and show stored sessions."""


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at the most.")
@click.pass_obj
def list_sessions(state: HostState, as_json: bool, limit: int) -> int:
    """The stored sessions, latest first."""

    async def show(directory: SessionDirectory) -> None:
        rows = await directory.stored(limit=limit)
        if as_json:
            print_json([_facts(row) for row in rows])
        else:
            table = [(row.header.id, _when(row.modified), row.title or "", row.header.cwd or "") for row in rows]
            print_table(("ID", "CHANGED", "TITLE", "WORKSPACE"), table)

    return _with_directory(state, show)


@sessions.command("show")
@click.argument("session_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print the header and the events as JSON lines.")
@click.pass_obj
def show_session(state: HostState, session_id: str, as_json: bool) -> int:
    """The conversation of a session (its id or the start of it)."""

    async def show(directory: SessionDirectory) -> None:
        stored, lines = await directory.read(await resolve_id(directory, session_id))
        if as_json:
            sys.stdout.buffer.write(json.dumps({"type": "session", **_facts(stored)}) + b"\n")
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        else:
            _print_transcript([json.loads(line) for line in lines])

    return _with_directory(state, show)


@sessions.command("path")
@click.argument("session_id", metavar="ID")
@click.pass_obj
def session_path(state: HostState, session_id: str) -> int:
    """The log file of a session."""

    async def show(directory: SessionDirectory) -> None:
        stored, _ = await directory.read(await resolve_id(directory, session_id))
        click.echo(stored.path)

    return _with_directory(state, show)


def _with_directory(state: HostState, show: Any) -> int:
    async def main(command: CommandContext) -> int:
        await show(command.context.require(SESSION_DIRECTORY))
        return 0

    return on_host(state, "sessions", main, requires=(SESSION_DIRECTORY,), plugins=())


def _facts(stored: StoredSession) -> dict[str, Any]:
    header = stored.header
    facts = {
        "id": header.id,
        "createdAt": header.created_at,
        "modifiedAt": stored.modified,
        "cwd": header.cwd,
        "title": stored.title,
        "parentSession": header.parent_session,
        "path": stored.path,
        "bytes": stored.size,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _when(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M")


def _print_transcript(events: list[dict[str, Any]]) -> None:
    screen = Screen(sys.stdout, styled=sys.stdout.isatty())
    for event in events:
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
