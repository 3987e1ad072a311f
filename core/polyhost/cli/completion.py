"""``hostctl completion``: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL, for example: eval "$(hostctl completion bash)"."""
    cls = get_completion_class(shell)
    assert cls is not None
    click.echo(cls(ctx.find_root().command, {}, "hostctl", "_HOSTCTL_COMPLETE").source())
