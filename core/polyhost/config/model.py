"""What the merged layers mean: the host's settings, one row for each plugin instance, and the origin of every value.

The keys of ``[host]`` are a table here, since they are few and checked at each start. The keys of a plugin belong to
its own model and are checked in ``validate``; a row that is malformed as a row carries its error instead of stopping
the others.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from polyhost.config.errors import ConfigError, suggestion
from polyhost.config.layers import Layer, Origin, default_layers, find_origin, merge_all
from polyhost.config.mask import Redactor, masked
from polyhost.config.references import has_reference, is_reference
from polyhost.config.tomltext import KeyPath, format_key, lookup, parse_key

TABLES = ("host", "plugins")
RESERVED_KEYS = ("enabled", "use")
LOG_LEVELS = ("debug", "info", "warning", "error")

_ROW_ID = re.compile(r"[a-z0-9][a-z0-9._-]*")


def _is_model(value: object) -> bool:
    provider, slash, model = value.partition("/") if isinstance(value, str) else ("", "", "")
    return bool(provider.strip() and slash and model.strip())


HOST_KEYS: dict[str, tuple[Callable[[object], bool], str]] = {
    "model": (_is_model, 'a model as "provider/model", for example "demo/demo"'),
    "log_level": (lambda value: value in LOG_LEVELS, "one of " + ", ".join(LOG_LEVELS)),
}
"""The keys of ``[host]``: a check, and what the check wants in words."""


class HostSettings:
    """The ``[host]`` table.

    :ivar model: ``provider/model`` for new sessions, or None when nothing was chosen.
    :ivar log_level: ``debug``, ``info``, ``warning`` or ``error``.
    """

    __slots__ = ("log_level", "model")

    def __init__(self, model: str | None = None, log_level: str = "info") -> None:
        self.model = model
        self.log_level = log_level


class PluginRowConfig:
    """One ``[plugins.ID]`` table.

    :ivar id: the instance.
    :ivar use: the plugin it is an instance of; the id unless ``use`` says otherwise.
    :ivar enabled: False forbids it to start.
    :ivar config: the plugin's own keys, merged, references unresolved. Not to be changed.
    :ivar error: what is wrong with the row itself, or None.
    """

    __slots__ = ("_layers", "config", "enabled", "error", "id", "use")

    def __init__(self, row_id: str, layers: Sequence[Layer] = ()) -> None:
        self.id = row_id
        self.use = row_id
        self.enabled = True
        self.config: Mapping[str, Any] = {}
        self.error: ConfigError | None = None
        self._layers = layers

    def path(self, *keys: str | int) -> KeyPath:
        """The full path of a key of this row."""
        return ("plugins", self.id, *keys)

    def origin_of(self, *keys: str | int) -> Origin | None:
        """Where a key of this row was written last; without ``keys``, where the row was."""
        return find_origin(self._layers, self.path(*keys))

    @property
    def source(self) -> str:
        """The names of the layers that say something about this row, lowest first: ``default, user``."""
        names = [layer.name for layer in self._layers if lookup(layer.data, self.path())[0]]
        return ", ".join(dict.fromkeys(names))

    def __repr__(self) -> str:
        return f"<PluginRowConfig {self.id} use={self.use} enabled={self.enabled}>"


class ConfigWarning:
    """Something a person should be told that stops nothing; ``keys`` are dotted keys of ``file`` that were ignored."""

    __slots__ = ("file", "keys", "message")

    def __init__(self, message: str, file: str, keys: Sequence[str]) -> None:
        self.message = message
        self.file = file
        self.keys = tuple(keys)

    def __str__(self) -> str:
        return self.message


class Configuration:
    """The outcome of composing layers. Read-only.

    :ivar host: settings of the host.
    :ivar rows: the plugin rows by id, in the order in which the layers name them.
    :ivar warnings: what was ignored, and why.
    """

    __slots__ = ("_document", "_layers", "host", "rows", "warnings")

    def __init__(self, layers: Sequence[Layer], warnings: Sequence[ConfigWarning] = ()) -> None:
        self._layers = tuple(layers)
        self._document = merge_all(self._layers)
        self.warnings = tuple(warnings)
        self._check_tables()
        self.host = self._read_host()
        self.rows = {row_id: self._read_row(row_id) for row_id in self._document.get("plugins", {})}

    def with_defaults(self, defaults: Mapping[str, Mapping[str, Any]]) -> Configuration:
        """The same layers above these plugin defaults, for defaults known only once enabled plugins are imported."""
        return Configuration([*default_layers(defaults), *self._layers], self.warnings)

    def effective(self) -> dict[str, Any]:
        """The merged document, detached, as it would stand in one file. It may hold secrets: see :meth:`entries`."""
        return copy.deepcopy(self._document)

    def origin_of(self, path: str | KeyPath) -> Origin | None:
        """Where ``path`` (dotted text or parts) was written last; None when it has no value."""
        parts = parse_key(path) if isinstance(path, str) else path
        return find_origin(self._layers, parts) if lookup(self._document, parts)[0] else None

    def entries(self, redactor: Redactor | None = None) -> Iterator[tuple[str, Any, Origin]]:
        """Every effective key that holds no table, dotted, with its masked value and its origin; for people."""
        shown = masked(self._document, redactor)
        for path in _leaves(self._document):
            origin = find_origin(self._layers, path)
            found, value = lookup(shown, path)
            if origin is not None and found:  # not found: the key itself held a secret
                yield format_key(path), value, origin

    def _check_tables(self) -> None:
        for name, value in self._document.items():
            if name not in TABLES:
                raise self._error((name,), f"unknown table or key {name!r}{suggestion(name, TABLES)}", TABLES)
            if not isinstance(value, dict):
                raise self._error((name,), f"{name!r} must be a table, [{name}]")

    def _read_host(self) -> HostSettings:
        table = self._document.get("host", {})
        for key, value in table.items():
            path = ("host", key)
            if key not in HOST_KEYS:
                message = f"unknown key {format_key(path)!r}{suggestion(key, tuple(HOST_KEYS))}"
                raise self._error(path, message, tuple(HOST_KEYS))
            if has_reference(value):
                raise self._error(path, _misplaced(path))
            accepts, wanted = HOST_KEYS[key]
            if not accepts(value):
                raise self._error(path, f"{format_key(path)!r} must be {wanted}")
        return HostSettings(**table)

    def _read_row(self, row_id: str) -> PluginRowConfig:
        row = PluginRowConfig(row_id, self._layers)
        table = self._document["plugins"][row_id]
        try:
            if not _ROW_ID.fullmatch(row_id):
                wanted = "small letters, digits, '.', '_' and '-', and starts with a letter or digit"
                raise self._error(row.path(), f"{row_id!r} is no plugin id: an id has {wanted}")
            if not isinstance(table, dict):
                message = f"{format_key(row.path())!r} must be a table, [{format_key(row.path())}]"
                raise self._error(row.path(), message)
            row.config = {key: value for key, value in table.items() if key not in RESERVED_KEYS}
            row.enabled = self._reserved(row, table, "enabled", bool, True, "true or false")
            row.use = self._reserved(row, table, "use", str, row_id, "the name of a plugin") or row_id
        except ConfigError as error:
            row.error = error
        return row

    def _reserved(
        self, row: PluginRowConfig, table: Mapping[str, Any], key: str, kind: type, default: Any, wanted: str
    ) -> Any:
        value = table.get(key, default)
        if is_reference(value):
            raise self._error(row.path(key), _misplaced(row.path(key)), plugin=row.id)
        if not isinstance(value, kind):
            raise self._error(row.path(key), f"{format_key(row.path(key))!r} must be {wanted}", plugin=row.id)
        return value

    def _error(self, path: KeyPath, what: str, accepted: Sequence[str] = (), plugin: str | None = None) -> ConfigError:
        if plugin is None and path[0] == "plugins" and len(path) > 1:
            plugin = str(path[1])
        return locate_error(find_origin(self._layers, path), path, what, accepted, plugin)


def locate_error(
    origin: Origin | None,
    path: KeyPath,
    what: str,
    accepted: Sequence[str] = (),
    plugin: str | None = None,
    kind: Callable[..., ConfigError] = ConfigError,
) -> ConfigError:
    """An error saying ``what``, where it was written, and which keys are accepted there."""
    message = f"{what} {origin}" if origin else what
    if accepted:
        message += f"; accepted here: {', '.join(accepted)}"
    return kind(
        message,
        file=origin.file if origin else None,
        line=origin.line if origin else None,
        key=format_key(path),
        layer=origin.layer if origin else None,
        plugin=plugin,
        accepted=accepted,
    )


def _misplaced(path: KeyPath) -> str:
    return f'{format_key(path)!r} cannot be {{ env = "..." }}: only keys of a plugin can; write the value itself'


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(value, dict) and value and not is_reference(value):
        for key, child in value.items():
            yield from _leaves(child, (*path, key))
    elif path:
        yield path
