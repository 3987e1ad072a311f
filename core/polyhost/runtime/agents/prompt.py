"""The system prompt: sections, runtime contexts and variables that plugins mount, put together for one agent.

What an agent sees follows from its scope, as with all mounts. When runtime context reaches the model is decided in
``snapshots``.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from polyhost.interfaces import (
    PROMPT_ASSEMBLE,
    PROMPT_CONTEXT,
    PROMPT_SECTION,
    PROMPT_VARIABLE,
    Agent,
    AssembledPrompt,
    JsonObject,
    PromptAssembly,
    PromptContext,
    PromptError,
    PromptSection,
    TextSource,
)
from polyhost.kernel.context import Context, Kernel
from polyhost.kernel.keys import MountKind
from polyhost.kernel.mounts import KindHandler, MountTable
from polyhost.runtime.models.errors import error_chain

Part = TypeVar("Part", PromptSection, PromptContext)

IDENTITY = "You are an AI agent powered by polyhost."
PERSONA = "You are a coding agent. You run as {{model}} and work in {{cwd}}."

UNLISTED_TOOLS = "<unlisted-tools>"
"""In a configured tool order, stands for all tools that it does not name."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class PartKind(KindHandler[Part], Generic[Part]):
    """Refuses sections and contexts without a name, a finite order or a text."""

    def validate(self, key: Hashable, value: Part) -> None:
        if not isinstance(key, str) or not key:
            raise PromptError(f"a part of the prompt is mounted under its name, not under {key!r}")
        if isinstance(value.order, bool) or not isinstance(value.order, int | float) or not math.isfinite(value.order):
            raise PromptError(f'the order of prompt part "{key}" must be a finite number, not {value.order!r}')
        if not isinstance(value.text, str) and not callable(value.text):
            raise PromptError(f'the text of prompt part "{key}" must be a string or a function of the agent')


class VariableKind(KindHandler[Callable[[Agent], str | None]]):
    """Refuses variables whose name cannot be referred to, or whose value is no function."""

    def validate(self, key: Hashable, value: Callable[[Agent], str | None]) -> None:
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            raise PromptError(f"a prompt variable is named like model or work_dir, not {key!r}")
        if not callable(value):
            raise PromptError(f'prompt variable "{key}" must be a function of the agent')


def prepare_prompt_kinds(kernel: Kernel) -> None:
    """Say what prompt parts must look like. Once per host, before the first of them is mounted."""
    kernel.mounts.handle(PROMPT_SECTION, PartKind[PromptSection]())
    kernel.mounts.handle(PROMPT_CONTEXT, PartKind[PromptContext]())
    kernel.mounts.handle(PROMPT_VARIABLE, VariableKind())


def mount_defaults(context: Context, *, identity: str = IDENTITY, persona: str = PERSONA) -> None:
    """Mount the sections ``identity`` (order -100) and ``persona`` (order 0); an empty text leaves its section out."""
    for name, order, text in (("identity", -100, identity), ("persona", 0, persona)):
        if text:
            context.mount(PROMPT_SECTION, name, PromptSection(order, text))


