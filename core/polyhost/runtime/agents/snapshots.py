"""Runtime context: volatile facts that reach the model as one message whenever they change.

The message is a snapshot that replaces its predecessors. Whether one is due is read from the session's surface, so it
is right after a resume, a fork or a compaction. Where the facts come from is in ``prompt``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from polyhost.interfaces import JsonObject, plugin_message
from polyhost.runtime.sessions.log import LiveSession

PLUGIN = "system-prompt"
"""The ``source.plugin`` of snapshot messages."""

_LEAD = "Current runtime context. This snapshot supersedes earlier runtime-context snapshots."
_NONE = "Current runtime context: none. Earlier runtime-context snapshots no longer apply."


class RuntimeContext:
    """Decides, for one session, when its runtime context must be told."""

    __slots__ = ("_known", "_session")

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._known: _Snapshot | None = None  # the last one on the surface when we last looked; None before that

    def message(self, contexts: Sequence[tuple[str, str]]) -> JsonObject | None:
        """The message that tells ``(name, text)`` of the contexts, or None when the model knows them already."""
        retained = self._retained()
        if not contexts:
            return None if retained in (None, _NONE) else plugin_message(PLUGIN, _NONE)
        text = "\n\n".join((_LEAD, *(section for _, section in contexts)))
        if text == retained:
            return None
        sections = [{"name": name, "text": section} for name, section in contexts]
        return plugin_message(PLUGIN, text, form="snapshot", sections=sections)

    def logged(self, message: JsonObject, seq: int) -> None:
        """A user-role message is in the log under ``seq``; it may be a snapshot."""
        if _is_snapshot(message):
            self._known = _Snapshot(seq, _text(message))

    def _retained(self) -> str | None:
        """The text of the last snapshot on the surface, None without any."""
        surface = self._session.surface()
        if self._known is None or (self._known.seq is not None and self._known.seq not in surface):
            self._known = self._find(surface)
        return self._known.text

    def _find(self, surface: Sequence[int]) -> _Snapshot:
        for seq in reversed(surface):
            event = self._session.event(seq)
            if event.type == "user/message" and _is_snapshot(message := event.data):
                return _Snapshot(seq, _text(message))
        return _Snapshot(None, None)


class _Snapshot(NamedTuple):
    """A snapshot on the surface: its seq and text, both None when there is none."""

    seq: int | None
    text: str | None


def _is_snapshot(message: JsonObject) -> bool:
    source = message["source"]
    return bool(source.get("kind") == "plugin" and source.get("plugin") == PLUGIN)


def _text(message: JsonObject) -> str:
    """The text of a snapshot; empty, and so never up to date, for one that somebody malformed."""
    blocks = message["content"]
    if len(blocks) == 1 and blocks[0].get("type") == "text" and isinstance(blocks[0].get("text"), str):
        return str(blocks[0]["text"])
    return ""
