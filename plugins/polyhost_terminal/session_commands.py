"""``hostctl sessions``: what is stored, without disturbing who works on it. Commands that change something are in
``session_upkeep``.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from polyhost.cli.hosting import CommandContext, on_host
from polyhost.cli.output import print_json, print_table
from polyhost.cli.state import HostState
from polyhost.config.errors import printable
from polyhost.interfaces import SESSION_DIRECTORY, STORED_SESSIONS, SessionPage, StoredSession, StoredSessions
from polyhost.wire import json
from polyhost_terminal import session_upkeep, transcript
from polyhost_terminal.screen import Screen
from polyhost_terminal.stored import counted, facts, resolve_id, when, with_sessions

_SEARCH_LIMIT = 20


@click.group()
def sessions() -> None:
    """List, show and look after stored sessions."""


for command in session_upkeep.COMMANDS:
    sessions.add_command(command)


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at the most.")
@click.option("--cursor", metavar="CURSOR", help="Go on behind a page that was listed before.")
@click.option("--all-workspaces", is_flag=True, help="Those of every workspace, not only of this folder.")
@click.option(
    "--cwd", type=click.Path(path_type=Path, resolve_path=True), help="The workspace; default is the current folder."
)
@click.pass_obj
def list_sessions(
    state: HostState, as_json: bool, limit: int, cursor: str | None, all_workspaces: bool, cwd: Path | None
) -> int:
    """The stored sessions, latest first."""
    if all_workspaces and cwd is not None:
        raise click.UsageError("--all-workspaces and --cwd exclude each other")
    workspace = None if all_workspaces else str(cwd or state.cwd)

    async def show(stored: StoredSessions) -> None:
        page = await stored.page(limit=limit, cursor=cursor, cwd=workspace)
        if as_json:
            print_json([{**facts(row), "cursor": row.cursor} for row in page.sessions])
        elif page.sessions:
            _print_page(page, workspaces=all_workspaces)
        _print_rest(page, workspace)

    return with_sessions(state, show)


@sessions.command("search")
@click.argument("words", nargs=-1, required=True, metavar="WORDS...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--limit", type=click.IntRange(min=1), default=_SEARCH_LIMIT, show_default=True, help="How many.")
@click.pass_obj
def search_sessions(state: HostState, words: tuple[str, ...], as_json: bool, limit: int) -> int:
    """Sessions of every workspace in which a prompt or an answer has all WORDS, best first."""

    async def show(stored: StoredSessions) -> None:
        matches = await stored.search(" ".join(words), limit=limit)
        if as_json:
            found = [{"seq": match.seq, "role": match.role, "snippet": match.snippet} for match in matches]
            print_json([facts(match.stored) | place for match, place in zip(matches, found, strict=True)])
            return
        for match in matches:
            row = match.stored
            click.echo(f"{_shown(row.header.id)}  {when(row.modified)}  {_shown(row.title)}")
            click.echo(f"    {match.role}: {_shown(' '.join(match.snippet.split()))}")
        if not matches:
            click.echo("no session has these words in one prompt or answer", err=True)

    return with_sessions(state, show)


@sessions.command("show")
@click.argument("session_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print the header and the events as JSON lines.")
@click.pass_obj
def show_session(state: HostState, session_id: str, as_json: bool) -> int:
    """The conversation of a session (its id or the start of it)."""

    async def main(command: CommandContext) -> int:
        id = await resolve_id(command.context.require(STORED_SESSIONS), session_id)
        stored, lines = await command.context.require(SESSION_DIRECTORY).read(id)
        if as_json:
            sys.stdout.buffer.write(json.dumps({"type": "session", **facts(stored)}) + b"\n")
            sys.stdout.buffer.writelines(lines)
            sys.stdout.buffer.flush()
        else:
            transcript.show(Screen(sys.stdout, styled=sys.stdout.isatty()), lines)
        return 0

    return on_host(state, "sessions", main, requires=(STORED_SESSIONS, SESSION_DIRECTORY), plugins=())


@sessions.command("path")
@click.argument("session_id", metavar="ID")
@click.pass_obj
def session_path(state: HostState, session_id: str) -> int:
    """The log file of a session."""

    async def show(stored: StoredSessions) -> None:
        click.echo(await stored.locate(await resolve_id(stored, session_id)))

    return with_sessions(state, show)


def _print_page(page: SessionPage, *, workspaces: bool) -> None:
    def row(stored: StoredSession) -> tuple[str, ...]:
        cells = (_shown(stored.header.id), when(stored.modified), _shown(stored.title))
        return (*cells, _shown(stored.header.cwd)) if workspaces else cells

    headers = ("ID", "CHANGED", "TITLE", "WORKSPACE") if workspaces else ("ID", "CHANGED", "TITLE")
    print_table(headers, map(row, page.sessions))


def _print_rest(page: SessionPage, workspace: str | None) -> None:
    """What a list does not show."""
    if not page.sessions and workspace is not None:
        click.echo(f"no sessions of {workspace}; --all-workspaces lists those of every folder", err=True)
    if page.cursor is not None:
        click.echo(f"there are more: --cursor {shlex.quote(page.cursor)}", err=True)
    if page.left_out:
        click.echo(f"{counted(page.left_out, 'log')} cannot be read; `hostctl sessions doctor` says why", err=True)


def _shown(text: str | None) -> str:
    return printable(text or "")
