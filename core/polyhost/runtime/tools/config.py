"""The ``[plugins.runtime-tools]`` table."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyhost.runtime.tools.repeat import THRESHOLDS, check_thresholds
from polyhost.runtime.tools.spill import DEFAULT_MAX_INLINE_BYTES


@dataclass
class ToolRuntimeConfig:
    """What happens to the results of all tools.

    :param max_inline_bytes: larger text results are saved to a file and shown in part; 0 shows everything.
    :param repeat_reminder: after how many equal calls in a row the model is reminded; empty never reminds.
    """

    max_inline_bytes: int = DEFAULT_MAX_INLINE_BYTES
    repeat_reminder: list[int] = field(default_factory=lambda: list(THRESHOLDS))

    def __post_init__(self) -> None:
        if self.max_inline_bytes < 0:
            raise ValueError(f"max_inline_bytes must not be negative: {self.max_inline_bytes}")
        if self.repeat_reminder:
            check_thresholds(self.repeat_reminder)
