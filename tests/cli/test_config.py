"""``hostctl config``, ``trust`` and ``doctor``, and what wrong configuration looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def test_origins_follow_the_layers(hostctl: Any, folder: Path, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[host]\nmodel = "demo/demo"\nlog_level = "error"\n')
    shown = hostctl("--set", "host.log_level=debug", "config", "show", "--origin", "--json")
    entries = {entry["key"]: entry for entry in json.loads(shown.stdout)}
    assert entries["host.model"]["layer"] == "user"
    assert (entries["host.log_level"]["layer"], entries["host.log_level"]["value"]) == ("set", "debug")


def test_init_writes_a_file_that_loads_and_never_replaces_one(hostctl: Any, home: Path) -> None:
    first = hostctl("config", "init")
    assert first.returncode == 0
    assert Path(first.stdout.strip()) == home / "config.toml"
    assert hostctl("config", "show").returncode == 0
    assert hostctl("config", "path").stdout.splitlines()[0] == str(home / "config.toml")
    (home / "config.toml").write_text("# mine\n")
    again = hostctl("config", "init")
    assert again.returncode == 2
    assert (home / "config.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[host\n", ("config.toml", "line 1")),
        ("[hosts]\n", ("hosts", "host")),
        ('[host]\nmodle = "a/b"\n', ("modle", "model")),
        ('[host]\nmodel = "nothing"\n', ("provider/model",)),
    ],
)
def test_a_wrong_file_is_one_paragraph_and_exit_code_2(
    text: str, words: tuple[str, ...], hostctl: Any, home: Path
) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(text)
    for command in (("config", "show"), ("run", "--demo", "say x")):
        result = hostctl(*command)
        assert result.returncode == 2
        for word in words:
            assert word in result.stderr
    assert hostctl("--help").returncode == 0


def test_an_untrusted_project_file_is_said_and_ignored_until_trusted(hostctl: Any, folder: Path) -> None:
    (folder / "polyhost.toml").write_text("[plugins.tools]\nenabled = false\n")
    shown = hostctl("config", "show")
    assert "not trusted" in shown.stderr
    assert "plugins.tools.enabled" in shown.stderr
    listed = hostctl("plugins", "list", "--json")
    assert {row["id"]: row["state"] for row in json.loads(listed.stdout)}["tools"] == "enabled"
    assert hostctl("trust", "--yes").returncode == 0
    listed = hostctl("plugins", "list", "--json")
    assert {row["id"]: row["state"] for row in json.loads(listed.stdout)}["tools"] == "disabled"
    assert hostctl("untrust").returncode == 0
    assert "not trusted" in hostctl("config", "show").stderr


def test_trust_without_a_file_says_where_it_looked(hostctl: Any, folder: Path) -> None:
    result = hostctl("trust", "--yes")
    assert result.returncode == 2
    assert str(folder) in result.stderr


def test_doctor_names_what_is_missing(hostctl: Any) -> None:
    result = hostctl("doctor", "--json", env={"PATH": "/nonexistent"})
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert findings["git"]["level"] == "warning"
    assert "install" in findings["git"]["advice"]
    assert findings["home"]["level"] == "ok"


def test_doctor_asks_the_configured_endpoints(hostctl: Any, mock_model: Any) -> None:
    good = f'plugins.models.providers.good.base_url="{mock_model.url}"'
    bad = 'plugins.models.providers.bad.base_url="http://127.0.0.1:9"'
    result = hostctl("--set", good, "--set", bad, "doctor", "--json")
    assert result.returncode == 0
    findings = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert findings["provider good"]["level"] == "ok"
    assert findings["provider bad"]["level"] == "warning"
    assert "127.0.0.1:9" in findings["provider bad"]["detail"]
    assert "hostctl auth set DEEPSEEK_API_KEY" in findings["provider deepseek-official"]["detail"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, hostctl: Any) -> None:
    result = hostctl("completion", shell)
    assert result.returncode == 0
    assert "_HOSTCTL_COMPLETE" in result.stdout


def test_completion_knows_commands_of_plugins(hostctl: Any) -> None:
    answer = hostctl(env={"_HOSTCTL_COMPLETE": "bash_complete", "COMP_WORDS": "hostctl ru", "COMP_CWORD": "1"})
    assert "run" in answer.stdout
