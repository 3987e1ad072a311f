"""The example that ``hostctl config init`` writes: every line that sets something is a comment."""

from __future__ import annotations

from pathlib import Path

from polyhost.config.files import create_exclusive, private_directory

EXAMPLE = """\
# Configuration of polyhost. Remove a leading "# " to set a key.
#
# Later wins: plugin defaults, this file, polyhost.toml of the project, environment variables
# (POLYHOST__PLUGINS__BROWSER__PORT=3080), command line (--set plugins.browser.port=3080).

[host]
# The model of new sessions, as provider/model.
# model = "demo/demo"
# How much is logged: debug, info, warning or error.
# log_level = "info"

# One table for each plugin; `hostctl plugins list` shows them all.
# [plugins.browser]
# enabled = true
# port = 3080

# A second instance of a plugin has an id of its own and names the plugin with `use`.
# [plugins.codex-child]
# use = "subagent-acp"
# command = ["codex-acp"]

# Secrets do not belong here: name the environment variable that holds one. It is read when the plugin starts.
# [plugins.example]
# api_key = { env = "EXAMPLE_API_KEY" }
"""


def write_example(path: Path) -> None:
    """Write the example to a new 0600 file; :class:`ConfigError` (``CONFIG_EXISTS``) when there is a file already."""
    if not path.parent.exists():
        private_directory(path.parent)
    create_exclusive(path, EXAMPLE.encode())
