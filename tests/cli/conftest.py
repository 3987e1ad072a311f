"""Runs the installed ``hostctl`` as a process of its own, in a home and a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Hostctl = Callable[..., "subprocess.CompletedProcess[str]"]
HOSTCTL = Path(sys.executable).parent / "hostctl"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """Without anything of the developer's own that the host would read."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("POLYHOST", "DEEPSEEK", "OPENAI", "PYTEST", "PYTHON"))
    }
    return {**kept, "POLYHOST_HOME": str(home), "NO_COLOR": "1"}


@pytest.fixture
def hostctl(folder: Path, environment: dict[str, str]) -> Hostctl:
    """``hostctl(*arguments, input=None, plugins=None, env=None)``; asserts that no traceback goes to stderr."""

    def run(
        *arguments: str,
        input: str | None = None,
        plugins: Path | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        variables = {**environment, **(env or {})}
        if plugins is not None:
            variables["PYTHONPATH"] = str(plugins)
        result = subprocess.run(
            [HOSTCTL, *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=cwd or folder,
            env=variables,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in result.stderr
        return result

    return run


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., Path]:
    """``plugin(name, source)`` makes an installed distribution ``acme-NAME`` in a folder to put on the path."""
    site = tmp_path / "site"
    site.mkdir()

    def make(name: str, source: str | None, *, distribution: str | None = None, config: str | None = None) -> Path:
        module = f"{distribution or 'acme-' + name}".replace("-", "_")
        info = site / f"{module}-1.2.3.dist-info"
        info.mkdir()
        title = distribution or f"acme-{name}"
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {title}\nVersion: 1.2.3\nSummary: A test plugin\n"
        )
        (info / "entry_points.txt").write_text(f"[polyhost]\n{name} = {module}\n")
        if source is not None:
            (site / f"{module}.py").write_text(source)
        if config is not None:
            (site / f"{module}_config.py").write_text(config)
        return site

    return make
