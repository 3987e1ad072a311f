"""``hostctl plugins``: what is installed, what would run, why something does not, and switching it on and off."""

from __future__ import annotations

import click

from polyhost.cli.output import print_json, print_table
from polyhost.cli.state import HostState
from polyhost.kernel.plugins import PluginError, PluginRecord

_STYLES = {
    "enabled": "green",
    "active": "green",
    "disabled": "dim",
    "blocked": "yellow",
    "broken": "red",
    "invalid": "red",
}
_FAILED = ("broken", "invalid", "failed")


@click.group(invoke_without_command=True)
@click.pass_context
def plugins(ctx: click.Context) -> None:
    """List, show, enable and disable plugins. Needs no running host."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_plugins)


@plugins.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.option("--all", "show_all", is_flag=True, help="Also the host's own parts.")
@click.pass_obj
def list_plugins(state: HostState, as_json: bool = False, show_all: bool = False) -> int:
    """Every installed or configured plugin with its state, also those that are blocked or broken."""
    records = [record for record in state.records() if show_all or not record.essential]
    if as_json:
        print_json([record.to_json() for record in records])
    else:
        print_table(
            ("ID", "STATE", "VERSION", "DISTRIBUTION", "SOURCE"),
            [(r.id, r.state, r.version or "-", r.distribution or "-", r.source or "-") for r in records],
            styles=_STYLES,
        )
        for record in records:
            if record.error is not None:
                click.echo(f"{record.id}: {record.error}", err=True)
    failed = any(record.state in _FAILED for record in records)
    return 1 if failed and state.strict_plugins else 0


@plugins.command("show")
@click.argument("plugin_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_obj
def show(state: HostState, plugin_id: str, as_json: bool) -> int:
    """Everything that is known of one plugin: state, origin, configuration (secrets masked), failure."""
    record = _record(state, plugin_id)
    settings = _settings(state, record)
    if as_json:
        config = {key: {"value": value, "source": source} for key, value, source in settings}
        print_json({**record.to_json(), "config": config})
        return 0
    facts = {
        "id": record.id,
        "plugin": record.plugin,
        "state": record.state,
        "version": record.version,
        "distribution": record.distribution,
        "summary": record.summary,
        "module": record.module,
        "source": record.source,
        "provides": ", ".join(record.provides),
        "waits for": ", ".join(record.missing),
    }
    for name, value in facts.items():
        if value:
            click.echo(f"{name + ':':14}{value}")
    for key, kind, default in _keys(state, record):
        click.echo(f"key:          {key} ({kind}{'' if default is None else f', default {default}'})")
    for key, value, source in settings:
        click.echo(f"config:       {key} = {value}  ({source})")
    if record.error is not None:
        click.echo(f"error:        {record.error}")
        for line in record.error.traceback:
            click.echo(f"    {line}")
    return 0


@plugins.command("enable")
@click.argument("plugin_id", metavar="ID")
@click.pass_obj
def enable(state: HostState, plugin_id: str) -> None:
    """Let a plugin run (again): writes the user's configuration file."""
    _switch(state, plugin_id, True)


@plugins.command("disable")
@click.argument("plugin_id", metavar="ID")
@click.pass_obj
def disable(state: HostState, plugin_id: str) -> None:
    """Keep a plugin from running, or even being imported: writes the user's configuration file."""
    _switch(state, plugin_id, False)


@plugins.command("doctor")
@click.pass_obj
def doctor(state: HostState) -> int:
    """Explain every plugin that does not work, and what to do about it."""
    problems = [(record, advice) for record in state.records() if (advice := _advice(state, record))]
    for record, advice in problems:
        click.echo(f"{record.id}: {advice}")
    if not problems:
        click.echo("All plugins are in order.")
    return 1 if problems else 0


def _record(state: HostState, plugin_id: str) -> PluginRecord:
    records = {record.id: record for record in state.records()}
    if plugin_id not in records:
        from polyhost.config.errors import suggestion

        hint = suggestion(plugin_id, tuple(records))
        raise PluginError(
            f"there is no plugin {plugin_id!r}{hint}; `hostctl plugins list --all` shows all of them",
            plugin=plugin_id,
            stage="discover",
            code="PLUGIN_UNKNOWN",
        )
    return records[plugin_id]


def _keys(state: HostState, record: PluginRecord) -> list[tuple[str, str, object]]:
    from polyhost.config.validate import describe_keys

    loaded = state.catalog.loaded(record.plugin)
    return describe_keys(loaded.info.config, record.plugin) if loaded else []


def _settings(state: HostState, record: PluginRecord) -> list[tuple[str, str, str]]:
    from polyhost.config.validate import learn_secrets

    row = state.configuration.rows.get(record.id)
    if row is None:
        return []
    loaded = state.catalog.loaded(record.plugin)
    learn_secrets(row, loaded.info.config if loaded else None, state.redactor)
    prefix = f"plugins.{record.id}."
    return [
        (key.removeprefix(prefix), str(value), str(origin))
        for key, value, origin in state.configuration.entries(state.redactor)
        if key.startswith(prefix)
    ]


def _switch(state: HostState, plugin_id: str, enabled: bool) -> None:
    from polyhost.config.writer import ConfigFile

    if _record(state, plugin_id).essential:
        raise PluginError(
            f"plugin {plugin_id!r} is a part of the host and cannot be switched",
            plugin=plugin_id,
            stage="configure",
            code="PLUGIN_ESSENTIAL",
        )
    file = ConfigFile(state.home.config_file, state.home, check=state.judge_user_file)
    file.set_plugin_enabled(plugin_id, enabled)
    click.echo(f"{plugin_id} is {'enabled' if enabled else 'disabled'} in {file.path}")
    after = _record(state.renewed(), plugin_id)
    if enabled and after.error is not None:
        click.echo(f"It does not work yet: {after.error}", err=True)
    elif after.enabled != enabled:
        click.echo(f"It stays {after.state}: {after.source} says otherwise.", err=True)


_ADVICE = {
    "discover": "reinstall or uninstall its distribution, or block it with `hostctl plugins disable {id}`",
    "import": "reinstall or upgrade {distribution}, or switch it off with `hostctl plugins disable {id}`",
    "register": "upgrade {distribution}, or switch it off with `hostctl plugins disable {id}`",
    "configure": "mend the configuration named above; `hostctl plugins show {id}` shows where each value comes from",
}


def _advice(state: HostState, record: PluginRecord) -> str | None:
    if record.error is None:
        return None
    way_out = _ADVICE.get(record.error.stage, "`hostctl plugins show {id}` shows the details")
    return f"{record.error}; {way_out.format(id=record.id, distribution=record.distribution or 'its distribution')}"
