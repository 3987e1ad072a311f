"""What a start may load: each of these costs every user of every command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import json, sys
from polyhost.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted({name.split(".")[0] for name in sys.modules})]), file=sys.stderr)
"""
HEAVY = {"acp", "aiohttp", "mcp", "numpy", "rich", "sphinx", "tomlkit", "yarl"}


def loaded(arguments: tuple[str, ...], folder: Path, environment: dict[str, str]) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=60,
        check=True,
    )
    code, modules = json.loads(result.stderr.splitlines()[-1])
    assert code == 0
    return set(modules)


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--help",), set()),
        (("run", "--demo", "say x"), set()),
        (("plugins", "list"), {"rich"}),
        (("sessions", "list"), {"rich"}),
        (("config", "show"), {"tomlkit"}),
    ],
)
def test_commands_load_only_what_they_need(
    arguments: tuple[str, ...], allowed: set[str], folder: Path, environment: dict[str, str]
) -> None:
    assert loaded(arguments, folder, environment) & HEAVY <= allowed


def test_importing_the_package_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import polyhost; print(sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = {name.split(".")[0] for name in eval(result.stdout)} - set(sys.stdlib_module_names)
    assert extra == {"polyhost"}
