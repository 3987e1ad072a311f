"""Where the home is, and that what is made in it is private."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from polyhost.config import ConfigError, HomePaths
from polyhost.config.files import create_exclusive, locked, read_bounded, write_atomic


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("explicit", "environ", "expected"),
    [
        ("/named", {"POLYHOST_HOME": "/variable"}, "/named"),
        (None, {"POLYHOST_HOME": "/variable"}, "/variable"),
        ("", {"POLYHOST_HOME": "/variable/../other"}, "/other"),
    ],
)
def test_home_by_option_then_variable(explicit: str | None, environ: dict[str, str], expected: str) -> None:
    assert HomePaths.locate(explicit, environ).root == Path(expected)


def test_home_falls_back_to_the_platform_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert HomePaths.locate(None, {"POLYHOST_HOME": ""}).root == tmp_path / "polyhost"


def test_relative_and_tilde_homes_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert HomePaths("~/a").root == tmp_path / "a"
    assert HomePaths("b").root == tmp_path / "b"


def test_everything_is_created_for_the_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        home = HomePaths(tmp_path / "deep" / "home")
        home.create()
        home.create()  # again is fine
    finally:
        os.umask(old)
    assert [mode(path) for path in (home.root, home.sessions, home.run, home.logs)] == [0o700] * 4


def test_a_file_in_the_place_of_the_home_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError, match="not a directory"):
        HomePaths(tmp_path / "home").create()


def test_a_home_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigError, match="belongs to user id"):
        HomePaths(tmp_path).create()


def test_atomic_write_keeps_the_mode_and_follows_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text("old")
    real.chmod(0o640)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert (real.read_text(), mode(real)) == ("new", 0o640)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "dotfiles.toml"]


def test_a_new_file_is_private(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"")
    create_exclusive(tmp_path / "b", b"")
    assert (mode(tmp_path / "a"), mode(tmp_path / "b")) == (0o600, 0o600)
    with pytest.raises(ConfigError, match="exists already") as caught:
        create_exclusive(tmp_path / "b", b"other")
    assert caught.value.code == "CONFIG_EXISTS"


def test_a_failed_write_leaves_the_old_file_and_no_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        write_atomic(path, b"new")
    assert [(child.name, child.read_text()) for child in tmp_path.iterdir()] == [("config.toml", "old")]


def test_reading_refuses_what_is_no_file_or_too_large(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_bounded(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_bounded(tmp_path)
    (tmp_path / "large").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="larger than the limit"):
        read_bounded(tmp_path / "large")
    assert read_bounded(tmp_path / "none") is None


def test_waiting_for_the_lock_has_a_bound(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"), pytest.raises(ConfigError) as caught, locked(tmp_path / "lock", timeout=0.03):
        pass
    assert caught.value.code == "CONFIG_BUSY"
