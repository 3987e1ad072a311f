"""The catalogue of plugins: which exist, which are blocked or broken, and the objects of those that were imported.

A plugin is imported when it is first asked for, in isolation, and registered with pluggy, which checks its hook
implementations. A plugin that fails on the way is remembered as a failure and affects no other. Needs no event loop
and no running host; running instances is the business of ``plugin_host``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import pluggy

from polyhost.kernel import hookspecs
from polyhost.kernel.discovery import Candidate, ScanFailure, contained, scan
from polyhost.kernel.plugins import CommandSpec, PluginError, PluginFailure, PluginInfo


class LoadedPlugin:
    """A plugin that was imported, checked and registered.

    :ivar plugin: the module or object that implements the hooks.
    :ivar info: what it declared.
    :ivar hooks: names of the hooks that it implements.
    """

    __slots__ = ("_manager", "candidate", "hooks", "info", "plugin")

    def __init__(self, candidate: Candidate, plugin: Any, info: PluginInfo, manager: pluggy.PluginManager) -> None:
        self.candidate = candidate
        self.plugin = plugin
        self.info = info
        self.hooks = _implemented(manager, plugin)
        self._manager = manager

    @property
    def name(self) -> str:
        return self.candidate.name

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call this plugin's implementation of ``hook``, and no other's; None when it has none.

        The result comes as it is: awaiting a coroutine is up to the caller. Raises what the implementation raises.
        """
        return _call_one(self._manager, self.plugin, hook, arguments)


