"""What a model is told of the place it works in: the AGENTS.md files that apply there, and a few facts.

All of this may change while a session goes on: the agent edits AGENTS.md, runs ``git init``, works past midnight. So
it is runtime context and no section of the system prompt: a change adds one snapshot at the tail of the conversation,
where a changed system prompt would make everything before it new to the provider's cache. It is looked up once per
turn, so that a turn that edits the files step by step does not tell each step.

Files are text for the model and permit nothing. A repository may be hostile, so only regular files count, and links
only when they stay inside the repository: no clone can make a host send a private file to a model.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from polyhost.interfaces import Agent

FILE_NAME = "AGENTS.md"
FILE_BYTES = 32 * 1024
"""How much of one file is told."""

TOTAL_BYTES = 64 * 1024
"""How much is told of all files together: of the user's own first, then of those nearest to the working directory."""

_LEAD = (
    "Instructions of the user and of this workspace, from AGENTS.md files. The more general ones come first; where "
    "they disagree, the later one counts. What the user says in the conversation counts more than any of them."
)

_log = logging.getLogger(__name__)


class _Facts(NamedTuple):
    environment: str
    instructions: str
    problems: list[str]


class _Source(NamedTuple):
    """A file that may be there, and the directory that it must not lead out of."""

    path: str
    within: str


class WorkspaceFacts:
    """Two texts for ``PROMPT_CONTEXT``, as of the beginning of the agent's turn.

    :param home: the host's home, whose AGENTS.md is the user's own.
    :param clock: seconds since the epoch.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._clock = clock
        self._known: WeakKeyDictionary[Agent, tuple[int, _Facts]] = WeakKeyDictionary()

    async def environment(self, agent: Agent) -> str:
        """Working directory, repository, platform and date, a line each."""
        return (await self._facts(agent)).environment

    async def instructions(self, agent: Agent) -> str:
        """The files, each in an element with its path; empty when there are none."""
        return (await self._facts(agent)).instructions

    async def _facts(self, agent: Agent) -> _Facts:
        turn = agent.session.last_turn
        known = self._known.get(agent)
        if known is not None and known[0] == turn:
            return known[1]
        facts = await asyncio.to_thread(self._look_up, agent.session.header.cwd)
        for problem in facts.problems:
            if known is None or problem not in known[1].problems:
                _log.warning("instructions are left out: %s", problem)
        self._known[agent] = turn, facts
        return facts

    def _look_up(self, cwd: str | None) -> _Facts:
        """Blocks. Raises nothing for whatever may be on the disk."""
        folder = None if cwd is None else os.path.realpath(cwd)
        repository = None if folder is None else _repository(folder)
        home = os.path.realpath(self._home)
        users = _Source(os.path.join(home, FILE_NAME), home)
        sources = [] if folder is None else _sources(folder, repository or folder)
        problems: list[str] = []
        text = _tell(users, [source for source in sources if source.path != users.path], problems)
        return _Facts(self._environment(cwd, repository), text, problems)

    def _environment(self, cwd: str | None, repository: str | None) -> str:
        system = os.uname()
        lines = [
            f"Platform: {system.sysname} {system.machine}",
            f"Date: {time.strftime('%Y-%m-%d', time.localtime(self._clock()))}",
        ]
        if cwd is not None:
            where = f"in the Git repository {_shown(repository)}" if repository else "not in a Git repository"
            lines.insert(0, f"Working directory: {cwd} ({where})")
        return "\n".join(lines)


def _repository(folder: str) -> str | None:
    """The directory at or above ``folder`` that has a ``.git``, which is a file in worktrees and submodules."""
    return next((above for above in _upwards(folder) if os.path.lexists(os.path.join(above, ".git"))), None)


def _sources(folder: str, root: str) -> list[_Source]:
    """From ``root`` down to ``folder``."""
    sources = []
    for above in _upwards(folder):
        sources.append(_Source(os.path.join(above, FILE_NAME), root))
        if above == root:
            break
    return sources[::-1]


def _upwards(folder: str) -> Iterator[str]:
    yield folder
    while (parent := os.path.dirname(folder)) != folder:
        folder = parent
        yield folder


def _tell(users: _Source, workspace: list[_Source], problems: list[str]) -> str:
    """The text of all files within the limits; those that cannot be told are named in ``problems``."""
    told: dict[_Source, str] = {}
    left, left_out = TOTAL_BYTES, 0
    for source in (users, *reversed(workspace)):
        if not left:
            left_out += os.path.lexists(source.path)
            continue
        try:
            content, size = _read(source, min(FILE_BYTES, left))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problems.append(f"{_shown(source.path)}: {error.strerror}")
            continue
        left -= len(content)
        if text := _decoded(content, size):
            told[source] = f'<file path="{_shown(source.path)}">\n{text}\n</file>'
    parts = [told[source] for source in (users, *workspace) if source in told]
    if left_out:
        parts.append(f"[{left_out} further files, from directories above, are left out: there is too much already]")
    return "\n\n".join((_LEAD, *parts)) if parts else ""


def _read(source: _Source, limit: int) -> tuple[bytes, int]:
    """The beginning of a file and the size of the whole. Raises OSError."""
    path = os.path.realpath(source.path)
    if os.path.commonpath((path, source.within)) != source.within:
        raise OSError(None, f"it is a link that leads out of {_shown(source.within)}")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe must not block
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit), status.st_size
    finally:
        os.close(descriptor)


def _decoded(content: bytes, size: int) -> str:
    """UTF-8, not cut within a character, with a notice when it is cut at all."""
    cut = size > len(content)
    text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(content, final=not cut).strip()
    if cut:
        text += f"\n[only the first {len(content)} of {size} bytes are here; read the file for the rest]"
    return text.lstrip()


def _shown(path: str) -> str:
    """A path as text, also one that is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")
