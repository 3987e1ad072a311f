"""The projections that the host ships: title, token usage, queue, to-do list."""

from __future__ import annotations

from typing import Any

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.projections import Projection
from polyhost.interfaces.sessions import SessionEvent, SessionHeader
from polyhost.runtime.sessions.title_text import fallback

TITLE_KEY = "title"

_MESSAGES_KEPT = 10
_COUNTS = {
    "uncachedInputTokens": "inputTokens",
    "outputTokens": "outputTokens",
    "cacheReadTokens": "cacheReadTokens",
    "cacheWriteTokens": "cacheWriteTokens",
}
_TARGETS = {"next-turn": "nextTurn", "next-step": "nextStep"}


def human_text(message: JsonObject) -> str:
    """The text blocks of a message, apart from each other."""
    return " ".join(block["text"] for block in message["content"] if block.get("type") == "text")


# title: the title or null. The state also knows which human messages a title can be made of.


def _no_title(header: SessionHeader) -> JsonObject:
    return {"title": None, "kind": None, "seq": -1, "messages": []}


def _title(state: JsonObject, event: SessionEvent) -> JsonObject:
    data = event.data
    if event.type == "session/title":
        if not isinstance(data.get("title"), str):
            return state
        source = data.get("source")
        kind = source.get("kind") if isinstance(source, dict) else None
        return {**state, "title": data["title"], "kind": kind, "seq": event.seq}
    if data["source"].get("kind") != "user" or not fallback(human_text(data)):
        return state  # synthetic, or nothing to read in it
    messages = [*state["messages"], event.seq]
    if len(messages) > _MESSAGES_KEPT:
        del messages[1]  # the first says what the session is about, the last what it is at
    return {**state, "messages": messages}


# tokenUsage: totals over all answers and compactions.


def _no_usage(header: SessionHeader) -> JsonObject:
    return dict.fromkeys(_COUNTS, 0)


def _usage(state: JsonObject, event: SessionEvent) -> JsonObject:
    usage = event.data.get("usage")
    if not isinstance(usage, dict):
        return state
    return {name: state[name] + _count(usage.get(reported)) for name, reported in _COUNTS.items()}


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


# queue: {nextTurn: [message], nextStep: [message]}, what the inbox holds.


def _empty_queue(header: SessionHeader) -> JsonObject:
    return {"own": header.seed_length or 0, "nextTurn": [], "nextStep": []}


def _queue(state: JsonObject, event: SessionEvent) -> JsonObject:
    if event.seq < state["own"]:
        return state  # what was queued in the session that this one comes from is not queued here
    data = event.data
    target, start = _TARGETS[data["target"]], data["start"]
    pending = list(state[target])
    pending[start : start + data.get("removedCount", 0)] = data["inserted"]
    return {**state, target: pending}


# todos: the list, or null before the first.


def _todos(state: Any, event: SessionEvent) -> Any:
    todos = event.data.get("todos")
    return todos if isinstance(todos, list) else state


PROJECTIONS_SHIPPED = {
    TITLE_KEY: Projection(
        1, frozenset({"session/title", "user/message"}), _no_title, _title, lambda state: state["title"]
    ),
    "tokenUsage": Projection(1, frozenset({"assistant/message", "compaction/summary"}), _no_usage, _usage),
    "queue": Projection(
        1,
        frozenset({"agent/inbox/spliced"}),
        _empty_queue,
        _queue,
        lambda state: {target: state[target] for target in _TARGETS.values()},
    ),
    "todos": Projection(1, frozenset({"todo/write"}), lambda header: None, _todos),
}