class Prompts:
    """Assembles prompts; see :class:`polyhost.interfaces.prompts.SystemPrompt`.

    :param tool_order: names of tools in the order in which models shall see them, with :data:`UNLISTED_TOOLS` once
        for the rest; None sorts by name.
    """

    def __init__(self, mounts: MountTable, *, tool_order: Sequence[str] | None = None) -> None:
        if tool_order is not None and (
            len(set(tool_order)) != len(tool_order) or tool_order.count(UNLISTED_TOOLS) != 1
        ):
            raise PromptError(f'a tool order names each tool once, and "{UNLISTED_TOOLS}" once: {list(tool_order)}')
        self._mounts = mounts
        self._tool_order = tool_order

    async def assemble(self, agent: Agent, variables: JsonObject, tools: Sequence[JsonObject]) -> AssembledPrompt:
        assembly = PromptAssembly(agent, dict(variables), self._ordered(tools))

        async def inner() -> AssembledPrompt:
            return await self._assemble(assembly)

        prompt = await agent.context.events.waterfall(PROMPT_ASSEMBLE, assembly, inner=inner)
        if not isinstance(prompt, AssembledPrompt):
            raise PromptError(f"a system-prompt/assemble listener answered {prompt!r:.80}, not an AssembledPrompt")
        return prompt

    async def _assemble(self, assembly: PromptAssembly) -> AssembledPrompt:
        agent = assembly.agent
        texts = []
        for name, section in self._sections(agent):
            text = await _text(f'prompt section "{name}"', section.text, agent)
            if text and (text := self._interpolate(name, text, assembly)):
                texts.append(text)
        contexts = []
        for name, context in self._parts(PROMPT_CONTEXT, agent):
            if text := await _text(f'prompt context "{name}"', context.text, agent):
                contexts.append((name, text))
        return AssembledPrompt("\n\n".join(texts), list(assembly.tools), tuple(contexts))

    def _parts(self, kind: MountKind[Part], agent: Agent) -> list[tuple[str, Part]]:
        parts = self._mounts.items(kind, scope=agent.context.scope_tag)
        return sorted(parts, key=lambda part: part[1].order)

    def _sections(self, agent: Agent) -> list[tuple[str, PromptSection]]:
        sections = self._parts(PROMPT_SECTION, agent)
        complete = [(name, section) for name, section in sections if section.complete]
        if len(complete) > 1:
            names = ", ".join(name for name, _ in complete)
            raise PromptError(f"only one prompt section can be the complete prompt, but these are: {names}")
        return complete or sections

    def _interpolate(self, section: str, text: str, assembly: PromptAssembly) -> str:
        """Replace ``{{name}}``. What is filled in is not looked at again."""

        def value(reference: re.Match[str]) -> str:
            name = reference[1]
            if not _NAME.fullmatch(name):
                raise PromptError(f'prompt section "{section}": {reference[0]} is no variable; {self._known(assembly)}')
            found = self._variable(name, assembly)
            if found is None:
                raise PromptError(
                    f'prompt section "{section}": variable "{name}" is unknown or has no value; {self._known(assembly)}'
                )
            return found

        return _REFERENCE.sub(value, text)

    def _variable(self, name: str, assembly: PromptAssembly) -> str | None:
        if (given := assembly.variables.get(name)) is not None:
            return str(given)
        source = self._mounts.get(PROMPT_VARIABLE, name, scope=assembly.agent.context.scope_tag)
        if source is None:
            return None
        try:
            return source(assembly.agent)
        except Exception as error:
            raise PromptError(f'prompt variable "{name}" failed: {error_chain(error)}') from error

    def _known(self, assembly: PromptAssembly) -> str:
        mounted = (name for name, _ in self._mounts.items(PROMPT_VARIABLE, scope=assembly.agent.context.scope_tag))
        return f"known variables: {', '.join(sorted({*assembly.variables, *mounted}))}"

    def _ordered(self, tools: Sequence[JsonObject]) -> list[JsonObject]:
        by_name = {tool["name"]: tool for tool in sorted(tools, key=lambda tool: tool["name"])}
        if self._tool_order is None:
            return list(by_name.values())
        listed = [name for name in self._tool_order if name != UNLISTED_TOOLS]
        if unknown := [name for name in listed if name not in by_name]:
            raise PromptError(f"the configured tool order names tools that are not there: {', '.join(unknown)}")
        rest = [name for name in by_name if name not in listed]
        place = self._tool_order.index(UNLISTED_TOOLS)
        return [by_name[name] for name in (*listed[:place], *rest, *listed[place:])]


async def _text(part: str, source: TextSource, agent: Agent) -> str:
    """The text of one part, empty for none."""
    if isinstance(source, str):
        return source
    try:
        text = source(agent)
        if inspect.isawaitable(text):
            text = await text
    except Exception as error:
        raise PromptError(f"{part} failed: {error_chain(error)}") from error
    if text is not None and not isinstance(text, str):
        raise PromptError(f"{part} gave {text!r:.80}, not a text")
    return text or ""
