from __future__ import annotations

import pytest

from polyhost.process import Collect, exact_environment, scrubbed_environment


@pytest.mark.contract("PROC-1")
@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "DEEPSEEK_API_KEY",
        "monkey_mode",
        "TOKENIZERS_PARALLELISM",
        "db_password",
        "ClientSecret",
        "DSH_HOME",
        "dsh_x",
    ],
)
def test_credentials_and_managed_names_are_withheld(name: str) -> None:
    assert scrubbed_environment(ambient={name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.contract("PROC-1")
def test_everything_else_is_kept() -> None:
    ambient = {
        "PATH": "/bin",
        "HOME": "/home/a",
        "LC_ALL": "C",
        "https_proxy": "p",
        "SSH_AUTH_SOCK": "s",
        "MY_DSH_": "m",
    }
    assert scrubbed_environment(ambient=ambient) == ambient


@pytest.mark.contract("PROC-2")
def test_explicit_entries_win_and_none_removes() -> None:
    ambient = {"PATH": "/bin", "LANG": "C", "API_KEY": "theirs"}
    explicit = {"API_KEY": "mine", "DSH_HOME": "/d", "EXTRA": "e", "LANG": None, "ABSENT": None, "path": "other"}
    assert scrubbed_environment(explicit, ambient=ambient) == {
        "PATH": "/bin",
        "API_KEY": "mine",
        "DSH_HOME": "/d",
        "EXTRA": "e",
        "path": "other",
    }


def test_an_exact_environment_has_nothing_of_the_parent() -> None:
    assert exact_environment({"A": "1", "B": None}) == {"A": "1"}
    assert exact_environment() == {}


@pytest.mark.contract("DEF-6", "PROC-1", "PROC-2")
async def test_a_child_gets_the_scrubbed_environment(spawn, monkeypatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    monkeypatch.setenv("DSH_HOME", "/ambient")
    monkeypatch.setenv("PLAIN", "ambient")
    monkeypatch.setenv("DROPPED", "ambient")
    handle = await spawn("env", "-0", stdout=Collect(100_000), env={"DSH_HOME": "/explicit", "DROPPED": None})
    await handle.done
    seen = dict(entry.split("=", 1) for entry in handle.collected.stdout.read_from().text.split("\0") if entry)
    assert "SOME_TOKEN" not in seen
    assert "DROPPED" not in seen
    assert seen["DSH_HOME"] == "/explicit"
    assert seen["PLAIN"] == "ambient"


async def test_a_child_with_an_exact_environment_gets_nothing_else(spawn) -> None:
    handle = await spawn("/usr/bin/env", stdout=Collect(1000), env={"ONLY": "this"}, inherit_env=False)
    await handle.done
    assert handle.collected.stdout.read_from().text == "ONLY=this\n"
