"""Finding, running and logging commands. Which ones the host brings is in ``builtin``."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Literal

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.commands import COMMAND, Command, CommandError, CommandResult
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.messages import USER_SOURCE, new_id
from polyhost.interfaces.sessions import SessionError
from polyhost.kernel.mounts import KindHandler, MountTable, MountToken
from polyhost.kernel.signals import AbortedError, AbortSignal, any_signal
from polyhost.runtime.containment import ends_task
from polyhost.runtime.models.errors import error_chain

CANCELLED = "the command was cancelled"

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_LINE = re.compile(rf"/({_NAME.pattern})(?:\s+(.*))?", re.DOTALL)
_TEXT_CHARS = 64_000  # of an outcome in the log

_logger = logging.getLogger(__name__)


class CommandKind(KindHandler[Command]):
    """Refuses malformed commands, and tells when the set of commands changes.

    :param changed: called once for each command that came or went.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def validate(self, key: Hashable, value: Command) -> None:
        if not isinstance(value, Command) or not callable(value.run):
            raise CommandError(f"command {key!r} needs a Command, not {value!r:.80}", code="COMMAND_INVALID")
        if not isinstance(value.name, str) or not _NAME.fullmatch(value.name) or value.name != key:
            raise CommandError(
                f"a command is mounted under its name, of letters, digits, - and _: {key!r}, {value.name!r}",
                code="COMMAND_INVALID",
            )
        if not value.description.strip():
            raise CommandError(f"command {key!r} needs a description", code="COMMAND_INVALID")

    def announce(self, token: MountToken[Command]) -> None:
        self._changed()


class CommandRegistry:
    """See :class:`polyhost.interfaces.commands.Commands`."""

    def __init__(self, mounts: MountTable) -> None:
        self._mounts = mounts

    def list(self, agent: Agent) -> Sequence[Command]:
        commands = (command for _, command in self._mounts.items(COMMAND, scope=agent.context.scope_tag))
        return sorted(commands, key=lambda command: command.name)

    async def execute(
        self, agent: Agent, line: str, *, source: JsonObject | None = None, signal: AbortSignal | None = None
    ) -> CommandResult | None:
        parsed = _LINE.fullmatch(line.strip())
        token = parsed and self._mounts.token(COMMAND, parsed[1], scope=agent.context.scope_tag)
        if not parsed or not token:
            return None
        arguments = parsed[2] or ""
        run: JsonObject = {"commandId": new_id(), "name": parsed[1]}
        if arguments:
            run["args"] = arguments
        agent.session.append("command/run", {**run, "source": dict(source or USER_SOURCE)})
        result = CommandResult(run["commandId"], "error", CANCELLED)
        try:
            kind, text = await _run(token, agent, arguments, signal)
            result = result._replace(kind=kind, text=text)
        finally:
            _log_outcome(agent, result)
        return result


async def _run(
    token: MountToken[Command], agent: Agent, arguments: str, signal: AbortSignal | None
) -> tuple[Literal["success", "error"], str | None]:
    either, unlink = any_signal(signal, agent.context.stopping)
    try:
        either.raise_if_aborted()
        text = await token.call(token.value.run, agent, arguments, signal=either)
    except AbortedError:
        return "error", CANCELLED
    except BaseException as error:
        if ends_task(error):
            raise
        return "error", error_chain(error)[:_TEXT_CHARS]
    finally:
        unlink()
    return "success", None if text is None else str(text)[:_TEXT_CHARS]


def _log_outcome(agent: Agent, result: CommandResult) -> None:
    done: JsonObject = {"commandId": result.command_id, "kind": result.kind}
    if result.text is not None:
        done["text"] = result.text
    try:
        agent.session.append("command/done", done)
    except SessionError:
        _logger.exception("the outcome of a command of session %s was not logged", agent.id)
