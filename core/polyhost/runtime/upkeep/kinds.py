"""What mounts of titles, projections and commands mean."""

from __future__ import annotations

from polyhost.interfaces.commands import COMMAND, COMMANDS_CHANGED
from polyhost.interfaces.projections import PROJECTION
from polyhost.interfaces.titles import TITLE_PROVIDER
from polyhost.kernel.context import Kernel
from polyhost.runtime.commands.registry import CommandKind
from polyhost.runtime.sessions.projections import ProjectionKind
from polyhost.runtime.sessions.titles import TitleProviderKind


def prepare_upkeep_kinds(kernel: Kernel) -> None:
    """Once per host, before the first mount of these kinds."""
    kernel.mounts.handle(PROJECTION, ProjectionKind(kernel.mounts))
    kernel.mounts.handle(TITLE_PROVIDER, TitleProviderKind())
    kernel.mounts.handle(COMMAND, CommandKind(lambda: kernel.events.emit(COMMANDS_CHANGED)))
