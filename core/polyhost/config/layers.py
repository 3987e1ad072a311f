"""The layers of configuration, where each comes from, and how a later one overrides an earlier one.

Lowest first: plugin defaults, the user file, the project file, environment variables, ``--set`` options. A layer is
plain data with a source; which keys exist is decided in ``model``, and what an untrusted file may say in ``trust``.
No origin is stored per value: the layers are kept, and the last one that has a key is its origin.

Environment variables: ``POLYHOST__`` and the key's parts joined by two underscores, for example
``POLYHOST__PLUGINS__BROWSER__PORT=3080``. Names are matched without regard to case, with ``_`` standing for ``-``,
``.`` or ``_``, against the keys that lower layers have and the ids of the installed plugins; a part that matches
nothing is taken in lower case as it stands. So ``CODEX_CHILD`` is the row ``codex-child`` where that exists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from polyhost.config.errors import ConfigError
from polyhost.config.files import read_bounded
from polyhost.config.references import is_reference
from polyhost.config.tomltext import KeyPath, find_line, format_key, lookup, parse_file, parse_key, parse_value

LayerName = Literal["default", "user", "project", "environment", "set"]

PROJECT_FILE = "polyhost.toml"
CONFIG_VARIABLE = "POLYHOST_CONFIG"
VARIABLE_PREFIX = "POLYHOST__"

_WORDING: dict[str, str] = {
    "default": "in the defaults of plugin {source}",
    "user": "in {source}{line} (user file)",
    "project": "in {source}{line} (project file)",
    "environment": "in the environment variable {source}",
    "set": "in --set {source}",
}


class Origin:
    """Where a value was written; ``str()`` is a phrase such as ``in /home/u/config.toml, line 7 (user file)``.

    :ivar layer: name of the layer.
    :ivar source: absolute path of the file, name of the variable, key of the option, or id of the plugin.
    :ivar line: line in the file, from 1, where it is known.
    """

    __slots__ = ("layer", "line", "source")

    def __init__(self, layer: LayerName, source: str, line: int | None = None) -> None:
        self.layer = layer
        self.source = source
        self.line = line

    @property
    def file(self) -> str | None:
        return self.source if self.layer in ("user", "project") else None

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line is not None else ""
        return _WORDING[self.layer].format(source=self.source, line=line)

    def __repr__(self) -> str:
        return f"<Origin {self}>"


class Layer:
    """One source of keys. ``content`` is the file's bytes, from which the line of a key is found when asked."""

    __slots__ = ("content", "data", "name", "source")

    def __init__(self, name: LayerName, source: str, data: Mapping[str, Any], content: bytes | None = None) -> None:
        self.name = name
        self.source = source
        self.data = data
        self.content = content

    def origin(self, path: KeyPath) -> Origin:
        """The origin of ``path``, which need not exist here: then the line is that of what encloses it."""
        line = find_line(self.content.decode("utf-8-sig"), path) if self.content is not None else None
        return Origin(self.name, self.source, line)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` overridden by ``over``: tables merge key by key; arrays, references and other values are replaced."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not is_reference(old) and not is_reference(value):
            value = merge(old, value)
        result[key] = value
    return result


def merge_all(layers: Sequence[Layer]) -> dict[str, Any]:
    """The effective document of ``layers``, lowest first."""
    result: dict[str, Any] = {}
    for layer in layers:
        result = merge(result, layer.data)
    return result


def find_origin(layers: Sequence[Layer], path: KeyPath) -> Origin | None:
    """The origin of ``path`` in the effective document: the highest layer that has it, or None."""
    for layer in reversed(layers):
        if lookup(layer.data, path)[0]:
            return layer.origin(path)
    return None


def default_layers(defaults: Mapping[str, Mapping[str, Any]]) -> list[Layer]:
    """One layer for each installed plugin: its id, and the keys it wants unless somebody says otherwise."""
    return [Layer("default", plugin, {"plugins": {plugin: dict(keys)}}) for plugin, keys in defaults.items()]


def file_layer(name: LayerName, path: Path, *, required: bool = False, content: bytes | None = None) -> Layer | None:
    """The layer of a TOML file; None when there is no such file and it is not ``required``.

    :param content: bytes to take in the file's place, for judging a change before it is written.
    :raises ConfigError: unreadable, not TOML, or missing though required.
    """
    data = read_bounded(path) if content is None else content
    if data is None:
        if required:
            message = (
                f"there is no configuration file {path}; correct the path given with --config or {CONFIG_VARIABLE}"
            )
            raise ConfigError(message, code="CONFIG_NOT_FOUND", file=str(path), layer=name)
        return None
    return Layer(name, str(path), parse_file(data, str(path), name), data)


def find_project_file(directory: Path) -> Path | None:
    """``polyhost.toml`` in ``directory`` or its nearest ancestor that has one."""
    for candidate in (directory, *directory.parents):
        path = candidate / PROJECT_FILE
        if os.path.isfile(path):  # unlike Path.is_file, False where a directory may not be searched
            return path
    return None


def environment_layers(environ: Mapping[str, str], lower: Mapping[str, Any]) -> list[Layer]:
    """One layer for each ``POLYHOST__...`` variable, in the order of their names.

    :param lower: the effective document below, whose keys decide what ``_`` in a name stands for.
    :raises ConfigError: a name with an empty part, or one that fits two known keys.
    """
    layers = []
    for name in sorted(name for name in environ if name.startswith(VARIABLE_PREFIX)):
        parts = name.removeprefix(VARIABLE_PREFIX).split("__")
        if len(parts) < 2 or not all(parts):
            message = (
                f"the environment variable {name} names no key; write it like {VARIABLE_PREFIX}PLUGINS__BROWSER__PORT"
            )
            raise ConfigError(message, key=name, layer="environment")
        path = _match_parts(name, parts, lower)
        layers.append(Layer("environment", name, _nested(path, parse_value(environ[name]))))
    return layers


def set_layers(options: Sequence[str]) -> list[Layer]:
    """One layer for each ``KEY=VALUE`` of ``--set``, in the order given.

    :raises ConfigError: no ``=``, or the key is not a dotted TOML key.
    """
    layers = []
    for option in options:
        key, equals, text = option.partition("=")
        if not equals:
            message = f"--set {key} has no value; write it like --set plugins.browser.port=3080"
            raise ConfigError(message, key=key, layer="set")
        path = parse_key(key.strip())
        layers.append(Layer("set", format_key(path), _nested(path, parse_value(text.strip()))))
    return layers


def _match_parts(name: str, parts: Sequence[str], lower: Mapping[str, Any]) -> list[str]:
    path: list[str] = []
    node: Any = lower
    for part in parts:
        known = node if isinstance(node, Mapping) else {}
        fitting = [key for key in known if _folded(key) == _folded(part)]
        if len(fitting) > 1:
            names = " and ".join(sorted(fitting))
            message = f"the environment variable {name} fits {names} alike; use --set with the exact key instead"
            raise ConfigError(message, key=name, layer="environment")
        path.append(fitting[0] if fitting else part.lower())
        node = known.get(path[-1])
    return path


def _folded(key: str) -> str:
    return key.lower().replace("-", "_").replace(".", "_")


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return value  # type: ignore[no-any-return]
