"""The credential store: private, read per request, and silent about values."""

from __future__ import annotations

import stat

import pytest

from polyhost.config import (
    ConfigError,
    CredentialStore,
    HomePaths,
    InvalidCredentialError,
    MissingCredentialError,
    Redactor,
)


def test_the_store_comes_before_the_environment(home: HomePaths) -> None:
    environ = {"A_KEY": " from-env \n"}
    store = CredentialStore(home, environ=environ)
    assert store.get("A_KEY") == "from-env"
    store.set("A_KEY", "  from-store\n")
    assert store.require("A_KEY") == "from-store"
    assert store.names() == ["A_KEY"]
    assert (store.remove("A_KEY"), store.remove("A_KEY")) == (True, False)
    assert store.get("A_KEY") == "from-env"
    environ["B_KEY"] = "late"
    assert store.get("B_KEY") == "late"


def test_a_key_that_arrives_later_works(home: HomePaths) -> None:
    reader = CredentialStore(home, environ={"A_KEY": "  "})
    with pytest.raises(MissingCredentialError, match="A_KEY") as caught:
        reader.require("A_KEY")
    assert (caught.value.code, caught.value.name) == ("MISSING_CREDENTIAL", "A_KEY")
    CredentialStore(home).set("A_KEY", "now")
    assert reader.require("A_KEY") == "now"


def test_the_file_is_private_and_refused_when_it_is_not(home: HomePaths) -> None:
    store = CredentialStore(home, environ={})
    store.set("A_KEY", "value")
    assert stat.S_IMODE(home.credentials_file.stat().st_mode) == 0o600
    home.credentials_file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600") as caught:
        store.get("A_KEY")
    assert caught.value.code == "CREDENTIALS_EXPOSED"


@pytest.mark.parametrize("value", ["two words", "sécret", "tab\tin", "line\nbreak", "nul\0", "\x7fdel"])
def test_an_unusable_value_is_refused_and_not_echoed(home: HomePaths, value: str) -> None:
    store = CredentialStore(home, environ={"A_KEY": value})
    for act in (lambda: store.set("B_KEY", value), lambda: store.get("A_KEY")):
        with pytest.raises(InvalidCredentialError) as caught:
            act()
        assert caught.value.code == "INVALID_CREDENTIAL"
        assert value not in caught.value.message
    assert store.names() == []


def test_all_printable_characters_are_usable(home: HomePaths) -> None:
    value = "".join(map(chr, range(0x21, 0x7F)))
    store = CredentialStore(home, environ={})
    store.set("A_KEY", value)
    assert store.get("A_KEY") == value


def test_blank_values_and_bad_names_are_refused(home: HomePaths) -> None:
    store = CredentialStore(home, environ={})
    with pytest.raises(InvalidCredentialError):
        store.set("A_KEY", "  ")
    with pytest.raises(ConfigError, match="no name"):
        store.set("a b", "value")


def test_values_are_known_to_the_redactor(home: HomePaths) -> None:
    redactor = Redactor()
    store = CredentialStore(home, environ={"A_KEY": "env-value"}, redactor=redactor)
    store.set("B_KEY", "stored-value")
    store.get("A_KEY")
    assert redactor.redact("env-value stored-value") == "******** ********"
    assert "value" not in repr(store)


@pytest.mark.parametrize("text", ["{", "[]", '{"credentials": {"A_KEY": 5}}', "{}"])
def test_a_damaged_store_is_a_typed_error_and_is_kept(home: HomePaths, text: str) -> None:
    home.credentials_file.write_text(text)
    home.credentials_file.chmod(0o600)
    store = CredentialStore(home, environ={})
    for act in (lambda: store.get("A_KEY"), lambda: store.set("A_KEY", "v"), lambda: store.remove("A_KEY")):
        with pytest.raises(ConfigError, match="damaged"):
            act()
    assert home.credentials_file.read_text() == text
