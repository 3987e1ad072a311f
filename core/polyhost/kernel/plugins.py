"""What is known of a plugin: its own declaration, its configured rows, how it failed, and the record shown to people.

Plain data only. Finding and importing plugins is in ``catalog`` and ``discovery``; running them in ``plugin_host``.
These classes stand on every start path, hence named tuples and slots instead of dataclasses.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.keys import ServiceKey

API_VERSION = 1
"""The version of the plugin interface that this host speaks; :attr:`PluginInfo.api_version` must equal it."""

Stage = Literal["discover", "import", "register", "configure", "start", "run", "stop"]
"""Where in its life a plugin failed. ``run`` is background work that crashed after a successful start."""

_MESSAGE_LIMIT = 500  # characters; messages are for one line of a table
_TRACEBACK_FRAMES = 5

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class PluginInfo(NamedTuple):
    """What a plugin says about itself, from ``polyhost_plugin()``.

    :param name: equal to the name of its entry point; also the default id of its row in the configuration.
    :param api_version: the version of the plugin interface it was written for.
    :param requires: services without which it does not start; it stops when one goes and restarts when one is replaced.
    :param optional: services that it uses when they are there. Never waited for.
    :param provides: services that it may publish. Informative: it lets the host say who could satisfy a requirement.
    :param config: import path ``"module:Model"`` of its configuration model, imported only when needed; None when it
        takes no configuration.
    :param summary: one line for lists.
    :param surfaces: the kinds of front end that it is, such as ``"http"`` or ``"stdio"``; empty for anything else.
        Front ends start only when a command names them.
    """

    name: str
    api_version: int = API_VERSION
    requires: tuple[ServiceKey[Any], ...] = ()
    optional: tuple[ServiceKey[Any], ...] = ()
    provides: tuple[ServiceKey[Any], ...] = ()
    config: str | None = None
    summary: str = ""
    surfaces: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """What is wrong with this declaration for a host of this version, in words; None when it is sound."""
        if not isinstance(self.api_version, int):
            return f"PluginInfo.api_version must be an integer, not {self.api_version!r:.80}"
        if self.api_version != API_VERSION:
            older, newer = ("plugin", "host") if self.api_version < API_VERSION else ("host", "plugin")
            return (
                f"it speaks plugin API version {self.api_version}, this host speaks {API_VERSION} "
                f"(the {older} is older than the {newer}: upgrade the {older})"
            )
        for field in ("requires", "optional", "provides"):
            value = getattr(self, field)
            if not isinstance(value, tuple) or not all(isinstance(key, ServiceKey) for key in value):
                return f"PluginInfo.{field} must be a tuple of ServiceKey, not {value!r:.80}"
        if self.config is not None and not (isinstance(self.config, str) and ":" in self.config):
            return f"PluginInfo.config must be 'module:Model', not {self.config!r:.80}"
        return None


class CommandSpec(NamedTuple):
    """A command of ``hostctl``, loaded when it is run: its name, one line of help, and its ``"module:attribute"``."""

    name: str
    help: str
    target: str


class PluginRow(NamedTuple):
    """One configured instance of a plugin, as the configuration layer hands it down.

    :param id: unique name of the instance.
    :param use: name of the plugin; several rows may use one plugin.
    :param config: its raw table. Validated by the resolver that came with the rows, when the instance starts.
    :param source: which layers wrote it, for people.
    """

    id: str
    use: str
    enabled: bool = True
    config: Mapping[str, Any] = _NOTHING
    source: str = ""


class PluginFailure:
    """Why a plugin does not work, as text: nothing here keeps the plugin's objects or frames alive.

    :ivar stage: where it failed.
    :ivar type: name of the exception's class.
    :ivar code: the exception's stable code, "" for a foreign exception.
    :ivar message: one line.
    :ivar traceback: the last lines of the traceback, innermost frames last.
    """

    __slots__ = ("code", "message", "stage", "traceback", "type")

    def __init__(self, stage: Stage, type: str, message: str, *, code: str = "", traceback: Sequence[str] = ()) -> None:
        self.stage = stage
        self.type = type
        self.code = code
        self.message = message
        self.traceback = tuple(traceback)

    @classmethod
    def of(cls, error: BaseException, stage: Stage) -> PluginFailure:
        """Describe ``error``; a :class:`PluginError` that only wraps the plugin's own exception gives way to it."""
        if isinstance(error, PluginError):
            stage = error.stage
            error = error.__cause__ or error
        code = getattr(error, "code", "")
        return cls(
            stage,
            type(error).__name__,
            one_line(error),
            code=code if isinstance(code, str) else "",
            traceback=_tail(error),
        )

    def __str__(self) -> str:
        return f"{self.stage}: {self.type}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "type": self.type,
            "code": self.code,
            "message": self.message,
            "traceback": list(self.traceback),
        }


