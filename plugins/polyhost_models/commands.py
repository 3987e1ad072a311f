"""``hostctl models`` and ``hostctl auth``: what can be talked to, whether it answers, and its keys."""

from __future__ import annotations

import sys
import time

import click

from polyhost.cli.hosting import CommandContext, on_host
from polyhost.cli.output import print_json, print_table
from polyhost.cli.state import HostState
from polyhost.config.credentials import CredentialStore
from polyhost.interfaces import HOST, MODELS, Finish, ModelError, ModelRequest, TextDelta, user_message
from polyhost.kernel.errors import PolyhostError


@click.group()
def models() -> None:
    """List and test the models of the configured providers."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_obj
def list_models(state: HostState, as_json: bool) -> int:
    """The models of every provider, as PROVIDER/MODEL."""

    async def main(command: CommandContext) -> int:
        runtime = command.context.require(MODELS)
        default = command.context.require(HOST).default_model
        rows, failed = [], False
        for route in runtime.routes():
            try:
                rows += [(f"{info.provider}/{info.id}", info) for info in await runtime.list_models(route.provider)]
            except PolyhostError as error:
                failed = True
                click.echo(f"{route.provider}: {error.message}", err=True)
        if as_json:
            print_json(
                [
                    {"model": id, "name": info.name, "contextWindow": info.context_window, "default": id == default}
                    for id, info in rows
                ]
            )
        else:
            table = [
                (id, info.name, str(info.context_window or "-"), "*" if id == default else "") for id, info in rows
            ]
            print_table(("MODEL", "NAME", "CONTEXT", "DEFAULT"), table)
        return 1 if failed else 0

    return on_host(state, "models", main, requires=(MODELS, HOST))


@models.command("test")
@click.argument("model", required=False, metavar="[PROVIDER/MODEL]")
@click.pass_obj
def test_model(state: HostState, model: str | None) -> int:
    """Ask a model (default: the configured one) for one word and show how long it took."""

    async def main(command: CommandContext) -> int:
        runtime = command.context.require(MODELS)
        chosen = model or command.context.require(HOST).default_model
        if not chosen:
            raise click.UsageError('name a model, or set host.model = "provider/model" in the configuration')
        provider, slash, name = chosen.partition("/")
        if not slash:
            raise click.UsageError(f"{chosen!r} is no model; write PROVIDER/MODEL, as `hostctl models list` shows them")
        started = time.monotonic()
        prepared = await runtime.prepare({"provider": provider, "model": name})
        request = ModelRequest(
            provider=provider,
            model=name,
            messages=[user_message("say ready")],
            reasoning_effort=prepared.config.get("reasoningEffort"),
            max_tokens=prepared.config.get("maxTokens"),
        )
        words: list[str] = []
        async for chunk in prepared.stream(request):
            if isinstance(chunk, TextDelta):
                words.append(chunk.text)
            elif isinstance(chunk, Finish) and "failure" in chunk.reason:
                failure = chunk.reason["failure"]
                raise ModelError(f"{chosen}: {failure['message']}", code=failure["code"])
        click.echo(f"{chosen} answered {''.join(words).strip()!r} in {time.monotonic() - started:.2f} s")
        return 0

    return on_host(state, "models", main, requires=(MODELS, HOST))


@click.group()
def auth() -> None:
    """Store or remove the API key of a provider."""


@auth.command("set")
@click.argument("name")
@click.pass_obj
def set_key(state: HostState, name: str) -> None:
    """Store the secret NAME, for example DEEPSEEK_API_KEY; it is typed hidden, or read from stdin."""
    value = click.prompt(name, hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    state.home.create()
    CredentialStore(state.home, redactor=state.redactor).set(name, value)
    click.echo(f"{name} is stored in {state.home.credentials_file}")


@auth.command("remove")
@click.argument("name")
@click.pass_obj
def remove_key(state: HostState, name: str) -> int:
    """Remove the secret NAME from the store."""
    if CredentialStore(state.home).remove(name):
        click.echo(f"{name} is removed")
        return 0
    click.echo(f"{name} was not stored", err=True)
    return 1
