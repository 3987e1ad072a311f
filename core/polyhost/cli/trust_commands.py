"""``hostctl trust`` and ``untrust``: accepting the project file that came with a repository."""

from __future__ import annotations

from pathlib import Path

import click

from polyhost.cli.state import HostState
from polyhost.config.errors import ConfigError
from polyhost.config.layers import find_project_file
from polyhost.config.trust import TrustStore


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not show the file and ask first.")
@click.pass_obj
def trust(state: HostState, file: Path | None, yes: bool) -> None:
    """Accept FILE (default: the polyhost.toml of this folder or above) with its present content."""
    target = _target(state, file)
    if not yes:
        click.echo(f"{target}:\n")
        click.echo(_readable(target))
        click.confirm("Accept this file? It may start programs and widen permissions", abort=True)
    state.home.create()
    digest = TrustStore(state.home).trust(target)
    click.echo(f"trusted {target} (sha256 {digest[:12]}…); any change of the file withdraws this")


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.pass_obj
def untrust(state: HostState, file: Path | None) -> None:
    """Forget that FILE (default: the polyhost.toml of this folder or above) was accepted."""
    target = _target(state, file)
    known = TrustStore(state.home).untrust(target)
    click.echo(f"{target} is no longer trusted" if known else f"{target} was not trusted")


def _target(state: HostState, file: Path | None) -> Path:
    if file is not None:
        return file.absolute()
    found = find_project_file(state.cwd)
    if found is None:
        raise ConfigError(f"there is no polyhost.toml in {state.cwd} or above it", code="CONFIG_NOT_FOUND")
    return found


def _readable(file: Path) -> str:
    from polyhost.config.errors import printable
    from polyhost.config.files import read_bounded

    content = read_bounded(file)
    if content is None:
        raise ConfigError(f"there is no file {file} to trust", code="CONFIG_NOT_FOUND", file=str(file))
    return "\n".join(printable(line) for line in content.decode(errors="replace").splitlines())
