"""The ``[plugins.runtime-interaction]`` table."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyhost.runtime.interaction.permissions import Rule


@dataclass
class InteractionConfig:
    """When tools may run without asking.

    :param rules: ``{tool, decision}``: what happens to tools whose name matches the pattern, whatever the mode;
        ``decision`` is allow, ask or deny, and the first matching rule counts.
    :param approval_timeout: seconds after which an unanswered approval is cancelled; 0 waits for ever.
    """

    rules: list[Rule] = field(default_factory=list)
    approval_timeout: float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.approval_timeout < float("inf"):
            raise ValueError(f"approval_timeout must be a number of seconds, not {self.approval_timeout}")
