"""``hostctl plugins`` as a person uses it, also while third-party plugins are broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Make = Callable[..., Path]

GOOD = """
from polyhost import PluginInfo, hookimpl

@hookimpl
def polyhost_plugin():
    return PluginInfo(name="good", api_version=1, summary="Does nothing", config="acme_good_config:Config")

@hookimpl
async def polyhost_start(ctx, config):
    pass
"""
CONFIG = """
from pydantic import BaseModel, ConfigDict

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    colour: str = "red"
    api_token: str = ""
"""

BROKEN = {
    "import-error": ("import does_not_exist\n", "import"),
    "syntax-error": ("def broken(:\n", "import"),
    "exits": ("import sys\nsys.exit(3)\n", "import"),
    "prints": ("print('noise')\nraise RuntimeError('no')\n", "import"),
    "no-plugin": ("x = 1\n", "register"),
    "missing-module": (None, "import"),
}


def rows(result: Any) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in json.loads(result.stdout)}


def test_shipped_plugins_are_listed_with_version_and_distribution(hostctl: Any) -> None:
    result = hostctl("plugins", "list", "--json")
    assert result.returncode == 0
    listed = rows(result)
    assert set(listed) == {"models", "terminal", "tools"}
    for row in listed.values():
        assert (row["state"], row["enabled"], row["distribution"], row["error"]) == ("enabled", True, "polyhost", None)
        assert row["version"]
        assert row["source"]


def test_built_in_parts_show_with_all_and_cannot_be_switched(hostctl: Any) -> None:
    assert "runtime-sessions" in hostctl("plugins", "list", "--all").stdout
    refused = hostctl("plugins", "disable", "runtime-sessions")
    assert refused.returncode == 2
    assert "part of the host" in refused.stderr


def test_built_in_parts_take_configuration(hostctl: Any) -> None:
    rules = 'plugins.runtime-interaction.rules=[{tool="bash", decision="allow"}]'
    result = hostctl("--set", rules, "run", "--demo", "--approve", "deny", "run echo allowed-by-rule")
    assert result.returncode == 0, result.stderr
    assert "It ran, and ended well." in result.stdout
    wrong = hostctl("--set", "plugins.runtime-tools.max_inline=1", "run", "--demo", "say x")
    assert wrong.returncode == 2
    assert "max_inline_bytes" in wrong.stderr
    off = hostctl("--set", "plugins.runtime-tools.enabled=false", "run", "--demo", "say x")
    assert off.returncode == 2
    assert "part of the host" in off.stderr


@pytest.mark.case("CASE-07")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_is_shown_and_disturbs_nobody(kind: str, hostctl: Any, plugin: Make) -> None:
    source, stage = BROKEN[kind]
    site = plugin("bad", source)
    listed = hostctl("plugins", "list", "--json", plugins=site)
    assert listed.returncode == 0
    bad = rows(listed)["bad"]
    assert (bad["state"], bad["distribution"], bad["version"]) == ("broken", "acme-bad", "1.2.3")
    assert bad["error"]["stage"] == stage
    assert "\n" not in bad["error"]["message"]
    assert rows(listed)["tools"]["state"] == "enabled"
    assert hostctl("--help", plugins=site).returncode == 0
    assert hostctl("run", "--demo", "say still here", plugins=site).stdout == "still here\n"
    assert hostctl("--strict-plugins", "plugins", "list", plugins=site).returncode == 1
    assert hostctl("plugins", "doctor", plugins=site).returncode == 1
    disabled = hostctl("plugins", "disable", "bad", plugins=site)
    assert disabled.returncode == 0
    assert rows(hostctl("plugins", "list", "--json", plugins=site))["bad"]["state"] == "disabled"
    assert hostctl("plugins", "doctor", plugins=site).returncode == 0


@pytest.mark.case("CASE-07")
def test_two_distributions_that_claim_one_name_are_both_refused(hostctl: Any, plugin: Make) -> None:
    plugin("good", GOOD, distribution="first-good", config=CONFIG)
    site = plugin("good", GOOD, distribution="second-good", config=CONFIG)
    listed = hostctl("plugins", "list", "--json", plugins=site)
    row = rows(listed)["good"]
    assert row["state"] == "broken"
    assert "first-good" in row["error"]["message"]
    assert "second-good" in row["error"]["message"]


def test_enable_and_disable_write_the_users_file_and_keep_its_comments(hostctl: Any, plugin: Make, home: Path) -> None:
    site = plugin("good", GOOD, config=CONFIG)
    home.mkdir(mode=0o700)
    file = home / "config.toml"
    file.write_text("# mine\n[plugins.good]\ncolour = 'blue' # nice\n")
    assert rows(hostctl("plugins", "list", "--json", plugins=site))["good"]["state"] == "enabled"
    assert hostctl("plugins", "disable", "good", plugins=site).returncode == 0
    assert rows(hostctl("plugins", "list", "--json", plugins=site))["good"]["state"] == "disabled"
    assert hostctl("plugins", "enable", "good", plugins=site).returncode == 0
    assert rows(hostctl("plugins", "list", "--json", plugins=site))["good"]["state"] == "enabled"
    assert "# mine" in file.read_text()
    assert "colour = 'blue' # nice" in file.read_text()


def test_a_disabled_plugin_is_not_imported(hostctl: Any, plugin: Make, tmp_path: Path) -> None:
    trace = tmp_path / "imported"
    site = plugin("good", f"open({str(trace)!r}, 'w').close()\n{GOOD}", config=CONFIG)
    hostctl("plugins", "disable", "good", plugins=site)
    trace.unlink(missing_ok=True)
    hostctl("plugins", "list", plugins=site)
    hostctl("run", "--demo", "say x", plugins=site)
    assert not trace.exists()
    hostctl("plugins", "enable", "good", plugins=site)
    assert (
        rows(hostctl("--disable-plugin", "good", "plugins", "list", "--json", plugins=site))["good"]["state"]
        == "blocked"
    )
    assert rows(hostctl("--no-plugins", "plugins", "list", "--json", plugins=site))["good"]["state"] == "blocked"
    assert trace.exists()


@pytest.mark.case("CASE-08")
def test_a_renamed_key_is_shown_with_file_layer_and_accepted_keys(hostctl: Any, plugin: Make, home: Path) -> None:
    site = plugin("good", GOOD, config=CONFIG)
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("[plugins.good]\ncolor = 'blue'\n")
    row = rows(hostctl("plugins", "list", "--json", plugins=site))["good"]
    assert row["state"] == "invalid"
    message = row["error"]["message"]
    for part in ("color", "config.toml", "colour", "user"):
        assert part in message
    run = hostctl("run", "--demo", "say fine", plugins=site)
    assert (run.returncode, run.stdout) == (0, "fine\n")
    assert "color" in run.stderr


def test_show_masks_secrets_and_tells_origins(hostctl: Any, plugin: Make, home: Path) -> None:
    site = plugin("good", GOOD, config=CONFIG)
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("[plugins.good]\napi_token = 'hunter22'\ncolour = 'blue'\n")
    for arguments in (
        ("plugins", "show", "good"),
        ("plugins", "show", "good", "--json"),
        ("config", "show", "--origin"),
    ):
        shown = hostctl(*arguments, plugins=site)
        assert shown.returncode == 0
        assert "hunter22" not in shown.stdout + shown.stderr
        assert "config.toml" in shown.stdout


def test_an_unknown_plugin_is_a_usage_error_with_a_hint(hostctl: Any) -> None:
    result = hostctl("plugins", "show", "toolz")
    assert result.returncode == 2
    assert "did you mean 'tools'" in result.stderr


def test_commands_do_not_inherit_secrets_that_the_configuration_names(hostctl: Any, plugin: Make, home: Path) -> None:
    """The variable's own name says nothing; that a plugin's key refers to it makes its value a secret."""
    site = plugin("good", GOOD, config=CONFIG)
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[plugins.good]\ncolour = { env = "ACME_LOGIN" }\n')
    environment = {"ACME_LOGIN": "hunter22", "ACME_URL": "http://hunter22@host/", "ACME_PLAIN": "seen"}
    result = hostctl("run", "--demo", "--json", "run env", plugins=site, env=environment)
    assert result.returncode == 0, result.stderr
    assert "ACME_PLAIN=seen" in result.stdout
    assert "hunter22" not in result.stdout
