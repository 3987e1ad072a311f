"""Commands: what a person may type as ``/name arguments`` in any front end, instead of a prompt.

A command acts on the session's agent and is not seen by the model. Not the commands of ``hostctl``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.json_types import JsonObject
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, MountKind, ServiceKey
from polyhost.kernel.signals import AbortSignal


class CommandError(PolyhostError):
    """A command is malformed (COMMAND_INVALID), or cannot do what it was asked for (COMMAND_FAILED)."""

    default_code = "COMMAND_FAILED"


class Command(NamedTuple):
    """One command.

    :param name: lower-case letters, digits, ``-`` and ``_``; starts with a letter.
    :param run: ``await run(agent, arguments)``; ``arguments`` is the rest of the line, stripped. Returns what to show,
        or None. An error that it raises is shown and logged as the command's outcome.
    :param hint: what the arguments are, for example ``[MODE]``; None when there are none.
    """

    name: str
    description: str
    run: Callable[[Agent, str], Coroutine[Any, Any, str | None]]
    hint: str | None = None


class CommandResult(NamedTuple):
    """How a command ended; ``text`` is what to show, for an error its message."""

    command_id: str
    kind: Literal["success", "error"]
    text: str | None


class Commands(Protocol):
    """The commands of the host and of each agent."""

    def list(self, agent: Agent) -> Sequence[Command]:
        """What this agent offers, by name."""
        ...

    async def execute(
        self, agent: Agent, line: str, *, source: JsonObject | None = None, signal: AbortSignal | None = None
    ) -> CommandResult | None:
        """Run ``/name arguments`` and log it as ``command/run`` and ``command/done``.

        None, with nothing logged, when the line names no command. Errors are the result, and so is the end through
        ``signal``; only the cancellation of the caller's task is raised, after it was logged.

        :param source: who asked, ``{kind: ...}``; None is a person.
        :param signal: gives the command up; one that goes on for long after that is cancelled.
        """
        ...


COMMANDS = ServiceKey[Commands]("commands")
COMMAND = MountKind[Command]("command")
"""Mounted under the command's name; in an agent's scope it shadows the global one."""
COMMANDS_CHANGED = EventKey[[]]("commands/change")
