"""Finding plugins without running them, and running foreign code without being harmed by it.

:func:`scan` lists what installed distributions offer under the entry-point group, importing nothing.
:func:`contained` is the fence around every first call into a plugin: its import and its static hooks. What is done
with the findings (blocking, duplicates, registration) is in ``catalog``.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from polyhost.kernel.hookspecs import PROJECT
from polyhost.kernel.plugins import PluginError, PluginFailure, Stage, one_line

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

_TARGET = re.compile(r"(?P<module>[\w.]+)\s*(?::\s*(?P<attribute>[\w.]+))?\s*(?:\[.*\])?$")


class Facts(NamedTuple):
    """Who ships a plugin."""

    distribution: str = ""
    version: str = ""
    summary: str = ""


class Candidate:
    """A plugin that could be imported: its name, where its code is, and who ships it.

    :ivar target: import path ``"package.module"`` or ``"package.module:attribute"``, or the plugin object itself.
    :ivar essential: a part of the host, which cannot be blocked or disabled.
    """

    __slots__ = ("_dist", "essential", "name", "target")

    def __init__(self, name: str, target: object, *, dist: Distribution | None = None, essential: bool = False) -> None:
        self.name = name
        self.target = target
        self.essential = essential
        self._dist = dist

    def facts(self) -> Facts:
        """Distribution, version and summary. Parses the distribution's metadata the first time (about 1 ms)."""
        return _facts(self._dist) if self._dist is not None else Facts()

    def load(self) -> Any:
        """Import and return the plugin object. Raises whatever the import raises."""
        if not isinstance(self.target, str):
            return self.target
        match = _TARGET.match(self.target)
        if match is None:
            raise ValueError(f"{self.target!r} is not an import path 'package.module' or 'package.module:attribute'")
        found: Any = importlib.import_module(match["module"])
        for name in (match["attribute"] or "").split("."):
            found = getattr(found, name) if name else found
        return found


class ScanFailure(NamedTuple):
    """A distribution whose entry points cannot even be read."""

    facts: Facts
    failure: PluginFailure


def scan(group: str = PROJECT) -> tuple[list[Candidate], list[ScanFailure]]:
    """All entry points of ``group``, in the order of ``sys.path``, and the distributions that could not be read.

    One malformed ``entry_points.txt`` anywhere in the environment makes the standard library's own listing raise;
    only then each distribution is read on its own, which takes longer.
    """
    from importlib.metadata import entry_points

    try:
        return [_candidate(entry) for entry in entry_points(group=group)], []
    except Exception:
        return _scan_one_by_one(group)


@contextmanager
def contained(stage: Stage, plugin: str, doing: str) -> Iterator[None]:
    """Run foreign synchronous code: prints go to stderr, and all that it raises becomes a :class:`PluginError`.

    That includes :class:`SystemExit` and other escapes from ``Exception``; only the user's own interrupt passes. Must
    not surround an ``await``: redirection is process-wide, and a cancellation must not be swallowed.

    :param doing: what was being done, for the message: ``"cannot import it"``.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (KeyboardInterrupt, PluginError):
        raise
    except BaseException as error:
        raise PluginError(
            f"plugin {plugin!r}: {doing}: {type(error).__name__}: {one_line(error)}", plugin=plugin, stage=stage
        ) from error


def _candidate(entry: EntryPoint) -> Candidate:
    return Candidate(entry.name, entry.value, dist=entry.dist)


def _scan_one_by_one(group: str) -> tuple[list[Candidate], list[ScanFailure]]:
    from importlib.metadata import distributions

    candidates: list[Candidate] = []
    failures: list[ScanFailure] = []
    seen: set[str] = set()
    for dist in distributions():
        facts = _facts(dist)
        normal = re.sub(r"[-_.]+", "-", facts.distribution).lower()
        if normal in seen:  # shadowed by an earlier directory of sys.path
            continue
        seen.add(normal)
        try:
            candidates += [_candidate(entry) for entry in _in_group(dist.entry_points, group)]
        except Exception as error:
            failures.append(ScanFailure(facts, PluginFailure.of(error, "discover")))
    return candidates, failures


def _in_group(entries: Iterable[EntryPoint], group: str) -> list[EntryPoint]:
    return [entry for entry in entries if entry.group == group]


@lru_cache(maxsize=256)  # one parse for all the entry points of a distribution
def _facts(dist: Distribution) -> Facts:
    try:
        metadata = dist.metadata
        return Facts(metadata["Name"] or "", metadata["Version"] or "", metadata["Summary"] or "")
    except Exception:  # metadata missing or unreadable: the plugin may work all the same
        return Facts("(unknown distribution)")
