"""Presets, overlaid with the configuration; the errors of both."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from polyhost.kernel.errors import PolyhostError
from polyhost_models.config import ModelsConfig
from polyhost_models.providers import DEEPSEEK, Provider, configured_providers


def configured(environ: dict[str, str] | None = None, **providers: Any) -> dict[str, Provider]:
    config = ModelsConfig.model_validate({"providers": providers})
    return {provider.id: provider for provider in configured_providers(config, environ or {})}


@pytest.mark.contract("DS-06")
def test_the_deepseek_preset() -> None:
    (provider,) = configured_providers(None, {})
    flash = provider.describe("deepseek-v4-flash")
    assert (provider.id, provider.name, provider.credential) == (DEEPSEEK, "DeepSeek", "DEEPSEEK_API_KEY")
    assert [entry.id for entry in provider.catalogue] == ["deepseek-v4-flash", "deepseek-v4-pro"]
    assert (flash.name, flash.context_window, flash.default_max_tokens) == ("DeepSeek-V4-Flash", 1_000_000, 256_000)
    assert flash.input_modalities == ("text",)
    assert [effort.id for effort in flash.efforts] == ["off", "high", "max"]
    assert flash.default_effort == "high"
    assert provider.idle_timeout == 300


@pytest.mark.contract("DS-06")
def test_any_model_id_has_the_facts_of_its_provider() -> None:
    info = configured()[DEEPSEEK].describe("deepseek-v9-nano")
    assert (info.id, info.name, info.context_window) == ("deepseek-v9-nano", "deepseek-v9-nano", 1_000_000)


@pytest.mark.contract("DS-07")
@pytest.mark.parametrize(
    ("environ", "settings", "url"),
    [
        ({}, {}, "https://api.deepseek.com"),
        ({"DEEPSEEK_BASE_URL": "http://env"}, {}, "http://env"),
        ({"DEEPSEEK_BASE_URL": ""}, {}, "https://api.deepseek.com"),
        ({"DEEPSEEK_BASE_URL": "http://env"}, {"base_url": "http://config"}, "http://config"),
    ],
)
def test_where_the_url_of_deepseek_comes_from(environ: dict[str, str], settings: dict[str, Any], url: str) -> None:
    assert configured(environ, **{DEEPSEEK: settings})[DEEPSEEK].base_url == url


@pytest.mark.contract("DS-06")
def test_a_configured_catalogue_overrides_facts_per_model() -> None:
    models = ["deepseek-v4-pro", {"id": "x", "name": "X", "context_window": 5, "max_tokens": 3, "images": True}]
    provider = configured(**{DEEPSEEK: {"models": models}})[DEEPSEEK]
    assert [entry.id for entry in provider.catalogue] == ["deepseek-v4-pro", "x"]
    assert provider.describe("deepseek-v4-pro").name == "DeepSeek-V4-Pro"
    x = provider.describe("x")
    assert (x.name, x.context_window, x.default_max_tokens) == ("X", 5, 3)
    assert x.input_modalities == ("text", "image")
    assert provider.describe("deepseek-v4-pro").input_modalities == ("text",)
    assert x.default_effort == "high"


@pytest.mark.contract("DS-02")
def test_a_deployment_without_thinking_offers_only_off() -> None:
    info = configured(**{DEEPSEEK: {"thinking": False}})[DEEPSEEK].describe("deepseek-v4-pro")
    assert ([effort.id for effort in info.efforts], info.default_effort) == (["off"], "off")


def test_a_local_server_needs_no_more_than_its_url() -> None:
    provider = configured(local={"base_url": "http://127.0.0.1:11434/v1"})["local"]
    assert provider == Provider("local", "local", "http://127.0.0.1:11434/v1", headers={})


def test_every_setting_arrives() -> None:
    provider = configured(
        local={
            "name": "Local",
            "base_url": "http://h",
            "credential": "KEY",
            "thinking": True,
            "max_tokens_field": "max_completion_tokens",
            "idle_timeout": 2,
            "headers": {"X-Team": "blue"},
            "proxy_from_environment": True,
        }
    )["local"]
    assert (provider.name, provider.credential, provider.default_effort) == ("Local", "KEY", "high")
    assert (provider.max_tokens_field, provider.idle_timeout) == ("max_completion_tokens", 2)
    assert (provider.headers, provider.trust_env) == ({"x-team": "blue"}, True)


@pytest.mark.parametrize(
    ("id", "settings", "problem"),
    [
        ("demo", {"base_url": "http://h"}, "taken by the offline model"),
        ("local", {}, "base_url is missing"),
        ("local", {"base_url": "http://h", "models": ["a", {"id": "a"}]}, "lists 'a' twice"),
    ],
)
def test_what_cannot_be_overlaid_names_the_provider(id: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(PolyhostError, match=problem) as caught:
        configured(**{id: settings})
    assert caught.value.code == "CONFIG_INVALID"
    assert caught.value.message.startswith(f"plugins.models.providers.{id}: ")


@pytest.mark.contract("DS-06")
@pytest.mark.parametrize(
    "settings",
    [
        {"models": [{"id": "m", "context_window": 0}]},
        {"models": [{"id": "m", "max_tokens": -5}]},
        {"models": [{"id": "m", "max_tokens": 1.5}]},
        {"models": [{"id": "m", "size": 1}]},
        {"models": [""]},
        {"idle_timeout": 0},
        {"idle_timeout": float("inf")},
        {"base_url": "api.example.com"},
        {"base_url": "ftp://example.com"},
        {"headers": {"x-a": "line\nbreak"}},
        {"headers": {"x a": "b"}},
        {"max_tokens_field": "tokens"},
        {"unknown": 1},
    ],
)
def test_invalid_settings_are_refused_at_load(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        configured(local={"base_url": "http://h", **settings})
