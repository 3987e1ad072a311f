"""What an untrusted project file may say, and how it becomes trusted."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhost.config import ConfigError, Configuration, HomePaths, TrustStore

Load = Callable[..., Configuration]
UserFile = Callable[[str], Path]

# Keys that a careless plugin might mark as settable by a project: the names' fence must hold all the same.
MARKED = {
    *("theme", "command", "commands", "args", "argv", "executable", "env", "environment", "url", "base_url", "baseURL"),
    *("endpoint", "host", "bind", "api_key", "token", "mode", "permission", "permissions", "allow", "allow_bash"),
    *("servers", "nested", "list", "enabled", "use"),
}

REFUSED = {
    "commands": ["command = ['evil']", "commands = {a = 'evil'}", "args = ['-x']", "argv = ['x']", "executable = '/x'"],
    "enablement and sources": ["enabled = false", "use = 'other'"],
    "endpoints": ["url = 'http://e'", "base_url = 'http://e'", "baseURL = 'http://e'", "endpoint = 'e'"],
    "addresses": ["host = '0.0.0.0'", "bind = '0.0.0.0'"],
    "environment": ["env = {A = 'b'}", "environment = {A = 'b'}"],
    "credentials": ["api_key = 'k'", "token = 'k'", "theme = {env = 'HOME_SECRET'}"],
    "wider permissions": [
        "mode = 'full'",
        "permission = 'x'",
        "permissions = {}",
        "allow = ['*']",
        "allow_bash = true",
    ],
    "nested": [
        "servers = {fs = {command = ['evil']}}",
        "nested = {a = [[{url = 'http://e'}]]}",
        "list = [1, {env = 'HOME_SECRET'}]",
        "list = [{api_key = 'k'}]",
    ],
    "unmarked": ["other = 1", "port = 1"],
}


@pytest.fixture
def project_file(project: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = project / "polyhost.toml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("line", [line for lines in REFUSED.values() for line in lines])
def test_an_untrusted_file_sets_nothing_dangerous(
    load: Load, project_file: UserFile, home: HomePaths, line: str
) -> None:
    path = project_file(
        f"[plugins.known]\n{line}\ntheme = 'dark'\n" if "theme" not in line else f"[plugins.known]\n{line}"
    )
    options = {"defaults": {"known": {"kept": 1}}, "project_keys": lambda _: MARKED}
    configuration = load(**options)
    row = configuration.rows["known"]
    assert (row.enabled, row.use) == (True, "known")
    assert set(row.config) <= {"kept", "theme"}
    assert row.config.get("theme", "dark") == "dark"
    key = f"plugins.known.{line.split(' ')[0]}"
    (warning,) = configuration.warnings
    assert (warning.keys, warning.file) == ((key,), str(path))
    assert key in warning.message
    assert f"hostctl trust {path}" in warning.message

    TrustStore(home).trust(path)
    trusted = load(**options)
    assert trusted.warnings == ()
    assert trusted.origin_of(key).layer == "project"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("[plugins.new]\ncommand = ['evil']\ntheme = 'x'", ("plugins.new.command", "plugins.new.theme")),
        ("[plugins.new]", ("plugins.new",)),
        ("plugins.new = 5", ("plugins.new",)),
        ("plugins = 5", ("plugins",)),
        ("plugins.known = 5", ("plugins.known",)),
        ("host = 5", ("host",)),
        ("[host]\nlog_level = 'error'", ("host.log_level",)),
        ("[host]\nmodel = {env = 'SECRET'}", ("host.model",)),
        ("[surprise]\na = 1", ("surprise",)),
        ("'\\u001b[2J' = 1", ('"\\\\u001b[2J"',)),
        ("[host]\n[plugins.known]", ()),
    ],
)
def test_rows_and_host_keys_of_an_untrusted_file(
    load: Load, project_file: UserFile, text: str, keys: tuple[str, ...]
) -> None:
    project_file(text)
    configuration = load(defaults={"known": {}}, project_keys=lambda _: MARKED)
    assert list(configuration.rows) == ["known"]
    assert configuration.rows["known"].error is None
    assert configuration.host.model is None
    assert tuple(key for warning in configuration.warnings for key in warning.keys) == keys
    assert all(warning.message.isprintable() for warning in configuration.warnings)


def test_an_untrusted_file_chooses_the_model_and_marked_keys(load: Load, project_file: UserFile) -> None:
    project_file("host.model = 'demo/demo'\nplugins.known.theme = 'dark'\nplugins.alias.theme = 'x'")
    asked = []

    def project_keys(plugin: str) -> frozenset[str]:
        asked.append(plugin)
        return frozenset({"theme"} if plugin == "known" else ())

    configuration = load(defaults={"known": {}}, overrides=["plugins.alias.use=other"], project_keys=project_keys)
    assert configuration.host.model == "demo/demo"
    assert configuration.rows["known"].config == {"theme": "dark"}
    assert configuration.rows["alias"].config == {}  # the row's own plugin decides, whoever named it
    assert asked == ["known", "other"]
    assert load(defaults={"known": {}}).rows["known"].config == {}  # nobody vouches for a key


def test_many_ignored_keys_make_a_short_warning(load: Load, project_file: UserFile) -> None:
    project_file("\n".join(f"[plugins.p{number}]\na = 1" for number in range(30)))
    (warning,) = load().warnings
    assert len(warning.keys) == 30
    assert "and 20 more" in warning.message


def test_trust_ends_with_the_content_and_with_untrust(load: Load, project_file: UserFile, home: HomePaths) -> None:
    store = TrustStore(home)
    path = project_file("[plugins.new]\na = 1\n")
    assert load().rows == {}
    digest = store.trust(path)
    assert store.files() == {str(path): digest}
    assert load().rows["new"].config == {"a": 1}
    project_file("[plugins.new]\na = 2\n")
    assert load().rows == {}
    project_file("[plugins.new]\na = 1\n")
    assert load().rows["new"].config == {"a": 1}
    assert store.untrust(path) is True
    assert store.untrust(path) is False
    assert load().rows == {}


def test_trust_is_for_one_path(home: HomePaths, project_file: UserFile, tmp_path: Path) -> None:
    store = TrustStore(home)
    path = project_file("a = 1")
    store.trust(path)
    copy = tmp_path / "polyhost.toml"
    copy.write_bytes(path.read_bytes())
    assert store.is_trusted(path, path.read_bytes())
    assert not store.is_trusted(copy, copy.read_bytes())


def test_a_named_file_is_trusted(load: Load, project_file: UserFile) -> None:
    path = project_file("[plugins.new]\ncommand = ['x']\nenabled = false\n")
    for options in ({"config_file": str(path)}, {"environ": {"POLYHOST_CONFIG": str(path)}}):
        configuration = load(**options)
        assert configuration.rows["new"].config == {"command": ["x"]}
        assert configuration.rows["new"].enabled is False
        assert configuration.warnings == ()


def test_an_untrusted_row_does_not_confuse_environment_names(load: Load, project_file: UserFile) -> None:
    project_file("[plugins.a_b]\nx = 1\n")
    assert load(defaults={"a-b": {}}, environ={"POLYHOST__PLUGINS__A_B__X": "2"}).rows["a-b"].config == {"x": 2}


def test_the_record_is_private_and_damage_is_a_typed_error(home: HomePaths, project_file: UserFile) -> None:
    store = TrustStore(home)
    path = project_file("a = 1")
    store.trust(path)
    assert stat.S_IMODE(home.trust_file.stat().st_mode) == 0o600
    for damage in ("{", "[]", '{"files": 5}', "{}"):
        home.trust_file.write_text(damage)
        with pytest.raises(ConfigError, match="damaged"):
            store.is_trusted(path, b"a = 1")
        with pytest.raises(ConfigError, match="damaged"):
            store.trust(path)
    with pytest.raises(ConfigError) as caught:
        store.trust(path.with_name("absent"))
    assert caught.value.code == "CONFIG_NOT_FOUND"
