"""What one ``hostctl`` invocation knows: its options, and on demand the home, the plugins and the configuration.

Everything is computed at most once and only when a command asks, since most commands need little of it. The running
host is not here: see ``hosting``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyhost.config.errors import ConfigError
from polyhost.config.loader import load_configuration
from polyhost.config.paths import HomePaths
from polyhost.kernel.catalog import PluginCatalog
from polyhost.kernel.plugins import CommandSpec, PluginError, PluginInfo, PluginRecord, PluginRow
from polyhost.runtime.builtins import BUILTINS

if TYPE_CHECKING:
    from polyhost.config.mask import Redactor
    from polyhost.config.model import Configuration

DISTRIBUTION = "polyhost"


class HostState:
    """The options of one invocation and what follows from them.

    :ivar home: where state lives.
    :ivar catalog: the plugins; blocked ones are never imported.
    :ivar configuration: the merged layers. Raises :class:`ConfigError` on first use when a file is unusable.
    """

    def __init__(
        self,
        *,
        home: str | None = None,
        config_file: str | None = None,
        overrides: Sequence[str] = (),
        disabled: Sequence[str] = (),
        no_plugins: bool = False,
        strict_plugins: bool = False,
        log_level: str | None = None,
    ) -> None:
        self.home = HomePaths.locate(home)
        self.config_file = config_file
        self.overrides = overrides
        self.disabled = disabled
        self.no_plugins = no_plugins
        self.strict_plugins = strict_plugins
        self._log_level = log_level

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> HostState:
        """From the parsed options of the ``hostctl`` group."""
        return cls(**options)

    @cached_property
    def cwd(self) -> Path:
        """The current folder. Raises :class:`ConfigError` when there is none any more."""
        try:
            return Path.cwd()
        except OSError as error:
            raise ConfigError(
                f"the current folder cannot be used ({error.strerror}): it was moved or deleted. Change to another"
                " one, or name one with --cwd where the command takes it.",
                code="NO_CURRENT_FOLDER",
            ) from error

    @property
    def start_folder(self) -> Path:
        """The current folder, or the home when there is none: for what needs some folder, whichever it is."""
        try:
            return self.cwd
        except ConfigError:
            return self.home.root

    @cached_property
    def redactor(self) -> Redactor:
        from polyhost.config.mask import Redactor

        return Redactor()

    @cached_property
    def catalog(self) -> PluginCatalog:
        catalog = PluginCatalog(BUILTINS)
        catalog.scan()
        if self.no_plugins:
            for name in catalog.names():
                if not catalog.essential(name) and any(
                    claim.facts().distribution != DISTRIBUTION for claim in catalog.claims(name)
                ):
                    catalog.block(name, "--no-plugins")
        for name in self.disabled:
            if name not in catalog.names():
                raise PluginError(
                    f"--disable-plugin {name}: there is no such plugin; there are {', '.join(catalog.names())}",
                    plugin=name,
                    stage="discover",
                    code="PLUGIN_UNKNOWN",
                )
            catalog.block(name, "--disable-plugin")
        return catalog

    @cached_property
    def configuration(self) -> Configuration:
        names = [name for name in self.catalog.names() if not self.catalog.essential(name)]
        configuration = self._load({name: {} for name in names})
        # Defaults come from the plugins themselves, and a disabled one is not to be imported: hence after the files.
        defaults: dict[str, Mapping[str, Any]] = {}
        for name in names:
            row = configuration.rows.get(name)
            if row is not None and row.enabled and self.catalog.blocked_by(name) is None:
                with contextlib.suppress(PluginError):  # shown as broken wherever plugins are shown
                    defaults[name] = self.catalog.config_defaults(name)
        return configuration.with_defaults(defaults) if any(defaults.values()) else configuration

    def renewed(self) -> HostState:
        """The same invocation, reading everything anew."""
        return HostState(
            home=str(self.home.root),
            config_file=self.config_file,
            overrides=self.overrides,
            disabled=self.disabled,
            no_plugins=self.no_plugins,
            strict_plugins=self.strict_plugins,
            log_level=self._log_level,
        )

    def judge_user_file(self, content: bytes) -> None:
        """Raise :class:`ConfigError` when the composition with ``content`` as the user's file would not load."""
        self._load({}, overlay={self.home.config_file: content})

    @property
    def log_level(self) -> str:
        return self._log_level or self.configuration.host.log_level

    @property
    def log_level_given(self) -> bool:
        """Whether the level was asked for on the command line, which also shows the records on stderr."""
        return self._log_level is not None

    def rows(self) -> list[PluginRow]:
        """One row for each built-in plugin that the configuration does not mention, then the configured ones."""
        mentioned = self.configuration.rows
        unmentioned = [PluginRow(name, name, source="built in") for name in BUILTINS if name not in mentioned]
        return unmentioned + [
            PluginRow(row.id, row.use, row.enabled, row.config, _source(row.origin_of())) for row in mentioned.values()
        ]

    def resolve(self, info: PluginInfo, row: PluginRow) -> object:
        """Validate a row against its plugin's model. Raises :class:`ConfigError`."""
        configured = self.configuration.rows.get(row.id)
        if configured is None:
            from polyhost.config.model import PluginRowConfig

            configured = PluginRowConfig(row.id)
        from polyhost.config.validate import validate_row

        return validate_row(configured, info.config, redactor=self.redactor)

    def records(self) -> list[PluginRecord]:
        """What is known of every plugin, sorted by id. Never raises for a plugin's sake."""
        from polyhost.kernel.inventory import survey

        return sorted(survey(self.catalog, self.rows(), self.resolve), key=lambda record: record.id)

    def commands(self) -> dict[str, tuple[CommandSpec, ...]]:
        """The commands of all usable plugins, by plugin; the host's own stand in ``app.COMMANDS``."""
        return self.catalog.commands(self._command_plugins())

    def find_command(self, name: str) -> tuple[str, CommandSpec] | None:
        """The plugin that declares the command ``name``; loads no more plugins than it has to, shipped ones first."""
        for plugin in self._command_plugins():
            for spec in self.catalog.commands((plugin,)).get(plugin, ()):
                if spec.name == name:
                    return plugin, spec
        return None

    def _command_plugins(self) -> Iterator[str]:
        names = [name for name in self.catalog.names() if not self.catalog.essential(name)]
        try:
            off = {row.use for row in self.configuration.rows.values() if not row.enabled}
            off -= {row.use for row in self.configuration.rows.values() if row.enabled}
        except ConfigError:
            off = set()  # the command itself will say what is wrong; `--help` must work without
        names.sort(key=lambda name: (not self._shipped(name), name))
        return (name for name in names if name not in off and self.catalog.blocked_by(name) is None)

    def _shipped(self, name: str) -> bool:
        return all(claim.facts().distribution == DISTRIBUTION for claim in self.catalog.claims(name))

    def _load(
        self, defaults: Mapping[str, Mapping[str, Any]], overlay: Mapping[Path, bytes] | None = None
    ) -> Configuration:
        return load_configuration(
            self.home,
            cwd=self._project_folder(),
            config_file=self.config_file,
            overrides=self.overrides,
            defaults=defaults,
            project_keys=self._project_keys,
            overlay=overlay,
        )

    def _project_folder(self) -> Path:
        """Where the search for a project file begins; a folder that is gone is in no project."""
        try:
            return self.cwd
        except ConfigError:
            if self.config_file is not None and not Path(self.config_file).expanduser().is_absolute():
                raise
            return Path("/")

    def _project_keys(self, plugin: str) -> Sequence[str]:
        from polyhost.config.validate import project_keys

        try:
            info = self.catalog.load(plugin).info
        except PluginError:
            return ()
        return tuple(project_keys(info.config, plugin))


def _source(origin: object) -> str:
    return str(origin) if origin is not None else "default"
