"""The ``hostctl`` group: global options, commands that load on demand, and what an error looks like to a person.

The host's own commands stand in :data:`COMMANDS`; plugins declare theirs with ``polyhost_cli``. Neither kind is
imported before it is run, so that a broken plugin cannot take the others down.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from polyhost.cli import logs, process
from polyhost.cli.process import CANCELLED
from polyhost.cli.state import HostState
from polyhost.config.errors import ConfigError, printable
from polyhost.kernel.errors import PolyhostError
from polyhost.kernel.plugins import CommandSpec, PluginError, PluginsFailedError

COMMANDS = (
    CommandSpec("config", "Show and edit the configuration", "polyhost.cli.config_commands:config"),
    CommandSpec("completion", "Print the shell completion script", "polyhost.cli.completion:completion"),
    CommandSpec("doctor", "Check the environment, tools, keys and endpoints", "polyhost.cli.doctor:doctor"),
    CommandSpec("plugins", "List, show, enable and disable plugins", "polyhost.cli.plugin_commands:plugins"),
    CommandSpec("trust", "Accept the project file of this folder", "polyhost.cli.trust_commands:trust"),
    CommandSpec("untrust", "Forget an accepted project file", "polyhost.cli.trust_commands:untrust"),
)

USAGE = 2


class HostGroup(click.Group):
    """Looks commands up in :data:`COMMANDS`, then among the plugins' declarations."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [spec.name for spec in self._specs(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for spec in COMMANDS:
            if spec.name == cmd_name:
                return _load(spec, plugin=None)
        found = _state(ctx).find_command(cmd_name)
        return _load(found[1], plugin=found[0]) if found else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(spec.name, spec.help) for spec in self._specs(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = "Commands may come from plugins: see `hostctl plugins list`."
            raise click.UsageError(f"{error.message} {hint}", ctx) from None

    def _specs(self, ctx: click.Context) -> list[CommandSpec]:
        specs = {spec.name: spec for specs in _state(ctx).commands().values() for spec in specs}
        specs.update((spec.name, spec) for spec in COMMANDS)
        return [specs[name] for name in sorted(specs)]


def _load(spec: CommandSpec, *, plugin: str | None) -> click.Command:
    module, _, attribute = spec.target.partition(":")
    try:
        command = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        if plugin is None:
            raise
        message = f"plugin {plugin!r}: its command {spec.name!r} cannot be loaded: {type(error).__name__}: {error}"
        raise PluginError(message, plugin=plugin, stage="import") from error
    if not isinstance(command, click.Command):
        raise PluginError(
            f"plugin {plugin!r}: {spec.target} is not a click command", plugin=plugin or "host", stage="register"
        )
    return command


def _state(ctx: click.Context) -> HostState:
    """The state of this invocation; completion and ``--help`` ask before the group's callback has run."""
    root = ctx.find_root()
    if not isinstance(root.obj, HostState):
        root.obj = HostState.of(root.params)
    return root.obj


@click.group(cls=HostGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--home", metavar="DIR", is_eager=True, help="Where all state lives (POLYHOST_HOME).")
@click.option("--config", "config_file", metavar="FILE", is_eager=True, help="Project file to use (POLYHOST_CONFIG).")
@click.option("--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override one configuration value.")
@click.option(
    "--disable-plugin",
    "disabled",
    metavar="NAME",
    multiple=True,
    envvar="POLYHOST_DISABLE_PLUGINS",
    help="Do not even import this plugin.",
)
@click.option("--no-plugins", is_flag=True, help="Use only the plugins that ship with the host.")
@click.option("--strict-plugins", is_flag=True, help="Fail when any plugin does.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much is logged.")
@click.version_option(package_name="polyhost", prog_name="hostctl", message="%(prog)s %(version)s")
@click.pass_context
def hostctl(ctx: click.Context, /, **options: Any) -> None:
    """A plugin-based host for coding agents."""
    process.started()
    _state(ctx)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; every error becomes a paragraph on stderr and an exit code."""
    logs.hush()
    try:
        result = hostctl.main(arguments, prog_name="hostctl", standalone_mode=False)
    except click.exceptions.Exit as exit:
        return exit.exit_code
    except click.Abort:
        return _fail("cancelled", CANCELLED)
    except SystemExit as exit:  # a plugin's command
        return exit.code if isinstance(exit.code, int) else _fail(str(exit.code), 1) if exit.code else 0
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _tell(shown.getvalue().rstrip("\n"))
        return error.exit_code
    except PolyhostError as error:
        return _fail(error.message, USAGE if _is_usage(error) else 1)
    except KeyboardInterrupt:
        return _fail("cancelled", CANCELLED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'the system'}: {error.strerror or error}", 1)
    except Exception as error:
        return _unexpected(error)
    return result if isinstance(result, int) else 0


_USAGE_CODES = frozenset({"PLUGIN_UNKNOWN", "PLUGIN_ESSENTIAL", "NO_MODEL", "SESSION_NOT_FOUND", "USAGE"})


def _is_usage(error: PolyhostError) -> bool:
    """Whether the command line or the configuration is at fault, not what happened afterwards."""
    if isinstance(error, PluginsFailedError):
        return all(failure.stage == "configure" for failure in error.failures.values())
    return isinstance(error, ConfigError) or error.code in _USAGE_CODES


def _fail(message: str, code: int) -> int:
    _tell(f"hostctl: {message}")
    return code


def _tell(message: str) -> None:
    """Lines on stderr, which do not drive the terminal: arguments, and what they name, may hold control characters."""
    with contextlib.suppress(OSError):  # nobody is there to be told
        click.echo("\n".join(printable(line) for line in message.split("\n")), err=True)


def _unexpected(error: Exception) -> int:
    """A fault of the host itself: one line for the person, and the traceback for the log where there is one yet."""
    import logging
    import traceback

    if logs.ready():
        logging.getLogger("polyhost").error("unexpected error", exc_info=error)
        details = "The log file has the details."
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        details = f"It happened in {frame.filename}, line {frame.lineno}."
    return _fail(f"unexpected error: {type(error).__name__}: {error}. {details}", 1)
