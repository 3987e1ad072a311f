"""A home, a project directory and one call that loads configuration from them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polyhost.config import Configuration, HomePaths, load_configuration


@pytest.fixture
def home(tmp_path: Path) -> HomePaths:
    paths = HomePaths(tmp_path / "home")
    paths.create()
    return paths


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


@pytest.fixture
def user_file(home: HomePaths) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        home.config_file.write_text(text, encoding="utf-8")
        return home.config_file

    return write


@pytest.fixture
def load(home: HomePaths, project: Path) -> Callable[..., Configuration]:
    def call(**options: Any) -> Configuration:
        return load_configuration(home, **{"cwd": project, "environ": {}, **options})

    return call
