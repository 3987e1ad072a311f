"""What the tables mean: host settings, rows, and errors that say where and what is accepted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhost.config import ConfigError, Configuration

Load = Callable[..., Configuration]
UserFile = Callable[[str], Path]


def test_rows_and_host(load: Load, user_file: UserFile) -> None:
    user_file(
        '[host]\nmodel = "deepseek/v4/pro"\nlog_level = "debug"\n'
        '[plugins.browser]\nenabled = false\nport = 1\n[plugins.kid]\nuse = "subagent-acp"\n'
    )
    configuration = load()
    assert (configuration.host.model, configuration.host.log_level) == ("deepseek/v4/pro", "debug")
    rows = [(row.id, row.use, row.enabled, dict(row.config)) for row in configuration.rows.values()]
    assert rows == [("browser", "browser", False, {"port": 1}), ("kid", "subagent-acp", True, {})]


@pytest.mark.parametrize(
    ("text", "key", "line", "accepted", "words"),
    [
        ("[host]\nmodle = 'a/b'", "host.modle", 2, ("model", "log_level"), "did you mean 'model'"),
        ("\n[plugin.x]\na = 1", "plugin", 2, ("host", "plugins"), "did you mean 'plugins'"),
        ("[host]\nmodel = 'demo'", "host.model", 2, (), "provider/model"),
        ("[host]\nmodel = 5", "host.model", 2, (), "provider/model"),
        ("[host]\nlog_level = 'loud'", "host.log_level", 2, (), "debug, info, warning, error"),
        ("host = 5", "host", 1, (), "must be a table"),
        ("plugins = []", "plugins", 1, (), "must be a table"),
    ],
)
def test_errors_of_the_host_stop_and_say_where(
    load: Load, user_file: UserFile, text: str, key: str, line: int, accepted: tuple[str, ...], words: str
) -> None:
    file = user_file(text)
    with pytest.raises(ConfigError, match=words) as caught:
        load()
    error = caught.value
    assert (error.code, error.key, error.line, error.accepted) == ("CONFIG_INVALID", key, line, accepted)
    assert f"{file}, line {line} (user file)" in error.message
    assert all(name in error.message for name in accepted)


@pytest.mark.parametrize(
    ("text", "row", "words"),
    [
        ("plugins.x = 5", "x", "must be a table"),
        ("[plugins.x]\nenabled = 'no'", "x", "true or false"),
        ("[plugins.x]\nuse = 5", "x", "name of a plugin"),
        ("[plugins.'Bad Id']\na = 1", "Bad Id", "no plugin id"),
    ],
)
def test_a_malformed_row_does_not_stop_the_others(
    load: Load, user_file: UserFile, text: str, row: str, words: str
) -> None:
    user_file(text + "\n[plugins.good]\na = 1\n")
    rows = load().rows
    assert rows["good"].error is None
    error = rows[row].error
    assert error is not None
    assert words in error.message
    assert (error.plugin, error.layer) == (row, "user")
    assert error.line is not None


@pytest.mark.contract("DEF-9")
@pytest.mark.parametrize("key", ["model", "log_level"])
def test_a_reference_in_the_host_table_is_an_error(load: Load, user_file: UserFile, key: str) -> None:
    user_file(f'[host]\n{key} = {{ env = "HOME" }}\n')
    with pytest.raises(ConfigError, match="only keys of a plugin") as caught:
        load(environ={"HOME": "a/b"})
    assert (caught.value.key, caught.value.line) == (f"host.{key}", 2)


@pytest.mark.contract("DEF-9")
@pytest.mark.parametrize("key", ["enabled", "use"])
def test_a_reference_in_a_reserved_key_is_an_error(load: Load, user_file: UserFile, key: str) -> None:
    user_file(f'[plugins.x]\n{key} = {{ env = "HOME" }}\n')
    error = load(environ={"HOME": "true"}).rows["x"].error
    assert error is not None
    assert "only keys of a plugin" in error.message
    assert (error.key, error.line, error.plugin) == (f"plugins.x.{key}", 2, "x")


def test_control_characters_of_a_file_do_not_reach_the_terminal(load: Load, user_file: UserFile) -> None:
    user_file('"\\u001b[2J\\n" = 1')
    with pytest.raises(ConfigError) as caught:
        load()
    assert caught.value.message.isprintable()


def test_import_and_load_pull_in_nothing_heavy(home: object, project: Path) -> None:
    (project / "c.toml").write_text("[plugins.x]\na = 1\n")
    program = (
        "import sys, importlib, pkgutil, pathlib, polyhost.config as c\n"
        "for module in pkgutil.iter_modules(c.__path__): importlib.import_module('polyhost.config.' + module.name)\n"
        "home = c.HomePaths.locate('h', {})\n"
        "assert c.load_configuration(home, cwd=pathlib.Path.cwd(), config_file='c.toml', environ={}).rows\n"
        "heavy = {'pydantic', 'tomlkit', 'platformdirs', 'difflib', 'orjson'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert all(getattr(c, name) for name in c.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=project, check=True, timeout=30)
