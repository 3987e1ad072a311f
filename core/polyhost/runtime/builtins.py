"""The host's own plugins, by name and module: essential, always started, shown by ``hostctl plugins list --all``.

Strings only, so that listing them imports none of them.
"""

from __future__ import annotations

BUILTINS = {
    "runtime-agents": "polyhost.runtime.agents.plugin",
    "runtime-interaction": "polyhost.runtime.interaction.plugin",
    "runtime-models": "polyhost.runtime.models.plugin",
    "runtime-sessions": "polyhost.runtime.sessions.plugin",
    "runtime-tools": "polyhost.runtime.tools.plugin",
    "runtime-upkeep": "polyhost.runtime.upkeep.plugin",
}
