"""``hostctl run``: its options, and what they mean for one run."""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

import click

from polyhost.cli.hosting import on_host
from polyhost.cli.state import HostState
from polyhost.interfaces import (
    AGENTS,
    COMMANDS,
    CREDENTIALS,
    HOST,
    INTERACTIONS,
    PERMISSION_MODES,
    SESSION_ATTACHMENTS,
    SESSION_DIRECTORY,
    SESSIONS,
    STORED_SESSIONS,
    PermissionMode,
)
from polyhost_terminal.conversation import Conversation, RunOptions

DEMO_MODEL = "demo/demo"
DEMO_STORY = "fix the failing test"


@click.command()
@click.argument("prompt", required=False)
@click.option("--cwd", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Workspace (default: here).")
@click.option("--model", metavar="PROVIDER/MODEL", help="Model to use.")
@click.option("--session", "session_id", metavar="ID", help="Go on with this session (its id or the start of it).")
@click.option("--continue", "latest", is_flag=True, help="Go on with the latest session of this workspace.")
@click.option("--mode", type=click.Choice(PERMISSION_MODES), help="Permission mode (a new session starts with ask).")
@click.option("--approve", type=click.Choice(["ask", "auto", "deny"]), help="How approvals are answered.")
@click.option("--max-steps", type=click.IntRange(min=1), help="End a turn after this many model requests.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Cancel a turn after this many seconds.")
@click.option("--token-budget", type=click.IntRange(min=1), help="End a turn after so many input and output tokens.")
@click.option(
    "--attach",
    "attached",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Send this image or text file along with PROMPT.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the session's events as JSON lines.")
@click.option("--demo", is_flag=True, help="Work offline, with the demo model, in a copy of a sample repository.")
@click.pass_obj
def run(
    state: HostState,
    prompt: str | None,
    cwd: Path | None,
    model: str | None,
    session_id: str | None,
    latest: bool,
    mode: PermissionMode | None,
    approve: str | None,
    max_steps: int | None,
    timeout: float | None,
    token_budget: int | None,
    attached: tuple[Path, ...],
    as_json: bool,
    demo: bool,
) -> int:
    """Let an agent work on PROMPT ("-" reads it from stdin); without one, talk to it.

    Exit code 0 when the turn was completed, 1 when it failed, 2 for wrong usage or configuration, 130 when cancelled.
    """
    if session_id is not None and latest:
        raise click.UsageError("--session and --continue exclude each other")
    if timeout is not None and not math.isfinite(timeout):
        raise click.UsageError("--timeout needs a number of seconds")
    if session_id == "":
        raise click.UsageError("--session needs an id; `hostctl sessions list` shows them")
    if demo:
        if session_id or latest or cwd or model:
            raise click.UsageError("--demo brings its own workspace, model and session")
        cwd, model = _demo_workspace(), DEMO_MODEL
        approve = approve or (None if sys.stdin.isatty() else "auto")
        if prompt is None:
            _introduce(cwd)
            prompt = DEMO_STORY
    options = RunOptions(
        prompt=_read_prompt(prompt),
        cwd=(cwd or state.cwd).resolve(),
        model=model,
        session_id=session_id,
        latest=latest,
        mode=mode,
        approve=approve or "ask",
        max_steps=max_steps,
        timeout=timeout,
        token_budget=token_budget,
        attached=attached,
        as_json=as_json,
    )
    if options.prompt is None and as_json:
        raise click.UsageError("--json needs a PROMPT")
    if options.prompt is None and attached:
        raise click.UsageError("--attach needs a PROMPT")
    conversation = Conversation(options)
    sessions = (SESSION_DIRECTORY, SESSIONS, STORED_SESSIONS, SESSION_ATTACHMENTS)
    requires = (*sessions, AGENTS, COMMANDS, INTERACTIONS, HOST, CREDENTIALS)
    return on_host(state, "run", conversation.run, requires=requires)


def _read_prompt(prompt: str | None) -> str | None:
    """The prompt, from stdin for ``-`` or when stdin is no terminal; None for a conversation."""
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        prompt = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if prompt is not None and not prompt.strip():
        raise click.UsageError("the prompt is empty; give one as PROMPT, or on stdin")
    return prompt


def _demo_workspace() -> Path:
    from polyhost.testing import sample

    folder = Path(tempfile.mkdtemp(prefix="polyhost-demo-"))
    sample.create(folder)
    return folder


def _introduce(folder: Path) -> None:
    from polyhost_terminal.demo import INTRODUCTION

    click.echo(INTRODUCTION.format(folder=folder, story=DEMO_STORY), err=True)
