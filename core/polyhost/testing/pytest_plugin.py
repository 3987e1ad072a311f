"""Pytest fixtures for plugin authors, loaded through the ``pytest11`` entry point of the package.

Every test session of every project that has polyhost installed imports this module, so nothing but pytest is
imported at its top; what a fixture needs, it imports when it is asked for.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def polyhost_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary home of the host, with the environment cleaned of every ``POLYHOST`` variable."""
    import os

    for name in list(os.environ):
        if name.startswith("POLYHOST_"):
            monkeypatch.delenv(name)
    home = tmp_path / "polyhost-home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("POLYHOST_HOME", str(home))
    return home
