"""Edits keep what a person wrote, are all or nothing, and are checked before they are written."""

from __future__ import annotations

import stat
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyhost.config import ConfigError, Configuration, HomePaths, load_configuration, write_example
from polyhost.config.template import EXAMPLE
from polyhost.config.writer import ConfigFile

TEXT = """\
# my settings
[host]
model = "demo/demo"   # cheap

# the page
[plugins.browser]
port = 3080           # mine
list = [
    1,  # one
]

[plugins.clock]
zone = "UTC"
"""


@pytest.fixture
def file(home: HomePaths) -> ConfigFile:
    home.config_file.write_text(TEXT)
    return ConfigFile(home.config_file, home)


@pytest.mark.parametrize(
    ("key", "value", "old", "new"),
    [
        ("plugins.browser.port", 1, "3080           #", "1           #"),
        ("host.model", "a/b", '"demo/demo"', '"a/b"'),
        ("plugins.clock.enabled", False, 'zone = "UTC"\n', 'zone = "UTC"\nenabled = false\n'),
        ("plugins.clock.key", {"env": "K"}, 'zone = "UTC"\n', 'zone = "UTC"\nkey = {env = "K"}\n'),
        ("plugins.clock.list", ["a", {"b": 1}], 'zone = "UTC"\n', 'zone = "UTC"\nlist = ["a", {b = 1}]\n'),
    ],
)
def test_set_changes_one_line(file: ConfigFile, key: str, value: Any, old: str, new: str) -> None:
    file.set(key, value)
    assert file.path.read_text() == TEXT.replace(old, new)


def test_set_makes_tables_and_a_private_file(home: HomePaths) -> None:
    file = ConfigFile(home.config_file, home)
    file.set_plugin_enabled("new.one", False)
    file.set(("plugins", "x", "deep", "er"), 1)
    assert tomllib.loads(home.config_file.read_text()) == {
        "plugins": {"new.one": {"enabled": False}, "x": {"deep": {"er": 1}}}
    }
    assert stat.S_IMODE(home.config_file.stat().st_mode) == 0o600


def test_unset(file: ConfigFile) -> None:
    assert file.unset("plugins.browser.port") is True
    assert file.path.read_text() == TEXT.replace("port = 3080           # mine\n", "")
    assert file.unset("plugins.clock") is True
    assert "clock" not in tomllib.loads(file.path.read_text())["plugins"]
    assert [file.unset(key) for key in ("plugins.browser.port", "no.such", "host.model.x")] == [False] * 3


def test_something_on_the_way_is_no_table(file: ConfigFile) -> None:
    with pytest.raises(ConfigError, match=r"'host\.model' is not a table"):
        file.set("host.model.x", 1)
    assert file.path.read_text() == TEXT


def test_a_broken_file_is_not_touched(file: ConfigFile) -> None:
    file.path.write_text("[host]\nmodel =\n")
    with pytest.raises(ConfigError, match="line 2"):
        file.set("host.model", "a/b")
    assert file.path.read_text() == "[host]\nmodel =\n"


@pytest.mark.contract("LDR-17")
def test_a_refused_change_is_not_persisted(home: HomePaths, project: Path) -> None:
    home.config_file.write_text(TEXT)
    seen = []

    def check(content: bytes) -> None:
        seen.append(content)
        load_configuration(home, cwd=project, environ={}, overlay={home.config_file: content})

    file = ConfigFile(home.config_file, home, check=check)
    with pytest.raises(ConfigError, match="provider/model"):
        file.set("host.model", "nonsense")
    assert home.config_file.read_text() == TEXT
    assert b"nonsense" in seen[0]
    file.set("host.model", "good/model")
    assert load_configuration(home, cwd=project, environ={}).host.model == "good/model"
    assert sorted(path.name for path in home.root.iterdir()) == ["config.toml", "logs", "run", "sessions"]


@pytest.mark.contract("LDR-17")
def test_any_failure_of_the_check_keeps_the_file_absent(home: HomePaths) -> None:
    def check(_: bytes) -> None:
        raise RuntimeError("the plugin did not start")

    with pytest.raises(RuntimeError):
        ConfigFile(home.config_file, home, check=check).set_plugin_enabled("x", True)
    assert not home.config_file.exists()


def test_concurrent_writers_lose_nothing(home: HomePaths) -> None:
    def write(worker: int) -> None:
        for number in range(5):
            ConfigFile(home.config_file, home).set(f"plugins.w{worker}.n{number}", number)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = tomllib.loads(home.config_file.read_text())["plugins"]
    assert rows == {f"w{worker}": {f"n{number}": number for number in range(5)} for worker in range(6)}


SHAPES = [
    TEXT,
    TEXT.replace("\n", "\r\n"),
    "",
    "plugins.browser.port = 1\nplugins.clock.zone = 'x'\n",
    "plugins = { browser = { port = 1 }, clock = {} }\n",
    "[plugins]\nbrowser = { port = 1 }\n[plugins.clock]\n",
    "[plugins.browser]\n[host]\n[plugins.clock]\n# end",
    "[[plugins.browser.servers]]\nname = 'a'\n[plugins.clock]\nzone = 'UTC'",
    "\ufeff[plugins.browser]\nport = 1\n",
]
keys = st.tuples(
    st.sampled_from([("plugins", "browser"), ("plugins", "clock"), ("plugins", "new"), ("host",), ("plugins", "a.b")]),
    st.sampled_from(["port", "zone", "deep.er", "model"]),
).map(lambda parts: (*parts[0], *parts[1].split(".")))
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(scalars, lambda child: st.lists(child, max_size=3), max_leaves=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(shape=st.sampled_from(SHAPES), edits=st.lists(st.tuples(keys, values | st.none()), min_size=1, max_size=4))
def test_a_written_file_is_the_old_one_plus_the_change(
    home: HomePaths, shape: str, edits: list[tuple[tuple[str, ...], Any]]
) -> None:
    home.config_file.write_bytes(shape.encode())
    file = ConfigFile(home.config_file, home)
    for key, value in edits:
        before = home.config_file.read_bytes()
        expected = tomllib.loads(before.decode("utf-8-sig"))
        try:
            if value is None:
                changed = file.unset(key)
            else:
                changed = True
                file.set(key, value)
        except ConfigError:
            assert home.config_file.read_bytes() == before
            continue
        node = expected
        for part in key[:-1]:
            node = node.setdefault(part, {}) if value is not None else node.get(part, {})
        if value is not None:
            node[key[-1]] = value
        elif changed:
            del node[key[-1]]
        assert tomllib.loads(home.config_file.read_bytes().decode("utf-8-sig")) == expected


def test_the_example_sets_nothing_and_is_right_when_uncommented(
    home: HomePaths, load: Callable[..., Configuration]
) -> None:
    write_example(home.config_file)
    assert load().effective() == {"host": {}}
    lines = [line.removeprefix("# ") if "=" in line or "[" in line else line for line in EXAMPLE.splitlines()]
    text = "\n".join(line for line in lines if not line.startswith("(POLYHOST"))
    configuration = load(overlay={home.config_file: text.encode()})
    assert configuration.host.model == "demo/demo"
    assert {row.id: row.error for row in configuration.rows.values()} == dict.fromkeys(
        ("models", "tools", "runtime-interaction", "example")
    )
    with pytest.raises(ConfigError, match="exists already"):
        write_example(home.config_file)
