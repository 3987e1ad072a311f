"""The ``[plugins.tools]`` table."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyhost_tools.bash import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS

NAMES = ("ask_user_question", "bash", "edit", "glob", "grep", "read", "todo_write", "write")


@dataclass
class ToolsConfig:
    """Which tools there are, and their limits.

    :param disabled: names of tools that are not offered to models.
    :param bash_timeout_ms: time budget of commands that ask for none, in milliseconds.
    :param require_read: refuse to change an existing file that the session has not read as it is now.
    """

    disabled: list[str] = field(default_factory=list)
    bash_timeout_ms: int = DEFAULT_TIMEOUT_MS
    require_read: bool = True

    def __post_init__(self) -> None:
        unknown = sorted(set(self.disabled) - set(NAMES))
        if unknown:
            raise ValueError(f"unknown tools: {', '.join(unknown)}; the tools are {', '.join(NAMES)}")
        if not 0 < self.bash_timeout_ms <= MAX_TIMEOUT_MS:
            raise ValueError(f"bash_timeout_ms must be between 1 and {MAX_TIMEOUT_MS}, not {self.bash_timeout_ms}")
