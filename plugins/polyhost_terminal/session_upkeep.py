"""``hostctl sessions``: the commands that copy, name, repair and remove stored sessions."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import click

from polyhost.cli.hosting import CommandContext, on_host
from polyhost.cli.state import HostState
from polyhost.config.errors import printable
from polyhost.interfaces import (
    SESSION_DIRECTORY,
    STORED_SESSIONS,
    SessionDiagnosis,
    SessionError,
    StoredSession,
    StoredSessions,
    TitleError,
)
from polyhost_terminal.keyboard import Keyboard
from polyhost_terminal.stored import counted, resolve_id, when, with_sessions
from polyhost_terminal.transcript import markdown

_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_PAGE = 500


def _age(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """A time span such as ``30d``, in milliseconds."""
    match = re.fullmatch(r"(\d{1,6})([mhdw])", value)
    if match is None:
        raise click.BadParameter(f"{value!r} is no age; write a number with m, h, d or w, such as 30d", ctx, param)
    return int(match[1]) * _UNITS_MS[match[2]]


@click.command("export")
@click.argument("session_id", metavar="ID")
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "markdown"]), default="jsonl", help="jsonl can be imported again."
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="A file; default is stdout.")
@click.pass_obj
def export_session(state: HostState, session_id: str, form: str, output: Path | None) -> int:
    """The log of a session as it is stored, or its conversation."""
    if output is not None and state.home.sessions.resolve() in output.resolve().parents:
        raise click.UsageError(f"{output} is among the stored sessions; choose a place outside {state.home.sessions}")

    async def main(command: CommandContext) -> int:
        stored = command.context.require(STORED_SESSIONS)
        id = await resolve_id(stored, session_id)
        if form == "jsonl":
            _, _, content = await stored.export(id)
        else:
            text = markdown(*await command.context.require(SESSION_DIRECTORY).read(id))
            content = text.encode("utf-8", "replace")
        if output is not None:
            _write_private(output, content)
        else:
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        return 0

    return on_host(state, "sessions", main, requires=(STORED_SESSIONS, SESSION_DIRECTORY), plugins=())


@click.command("fork")
@click.argument("session_id", metavar="ID")
@click.option("--at", "boundary", metavar="SEQ", type=click.IntRange(min=0), help="The last event to take over.")
@click.pass_obj
def fork_session(state: HostState, session_id: str, boundary: int | None) -> int:
    """Begin a new session with what a session has so far, and print its id. The old one stays as it is.

    SEQ is the number of an event that is not inside a turn; `show ID --json` has the numbers.
    """

    async def main(command: CommandContext) -> int:
        id = await resolve_id(command.context.require(STORED_SESSIONS), session_id)
        forked = await command.context.require(SESSION_DIRECTORY).fork(id, boundary=boundary)
        await forked.close()
        click.echo(forked.agent.id)
        return 0

    return on_host(state, "sessions", main, requires=(STORED_SESSIONS, SESSION_DIRECTORY), plugins=())


@click.command("import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.pass_obj
def import_sessions(state: HostState, path: Path) -> int:
    """Take over a log file, or all logs below a directory. The originals stay."""

    async def take_over(stored: StoredSessions) -> int:
        outcomes = await stored.add(path)
        for outcome in outcomes:
            if outcome.stored is not None:
                click.echo(f"imported {printable(outcome.stored.header.id)}")
            else:
                _complain(outcome.problem)
        return int(any(outcome.problem is not None for outcome in outcomes))

    return with_sessions(state, take_over)


@click.command("rename")
@click.argument("session_id", metavar="ID")
@click.argument("title")
@click.pass_obj
def rename_session(state: HostState, session_id: str, title: str) -> int:
    """Give a session a title."""

    async def rename(stored: StoredSessions) -> None:
        try:
            click.echo(await stored.rename(await resolve_id(stored, session_id), title))
        except TitleError as error:
            raise click.UsageError(error.message) from error

    return with_sessions(state, rename)


@click.command("delete")
@click.argument("session_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete_sessions(state: HostState, session_ids: tuple[str, ...], yes: bool) -> int:
    """Remove sessions for good, with everything that is kept with their logs."""

    async def delete(stored: StoredSessions) -> int:
        ids = [await resolve_id(stored, session_id) for session_id in session_ids]
        for id in ids:
            click.echo(f"{printable(id)}  {await stored.locate(id)}")
        if not await _confirmed(f"Delete {counted(len(ids), 'session')}", yes):
            return 1
        return await _delete(stored, dict.fromkeys(ids))

    return with_sessions(state, delete)


@click.command("prune")
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    callback=_age,
    required=True,
    help="Since the last change, such as 30d, 12h or 8w.",
)
@click.option("--dry-run", is_flag=True, help="Only say which.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def prune_sessions(state: HostState, age: int, dry_run: bool, yes: bool) -> int:
    """Remove the sessions of all workspaces that have not changed for some time. Those that are open stay."""

    async def prune(stored: StoredSessions) -> int:
        old = await _older_than(stored, time.time_ns() // 1_000_000 - age)
        for row in old:
            click.echo(f"{printable(row.header.id)}  {when(row.modified)}  {printable(row.title or '')}")
        if not old or dry_run:
            click.echo(f"{counted(len(old), 'session')} to delete", err=True)
            return 0
        if not await _confirmed(f"Delete {counted(len(old), 'session')}", yes):
            return 1
        return await _delete(stored, {row.header.id: row.modified for row in old})

    return with_sessions(state, prune)


@click.command("doctor")
@click.argument("session_id", required=False, metavar="[ID]")
@click.option("--fix", is_flag=True, help="Carry out the repairs, and make the index anew.")
@click.pass_obj
def diagnose_sessions(state: HostState, session_id: str | None, fix: bool) -> int:
    """What is wrong with stored logs, or with one. Nothing is written without --fix.

    The exit code is 1 when a log cannot be opened.
    """

    async def diagnose(stored: StoredSessions) -> int:
        rows = await stored.diagnose(session_id and await resolve_id(stored, session_id))
        for row in rows:
            if session_id is not None or row.notes or row.problem is not None:
                await _explain(stored, row, fix=fix)
        if fix:
            await stored.rebuild_index()
        unusable = sum(row.problem is not None for row in rows)
        click.echo(f"{counted(len(rows), 'log')}, {unusable} of them cannot be opened", err=True)
        return int(unusable > 0)

    return with_sessions(state, diagnose)


COMMANDS = (
    export_session,
    fork_session,
    import_sessions,
    rename_session,
    delete_sessions,
    prune_sessions,
    diagnose_sessions,
)


async def _older_than(stored: StoredSessions, time_ms: int) -> list[StoredSession]:
    old: list[StoredSession] = []
    cursor = None
    while True:
        page = await stored.page(limit=_PAGE, cursor=cursor)
        old.extend(row for row in page.sessions if row.modified < time_ms)
        if page.cursor is None:
            return old
        cursor = page.cursor


async def _delete(stored: StoredSessions, ids: dict[str, int | None] | dict[str, int]) -> int:
    """Delete each that can be; ``ids`` says how old each must still be."""
    failures = 0
    for id, modified in ids.items():
        try:
            await stored.delete(id, unchanged_since=modified)
        except SessionError as error:
            failures += 1
            _complain(error)
    click.echo(f"{counted(len(ids) - failures, 'session')} deleted", err=True)
    return int(failures > 0)


async def _explain(stored: StoredSessions, row: SessionDiagnosis, *, fix: bool) -> None:
    """One log: what it is, and then a line for each thing to say."""
    click.echo(f"{printable(row.header.id) if row.header is not None else '?'}  {row.path}")
    if row.problem is not None:
        click.echo(f"  cannot be opened: {printable(row.problem.message)}")
    elif row.holder is not None:
        click.echo(f"  open in another process ({row.holder}); {row.events} events so far")
    elif not row.notes:
        click.echo(f"  sound, {row.events} events")
    elif not fix:
        for note in row.notes:
            click.echo(f"  would be repaired: {printable(note)}")
    else:
        assert row.header is not None
        for note in await stored.repair(row.header.id):
            click.echo(f"  repaired: {printable(note)}")


async def _confirmed(question: str, yes: bool) -> bool:
    """Ask on a terminal. Raises a usage error where nobody can answer."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is there to ask: add --yes")
    click.echo(f"{question}? [y/N] ", nl=False)
    answer = await Keyboard().line()
    return (answer or "").strip().lower() in ("y", "yes")


def _write_private(path: Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _complain(error: SessionError | None) -> None:
    click.echo(f"hostctl: {error.message if error is not None else 'unknown failure'}", err=True)
