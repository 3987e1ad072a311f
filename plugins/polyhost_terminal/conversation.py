"""One run: opens the session, shows what happens, sends prompts, and turns Ctrl-C and limits into cancellation."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from polyhost.cli.hosting import CommandContext
from polyhost.interfaces import (
    AGENTS,
    COMMANDS,
    CREDENTIALS,
    HOST,
    INTERACTIONS,
    SESSION_ATTACHMENTS,
    SESSION_DIRECTORY,
    SESSION_HEALTH,
    SESSIONS,
    STORED_SESSIONS,
    SURFACE,
    Agent,
    AttachedFile,
    Command,
    JsonObject,
    OpenedSession,
    PermissionMode,
    PromptTicket,
    Session,
    SessionError,
    Surface,
    TurnOutcome,
    text_block,
    user_message,
)
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.signals import AbortController
from polyhost_terminal.json_output import JsonRenderer, claim_stdout
from polyhost_terminal.keyboard import Keyboard
from polyhost_terminal.renderers import FinalTextRenderer, LiveRenderer, Renderer
from polyhost_terminal.screen import Screen
from polyhost_terminal.stored import latest_id, resolve_id
from polyhost_terminal.surface import FixedSurface, TerminalSurface

CANCELLED = 130
DEEPSEEK_KEY = "DEEPSEEK_API_KEY"
DEEPSEEK_MODEL = "deepseek-official/deepseek-v4-flash"
HELP = """\
Type a prompt, or:
{commands}
Ctrl-C cancels the running turn; twice leaves."""


class RunOptions(NamedTuple):
    """What the command line asked for. ``prompt`` None means a conversation; ``timeout`` in seconds."""

    prompt: str | None
    cwd: Path
    model: str | None = None
    session_id: str | None = None
    latest: bool = False
    mode: PermissionMode | None = None
    approve: str = "ask"
    max_steps: int | None = None
    timeout: float | None = None
    token_budget: int | None = None
    attached: tuple[Path, ...] = ()
    as_json: bool = False


class Conversation:
    """The ``run`` command inside a running host."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._screen = _screen(options)
        self._keyboard = Keyboard()
        self._renderer: Renderer = LiveRenderer(self._screen)
        self._out = claim_stdout() if options.as_json else -1
        self._ticket: PromptTicket | None = None
        self._unwritable: str | None = None

    async def run(self, command: CommandContext) -> int:
        """Open the session, answer the prompt or talk, close it; returns the exit code."""
        opened = await self._open(command)
        agent = opened.agent
        mode = command.context.require(INTERACTIONS).mode(agent)
        self._renderer = self._make_renderer(command, agent)
        self._renderer.begin(agent.session, resumed=opened.resumed, mode=mode)
        undo = agent.session.observe(self._renderer.event)
        try:
            self._connect(command, agent)
            if self._options.prompt is not None:
                return _exit_code(await self._answer(command, agent, self._options.prompt))
            return await self._talk(command, agent)
        finally:
            await opened.close()
            undo()
            if self._ticket is not None:  # the run ends in the middle of a turn, which has been closed by now
                self._renderer.finish(agent.session, await self._ticket.outcome())
            await self._renderer.flush()

    async def _open(self, command: CommandContext) -> OpenedSession:
        options = self._options
        directory = command.context.require(SESSION_DIRECTORY)
        stored = command.context.require(STORED_SESSIONS)
        session_id = options.session_id and await resolve_id(stored, options.session_id)
        if options.latest:
            session_id = await latest_id(stored, str(options.cwd))
        opened = await directory.open(
            session_id,
            cwd=None if session_id else str(options.cwd),
            model=options.model if session_id else options.model or _default_model(command),
            create=session_id is None,
            surface="terminal",
            mode=options.mode,
        )
        if session_id is not None and options.mode is not None:
            command.context.require(INTERACTIONS).set_mode(opened.agent, options.mode)
        return opened

    def _connect(self, command: CommandContext, agent: Agent) -> None:
        """Mount what this run adds: who answers, the limits of a turn, and word of a log that cannot be written."""
        context = command.context
        if (surface := self._surface(agent.id)) is not None:
            context.mount(SURFACE, agent.id, surface)
        options = self._options
        agent.limit(max_steps=options.max_steps, seconds=options.timeout, tokens=options.token_budget)

        def warn(session: Session, reason: str | None) -> None:
            if session.id == agent.id:
                self._unwritable = reason
                if reason is not None:
                    self._screen.line(f"the session log cannot be written: {reason}", "red")

        context.on(SESSION_HEALTH, warn)

    async def _written(self, command: CommandContext, agent: Agent) -> None:
        """Wait until the log is written; that of a closed session has been, unless it could not be."""
        sessions = command.context.require(SESSIONS)
        if sessions.get(agent.id) is agent.session:
            await sessions.written(agent.session)
        elif self._unwritable is not None:
            raise SessionError(self._unwritable, code="SESSION_WRITE_FAILED")

    def _surface(self, session_id: str) -> Surface | None:
        approve = self._options.approve
        if sys.stdin.isatty():
            allowed = {"auto": True, "deny": False}.get(approve)
            return TerminalSurface(session_id, self._screen, self._keyboard, allowed=allowed)
        if approve == "ask":
            return None  # nobody is there: approvals are refused with a text that says so
        return FixedSurface(session_id, allowed=approve == "auto")

    async def _answer(self, command: CommandContext, agent: Agent, prompt: str) -> TurnOutcome:
        """Send one prompt and wait for the turn that took it. Ctrl-C cancels that turn, twice ends the run."""
        content = [text_block(prompt), *await self._attachments(command, agent)]
        self._ticket = command.context.require(AGENTS).prompt(agent, user_message(content))
        with command.interrupts(lambda: agent.cancel({"kind": "user"})):
            outcome = await self._ticket.outcome()
        self._ticket = None
        await command.context.require(SESSIONS).flush(agent.session)  # what is shown as done is on the disk
        self._renderer.finish(agent.session, outcome)
        return outcome

    async def _attachments(self, command: CommandContext, agent: Agent) -> list[JsonObject]:
        """The blocks of the files that go with the prompt, kept beside the session."""
        if not self._options.attached:
            return []
        files = [AttachedFile(await asyncio.to_thread(path.read_bytes), path.name) for path in self._options.attached]
        return await command.context.require(SESSION_ATTACHMENTS).save(agent.session, files)

    async def _talk(self, command: CommandContext, agent: Agent) -> int:
        screen = self._screen
        mode = command.context.require(INTERACTIONS).mode(agent)
        screen.line(f"{agent.model} in {agent.session.header.cwd}, mode {mode}; /help shows the commands", "dim")
        while True:
            screen.prompt("\n> ")
            with command.interrupts(self._ask_again):
                line = await self._keyboard.line()
            if line is None:
                screen.end_line()
                return 0
            screen.typed()
            match line.split():
                case []:
                    continue
                case ["/exit" | "/quit"]:
                    return 0
                case [name, *_] if name.startswith("/"):
                    await self._command(command, agent, line)
                case _:
                    await self._answer(command, agent, line)

    def _ask_again(self) -> None:
        self._screen.line("(Ctrl-C again, Ctrl-D or /exit leaves)")
        self._screen.prompt("> ")

    async def _command(self, command: CommandContext, agent: Agent, line: str) -> None:
        """Run what a plugin mounted under this name; help for anything else. Ctrl-C gives it up."""
        commands = command.context.require(COMMANDS)
        interrupt = AbortController()
        with command.interrupts(lambda: interrupt.abort({"kind": "user"})):
            result = await commands.execute(agent, line, signal=interrupt.signal)
        if result is None:
            if not line.startswith("/help"):
                self._screen.line(f"there is no command {line.split()[0]}", "yellow")
            self._screen.line(HELP.format(commands=_usage(commands.list(agent))))
        elif result.kind == "error":
            self._screen.line(result.text or "", "red")
        elif result.text is not None:
            self._screen.line(result.text)

    def _make_renderer(self, command: CommandContext, agent: Agent) -> Renderer:
        if self._options.as_json:
            renderer = JsonRenderer(
                self._out, lambda: self._written(command, agent), lambda: agent.cancel({"kind": "user"})
            )
            command.context.spawn(renderer.run(), name="JSON lines")
            return renderer
        live = LiveRenderer(self._screen, text=sys.stdout.isatty())
        return live if sys.stdout.isatty() else FinalTextRenderer(live)


