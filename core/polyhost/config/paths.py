"""Where the host keeps its state: one home directory and the names of everything under it.

Only names and private creation live here; each file's content belongs to the module that reads it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from polyhost.config.files import LOCK_TIMEOUT, locked, private_directory

HOME_VARIABLE = "POLYHOST_HOME"


class HomePaths:
    """The home directory and its layout::

        config.toml        the user's configuration
        credentials.json   keys of model providers (0600)
        trust.json         accepted project files (0600)
        sessions/  run/  logs/   (0700)

    :param root: the home directory; made absolute, ``~`` expanded. Nothing is created before :meth:`create`.
    """

    __slots__ = ("root",)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.abspath(os.path.expanduser(root)))

    @classmethod
    def locate(cls, explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> HomePaths:
        """``explicit`` (``--home``), else ``POLYHOST_HOME``, else the platform's directory for user data."""
        if chosen := explicit or environ.get(HOME_VARIABLE):
            return cls(chosen)
        from platformdirs import user_data_dir

        return cls(user_data_dir("polyhost", appauthor=False))

    @property
    def config_file(self) -> Path:
        return self.root / "config.toml"

    @property
    def credentials_file(self) -> Path:
        return self.root / "credentials.json"

    @property
    def trust_file(self) -> Path:
        return self.root / "trust.json"

    @property
    def sessions(self) -> Path:
        return self.root / "sessions"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def create(self) -> None:
        """Create what is missing with mode 0700; an existing home keeps its mode, its owner must be this user.

        :raises ConfigError: a directory cannot be made or belongs to somebody else.
        """
        for directory in (self.root, self.sessions, self.run, self.logs):
            private_directory(directory)

    @contextlib.contextmanager
    def lock(self, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
        """Hold the one lock for every rarely written file: configuration, trust and credentials.

        :raises ConfigError: with code ``CONFIG_BUSY`` when its holder does not let go within ``timeout`` seconds.
        """
        private_directory(self.root)
        private_directory(self.run)
        with locked(self.run / "config.lock", timeout=timeout):
            yield

    def __repr__(self) -> str:
        return f"HomePaths({str(self.root)!r})"
