"""Which tools an agent has: the mounts that its scope sees, minus what restrictions mask.

Tools are mounts of kind ``TOOL``. A tool mounted in an agent's scope shadows an inherited one of the same name; a
restriction masks what its scope inherits and spares what is mounted in the scope itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple
from weakref import WeakSet

from polyhost.interfaces.agents import Agent
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.tools import TOOL, TOOLS_CHANGED, Tool, ToolError
from polyhost.kernel.context import Kernel
from polyhost.kernel.events import EventBus
from polyhost.kernel.keys import MountKind
from polyhost.kernel.mounts import KindHandler, MountTable, MountToken
from polyhost.kernel.scopes import ScopeTree
from polyhost.runtime.tools.schema import require_parameters, require_schema
from polyhost.wire.json import loads, snapshot

_log = logging.getLogger(__name__)

RESERVED_NAMES = frozenset({"run_code"})


class InvalidToolError(ToolError):
    """A tool cannot be registered as it is; the message says what is wrong with it."""

    default_code = "INVALID_TOOL"


class RestrictionError(ToolError):
    """A restriction names nothing, or tools that its agent does not inherit."""

    default_code = "INVALID_TOOL_RESTRICTION"


class Restriction(NamedTuple):
    """Only ``allow`` (when given) without ``deny`` passes."""

    allow: frozenset[str] | None
    deny: frozenset[str]

    def passes(self, name: str) -> bool:
        return name not in self.deny and (self.allow is None or name in self.allow)


TOOL_RESTRICTION = MountKind[Restriction]("tool-restriction", unique=False)


class ToolKind(KindHandler[Tool]):
    """Refuses malformed tools, and tells when the set of tools changes; a listener may veto what appears."""

    def __init__(self, events: EventBus) -> None:
        self._events = events

    def validate(self, key: Hashable, value: Tool) -> None:
        check_tool(key, value)

    def announce(self, token: MountToken[Tool]) -> None:
        try:
            self._events.emit(TOOLS_CHANGED)
        except Exception:
            if token.active:
                raise
            _log.exception("a tools/change listener failed while tool %s went away", token.key)


_prepared: WeakSet[Kernel] = WeakSet()


def prepare_tool_kinds(kernel: Kernel) -> None:
    """Give tool mounts their meaning, once for each kernel.

    :raises MountConflictError: somebody mounted a tool before the tool runtime was there, instead of requiring it.
    """
    if kernel not in _prepared:
        kernel.mounts.handle(TOOL, ToolKind(kernel.events))
        _prepared.add(kernel)


def check_tool(key: object, tool: object) -> None:
    """Refuse a tool that the pipeline could not run.

    :raises InvalidToolError: bad name, output declaration, time budget or callbacks.
    :raises UnsupportedSchemaError: a schema outside the subset.
    """
    if not isinstance(tool, Tool):
        raise InvalidToolError(f"tool {key!r} must be a Tool, not {type(tool).__name__}")
    if not isinstance(tool.name, str) or not tool.name or tool.name != key:
        raise InvalidToolError(f"a tool must be mounted under its own name: {tool.name!r} was mounted as {key!r}")
    if tool.name in RESERVED_NAMES:
        raise InvalidToolError(f'tool name "{tool.name}" is reserved')
    output = tool.output
    if not callable(getattr(output, "render", None)) or not isinstance(getattr(output, "schema", None), dict):
        raise InvalidToolError(f'tool "{tool.name}" needs an output declaration with a schema and a renderer')
    if not callable(tool.execute):
        raise InvalidToolError(f'tool "{tool.name}" needs a callable body')
    if tool.preview is not None and not callable(tool.preview):
        raise InvalidToolError(f'the preview of tool "{tool.name}" must be callable')
    budget = tool.timeout_ms
    if budget is not None and not (_is_number(budget) and math.isfinite(budget) and budget > 0):
        raise InvalidToolError(f'timeout_ms of tool "{tool.name}" must be a positive finite number, not {budget!r}')
    require_parameters(tool.parameters, f'parameters of tool "{tool.name}"')
    require_schema(output.schema, f'output of tool "{tool.name}"')


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ToolRegistry:
    """Lookups over the mount table. Holds no state of its own."""

    def __init__(self, mounts: MountTable, scopes: ScopeTree) -> None:
        self._mounts = mounts
        self._scopes = scopes

    def tokens(self, agent: Agent | None) -> list[MountToken[Tool]]:
        """What ``agent`` may call, sorted by name."""
        scope = scope_of(agent)
        found = [token for token in self._mounts.tokens(TOOL, scope=scope) if self._passes(token, scope)]
        return sorted(found, key=lambda token: token.value.name)

    def token(self, name: str, agent: Agent | None) -> MountToken[Tool] | None:
        scope = scope_of(agent)
        token = self._mounts.token(TOOL, name, scope=scope)
        return token if token is not None and self._passes(token, scope) else None

    def schemas(self, agent: Agent | None) -> list[JsonObject]:
        """``[{name, description, parameters}]``, detached from the registry."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": loads(snapshot(tool.parameters))}
            for tool in (token.value for token in self.tokens(agent))
        ]

    def restrict(self, agent: Agent, allow: Sequence[str] | None, deny: Sequence[str] | None) -> Callable[[], None]:
        if not allow and not deny:
            raise RestrictionError("a tool restriction must name at least one tool to allow or to deny")
        scope = scope_of(agent)
        inherited = {token.value.name for token in self._mounts.tokens(TOOL, scope=scope) if token.scope != scope}
        unknown = sorted({*(allow or ()), *(deny or ())} - inherited)
        if unknown:
            known = ", ".join(sorted(inherited)) or "none"
            raise RestrictionError(f"unknown tools in a restriction: {', '.join(unknown)} (inherited: {known})")
        restriction = Restriction(None if allow is None else frozenset(allow), frozenset(deny or ()))
        token = agent.context.mount(TOOL_RESTRICTION, None, restriction)

        def undo() -> None:
            token.withdraw("restriction lifted")

        return undo

    def _passes(self, token: MountToken[Tool], scope: object | None) -> bool:
        restrictions = self._mounts.tokens(TOOL_RESTRICTION, scope=scope)
        if not restrictions:
            return True
        chain = [
            *self._scopes.chain(scope),
            None,
        ]  # nearest first; a restriction masks only what comes from farther out
        distance = chain.index(token.scope)
        return all(
            restriction.value.passes(token.value.name)
            for restriction in restrictions
            if chain.index(restriction.scope) < distance
        )


def scope_of(agent: Agent | None) -> object | None:
    """The scope whose registrations count for ``agent``; None sees only global ones."""
    return None if agent is None else agent.context.scope_tag
