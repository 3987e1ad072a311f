"""Where logs stand: names of directories and files under the root, and finding a session among them (agent-core 2.21).

``<root>/<project>/<session>/session.jsonl.zstd``, or ``session.jsonl`` for a plain log.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from polyhost.interfaces.sessions import SessionError, SessionHeader

Encoding: TypeAlias = Literal["zstd", "plain"]

FILE_NAMES: dict[Encoding, str] = {"zstd": "session.jsonl.zstd", "plain": "session.jsonl"}

_ENCODINGS: dict[str, Encoding] = {name: encoding for encoding, name in FILE_NAMES.items()}

_FEW_PROJECTS = 64
_NO_CWD = "_no-cwd"
_PROJECT_LENGTH = 251  # with the four dashes around it, the longest name that file systems take
_NAME_LENGTH = 255
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_SEPARATORS = re.compile(r"[/\\:]+")


def segment(session_id: str) -> str:
    """The directory name of a session: injective, and safe whatever the id is.

    :raises SessionError: SESSION_ID for an id that is empty or too long for a file name.
    """
    if not session_id:
        raise SessionError("a session id must not be empty", code="SESSION_ID")
    if session_id in (".", ".."):
        return session_id.replace(".", "~002E")
    name = _UNSAFE.sub(_escape, session_id)
    if len(name) > _NAME_LENGTH:
        raise SessionError(
            f"the session id {session_id[:40]!r}… is too long to be stored; "
            f"its encoded form has {len(name)} characters, the limit is {_NAME_LENGTH}",
            code="SESSION_ID",
        )
    return name


def project(cwd: str | None) -> str:
    """The directory name for a working directory. Not injective: the header decides."""
    if cwd is None:
        return _NO_CWD
    name = _UNSAFE.sub(_escape, _SEPARATORS.sub("-", cwd)).lstrip("-") or "root"
    return f"--{name[:_PROJECT_LENGTH]}--"


def directory(root: Path, header: SessionHeader) -> Path:
    """Where the log of this session is, or would be."""
    return root / project(header.cwd) / segment(header.id)


def crowded(root: Path) -> bool:
    """Whether there are so many projects that looking into each of them would take noticeable time."""
    return len(list(islice(_directories(root, in_order=False), _FEW_PROJECTS + 1))) > _FEW_PROJECTS


def encoding_of(path: Path) -> Encoding | None:
    """The encoding that a log's file name stands for."""
    return _ENCODINGS.get(path.name)


def find(root: Path, session_id: str) -> tuple[Path, Encoding] | None:
    """The stored log of a session, whatever its project.

    :raises SessionError: SESSION_CORRUPT when there are several.
    """
    name = segment(session_id)
    found: dict[tuple[int, int], tuple[Path, Encoding]] = {}
    for project_path in _directories(root):
        place = f"{project_path}/{name}"
        for encoding, file_name in FILE_NAMES.items() if os.path.isdir(place) else ():
            path = Path(place, file_name)
            try:
                status = path.stat()
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue  # nothing that a host wrote, and opening a pipe would wait for its writer
            found.setdefault((status.st_dev, status.st_ino), (path, encoding))
    if len(found) > 1:
        paths = " and ".join(sorted(str(path) for path, _ in found.values()))
        raise SessionError(
            f"session {session_id!r} is stored more than once: {paths}. Move all but one of them away",
            code="SESSION_CORRUPT",
        )
    return next(iter(found.values()), None)


def logs(root: Path) -> Iterator[tuple[Path, Encoding]]:
    """Every file under the root that stands where a log would."""
    for project_path in _directories(root):
        for session_path in _directories(project_path):
            for encoding, file_name in FILE_NAMES.items():
                path = Path(session_path, file_name)
                if path.is_file():
                    yield path, encoding


def _directories(path: str | Path, *, in_order: bool = True) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            paths = (entry.path for entry in entries if entry.is_dir())
            yield from sorted(paths) if in_order else paths
    except FileNotFoundError:
        return


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"~{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
