"""The commands of every session: ``/model``, ``/mode``, ``/title``."""

from __future__ import annotations

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.commands import Command, CommandError
from polyhost.interfaces.interaction import PERMISSION_MODES, Interactions
from polyhost.interfaces.models import ModelRuntime
from polyhost.interfaces.titles import Titles
from polyhost.runtime.agents.requests import split_model


def builtin_commands(interactions: Interactions, models: ModelRuntime, titles: Titles) -> tuple[Command, ...]:
    async def model(agent: Agent, arguments: str) -> str:
        """Refuses what no provider would take, now and not with the next prompt."""
        if arguments:
            provider, name = split_model(arguments)
            await models.prepare({"provider": provider, "model": name})
            agent.set_model(arguments)
        return agent.model or "no model is chosen"

    async def mode(agent: Agent, arguments: str) -> str:
        if arguments:
            for known in PERMISSION_MODES:
                if known == arguments:
                    interactions.set_mode(agent, known)
                    break
            else:
                raise CommandError(f"there is no mode {arguments!r}; use {', '.join(PERMISSION_MODES)}")
        return interactions.mode(agent)

    async def title(agent: Agent, arguments: str) -> str:
        if arguments:
            titles.rename(agent.session, arguments)
        return titles.title(agent.session) or "the session has no title yet"

    return (
        Command("model", "Show or change the model", model, hint="[PROVIDER/MODEL]"),
        Command("mode", "Show or change the permission mode", mode, hint=f"[{'|'.join(PERMISSION_MODES)}]"),
        Command("title", "Show or change the title of the session", title, hint="[TITLE]"),
    )
