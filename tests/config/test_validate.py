"""A row against its plugin's model: CASE-08, references, and errors that never show a secret."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from polyhost.config import (
    PROJECT_SETTABLE,
    ConfigError,
    Configuration,
    MissingVariableError,
    Redactor,
    learn_secrets,
    project_keys,
    validate_row,
)

Load = Callable[..., Configuration]
UserFile = Callable[[str], Path]


class Server(BaseModel):
    model_config = ConfigDict(extra="forbid")
    command: list[str]
    env: dict[str, str] = {}


class Clock(BaseModel):
    model_config = ConfigDict(extra="forbid")
    zone: Annotated[str, PROJECT_SETTABLE] = "UTC"
    port: int = 80
    mode: Literal["fast", "slow"] = "fast"
    api_key: SecretStr | None = None
    pin: SecretStr | None = None
    servers: dict[str, Server] = {}
    chain: list[Server] = []
    either: int | Server = 0
    colour: Annotated[str, PROJECT_SETTABLE] = Field("", validation_alias="shade")

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str) -> str:
        if zone.startswith("nowhere"):
            raise ValueError(f"no zone {zone}")
        return zone


class Lax(BaseModel):
    known: int = 0


@dataclasses.dataclass
class Plain:
    port: int = 80
    name: Annotated[str, PROJECT_SETTABLE] = ""


@dataclasses.dataclass
class Needy:
    name: str


class Crashing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 0

    @field_validator("a")
    @classmethod
    def _crash(cls, value: int) -> int:
        raise KeyError(f"the value was {value}")


def error_of(configuration: Configuration, spec: Any, row: str = "clock", **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validate_row(configuration.rows[row], spec, **options)
    assert caught.value.message.isprintable()
    assert caught.value.__context__ is None
    return caught.value


@pytest.mark.case("CASE-08")
def test_a_renamed_key_fails_its_row_only_and_says_everything(load: Load, user_file: UserFile) -> None:
    file = user_file('[plugins.browser]\nport = 1\n\n[plugins.clock]\ntime_zone = "UTC"\nprot = 1\n')
    configuration = load()
    error = error_of(configuration, Clock)
    assert (error.code, error.file, error.line, error.layer) == ("CONFIG_INVALID", str(file), 5, "user")
    assert (error.key, error.plugin) == ("plugins.clock.time_zone", "clock")
    assert set(error.accepted) == {
        *("zone", "port", "mode", "api_key", "pin", "servers", "chain", "either", "shade"),
    }
    for words in (str(file), "line 5", "user file", "'plugins.clock.time_zone'", "plugin 'clock'", *error.accepted):
        assert words in error.message
    assert "1 more" in error.message
    assert validate_row(configuration.rows["browser"], Plain) == Plain(port=1)


@pytest.mark.case("CASE-08")
@pytest.mark.parametrize(
    ("source", "layer", "words"),
    [
        ({"environ": {"POLYHOST__PLUGINS__CLOCK__ZONNE": "x"}}, "environment", "POLYHOST__PLUGINS__CLOCK__ZONNE"),
        ({"overrides": ["plugins.clock.zonne=x"]}, "set", "--set plugins.clock.zonne"),
        ({"defaults": {"clock": {"zonne": "x"}}}, "default", "defaults of plugin clock"),
    ],
)
def test_an_unknown_key_of_any_layer_is_named_with_it(load: Load, source: Any, layer: str, words: str) -> None:
    error = error_of(load(**source), Clock)
    assert (error.layer, error.file, error.line) == (layer, None, None)
    assert words in error.message
    assert "did you mean 'zone'" in error.message


@pytest.mark.parametrize(
    ("text", "key", "line", "accepted", "words"),
    [
        ("port = 'x'", "port", 2, (), "valid integer"),
        ("mode = 'warp'", "mode", 2, (), "'fast' or 'slow'"),
        ("servers.fs.comand = []", "servers.fs.comand", 2, ("command", "env"), "did you mean 'command'"),
        ("[plugins.clock.servers.fs]\nenv = {A = 'b'}", "servers.fs.command", 2, ("command", "env"), "missing key"),
        ("chain = [{command = []}, {command = [], x = 1}]", "chain[1].x", 2, ("command", "env"), "unknown key"),
        ("either = {command = 5}", "either.command", 2, (), "valid list"),
        ("zone = 'nowhere'", "zone", 2, (), "no zone nowhere"),
    ],
)
def test_every_kind_of_mistake_is_located(
    load: Load, user_file: UserFile, text: str, key: str, line: int, accepted: tuple[str, ...], words: str
) -> None:
    user_file(f"[plugins.clock]\n{text}\n")
    error = error_of(load(), Clock)
    assert (error.key, error.line, error.accepted) == (f"plugins.clock.{key}", line, accepted)
    assert words in error.message


def test_values_arrive(load: Load, user_file: UserFile) -> None:
    user_file('[plugins.clock]\nport = 1\nshade = "red"\nservers.a.command = ["x"]\n')
    config = validate_row(load().rows["clock"], Clock)
    assert (config.port, config.colour, config.servers["a"].command) == (1, "red", ["x"])


def test_a_model_that_forgot_to_forbid_still_refuses_unknown_keys(load: Load) -> None:
    error = error_of(load(overrides=["plugins.clock.knwon=1"]), Lax)
    assert error.accepted == ("known",)


def test_a_plugin_without_a_model_takes_no_keys(load: Load) -> None:
    configuration = load(defaults={"bare": {}}, overrides=["plugins.clock.a=1"])
    assert validate_row(configuration.rows["bare"], None) is None
    assert "takes no configuration keys" in error_of(configuration, None).message


def test_a_malformed_row_raises_its_own_error(load: Load) -> None:
    configuration = load(overrides=["plugins.clock=1"])
    assert error_of(configuration, Clock) is configuration.rows["clock"].error


def test_dataclasses_are_made_or_checked(load: Load) -> None:
    configuration = load(defaults={"none": {}}, overrides=["plugins.clock.port=2", "plugins.bad.prot=2"])
    assert validate_row(configuration.rows["none"], Plain) == Plain()
    assert validate_row(configuration.rows["clock"], Plain) == Plain(port=2)
    assert error_of(configuration, Plain, "bad").accepted == ("port", "name")
    assert "missing key 'plugins.none.name'" in error_of(configuration, Needy, "none").message


def test_a_row_without_keys_and_a_dataclass_loads_no_pydantic() -> None:
    program = (
        "import sys\nfrom polyhost.config.validate import validate_row\n"
        "from polyhost.config.model import PluginRowConfig\n"
        "from polyhost.config.layers import Layer\n"
        "import dataclasses\n"
        "class C: pass\n"
        "C = dataclasses.make_dataclass('C', [('a', int, 1)])\n"
        "assert validate_row(PluginRowConfig('x'), C).a == 1\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize(
    "spec", ["no_such_module:Clock", "polyhost.config.model:Absent", "polyhost.config.model:TABLES"]
)
def test_a_model_that_cannot_be_loaded_is_the_plugins_error(load: Load, spec: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){spec}.*'clock'") as caught:
        validate_row(load(defaults={"clock": {}}).rows["clock"], spec)
    assert caught.value.plugin == "clock"
    assert project_keys(spec, "clock") == frozenset()


def test_a_class_that_pydantic_cannot_check_is_the_plugins_error(load: Load) -> None:
    class Opaque:
        pass

    with pytest.raises(ConfigError, match="Opaque"):
        validate_row(load(overrides=["plugins.clock.a=1"]).rows["clock"], Opaque)


def test_a_model_that_crashes_fails_its_row_without_the_value(load: Load) -> None:
    error = error_of(load(overrides=["plugins.clock.a=424242"]), Crashing)
    assert "KeyError" in error.message
    assert "424242" not in error.message


def test_references_are_resolved_at_validation(load: Load, user_file: UserFile) -> None:
    user_file(
        '[plugins.clock]\napi_key = { env = "CLOCK_KEY" }\n'
        '[plugins.clock.servers.a]\ncommand = ["x", { env = "ARG" }]\nenv = { PATH = "p" }\n'
        '[plugins.other]\nenv = "plain"\n'
    )
    redactor = Redactor()
    configuration = load()
    config = validate_row(
        configuration.rows["clock"], Clock, environ={"CLOCK_KEY": "k-123456", "ARG": "a-123456"}, redactor=redactor
    )
    assert config.api_key.get_secret_value() == "k-123456"
    assert (config.servers["a"].command, config.servers["a"].env) == (["x", "a-123456"], {"PATH": "p"})
    assert redactor.redact("k-123456 a-123456") == "******** ********"
    assert configuration.rows["clock"].config["api_key"] == {"env": "CLOCK_KEY"}
    assert configuration.rows["other"].config == {"env": "plain"}  # a row is not a value


@pytest.mark.parametrize("environ", [{}, {"CLOCK_KEY": ""}])
def test_a_missing_variable_is_named_with_its_key(load: Load, user_file: UserFile, environ: dict[str, str]) -> None:
    file = user_file('[plugins.clock]\nservers.a.env.K = { env = "CLOCK_KEY" }\n')
    error = error_of(load(), Clock, environ=environ)
    assert isinstance(error, MissingVariableError)
    assert (error.variable, error.key, error.line) == ("CLOCK_KEY", "plugins.clock.servers.a.env.K", 2)
    assert "CLOCK_KEY" in error.message
    assert str(file) in error.message


def test_a_value_in_the_place_of_a_variables_name_is_not_shown(load: Load) -> None:
    error = error_of(load(overrides=['plugins.clock.api_key={env = "sk-live-secret"}']), Clock, environ={})
    assert "name of a variable" in error.message
    assert "sk-live-secret" not in error.message


def test_no_error_shows_a_secret(load: Load) -> None:
    secret = "nowhere-s3cret"
    by_reference = error_of(load(overrides=["plugins.clock.zone.env=SECRET"]), Clock, environ={"SECRET": secret})
    by_field = error_of(load(overrides=[f"plugins.clock.pin={secret}", f"plugins.clock.zone={secret}"]), Clock)
    for error in (by_reference, by_field):
        assert error.key == "plugins.clock.zone"
        assert secret not in error.message


def test_secret_fields_are_learnt_from_valid_and_invalid_rows(load: Load) -> None:
    valid = load(overrides=["plugins.clock.pin=hidden-pin"])
    invalid = load(overrides=["plugins.clock.pin=hidden-pin", "plugins.clock.port=x", "plugins.clock.zone.env=Z"])
    for learn in (
        lambda redactor: validate_row(valid.rows["clock"], Clock, redactor=redactor),
        lambda redactor: learn_secrets(valid.rows["clock"], Clock, redactor),
        lambda redactor: learn_secrets(invalid.rows["clock"], Clock, redactor, environ={"Z": "hidden-pin"}),
        lambda redactor: learn_secrets(invalid.rows["clock"], None, redactor, environ={"Z": "hidden-pin"}),
        lambda redactor: learn_secrets(invalid.rows["clock"], "no:Model", redactor, environ={"Z": "hidden-pin"}),
    ):
        redactor = Redactor()
        learn(redactor)
        assert redactor.redact("hidden-pin") == "********"
        assert "hidden-pin" not in str(list(valid.entries(redactor)))


def test_project_keys_are_the_marked_ones() -> None:
    assert project_keys(Clock, "clock") == {"zone", "colour", "shade"}
    assert project_keys(Plain, "plain") == {"name"}
    assert project_keys(None, "none") == frozenset()
