"""System prompt parts that plugins mount (agent-core 2.12).

Sections build the system prompt; contexts are volatile facts that reach the model as one message when they change;
variables resolve ``{{name}}``. Each is mounted under its name; in an agent's scope it shadows the global one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.json_types import JsonObject
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import EventKey, EventMode, MountKind, ServiceKey


class PromptError(PolyhostError):
    """The system prompt cannot be assembled; the message names the part."""

    default_code = "PROMPT_INVALID"


TextSource: TypeAlias = "str | Callable[[Agent], str | Awaitable[str | None] | None]"
"""Fixed text, or a function of the agent; empty text drops the part."""


class PromptSection(NamedTuple):
    """Identity is order -100, the persona 0, tool guidance 100 to 199. ``complete`` replaces all other sections."""

    order: float
    text: TextSource
    complete: bool = False


class PromptContext(NamedTuple):
    """A volatile fact with its place in the snapshot."""

    order: float
    text: TextSource


class AssembledPrompt(NamedTuple):
    """``system`` may be empty; ``tools`` is ``[{name, description, parameters}]`` in canonical order."""

    system: str
    tools: list[JsonObject]
    contexts: tuple[tuple[str, str], ...]


class PromptAssembly:
    """One assembly on its way. Listeners may change ``variables`` before ``next()``; nothing outlives the assembly.

    :ivar variables: values of ``{{name}}`` that win over mounted ones; ``provider``, ``model`` and ``cwd`` are there.
    :ivar tools: what the model may call, in canonical order.
    """

    __slots__ = ("agent", "tools", "variables")

    def __init__(self, agent: Agent, variables: JsonObject, tools: Sequence[JsonObject]) -> None:
        self.agent = agent
        self.variables = variables
        self.tools = tools


class SystemPrompt(Protocol):
    """Assembles what a request starts with."""

    async def assemble(self, agent: Agent, variables: JsonObject, tools: Sequence[JsonObject]) -> AssembledPrompt:
        """Resolve every part as ``agent`` sees it.

        :param variables: ``{provider, model, cwd}``, None for what is not known.
        :param tools: ``[{name, description, parameters}]`` in any order.
        :raises PromptError: a part is malformed, its source failed, or a variable is unknown or without a value.
        """
        ...


SYSTEM_PROMPT = ServiceKey[SystemPrompt]("system-prompt")
PROMPT_SECTION = MountKind[PromptSection]("prompt-section")
PROMPT_CONTEXT = MountKind[PromptContext]("prompt-context")
PROMPT_VARIABLE = MountKind["Callable[[Agent], str | None]"]("prompt-variable")
PROMPT_ASSEMBLE = EventKey[[PromptAssembly, Callable[[], Awaitable[AssembledPrompt]]]](
    "system-prompt/assemble",
    EventMode.WATERFALL,
    scoped=True,
    subject=lambda assembly, *_: assembly.agent.context.scope_tag,
)
"""``async listener(assembly, next) -> AssembledPrompt``."""
