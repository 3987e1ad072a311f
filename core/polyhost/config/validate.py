"""From a plugin row to the plugin's configuration object.

A configuration class is a pydantic model with ``extra="forbid"``. Every field of a model is checked by pydantic; what
is added here is the person's view: where the wrong key was written, and what is accepted in its place.

A plugin on the start path may name a stdlib dataclass instead: it is made as it is when the row has no keys, and
checked by pydantic only when it has, so that a start without configuration never loads pydantic.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from polyhost.config.errors import ConfigError, MissingVariableError, suggestion
from polyhost.config.mask import Redactor, is_secret_name
from polyhost.config.model import PluginRowConfig, locate_error
from polyhost.config.references import is_variable_name, replace_references
from polyhost.config.tomltext import KeyPath, format_key, lookup

ModelSpec = str | type[Any] | None
"""``"module:Class"``, the class itself, or None for a plugin that takes no keys."""


def validate_row(
    row: PluginRowConfig,
    spec: ModelSpec,
    *,
    environ: Mapping[str, str] = os.environ,
    redactor: Redactor | None = None,
) -> Any:
    """The plugin's configuration object for ``row``; None when ``spec`` is None.

    References are resolved here and nowhere else.

    :param redactor: learns every resolved reference and every ``SecretStr``.
    :raises MissingVariableError: a reference names a variable that is unset or empty.
    :raises ConfigError: the row is malformed, a key is unknown, missing or wrong, or the class cannot be imported.
    """
    redactor = redactor or Redactor()
    if row.error is not None:
        raise row.error
    if spec is None:
        if row.config:
            key = next(iter(row.config))
            raise _error(row, (key,), f"plugin {row.use!r} takes no configuration keys, but has {_name(row, key)!r}")
        return None
    cls = load_model(spec, row.use)
    if not row.config and dataclasses.is_dataclass(cls):
        try:
            return cls()
        except TypeError:
            pass  # it has required fields: pydantic says which
    values = _resolve(row, environ, redactor)
    adapter = _adapter(cls, row.use)
    result, problems = _check(cls, adapter, values)
    if not problems:
        for secret in _secrets(result):
            redactor.add(secret)
        return result
    raise _explain(row, values, problems, adapter, redactor)


def learn_secrets(
    row: PluginRowConfig, spec: ModelSpec, redactor: Redactor, *, environ: Mapping[str, str] = os.environ
) -> None:
    """Teach ``redactor`` the secrets of a row that may be invalid: what references stand for, and secret fields.

    For dumps: call it before :meth:`Configuration.entries`. It never raises for what the row says.
    """

    def learn(name: str, _: KeyPath) -> str:
        value = environ.get(name, "")
        redactor.add(value)
        return value

    values = replace_references(row.config, learn)
    if spec is None or not values:
        return
    from polyhost.config.schema import ModelSchema

    try:
        schema = ModelSchema(_adapter(load_model(spec, row.use), row.use))
    except ConfigError:
        return
    for secret in schema.secret_strings(values):
        redactor.add(secret)


def describe_keys(spec: ModelSpec, plugin: str) -> list[tuple[str, str, Any]]:
    """The keys that a plugin's table takes: name, type in words, default. Empty when the model cannot be loaded."""
    from polyhost.config.schema import ModelSchema

    if spec is None:
        return []
    try:
        return ModelSchema(_adapter(load_model(spec, plugin), plugin)).fields()
    except ConfigError:
        return []


def project_keys(spec: ModelSpec, plugin: str) -> frozenset[str]:
    """The keys that a model marks with :data:`~polyhost.config.trust.PROJECT_SETTABLE`; what ``screen`` asks for.

    A model that cannot be loaded marks none: its failure is reported where the row is validated.
    """
    from typing import get_type_hints

    from polyhost.config.trust import ProjectSettable

    if spec is None:
        return frozenset()
    try:
        cls = load_model(spec, plugin)
        hints = get_type_hints(cls, include_extras=True)
    except (ConfigError, NameError):
        return frozenset()
    aliases = _field_keys(cls)
    return frozenset(
        key
        for name, hint in hints.items()
        if any(isinstance(mark, ProjectSettable) for mark in getattr(hint, "__metadata__", ()))
        for key in aliases.get(name, ())
    )


def load_model(spec: str | type[Any], plugin: str) -> type[Any]:
    """Import ``"module:Class"``.

    :raises ConfigError: it cannot be imported, whatever the module does when it is.
    """
    if not isinstance(spec, str):
        return spec
    module, _, name = spec.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"the configuration model {spec!r} of plugin {plugin!r} cannot be imported ({reason}); reinstall it"
        raise ConfigError(message, plugin=plugin) from error
    if not isinstance(found, type):
        raise ConfigError(f"the configuration model {spec!r} of plugin {plugin!r} is not a class", plugin=plugin)
    return found


def _adapter(cls: type[Any], plugin: str) -> Any:
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(cls)
    except Exception as error:
        message = f"the configuration model {cls.__name__} of plugin {plugin!r} is not one that pydantic can check"
        raise ConfigError(message, plugin=plugin) from error