def _usage(commands: Sequence[Command]) -> str:
    rows = [(f"/{command.name} {command.hint or ''}", command.description) for command in commands]
    rows += [("/help", "Show this"), ("/exit", "Leave (also Ctrl-D)")]
    width = max(len(call) for call, _ in rows)
    return "\n".join(f"  {call:{width}}  {description}" for call, description in rows)


def _screen(options: RunOptions) -> Screen:
    """Progress goes to the terminal on stdout; to stderr when stdout is a pipe."""
    stream = sys.stdout if sys.stdout.isatty() and not options.as_json else sys.stderr
    return Screen(stream, styled=stream.isatty())


def _default_model(command: CommandContext) -> str:
    """The model of a new session when the command line names none."""
    if (configured := command.context.require(HOST).default_model) is not None:
        return configured
    if command.context.require(CREDENTIALS).get(DEEPSEEK_KEY) is not None:
        return DEEPSEEK_MODEL
    raise PolyhostError(
        'no model is chosen: name one with --model PROVIDER/MODEL, or set host.model = "provider/model" in the '
        "configuration. `hostctl models list` shows what there is; `hostctl run --demo` works offline, without a key",
        code="NO_MODEL",
    )


def _exit_code(outcome: TurnOutcome) -> int:
    reason = outcome.reason or {"kind": "cancelled"}
    if reason["kind"] == "completed":
        return 0
    if reason["kind"] == "aborted" and (reason.get("reason") or {}).get("kind") == "user":
        return CANCELLED
    return 1
