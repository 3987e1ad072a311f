"""The ``[plugins.runtime-upkeep]`` table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class UpkeepConfig:
    """What models are told without anybody saying it.

    :param instructions: the AGENTS.md files of the workspace and of the user, and facts of the working directory.
    """

    instructions: bool = True