def _check(cls: type[Any], adapter: Any, values: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The validated object, or pydantic's problems. No exception leaves here, since its text would hold the input."""
    from pydantic import ValidationError

    known = {key for keys in _field_keys(cls).values() for key in keys}
    unknown = [] if _allows_extra(cls) else [key for key in values if key not in known]
    if unknown:  # also where a model forgot extra="forbid"
        return None, [{"type": "extra_forbidden", "loc": (key,), "msg": ""} for key in unknown]
    try:
        return adapter.validate_python(dict(values)), []
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False, include_context=False)
    except Exception as error:
        return None, [{"type": "model", "loc": (), "msg": f"its model failed with {type(error).__name__}"}]


def _explain(
    row: PluginRowConfig, values: Mapping[str, Any], problems: list[Any], adapter: Any, redactor: Redactor
) -> ConfigError:
    """One error for the row: an unknown key before any other problem, the deepest first, and how many more."""
    from polyhost.config.schema import ModelSchema

    schema = ModelSchema(adapter)
    for secret in schema.secret_strings(values):
        redactor.add(secret)
    located = [(problem, _data_path(problem, values)) for problem in problems]
    problem, path = min(located, key=lambda pair: (pair[0]["type"] not in _UNKNOWN, -len(pair[1])))
    accepted = schema.keys_at(path[:-1]) if path else []
    if problem["type"] in _UNKNOWN:
        what = f"unknown key {_name(row, *path)!r}{suggestion(str(path[-1]), accepted)}"
    elif problem["type"] in _MISSING:
        what = f"missing key {_name(row, *path)!r}"
    else:
        accepted = []
        reason = Redactor(_secretly_named(values)).redact(redactor.redact(problem["msg"]))
        what = f"{_name(row, *path)!r}: {reason}"
    more = f" (and {len(problems) - 1} more in this row)" if len(problems) > 1 else ""
    return _error(row, path, f"plugin {row.use!r}: {what}{more}", accepted)


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")


def _error(
    row: PluginRowConfig,
    path: KeyPath,
    what: str,
    accepted: Sequence[str] = (),
    kind: Callable[..., ConfigError] = ConfigError,
) -> ConfigError:
    origin = row.origin_of(*path)
    enclosing = path
    while origin is None and enclosing:
        enclosing = enclosing[:-1]
        origin = row.origin_of(*enclosing)
    return locate_error(origin, row.path(*path), what, accepted, row.id, kind)


def _name(row: PluginRowConfig, *keys: str | int) -> str:
    return format_key(row.path(*keys))


def _resolve(row: PluginRowConfig, environ: Mapping[str, str], redactor: Redactor) -> dict[str, Any]:
    def resolve(name: str, path: KeyPath) -> str:
        key = _name(row, *path)
        if not is_variable_name(name):
            raise _error(row, path, f"{key!r}: env must be the name of a variable (letters, digits, underscores)")
        value = environ.get(name)
        if not value:
            what = f"{key!r} wants the environment variable {name}, which is not set; set it, or change the key"
            raise _error(row, path, what, kind=partial(MissingVariableError, variable=name))
        redactor.add(value)
        return value

    return {key: replace_references(value, resolve, (key,)) for key, value in row.config.items()}


def _data_path(problem: Any, values: Any) -> KeyPath:
    """pydantic's location without the names of union members and validators, which are not in the data."""
    path: KeyPath = ()
    for part in problem["loc"]:
        if lookup(values, (*path, part))[0]:
            path += (part,)
    return (*path, problem["loc"][-1]) if problem["type"] in _MISSING else path


def _field_keys(cls: type[Any]) -> dict[str, set[str]]:
    """For each field of ``cls`` the keys that set it: its name and its aliases."""
    if dataclasses.is_dataclass(cls):
        return {field.name: {field.name} for field in dataclasses.fields(cls)}
    keys = {}
    for name, field in getattr(cls, "model_fields", {}).items():
        aliases = getattr(field.validation_alias, "choices", [field.validation_alias])
        keys[name] = {name, *(alias for alias in aliases if isinstance(alias, str))}
    return keys


def _allows_extra(cls: type[Any]) -> bool:
    settings = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    return settings.get("extra") == "allow"


def _secrets(value: Any) -> Iterator[str]:
    """The plain strings of all ``SecretStr`` in a validated object."""
    if hasattr(value, "get_secret_value"):
        secret = value.get_secret_value()
        yield secret.decode("utf-8", "replace") if isinstance(secret, bytes) else str(secret)
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _secrets(child)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for child in value:
            yield from _secrets(child)
    elif hasattr(type(value), "model_fields") or dataclasses.is_dataclass(value):
        yield from _secrets(vars(value))


def _secretly_named(value: Any, secret: bool = False) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, child in value.items():
            yield from _secretly_named(child, secret or is_secret_name(str(key)))
    elif isinstance(value, list):
        for child in value:
            yield from _secretly_named(child, secret)
    elif secret and isinstance(value, str):
        yield value
