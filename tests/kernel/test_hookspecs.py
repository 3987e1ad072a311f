"""The hook specifications are documented, typed, and cheap to import."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import polyhost
from polyhost.kernel import hookspecs

HOOKS = {name: spec for name, spec in vars(hookspecs).items() if name.startswith("polyhost_")}


def test_these_are_the_hooks() -> None:
    assert set(HOOKS) == {
        "polyhost_plugin",
        "polyhost_cli",
        "polyhost_config_defaults",
        "polyhost_check",
        "polyhost_start",
        "polyhost_config_changed",
        "polyhost_health",
    }


@pytest.mark.parametrize("name", HOOKS)
def test_each_hook_is_documented_and_typed(name: str) -> None:
    spec = HOOKS[name]
    documentation = inspect.getdoc(spec)
    assert documentation is not None
    assert "Static" in documentation or "Life cycle" in documentation
    signature = inspect.signature(spec)
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())


def test_a_plugin_finds_what_it_needs_at_the_top() -> None:
    assert polyhost.hookimpl is hookspecs.hookimpl
    assert polyhost.PluginInfo("a").api_version == 1


def test_finding_plugins_imports_no_heavy_library() -> None:
    heavy = ("aiohttp", "pydantic", "click", "rich", "acp", "zstandard", "tomlkit")
    program = (
        "import sys; from polyhost.kernel.catalog import PluginCatalog; PluginCatalog().scan();"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
