"""What a project file may say before its owner has accepted it, and the record of accepted files.

A ``polyhost.toml`` that is found by walking up from the working directory may have come with a cloned repository. Until
``hostctl trust`` has recorded its content, it is read through an allow-list: ``host.model`` (it only chooses among
providers that the user configured), and those keys of an existing plugin row that the plugin's model marks with
:data:`PROJECT_SETTABLE`. So commands, arguments, enablement, sources, new rows, endpoints, environment, credentials,
permissions, and keys that nobody thought about, are ignored, and what was ignored is said.

Two further fences hold even for marked keys: no ``{ env = ... }`` reference (it would carry a secret of the user's to
where the file wants it), and no key at any depth whose name is of the kinds in :data:`SENSITIVE_WORDS`.

Trust is in the content: any change of the file withdraws it. A file named with ``--config`` needs no record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from polyhost.config.errors import ConfigError, printable
from polyhost.config.files import read_bounded, write_atomic
from polyhost.config.layers import Layer
from polyhost.config.mask import is_secret_name, words
from polyhost.config.model import RESERVED_KEYS, ConfigWarning
from polyhost.config.paths import HomePaths
from polyhost.config.references import has_reference
from polyhost.config.tomltext import KeyPath, format_key

PROJECT_HOST_KEYS = frozenset({"model"})
"""Keys of ``[host]`` that an untrusted file may set. Not ``log_level``: it could hide the warning about the file."""

SENSITIVE_WORDS = frozenset(
    {
        *("command", "commands", "cmd", "arg", "args", "argv", "exec", "executable", "program", "binary"),
        *("shell", "script", "hook", "hooks", "path", "env", "environment", "variables"),
        *("url", "uri", "endpoint", "host", "hostname", "bind", "address", "port", "proxy", "header", "headers"),
        *("mode", "permission", "permissions", "allow", "allowed", "allowlist", "deny", "approve", "approval"),
        *("rule", "rules", "sandbox", "trust", "trusted"),
        *("plugin", "plugins", "module", "source", "sources"),
    }
)
"""Words that make a key's name sensitive; secret names are sensitive as well."""

_SHOWN_KEYS = 10


class ProjectSettable:
    """The type of :data:`PROJECT_SETTABLE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "PROJECT_SETTABLE"


PROJECT_SETTABLE = ProjectSettable()
"""Marks a field of a plugin's model as harmless in an untrusted file: ``zone: Annotated[str, PROJECT_SETTABLE]``."""


class TrustStore:
    """The accepted project files of one home: absolute path and SHA-256 of the content, in ``trust.json`` (0600).

    :raises ConfigError: from every method, when the record cannot be read or written.
    """

    __slots__ = ("_home",)

    def __init__(self, home: HomePaths) -> None:
        self._home = home

    def is_trusted(self, path: Path, content: bytes) -> bool:
        """Whether exactly this content was accepted for ``path``."""
        return self._read().get(_identity(path)) == _digest(content)

    def trust(self, path: Path) -> str:
        """Accept the file as it is now and return its SHA-256 in hexadecimal.

        :raises ConfigError: also when there is no such file (``CONFIG_NOT_FOUND``).
        """
        content = read_bounded(path)
        if content is None:
            raise ConfigError(f"there is no file {path} to trust", code="CONFIG_NOT_FOUND", file=str(path))
        digest = _digest(content)
        with self._home.lock():
            self._write({**self._read(), _identity(path): digest})
        return digest

    def untrust(self, path: Path) -> bool:
        """Forget the file; False when it was not recorded. The file need not exist."""
        with self._home.lock():
            files = self._read()
            if files.pop(_identity(path), None) is None:
                return False
            self._write(files)
        return True

    def files(self) -> dict[str, str]:
        """The recorded paths and digests."""
        return self._read()

    def _read(self) -> dict[str, str]:
        import json

        file = self._home.trust_file
        data = read_bounded(file)
        if data is None:
            return {}
        try:
            files = json.loads(data)["files"]
            return {str(path): str(digest) for path, digest in files.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            message = f"the trust record {file} is damaged; delete it and run `hostctl trust` again where needed"
            raise ConfigError(message, file=str(file)) from None

    def _write(self, files: Mapping[str, str]) -> None:
        import json

        text = json.dumps({"version": 1, "files": dict(sorted(files.items()))}, indent=2)
        write_atomic(self._home.trust_file, text.encode() + b"\n")


def screen(
    layer: Layer, trusted: Mapping[str, Any], project_keys: Callable[[str], Collection[str]]
) -> tuple[Layer, ConfigWarning | None]:
    """An untrusted project layer without what it may not say, and a warning that names what was left out.

    :param trusted: the effective document of all other layers; it decides which rows exist and which plugin each uses.
    :param project_keys: for a plugin's name, the keys that its model marks :data:`PROJECT_SETTABLE`; asked only for
        existing rows that the file sets keys of.
    """
    kept: dict[str, Any] = {}
    ignored: list[KeyPath] = []
    for path, value in _settings(layer.data):
        if _may_set(path, value, trusted, project_keys):
            node = kept
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node[path[-1]] = value
        else:
            ignored.append(path)
    return Layer(layer.name, layer.source, kept, layer.content), _warning(layer.source, ignored)


def _settings(data: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """The units that are kept or ignored: keys of ``[host]`` and of plugin rows; anything else as a whole."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, value in data.items():
        if name == "host" and isinstance(value, dict):
            found += [((name, key), child) for key, child in value.items()]
        elif name == "plugins" and isinstance(value, dict):
            for row_id, row in value.items():
                keys = row if isinstance(row, dict) else {}
                found += [((name, row_id, key), child) for key, child in keys.items()] or [((name, row_id), row)]
        else:
            found.append(((name,), value))
    return found


def _may_set(
    path: tuple[str, ...], value: Any, trusted: Mapping[str, Any], project_keys: Callable[[str], Collection[str]]
) -> bool:
    if has_reference(value):
        return False
    if path[0] == "host":
        return len(path) == 2 and path[1] in PROJECT_HOST_KEYS
    row = trusted.get("plugins", {}).get(path[1]) if path[0] == "plugins" and len(path) > 1 else None
    if not isinstance(row, dict):
        return False
    if len(path) == 2:
        return not value and isinstance(value, dict)  # an existing row, and nothing said about it
    if path[2] in RESERVED_KEYS or _is_sensitive(path[2], value):
        return False
    return path[2] in project_keys(str(row.get("use", path[1])))


def _is_sensitive(name: str, value: Any) -> bool:
    if is_secret_name(name) or not SENSITIVE_WORDS.isdisjoint(words(name)):
        return True
    children = value if isinstance(value, list) else [value]
    return any(
        _is_sensitive(key, child) for table in children if isinstance(table, dict) for key, child in table.items()
    ) or any(_is_sensitive("", child) for child in children if isinstance(child, list))


def _warning(file: str, ignored: list[KeyPath]) -> ConfigWarning | None:
    if not ignored:
        return None
    keys = [printable(format_key(path)) for path in ignored]
    shown = ", ".join(keys[:_SHOWN_KEYS])
    if len(keys) > _SHOWN_KEYS:
        shown += f" and {len(keys) - _SHOWN_KEYS} more"
    message = (
        f"{file} is not trusted, so these keys are ignored: {shown}. "
        f"Read the file, then run `hostctl trust {file}` to accept it as it is"
    )
    return ConfigWarning(printable(message), file, keys)


def _identity(path: Path) -> str:
    return str(path.resolve())


def _digest(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()
