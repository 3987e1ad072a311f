"""The example that ``hostctl config init`` writes: every line that sets something is a comment."""

from __future__ import annotations

from pathlib import Path

from polyhost.config.files import create_exclusive, private_directory

EXAMPLE = """\
# Configuration of polyhost. Remove a leading "# " to set a key.
#
# Later wins: plugin defaults, this file, polyhost.toml of the project, environment variables
# (POLYHOST__HOST__MODEL=demo/demo), command line (--set host.model=demo/demo).

[host]
# The model of new sessions, as provider/model.
# model = "demo/demo"
# How much is logged: debug, info, warning or error.
# log_level = "info"

# A model provider: any server that speaks the OpenAI chat-completions dialect. Its key, if it needs one, is stored with
# `hostctl auth set NAME` or stands in the environment variable NAME; here it is only named.
# [plugins.models.providers.local]
# base_url = "http://127.0.0.1:11434/v1"
# credential = "LOCAL_API_KEY"
# models = ["qwen3-coder"]

# One table for each plugin; `hostctl plugins list` shows them all, `hostctl plugins show ID` their keys.
# [plugins.tools]
# disabled = ["todo_write"]
# bash_timeout_ms = 60000

# What tools may do without asking, whatever the permission mode; the first rule that matches decides.
# [plugins.runtime-interaction]
# rules = [{ tool = "bash", decision = "ask" }, { tool = "write", decision = "allow" }]

# Secrets of other plugins do not belong here either: name the environment variable that holds one.
# [plugins.example]
# token = { env = "EXAMPLE_TOKEN" }
"""


def write_example(path: Path) -> None:
    """Write the example to a new 0600 file; :class:`ConfigError` (``CONFIG_EXISTS``) when there is a file already."""
    if not path.parent.exists():
        private_directory(path.parent)
    create_exclusive(path, EXAMPLE.encode())
