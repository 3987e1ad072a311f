"""Real distributions in a temporary directory on ``sys.path``, found through real entry points."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

GOOD = """
from polyhost import PluginInfo, hookimpl

@hookimpl
def polyhost_plugin():
    return PluginInfo(name={name!r}, summary="a sample")
"""


class Site:
    """A directory of installed distributions."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def module(self, module: str, source: str) -> None:
        """Write ``module`` (without packages)."""
        (self.path / f"{module}.py").write_text(dedent(source))
        self.modules.append(module)
        importlib.invalidate_caches()

    def distribution(
        self, name: str, entries: dict[str, str], *, version: str = "1.0", raw_entries: str | None = None
    ) -> None:
        """Write the metadata of a distribution with the entry points ``entries`` (plugin name to import path)."""
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: about {name}\n\n"
        )
        lines = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
        (info / "entry_points.txt").write_text(raw_entries or f"[polyhost]\n{lines}")
        importlib.invalidate_caches()

    def plugin(self, name: str, source: str = GOOD, *, distribution: str | None = None) -> str:
        """Install a distribution with the one plugin ``name`` in the module ``sample_<name>``; returns that module."""
        module = f"sample_{name}"
        self.module(module, source.replace("{name!r}", repr(name)))
        self.distribution(distribution or f"polyhost-{name}", {name: module})
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    site = Site(root)
    yield site
    for module in site.modules:
        sys.modules.pop(module, None)
