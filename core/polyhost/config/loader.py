"""From a home, a working directory, an environment and options to a :class:`Configuration`.

The one place that knows the order of the layers and which of them are screened. It reads files and nothing else:
no plugin, no pydantic model, no directory is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from polyhost.config.layers import (
    CONFIG_VARIABLE,
    Layer,
    default_layers,
    environment_layers,
    file_layer,
    find_project_file,
    merge_all,
    set_layers,
)
from polyhost.config.model import Configuration, ConfigWarning
from polyhost.config.paths import HomePaths


def load_configuration(
    home: HomePaths,
    *,
    cwd: Path,
    config_file: str | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Sequence[str] = (),
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
    project_keys: Callable[[str], Collection[str]] | None = None,
    overlay: Mapping[Path, bytes] | None = None,
) -> Configuration:
    """Read and merge all layers.

    :param cwd: absolute; the project file is searched from here upwards, unless one is named.
    :param config_file: the project file by name (``--config``, else ``POLYHOST_CONFIG``), which makes it trusted.
    :param overrides: ``KEY=VALUE`` of each ``--set``.
    :param defaults: for each installed plugin its id and default keys (an empty table for none); these are the ids
        that environment variable names are matched against.
    :param project_keys: see :func:`polyhost.config.trust.screen`; without it an untrusted file sets no plugin key.
    :param overlay: contents to take in the place of files, by absolute path: judges a change before it is written.
    :raises ConfigError: a file, a variable or an option is unusable, or ``[host]`` is wrong. A wrong plugin row raises
        nothing here; its row carries the error.
    """
    overlay = overlay or {}
    base = default_layers(defaults or {})
    user = file_layer("user", home.config_file, content=overlay.get(home.config_file))
    if user is not None:
        base.append(user)
    project, trusted = _project_layer(home, cwd, config_file or environ.get(CONFIG_VARIABLE), overlay)
    if project is None or trusted:
        layers = [*base, project] if project is not None else base
        return Configuration([*layers, *_upper_layers(environ, overrides, layers)])

    from polyhost.config.trust import screen

    upper = _upper_layers(environ, overrides, base)
    layer, warning = screen(project, merge_all([*base, *upper]), project_keys or (lambda _: ()))
    warnings: list[ConfigWarning] = [warning] if warning else []
    return Configuration([*base, layer, *upper], warnings)


def _project_layer(
    home: HomePaths, cwd: Path, named: str | None, overlay: Mapping[Path, bytes]
) -> tuple[Layer | None, bool]:
    """The project layer, if any, and whether it is trusted."""
    if named:
        path = Path(os.path.abspath(cwd / os.path.expanduser(named)))
        return file_layer("project", path, required=True, content=overlay.get(path)), True
    found = find_project_file(cwd)
    layer = file_layer("project", found, content=overlay.get(found)) if found else None
    if found is None or layer is None:
        return None, True

    from polyhost.config.trust import TrustStore

    return layer, TrustStore(home).is_trusted(found, layer.content or b"")


def _upper_layers(environ: Mapping[str, str], overrides: Sequence[str], lower: Sequence[Layer]) -> list[Layer]:
    return [*environment_layers(environ, merge_all(lower)), *set_layers(overrides)]
