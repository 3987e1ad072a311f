"""Changes to a TOML file that a person also edits: comments, order and layout stay.

A change is made under the home's lock, checked, and written in one step; when anything is wrong nothing is written.
Layout-preserving editing has corners where it could go astray, so what is about to be written is parsed again and must
say exactly the old document plus the change.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhost.config.errors import ConfigError
from polyhost.config.files import read_bounded, write_atomic
from polyhost.config.paths import HomePaths
from polyhost.config.tomltext import format_key, parse_file, parse_key

Check = Callable[[bytes], None]
"""Judges the whole file as it would be; raises to refuse it."""


Change = Callable[[Any, Callable[[Any], Any], Any], bool]
"""Makes one change in a document, with a maker of tables and the value in that document's form; False for no change."""


class ConfigFile:
    """One configuration file that is edited by key.

    Concurrent writers, in this or another process, take turns, and each sees what the one before wrote.

    :param path: the file; made with mode 0600 when the first key is set. A link is followed, not replaced.
    :param check: sees the new content before it is written; typically composes all layers with it (``overlay`` of
        :func:`polyhost.config.loader.load_configuration`). What it raises reaches the caller, and nothing is written.
    """

    def __init__(self, path: Path, home: HomePaths, *, check: Check | None = None) -> None:
        self.path = path
        self._home = home
        self._check = check

    def set(self, key: str | Sequence[str], value: Any) -> None:
        """Set a dotted key to a TOML value (str, int, float, bool, date, list, dict), making its tables.

        :raises ConfigError: the file or the key is unusable, or something on the way to the key is no table.
        """
        parts = _parts(key)

        def change(document: Any, make_table: Callable[[Any], Any], item: Any) -> bool:
            node = document
            for index, part in enumerate(parts[:-1]):
                if part not in node:
                    node[part] = make_table(node)
                node = node[part]
                if not isinstance(node, Mapping):
                    raise self._error(f"{format_key(parts[: index + 1])!r} is not a table", parts)
            node[parts[-1]] = item
            return True

        self._edit(change, value, parts)

    def unset(self, key: str | Sequence[str]) -> bool:
        """Remove a dotted key, with what is under it; False when the file does not have it."""
        parts = _parts(key)

        def change(document: Any, make_table: Callable[[Any], Any], item: Any) -> bool:
            node = document
            for part in parts[:-1]:
                node = node.get(part) if isinstance(node, Mapping) else None
            if not isinstance(node, Mapping) or parts[-1] not in node:
                return False
            del node[parts[-1]]  # type: ignore[attr-defined]
            return True

        return self._edit(change, None, parts)

    def set_plugin_enabled(self, plugin: str, enabled: bool) -> None:
        """Write ``enabled`` into the plugin's row."""
        self.set(("plugins", plugin, "enabled"), enabled)

    def _edit(self, change: Change, value: Any, parts: Sequence[str]) -> bool:
        with self._home.lock():
            old = read_bounded(self.path) or b""
            expected = copy.deepcopy(parse_file(old, str(self.path)))
            if not change(expected, lambda _: {}, value):
                return False
            text = _rewritten(old.decode("utf-8-sig"), change, value, expected)
            if text is None:
                message = "this change cannot be made without harming the file's layout; make it with an editor"
                raise self._error(message, parts)
            new = text.encode()
            if self._check is not None:
                self._check(new)
            write_atomic(self.path, new)
        return True

    def _error(self, what: str, parts: Sequence[str]) -> ConfigError:
        key = format_key(tuple(parts))
        return ConfigError(f"cannot change {key!r} in {self.path}: {what}", file=str(self.path), key=key)


def _rewritten(old: str, change: Change, value: Any, expected: Mapping[str, Any]) -> str | None:
    """``old`` with the change made in its text; None when no way of making it says exactly ``expected``."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError
    from tomlkit.items import InlineTable

    def as_header(parent: Any) -> Any:
        return tomlkit.inline_table() if isinstance(parent, InlineTable) else tomlkit.table()

    def as_value(_: Any) -> Any:
        return tomlkit.inline_table()

    for make_table in (as_header, as_value):  # a file in dotted-key style takes no header for a new table
        try:
            document = tomlkit.parse(old)
            change(document, make_table, None if value is None else _item(value))
            text = tomlkit.dumps(document)
            if tomllib.loads(text) == expected:
                return text
        except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, ValueError, KeyError):
            continue
    return None


def _parts(key: str | Sequence[str]) -> tuple[str, ...]:
    return parse_key(key) if isinstance(key, str) else tuple(key)


def _item(value: Any) -> Any:
    """A tomlkit item; tables inline, so that ``{ env = "NAME" }`` stays on its key's line."""
    import tomlkit

    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        for key, child in value.items():
            table.append(key, _item(child))
        return table
    if isinstance(value, (list, tuple)):
        array = tomlkit.array()
        for child in value:
            array.append(_item(child))
        return array
    return tomlkit.item(value)
