"""Precedence of the layers, origins, environment names, and errors of files, variables and options."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polyhost.config import ConfigError, Configuration, HomePaths
from polyhost.config.layers import merge

Load = Callable[..., Configuration]
UserFile = Callable[[str], Path]


def test_later_layers_win_and_each_value_knows_its_origin(load: Load, user_file: UserFile, project: Path) -> None:
    file = user_file("[plugins.x]\nb = 2\nc = 2\nd = 2\ne = 2\n")
    named = project / "named.toml"
    named.write_text("[plugins.x]\n\nc = 3\nd = 3\ne = 3\n")
    configuration = load(
        config_file="named.toml",
        defaults={"x": dict.fromkeys("abcde", 1)},
        environ={"POLYHOST__PLUGINS__X__D": "4", "POLYHOST__PLUGINS__X__E": "4"},
        overrides=["plugins.x.e=5"],
    )
    assert configuration.rows["x"].config == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    origins = {key: configuration.origin_of(f"plugins.x.{key}") for key in "abcde"}
    facts = {key: (origin.layer, origin.source, origin.line) for key, origin in origins.items() if origin}
    assert facts == {
        "a": ("default", "x", None),
        "b": ("user", str(file), 2),
        "c": ("project", str(named), 3),
        "d": ("environment", "POLYHOST__PLUGINS__X__D", None),
        "e": ("set", "plugins.x.e", None),
    }
    assert str(origins["c"]) == f"in {named}, line 3 (project file)"
    assert [(key, value) for key, value, _ in configuration.entries()] == [
        (f"plugins.x.{key}", value) for value, key in enumerate("abcde", 1)
    ]
    assert configuration.origin_of("plugins.x.nothing") is None


def test_tables_merge_arrays_and_references_are_replaced() -> None:
    low = {"t": {"a": 1, "b": {"c": 1}}, "list": [1, 2], "ref": {"env": "A"}, "table": {"x": 1}}
    high = {"t": {"b": {"d": 2}}, "list": [3], "ref": {"file": "f"}, "table": {"env": "B"}}
    assert merge(low, high) == {
        "t": {"a": 1, "b": {"c": 1, "d": 2}},
        "list": [3],
        "ref": {"file": "f"},
        "table": {"env": "B"},
    }
    assert low["t"] == {"a": 1, "b": {"c": 1}}


def test_the_effective_document_is_detached(load: Load, user_file: UserFile) -> None:
    user_file("[plugins.x]\nlist = [1]\n")
    configuration = load()
    configuration.effective()["plugins"]["x"]["list"].append(2)
    assert configuration.rows["x"].config == {"list": [1]}


def test_the_nearest_project_file_counts(load: Load, project: Path) -> None:
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    (project / "polyhost.toml").write_text('host.model = "far/far"\n')
    assert load(cwd=deep).host.model == "far/far"
    (project / "a" / "polyhost.toml").write_text('host.model = "near/near"\n')
    assert load(cwd=deep).host.model == "near/near"
    (deep / "polyhost.toml").mkdir()  # a directory of that name is none
    assert load(cwd=deep).host.model == "near/near"


def test_option_and_variable_name_the_project_file(load: Load, project: Path) -> None:
    (project / "polyhost.toml").write_text('host.model = "found/found"\n')
    (project / "one.toml").write_text('host.model = "one/one"\n')
    (project / "two.toml").write_text('host.model = "two/two"\n')
    environ = {"POLYHOST_CONFIG": "one.toml"}
    assert load(environ=environ).host.model == "one/one"
    assert load(environ=environ, config_file=str(project / "two.toml")).host.model == "two/two"


def test_a_named_file_must_exist(load: Load, project: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml.*--config") as caught:
        load(config_file="absent.toml")
    assert (caught.value.code, caught.value.file) == ("CONFIG_NOT_FOUND", str(project / "absent.toml"))


def test_without_any_file_there_is_a_configuration(load: Load) -> None:
    configuration = load()
    assert (configuration.rows, configuration.host.model, configuration.host.log_level) == ({}, None, "info")
    assert configuration.effective() == {}


def test_bad_toml_names_file_line_and_column(load: Load, user_file: UserFile) -> None:
    file = user_file("[host]\nmodel = demo/demo\n")
    with pytest.raises(ConfigError, match="line 2, column 9") as caught:
        load()
    assert (caught.value.file, caught.value.line, caught.value.layer) == (str(file), 2, "user")


def test_an_unreadable_file_is_a_typed_error(load: Load, user_file: UserFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file = user_file("")

    def denied(path: object, *_: object) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ConfigError, match="Permission denied; check its owner") as caught:
        load()
    assert (caught.value.code, caught.value.file) == ("CONFIG_IO", str(file))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("POLYHOST__PLUGINS__BROWSER__PORT", "3080", {"browser": {"port": 3080}}),
        ("POLYHOST__PLUGINS__CODEX_CHILD__COMMAND", '["codex"]', {"codex-child": {"command": ["codex"]}}),
        ("POLYHOST__PLUGINS__DOT_TED__A", "x", {"dot.ted": {"a": "x"}}),
        ("POLYHOST__PLUGINS__NEW_ONE__A", "x y", {"new_one": {"a": "x y"}}),
        ("POLYHOST__PLUGINS__browser__Deep__B_C", "1", {"browser": {"deep": {"b_c": 1}}}),
        ("POLYHOST__PLUGINS__BROWSER__CAMELCASE", "1", {"browser": {"camelCase": 1}}),
        ("POLYHOST__PLUGINS__BROWSER__ZONE", "", {"browser": {"zone": ""}}),
    ],
)
def test_environment_names_find_known_keys(
    load: Load, user_file: UserFile, name: str, text: str, expected: dict[str, dict[str, object]]
) -> None:
    user_file("[plugins.browser]\ncamelCase = 0\n")
    known: dict[str, dict[str, object]] = {"codex-child": {}, "dot.ted": {}}
    rows = load(environ={name: text, "POLYHOST_HOME": "/x", "OTHER": "1"}, defaults=known).rows
    for row_id, config in expected.items():
        assert rows[row_id].config.items() >= config.items()


def test_an_environment_name_that_fits_two_ids_is_an_error(load: Load) -> None:
    with pytest.raises(ConfigError, match="a-b and a_b") as caught:
        load(environ={"POLYHOST__PLUGINS__A_B__X": "1"}, defaults={"a-b": {}, "a_b": {}})
    assert caught.value.layer == "environment"


@pytest.mark.parametrize("name", ["POLYHOST__", "POLYHOST__HOST", "POLYHOST__HOST__", "POLYHOST____A"])
def test_an_environment_name_without_a_key_is_an_error(load: Load, name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load(environ={name: "1"})


@pytest.mark.parametrize(
    ("option", "config"),
    [
        ("plugins.x.port=3080", {"port": 3080}),
        ("plugins.x.port = 3080 ", {"port": 3080}),
        ("plugins.x.url=http://h/?a=b", {"url": "http://h/?a=b"}),
        ('plugins.x."a.b"=true', {"a.b": True}),
        ("plugins.x.key.env=NAME", {"key": {"env": "NAME"}}),
    ],
)
def test_set_options(load: Load, option: str, config: dict[str, object]) -> None:
    assert load(overrides=[option]).rows["x"].config == config


@pytest.mark.parametrize("option", ["plugins.x.port", "=1", "a b=1", "plugins..x=1"])
def test_malformed_set_options(load: Load, option: str) -> None:
    with pytest.raises(ConfigError, match="write it like"):
        load(overrides=[option])


def test_an_overlay_is_read_in_the_place_of_the_file(load: Load, user_file: UserFile, home: HomePaths) -> None:
    user_file('host.model = "a/a"')
    assert load(overlay={home.config_file: b'host.model = "b/b"'}).host.model == "b/b"


def test_defaults_may_come_after_the_first_look(load: Load, user_file: UserFile) -> None:
    user_file("[plugins.x]\na = 2\n")
    first = load(overrides=["plugins.x.c=3"])
    assert first.rows["x"].source == "user, set"
    row = first.with_defaults({"x": {"a": 1, "b": 1}}).rows["x"]
    assert row.config == {"a": 2, "b": 1, "c": 3}
    assert row.source == "default, user, set"
    assert str(row.origin_of("b")) == "in the defaults of plugin x"
