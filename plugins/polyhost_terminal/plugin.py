"""Plugin ``terminal``: declares its commands. It adds nothing to a host that another front end started."""

from __future__ import annotations

from polyhost import PluginInfo, hookimpl
from polyhost.kernel.plugins import CommandSpec


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(name="terminal", api_version=1, summary="Run an agent from the terminal", surfaces=("terminal",))


@hookimpl
def polyhost_cli() -> tuple[CommandSpec, ...]:
    return (
        CommandSpec("run", "Let an agent work on a prompt, or talk to it", "polyhost_terminal.run_command:run"),
        CommandSpec("sessions", "List and show stored sessions", "polyhost_terminal.session_commands:sessions"),
    )
