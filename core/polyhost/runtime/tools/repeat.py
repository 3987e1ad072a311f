"""A reminder for models that are stuck: the same tool with the same arguments, several times in a row.

The reminder is added to the result as context; nothing is refused. A new prompt of the user, or another call, starts
the count afresh; calls of excluded tools are not seen at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from weakref import WeakKeyDictionary

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.json_types import JsonObject, JsonValue
from polyhost.interfaces.messages import plugin_message
from polyhost.interfaces.tools import Accept, Block, ToolCall, ToolResult
from polyhost.runtime.tools.schema import json_equal

PLUGIN = "repeat-tool-reminder"
THRESHOLDS = (3, 5, 8)


class _Chain:
    __slots__ = ("arguments", "count", "tool")

    def __init__(self) -> None:
        self.tool = ""
        self.arguments: JsonValue = None
        self.count = 0


class RepeatReminder:
    """A ``tools/post-execute`` listener; :meth:`reset` hears of new prompts.

    :param thresholds: counts at which a reminder is given: positive and rising.
    :param include: patterns of tool names that count.
    :param exclude: patterns of tool names that are transparent.
    :raises ValueError: for bad thresholds.
    """

    def __init__(
        self, thresholds: Sequence[int] = THRESHOLDS, *, include: Sequence[str] = ("*",), exclude: Sequence[str] = ()
    ) -> None:
        check_thresholds(thresholds)
        self._thresholds = frozenset(thresholds)
        self._include = tuple(include)
        self._exclude = tuple(exclude)
        self._chains: WeakKeyDictionary[Agent, _Chain] = WeakKeyDictionary()

    async def __call__(
        self, call: ToolCall, result: ToolResult, next: Callable[[], Awaitable[Accept | Block]]
    ) -> Accept | Block:
        verdict = await next()
        count = self._count(call)
        if count not in self._thresholds:
            return verdict
        return verdict._replace(contexts=(*verdict.contexts, _reminder(call.name, count)))

    def reset(self, agent: Agent, message: JsonObject, turn: int) -> None:
        """An ``agent/inbox/claimed`` listener: a person's prompt ends the chain."""
        if message.get("source", {}).get("kind") == "user":
            self._chains.pop(agent, None)

    def _count(self, call: ToolCall) -> int:
        if call.agent is None or not self._counts(call.name):
            return 0
        chain = self._chains.setdefault(call.agent, _Chain())
        repeated = call.name == chain.tool and json_equal(call.arguments, chain.arguments)
        chain.count = chain.count + 1 if repeated else 1
        chain.tool, chain.arguments = call.name, call.arguments
        return chain.count

    def _counts(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._include) and not any(
            fnmatchcase(name, pattern) for pattern in self._exclude
        )


def check_thresholds(thresholds: Sequence[int]) -> None:
    """Raise ValueError unless there are thresholds, of at least 2, and rising."""
    rising = all(low < high for low, high in pairwise(thresholds))
    if not thresholds or thresholds[0] < 2 or not rising:
        raise ValueError(f"repeat thresholds must be at least 2 and rising, not {tuple(thresholds)}")


def _reminder(tool: str, count: int) -> JsonObject:
    text = (
        f"The tool {tool} has now been called {count} times in a row with the same arguments. "
        "Repeating it again is unlikely to help: use what it returned, change the arguments, or try another way."
    )
    return plugin_message(PLUGIN, text, form="notice", summary=f"{tool} repeated {count} times"[:120])
