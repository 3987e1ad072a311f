"""The ``[plugins.runtime-sessions]`` table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass
class SessionsConfig:
    """How logs are kept.

    :param durable: a prompt counts as accepted only when it is on the disk, so that it survives a power loss as well.
    :param encoding: of new logs; both are read.
    :param packed: store runs of deltas as one row each.
    """

    durable: bool = False
    encoding: Literal["zstd", "plain"] = "zstd"
    packed: bool = True
