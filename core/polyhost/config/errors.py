"""What goes wrong with configuration, as types that a program can tell apart and a person can act on.

Credential errors live beside the credential store.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from polyhost.kernel.errors import PolyhostError


class ConfigError(PolyhostError):
    """A configuration file, variable or option cannot be used.

    The message is one paragraph of printable text: what is wrong, where, and the way out. It never holds the value of
    a secret. The attributes repeat the facts for programs; each is None (or empty) where it does not apply.

    :param file: absolute path of the TOML file.
    :param line: line in that file, from 1.
    :param key: dotted key, for example ``plugins.browser.port``.
    :param layer: ``default``, ``user``, ``project``, ``environment`` or ``set``.
    :param plugin: id of the plugin row.
    :param accepted: the keys that may stand where ``key`` stands.
    """

    default_code: ClassVar[str] = "CONFIG_INVALID"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        file: str | None = None,
        line: int | None = None,
        key: str | None = None,
        layer: str | None = None,
        plugin: str | None = None,
        accepted: Sequence[str] = (),
    ) -> None:
        super().__init__(printable(message), code=code)
        self.file = file
        self.line = line
        self.key = key
        self.layer = layer
        self.plugin = plugin
        self.accepted = tuple(accepted)


class MissingVariableError(ConfigError):
    """A ``{ env = "NAME" }`` reference names a variable that is unset or empty; ``variable`` is that name."""

    def __init__(self, message: str, *, variable: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.variable = variable


def printable(text: str) -> str:
    """``text`` on one line, control characters escaped.

    File names and keys may come from a cloned repository: they must not drive the terminal that shows them.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def suggestion(name: str, accepted: Sequence[str]) -> str:
    """A clause for an unknown ``name``: `` (did you mean 'port'?)`` or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(name, accepted, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
