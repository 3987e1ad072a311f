"""What the file and search tools leave alone: the host's own directory, and what the system shows of processes.

Both hold secrets: the keys of model providers, other conversations, environments. This is a rule for these tools, not
a confinement: a command that somebody lets run can read what its user can read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from polyhost_tools.errors import FileError

_PROCESSES = "/proc"
_PROCESS = re.compile(r"/proc(/\d+(/.*)?)?")
_GLOB_SYNTAX = re.compile(r"([*?\[\]{}\\!])")


class Fence:
    """Says which paths are closed.

    :param home: the host's directory. What is in it is closed, unless it belongs to a workspace that lies in it.
    :param readable: a folder in it that may be read nevertheless, because models are told of files there.
    """

    def __init__(self, home: str, readable: str) -> None:
        self._home = home
        self._readable = readable

    def resolve(self, path: str, cwd: str | None, *, reading: bool) -> str:
        """The place that ``path`` leads to, links and ``..`` resolved. Blocking.

        :param cwd: the session's workspace.
        :raises FileError: FS_PERMISSION_DENIED for a closed place.
        """
        target = os.path.realpath(path)
        if _PROCESS.fullmatch(target):
            raise FileError(
                f"{path}: what the system shows of running processes is closed to tools", code="FS_PERMISSION_DENIED"
            )
        if self._in_home(target, cwd, reading):
            raise FileError(
                f"{path}: it lies in the host's own directory, which holds credentials, settings and conversations"
                " and is closed to tools",
                code="FS_PERMISSION_DENIED",
            )
        return target

    def hidden(self, root: str, start: str, target: str) -> Hidden:
        """What a search of ``start``, seen from ``root``, must not show; ``target`` is where that leads. Blocking."""
        base = os.path.join(root, start)
        inside = (place for place in (os.path.realpath(self._home), _PROCESSES) if _is_below(place, target))
        return Hidden(root, [os.path.normpath(os.path.join(base, os.path.relpath(place, target))) for place in inside])

    def _in_home(self, target: str, cwd: str | None, reading: bool) -> bool:
        """Whether the innermost of home, workspace and readable folder that holds ``target`` is home.

        Directories are compared by identity: a path can have several spellings.
        """
        home = _identity(self._home)
        opened = {_identity(cwd) if cwd is not None else None, _identity(self._readable) if reading else None}
        for place in _lineage(target):
            found = _identity(place)
            if found is not None and (found == home or found in opened):
                return found == home
        return False


class Hidden:
    """The closed places below the start of a search, by the names that they have in its results.

    :param root: where the search runs.
    """

    def __init__(self, root: str = "/", places: Sequence[str] = ()) -> None:
        self._root = root
        self._places = tuple(places)

    def globs(self) -> list[str]:
        """Options that keep ripgrep out. It matches paths below its directory without that part, others whole."""
        patterns = [f"/{_literal(os.path.relpath(place, self._root))}" for place in self._places]
        patterns += [f"**{_literal(place)}" for place in self._places]
        return [f"--glob=!{pattern}" for pattern in patterns]

    def covers(self, path: str) -> bool:
        """Whether a path in the results is, or lies in, a closed place."""
        name = os.path.normpath(os.path.join(self._root, path)) if self._places else path
        return any(name == place or name.startswith(f"{place}/") for place in self._places)


def _literal(path: str) -> str:
    """``path`` as a glob pattern that matches only it."""
    return _GLOB_SYNTAX.sub(r"\\\1", path)


def _is_below(place: str, directory: str) -> bool:
    return place != directory and os.path.commonpath([place, directory]) == directory


def _lineage(path: str) -> Iterator[str]:
    """``path`` and the directories that hold it, innermost first."""
    yield path
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _identity(path: str) -> tuple[int, int] | None:
    """What distinguishes a file or directory from all others; None when it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
