"""Configuration: layered TOML, validated plugin rows with the origin of every value, trust, secrets, home paths.

Names load on first use; neither pydantic nor tomlkit nor platformdirs is loaded before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyhost.config.credentials import CredentialStore as CredentialStore
    from polyhost.config.credentials import InvalidCredentialError as InvalidCredentialError
    from polyhost.config.credentials import MissingCredentialError as MissingCredentialError
    from polyhost.config.errors import ConfigError as ConfigError
    from polyhost.config.errors import MissingVariableError as MissingVariableError
    from polyhost.config.layers import Origin as Origin
    from polyhost.config.loader import load_configuration as load_configuration
    from polyhost.config.mask import MASK as MASK
    from polyhost.config.mask import Redactor as Redactor
    from polyhost.config.mask import is_secret_name as is_secret_name
    from polyhost.config.mask import masked as masked
    from polyhost.config.model import Configuration as Configuration
    from polyhost.config.model import ConfigWarning as ConfigWarning
    from polyhost.config.model import HostSettings as HostSettings
    from polyhost.config.model import PluginRowConfig as PluginRowConfig
    from polyhost.config.paths import HomePaths as HomePaths
    from polyhost.config.template import write_example as write_example
    from polyhost.config.tomltext import parse_value as parse_value
    from polyhost.config.trust import PROJECT_SETTABLE as PROJECT_SETTABLE
    from polyhost.config.trust import TrustStore as TrustStore
    from polyhost.config.validate import learn_secrets as learn_secrets
    from polyhost.config.validate import project_keys as project_keys
    from polyhost.config.validate import validate_row as validate_row
    from polyhost.config.writer import ConfigFile as ConfigFile

_HOMES = {
    "credentials": ("CredentialStore", "InvalidCredentialError", "MissingCredentialError"),
    "errors": ("ConfigError", "MissingVariableError"),
    "layers": ("Origin",),
    "loader": ("load_configuration",),
    "mask": ("MASK", "Redactor", "is_secret_name", "masked"),
    "model": ("ConfigWarning", "Configuration", "HostSettings", "PluginRowConfig"),
    "paths": ("HomePaths",),
    "template": ("write_example",),
    "tomltext": ("parse_value",),
    "trust": ("PROJECT_SETTABLE", "TrustStore"),
    "validate": ("learn_secrets", "project_keys", "validate_row"),
    "writer": ("ConfigFile",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if module := _MODULES.get(name):
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
