"""A secret appears nowhere: dumps, log records, child environments."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from polyhost.config import MASK, Configuration, Redactor, is_secret_name, masked

SECRET_NAMES = [
    *("api_key", "apiKey", "API_KEY", "APIKEY", "OPENAI_API_KEY", "AWS_ACCESS_KEY_ID", "key", "private-key"),
    *("password", "DB_PASSWORD", "passwd", "DB_PWD", "passphrase", "token", "accessToken", "GITHUBTOKEN", "tokens"),
    *("client_secret", "secrets", "Authorization", "authorization", "_auth", "npm_auth", "credentials", "Set-Cookie"),
]
PLAIN_NAMES = [
    "port",
    "PWD",
    "OLDPWD",
    "HOME",
    "zone",
    "tokenizer",
    "auth_method",
    "author",
    "keyboard",
    "base_url",
    "",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_plain_names(name: str) -> None:
    assert not is_secret_name(name)


class Login(BaseModel):
    user: str = "u"
    pin: SecretStr = SecretStr("1234")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"api_key": "s", "port": 1}, {"api_key": MASK, "port": 1}),
        ({"password": 1234, "token": 5, "max_tokens": 4096}, {"password": MASK, "token": MASK, "max_tokens": 4096}),
        ({"secrets": {"a": {"b": ["s", 1]}}}, {"secrets": {"a": {"b": [MASK, MASK]}}}),
        ({"use_token": True, "key": "", "token": None}, {"use_token": True, "key": "", "token": None}),
        ({"api_key": {"env": "NAME"}}, {"api_key": {"env": "NAME"}}),
        ({"api_key": {"env": "sk-live-1"}}, {"api_key": {"env": MASK}}),
        ({"headers": {"X-Api-Key": "s"}}, {"headers": {"X-Api-Key": MASK}}),
        (["run", "--api-key", "s", "--port", "1"], ["run", "--api-key", MASK, "--port", "1"]),
        (["--token=s", "-e", "GITHUB_TOKEN=s", "A=b"], [f"--token={MASK}", "-e", f"GITHUB_TOKEN={MASK}", "A=b"]),
        ("https://u:pw@h/x?api_key=s&a=b", f"https://u:{MASK}@h/x?api_key={MASK}&a=b"),
        (Login(), {"user": "u", "pin": MASK}),
        ({"x": SecretStr("s")}, {"x": MASK}),
    ],
)
def test_masked(value: Any, shown: Any) -> None:
    assert masked(value) == shown


def test_the_original_is_untouched() -> None:
    value = {"api_key": ["s"]}
    masked(value)
    assert value == {"api_key": ["s"]}


secrets = st.text(st.characters(codec="utf-8"), min_size=4, max_size=30).filter(lambda text: not set(text) <= set(MASK))
names = st.sampled_from(SECRET_NAMES)
plain = st.recursive(
    st.integers() | st.just("plain"),
    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), child, max_size=3),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn, secret: str) -> Any:
    """A document with the secret at some depth under a secret name."""
    hidden = draw(st.sampled_from([secret, [secret], {"a": secret}, {"a": [1, {"b": secret}]}]))
    document: Any = {draw(names): hidden, "other": draw(plain)}
    for _ in range(draw(st.integers(0, 3))):
        document = draw(st.sampled_from([{"x": document}, [document], {"list": [1, document]}]))
    return document


def texts(value: Any) -> list[str]:
    """Every string in a document, keys included."""
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts(part)]
    if isinstance(value, list):
        return [text for child in value for text in texts(child)]
    return [str(value)]


@given(st.data(), secrets)
def test_what_stands_under_a_secret_name_never_appears(data: st.DataObject, secret: str) -> None:
    assume(secret not in "plain other x a b c list" and secret not in "".join(SECRET_NAMES))
    shown = masked(data.draw(documents(secret)))
    assert not any(secret in text for text in texts(shown))


@given(secrets, st.lists(st.text(max_size=10) | st.none(), max_size=6), plain)
def test_a_registered_secret_never_appears(secret: str, pieces: list[str | None], value: Any) -> None:
    assume(secret not in MASK * 2 and secret not in "plain")
    text = "".join(secret if piece is None else piece for piece in pieces)
    redactor = Redactor([secret])
    assert secret not in redactor.redact(text).replace(MASK, "\0")
    shown = masked({"text": text, "deep": [{"t": text}, value], f"k{secret}": 1}, redactor)
    assert not any(secret in text.replace(MASK, "\0") for text in texts(shown))
    assert secret not in redactor.redact(json.dumps(text)).replace(MASK, "\0")


def test_overlapping_and_escaped_secrets() -> None:
    redactor = Redactor(["abcdef", "defghi", 'quo"te\\d', ""])
    assert redactor.redact("-abcdefghi-") == f"-{MASK}-"
    assert redactor.redact(json.dumps({"a": 'quo"te\\d'})) == json.dumps({"a": MASK})
    assert redactor.redact("plain") == "plain"
    assert Redactor(["ab"]).redact("about ab") == "about ab"  # too short to look for inside a text
    assert Redactor(["ab"]).redact("ab") == MASK


def test_log_records_are_redacted() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    secret = "s3cret-value"
    handler.addFilter(Redactor([secret]))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise RuntimeError(f"failed with {secret}")
    except RuntimeError:
        logger.exception("key %s", secret, stack_info=True)
    logger.error("too %s few %s", secret)
    text = stream.getvalue()
    assert text.count(secret) == 0
    assert f"key {MASK}" in text
    assert f"RuntimeError: failed with {MASK}" in text
    assert "arguments left out" in text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(secret=st.from_regex(r"[A-Za-z0-9]{12,20}", fullmatch=True))
def test_no_dump_of_a_configuration_shows_a_secret(
    load: Callable[..., Configuration], user_file: Callable[[str], Path], secret: str
) -> None:
    user_file(
        f'[plugins.a]\napi_key = "{secret}"\ncommand = ["x", "--token", "{secret}"]\n'
        f'url = "https://u:{secret}@h"\nname = "has {secret}"\n'
        f'[plugins.a.headers]\nAuthorization = "Bearer {secret}"\n'
        '[plugins.b]\nkey = { env = "B_KEY" }\n'
    )
    entries = list(load(overrides=[f"plugins.c.password={secret}"]).entries(Redactor([secret])))
    assert secret not in str(entries)
    assert ("plugins.b.key", {"env": "B_KEY"}) in [(key, value) for key, value, _ in entries]
    assert len(entries) == 7
