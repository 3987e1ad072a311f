"""Whether a tool call runs, asks or is refused: explicit rules, then the session's mode (design: permissions).

A listener of ``tools/pre-execute``. It judges by what a tool declares (``access``, ``writes``) and is a policy for
honest tools, not a confinement: nothing here stops a program that runs. What a mode is and where it is logged stands in
``modes``; who answers what is asked, in ``broker``.
"""

from __future__ import annotations

import asyncio
import os.path
from collections.abc import Awaitable, Callable, Sequence
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.interaction import PermissionMode
from polyhost.interfaces.tools import Allow, Ask, Decision, Deny, Tool, ToolCall


class Rule(NamedTuple):
    """An explicit rule: what happens to calls of tools whose name matches a pattern, whatever the mode."""

    tool: str
    decision: Literal["allow", "ask", "deny"]


class Permissions:
    """The policy.

    :param find: the tool that a call is for, or None.
    :param mode: an agent's permission mode; of None, that of calls without an agent.
    :param trusts_shell: whether an agent's owner lets it run programs in ``workspace`` mode.
    :param rules: the first that matches decides.
    """

    def __init__(
        self,
        find: Callable[[ToolCall], Tool | None],
        *,
        mode: Callable[[Agent | None], PermissionMode],
        trusts_shell: Callable[[Agent | None], bool],
        rules: Sequence[Rule] = (),
    ) -> None:
        self._find = find
        self._mode = mode
        self._trusts_shell = trusts_shell
        self._rules = tuple(rules)

    async def __call__(self, call: ToolCall, next: Callable[[], Awaitable[Decision]]) -> Decision:
        """The stricter of this policy's decision and that of the listeners inside it."""
        mine = await self.decide(call)
        if isinstance(mine, Deny):
            return mine
        inner = await next()
        return mine if isinstance(inner, Allow) else inner

    async def decide(self, call: ToolCall) -> Decision:
        tool = self._find(call)
        if tool is None:
            return Allow()  # there is nothing to run; the pipeline says so
        for rule in self._rules:
            if fnmatchcase(tool.name, rule.tool):
                return _by_rule(rule, tool, self._mode(call.agent))
        if tool.access in ("none", "read"):
            return Allow()
        mode = self._mode(call.agent)
        if mode == "full":
            return Allow()
        if mode == "read-only":
            return Deny(f'tool "{tool.name}" is not allowed in read-only mode: it may change something')
        if mode == "ask":
            return Ask()
        if tool.access == "write":
            return await _by_place(tool, call)
        if self._trusts_shell(call.agent):
            return Allow()
        return Ask("runs outside any confinement")


def _by_rule(rule: Rule, tool: Tool, mode: PermissionMode) -> Decision:
    if rule.decision == "ask" and mode == "full":
        return Deny(
            f'a rule for "{rule.tool}" asks before "{tool.name}" runs, but in mode full nobody is asked; '
            "choose another mode, or change the rule"
        )
    if rule.decision == "deny":
        return Deny(f'tool "{tool.name}" is denied by a rule for "{rule.tool}"')
    return Allow() if rule.decision == "allow" else Ask(f'a rule for "{rule.tool}" asks for approval')


async def _by_place(tool: Tool, call: ToolCall) -> Decision:
    """Free inside the workspace; what cannot be placed is treated as outside."""
    if call.cwd is None or tool.writes is None:
        return Ask("it is not known what it writes")
    try:
        paths = list(tool.writes(call.arguments))
        outside = await asyncio.to_thread(_outside, paths, call.cwd)
    except Exception:  # bad arguments, which the pipeline reports before it asks, or a foreign function's failure
        return Ask("it is not known what it writes")
    return Ask(f"writes outside the workspace: {', '.join(outside)}") if outside else Allow()


def _outside(paths: Sequence[str], workspace: str) -> list[str]:
    """Where those of ``paths`` really lie that are not in the workspace, links and ``..`` resolved."""
    root = os.path.realpath(workspace)
    places = [os.path.realpath(os.path.join(root, path)) for path in paths]
    return [place for place in places if os.path.commonpath([root, place]) != root]