class PluginCatalog:
    """All plugins by name.

    :param builtins: the host's own plugins, name to import path (or object). They are essential: they cannot be
        blocked, and an installed distribution that claims such a name is refused.
    """

    def __init__(self, builtins: Mapping[str, object] | None = None) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._claims: dict[str, list[Candidate]] = {}
        self._usurpers: list[Candidate] = []
        self._unreadable: list[ScanFailure] = []
        self._blocked: dict[str, str] = {}
        self._loaded: dict[str, LoadedPlugin] = {}
        self._failures: dict[str, PluginFailure] = {}
        for name, target in (builtins or {}).items():
            self.add(name, target, essential=True)

    # --- what exists ---------------------------------------------------------------------------------------------

    def add(self, name: str, target: object, *, essential: bool = False) -> None:
        """Make a plugin known that no distribution announces: a part of the host, or code under test."""
        self._claims.setdefault(name, []).append(Candidate(name, target, essential=essential))

    def scan(self) -> None:
        """Add what installed distributions announce. Imports nothing. Once; leave it out for a host without them."""
        candidates, self._unreadable = scan()
        for candidate in candidates:
            claims = self._claims.setdefault(candidate.name, [])
            # An essential plugin must not become unusable because somebody else took its name, too.
            (self._usurpers if any(claim.essential for claim in claims) else claims).append(candidate)

    def block(self, name: str, by: str) -> None:
        """Never import the plugin ``name``; ``by`` says for people who wants that. Unknown names are remembered.

        Raises :class:`PluginError` (``PLUGIN_ESSENTIAL``) for a part of the host.
        """
        if self.essential(name):
            raise PluginError(
                f"plugin {name!r} is a part of the host and cannot be blocked (by {by})",
                plugin=name,
                stage="discover",
                code="PLUGIN_ESSENTIAL",
            )
        self.unload(name)
        self._manager.set_blocked(name)
        self._blocked[name] = by

    def names(self) -> list[str]:
        """Names of all known plugins, blocked and ambiguous ones included, sorted."""
        return sorted(self._claims)

    def claims(self, name: str) -> tuple[Candidate, ...]:
        """Who claims ``name``: one candidate for a usable plugin, none for an unknown one, several for a duplicate."""
        return tuple(self._claims.get(name, ()))

    def refused(self) -> tuple[Candidate, ...]:
        """Candidates that claim the name of an essential plugin."""
        return tuple(self._usurpers)

    def unreadable(self) -> tuple[ScanFailure, ...]:
        """Distributions whose entry points could not be read."""
        return tuple(self._unreadable)

    def essential(self, name: str) -> bool:
        return any(claim.essential for claim in self._claims.get(name, ()))

    def blocked_by(self, name: str) -> str | None:
        """Who blocked ``name``; None when it is not blocked."""
        return self._blocked.get(name)

    def failure(self, name: str) -> PluginFailure | None:
        """How the last attempt to load ``name`` failed; None when it did not fail or was never tried."""
        return self._failures.get(name)

    def loaded(self, name: str) -> LoadedPlugin | None:
        return self._loaded.get(name)

    # --- importing -----------------------------------------------------------------------------------------------

    def load(self, name: str) -> LoadedPlugin:
        """Import and register the plugin ``name``, or return it when that was done before. A failed one is tried again.

        Raises :class:`PluginError` with the stage: ``discover`` (unknown, blocked, or claimed twice), ``import``, or
        ``register`` (not a plugin, unknown hooks or arguments, another API version).
        """
        if (loaded := self._loaded.get(name)) is not None:
            return loaded
        self._failures.pop(name, None)
        try:
            loaded = self._load(self._sole_claim(name))
        except PluginError as error:
            self._failures[name] = PluginFailure.of(error, error.stage)
            raise
        self._loaded[name] = loaded
        return loaded

    def unload(self, name: str) -> None:
        """Take the plugin's hooks out again. Its instances must have been disposed; its modules stay imported."""
        if (loaded := self._loaded.pop(name, None)) is not None:
            self._manager.unregister(loaded.plugin)

    def _sole_claim(self, name: str) -> Candidate:
        claims = self._claims.get(name, [])
        if (by := self._blocked.get(name)) is not None:
            problem, code = f"it is blocked by {by}", "PLUGIN_BLOCKED"
        elif not claims:
            problem, code = (
                f"no such plugin is installed; there are: {', '.join(self.names()) or 'none'}",
                "PLUGIN_UNKNOWN",
            )
        elif len(claims) > 1:
            owners = " and ".join(sorted(claim.facts().distribution or "the host" for claim in claims))
            problem, code = f"the distributions {owners} all claim this name; uninstall or block it", "PLUGIN_DUPLICATE"
        else:
            return claims[0]
        raise PluginError(f"plugin {name!r}: {problem}", plugin=name, stage="discover", code=code)

    def _load(self, candidate: Candidate) -> LoadedPlugin:
        name = candidate.name
        with contained("import", name, "cannot import it"):
            plugin = candidate.load()
        with contained("register", name, "cannot register it"):
            if (other := self._manager.get_name(plugin)) is not None:
                raise PluginError(
                    f"plugin {name!r}: the same object is already registered as {other!r}",
                    plugin=name,
                    stage="register",
                )
            try:
                self._manager.register(plugin, name)
                self._manager.check_pending()
                return self._checked(candidate, plugin)
            except BaseException:
                # Whatever it was: what stays registered would be called by, and could break, all the others.
                if self._manager.has_plugin(name):
                    self._manager.unregister(name=name)
                raise

    def _checked(self, candidate: Candidate, plugin: Any) -> LoadedPlugin:
        """The registered plugin with its declaration, or :class:`PluginError`."""
        name = candidate.name
        hooks = _implemented(self._manager, plugin)
        problem: str | None
        if unmarked := [hook for hook in _HOOKS if hook not in hooks and callable(getattr(plugin, hook, None))]:
            problem = f"{', '.join(unmarked)} is defined without the @hookimpl mark"
        elif "polyhost_plugin" not in hooks:
            problem = "it has no polyhost_plugin() hook; does its entry point name the module that has it?"
        else:
            info = _plain(_call_one(self._manager, plugin, "polyhost_plugin", {}))
            if not isinstance(info, PluginInfo):
                problem = f"polyhost_plugin() must return a PluginInfo, not {type(info).__name__}"
            elif info.name != name:
                problem = f"its entry point is called {name!r}, but PluginInfo.name is {info.name!r}"
            elif (problem := info.problem()) is None:
                return LoadedPlugin(candidate, plugin, info, self._manager)
        raise PluginError(f"plugin {name!r}: {problem}", plugin=name, stage="register")

    # --- static contributions ------------------------------------------------------------------------------------

    def commands(self, names: Iterable[str] | None = None) -> dict[str, tuple[CommandSpec, ...]]:
        """The command declarations of the named plugins (default: of all that are not blocked), by plugin.

        Loads them. A plugin that fails is left out and remembered in :meth:`failure`.
        """
        found: dict[str, tuple[CommandSpec, ...]] = {}
        for name in self._usable() if names is None else names:
            try:
                specs = self._static(name, "polyhost_cli")
                if specs:
                    found[name] = _command_specs(name, specs)
            except PluginError as error:
                self._failures[name] = PluginFailure.of(error, error.stage)
        return found

    def config_defaults(self, name: str) -> Mapping[str, Any]:
        """The plugin's default configuration table; empty when it has none. Raises :class:`PluginError`."""
        defaults = self._static(name, "polyhost_config_defaults")
        if not isinstance(defaults, Mapping | None):
            raise PluginError(
                f"plugin {name!r}: polyhost_config_defaults() must return a mapping, not {type(defaults).__name__}",
                plugin=name,
                stage="configure",
            )
        return defaults or {}

    def _usable(self) -> list[str]:
        return [name for name in self.names() if name not in self._blocked]

    def _static(self, name: str, hook: str) -> Any:
        loaded = self.load(name)
        with contained("register", name, f"{hook}() failed"):
            return _plain(loaded.call(hook))


_HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("polyhost_"))


def _implemented(manager: pluggy.PluginManager, plugin: Any) -> frozenset[str]:
    return frozenset(caller.name for caller in manager.get_hookcallers(plugin) or ())


def _call_one(manager: pluggy.PluginManager, plugin: Any, hook: str, arguments: Mapping[str, Any]) -> Any:
    # The others are named anew for each call, because a subset caller includes whoever registers later.
    others = [other for other in manager.get_plugins() if other is not plugin]
    return manager.subset_hook_caller(hook, others)(**arguments)


def _plain(result: Any) -> Any:
    """The result of a static hook, which must not be async: there may be no loop to run it."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError("this hook must be a plain function, not async")
    return result


def _command_specs(name: str, specs: Any) -> tuple[CommandSpec, ...]:
    if not isinstance(specs, list | tuple) or not all(isinstance(spec, CommandSpec) for spec in specs):
        raise PluginError(
            f"plugin {name!r}: polyhost_cli() must return a list of CommandSpec", plugin=name, stage="register"
        )
    return tuple(specs)
