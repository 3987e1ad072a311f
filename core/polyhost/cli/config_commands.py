"""``hostctl config``: what the configuration is, where each value comes from, and a commented first file."""

from __future__ import annotations

import click

from polyhost.cli.output import print_json, print_table
from polyhost.cli.state import HostState


@click.group()
def config() -> None:
    """Show and edit the configuration."""


@config.command("show")
@click.option("--origin", is_flag=True, help="Also where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def show(state: HostState, origin: bool, as_json: bool) -> None:
    """Print the effective configuration, secrets masked."""
    _learn_secrets(state)
    entries = [entry for entry in state.configuration.entries(state.redactor) if entry[1] != {}]
    if as_json:
        print_json(
            [{"key": key, "value": value, "layer": found.layer, "origin": str(found)} for key, value, found in entries]
            if origin
            else {key: value for key, value, _ in entries}
        )
    elif origin:
        print_table(("KEY", "VALUE", "ORIGIN"), [(key, _toml(value), str(found)) for key, value, found in entries])
    else:
        for key, value, _ in entries:
            click.echo(f"{key} = {_toml(value)}")
    for warning in state.configuration.warnings:
        click.echo(f"warning: {warning}", err=True)


@config.command("path")
@click.pass_obj
def path(state: HostState) -> None:
    """Print the files that are read, in the order in which later ones win."""
    from polyhost.config.layers import find_project_file

    click.echo(state.home.config_file)
    project = state.config_file or find_project_file(state.cwd)
    if project:
        click.echo(project)


@config.command("init")
@click.pass_obj
def init(state: HostState) -> None:
    """Write a commented example as the user's configuration file; an existing file is never replaced."""
    from polyhost.config.template import write_example

    state.home.create()
    write_example(state.home.config_file)
    click.echo(state.home.config_file)


def _learn_secrets(state: HostState) -> None:
    from polyhost.config.validate import learn_secrets
    from polyhost.kernel.plugins import PluginError

    for row in state.configuration.rows.values():
        if not row.config:
            continue
        try:
            info = state.catalog.load(row.use).info
        except PluginError:
            continue
        learn_secrets(row, info.config, state.redactor)


def _toml(value: object) -> str:
    import tomlkit

    return tomlkit.item(value).as_string()