class PluginError(PolyhostError):
    """A plugin, or a row that uses one, could not be brought to work.

    :ivar plugin: name of the plugin, or id of the row once there is one.
    :ivar stage: how far it got. The plugin's own exception, when there is one, is the cause.
    """

    default_code = "PLUGIN_FAILED"

    def __init__(self, message: str, *, plugin: str, stage: Stage, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.plugin = plugin
        self.stage: Stage = stage


class PluginsFailedError(PolyhostError):
    """Rows could not be brought up, and the host went back to what it was, or cannot start.

    :ivar failures: what went wrong, by row id.
    :ivar unrestored: rows that ran before and do not run again now; empty when everything was put back.
    """

    default_code = "PLUGINS_FAILED"

    def __init__(
        self,
        headline: str,
        failures: Mapping[str, PluginFailure],
        unrestored: Mapping[str, PluginFailure] | None = None,
    ) -> None:
        self.failures = dict(failures)
        self.unrestored = dict(unrestored or {})
        lines = [f"{id}: {failure}" for id, failure in self.failures.items()]
        lines += [f"{id}: could not be restored: {failure}" for id, failure in self.unrestored.items()]
        super().__init__("\n  ".join([f"{headline}:", *lines]))


class PluginRecord:
    """All that is known of one plugin row, or of one plugin without a row. Never raises, needs no running host.

    :ivar id: the row's id; for a plugin without a row, its name.
    :ivar plugin: the plugin's name.
    :ivar state: ``enabled``, ``disabled``, ``blocked``, ``broken`` (found, but cannot be used) or ``invalid`` (its
        configuration); in a running host the phase of its fiber instead of ``enabled``: ``pending``, ``loading``,
        ``active``, ``failed``, ``unloading``.
    :ivar module: file of the plugin's module, once imported.
    :ivar source: where the row comes from: configuration layers, or why there is none.
    :ivar missing: names of the services it waits for.
    :ivar provides: names of the services it declares.
    :ivar mounts: number of live mounts by kind.
    """

    __slots__ = (
        "distribution",
        "enabled",
        "error",
        "essential",
        "id",
        "missing",
        "module",
        "mounts",
        "plugin",
        "provides",
        "source",
        "state",
        "summary",
        "version",
    )

    def __init__(self, id: str, plugin: str, state: str) -> None:
        self.id = id
        self.plugin = plugin
        self.state = state
        self.enabled = state not in ("disabled", "blocked")
        self.essential = False
        self.distribution = ""
        self.version = ""
        self.summary = ""
        self.module = ""
        self.source = ""
        self.error: PluginFailure | None = None
        self.missing: tuple[str, ...] = ()
        self.provides: tuple[str, ...] = ()
        self.mounts: Mapping[str, int] = _NOTHING

    def __repr__(self) -> str:
        return f"<PluginRecord {self.id!r} {self.state}{f' ({self.error})' if self.error else ''}>"

    def to_json(self) -> dict[str, Any]:
        """This record as a JSON object; ``error`` is null or an object with stage, type, code, message, traceback."""
        return {
            "id": self.id,
            "plugin": self.plugin,
            "state": self.state,
            "enabled": self.enabled,
            "essential": self.essential,
            "version": self.version,
            "distribution": self.distribution,
            "summary": self.summary,
            "module": self.module,
            "source": self.source,
            "error": self.error.to_json() if self.error else None,
            "missing": list(self.missing),
            "provides": list(self.provides),
            "mounts": dict(self.mounts),
        }


def one_line(error: BaseException) -> str:
    """The text of a foreign exception, safely: its ``__str__`` may raise, be empty, huge, or have many lines.

    A group shows its members, since its own text names none of them.
    """
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its message cannot be shown)"
    if isinstance(error, BaseExceptionGroup):
        text += ": " + "; ".join(f"{type(member).__name__}: {one_line(member)}" for member in error.exceptions)
    return text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"


def _tail(error: BaseException) -> list[str]:
    """The innermost frames of ``error``, which are the plugin's own, as lines."""
    text = "".join(
        traceback.format_exception(type(error), error, error.__traceback__, limit=-_TRACEBACK_FRAMES, chain=False)
    )
    return text.rstrip("\n").split("\n")
