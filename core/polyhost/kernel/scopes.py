"""Owners and scopes: who is responsible for what was registered, and who sees it.

An :class:`Owner` is an exit stack that also owns mounts: closing it makes its mounts invisible at once, removes them,
then runs its cleanups strictly in reverse, every one of them, one at a time. Each activation of a fiber has one, and
each :class:`Scope` is one inside it. :class:`ScopeTree` holds the links between scope tags, which decide what a scoped
lookup or event reaches. Scopes route trusted code; they are not a security boundary.

Not here: when a fiber starts and stops (``fibers``), what a mount is (``mounts``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from polyhost.kernel.drain import Cleanup, run_cleanup
from polyhost.kernel.errors import InactiveContextError, ScopeLinkError
from polyhost.kernel.events import TASK_CRASHED
from polyhost.kernel.signals import AbortController, AbortSignal
from polyhost.kernel.tokens import TASK, MountState, MountToken

if TYPE_CHECKING:
    from polyhost.kernel.context import Context, Kernel
    from polyhost.kernel.fibers import Fiber


class ScopeLink:
    """The right to move one scope under another parent; given once, to whoever bound it first."""

    __slots__ = ("_tag", "_tree")

    def __init__(self, tree: ScopeTree, tag: object) -> None:
        self._tree = tree
        self._tag = tag

    def relink(self, parent: object) -> None:
        """Make ``parent`` the parent from now on. Raises :class:`ScopeLinkError` for a cycle."""
        self._tree._set(self._tag, parent)


class ScopeTree:
    """Parent links between scope tags, which are objects compared by identity; ``version`` grows with each change."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}
        self.version = 0

    def bind(self, tag: object, parent: object) -> ScopeLink:
        """Put ``tag`` under ``parent``, once. Raises :class:`ScopeLinkError` for a second parent or a cycle."""
        if tag in self._parents:
            raise ScopeLinkError(f"scope {tag!r} is already bound to a parent; only its first link can move it")
        self._set(tag, parent)
        return ScopeLink(self, tag)

    def chain(self, tag: object | None) -> tuple[object, ...]:
        """The tag and its ancestors, nearest first; empty for None."""
        found: list[object] = []
        while tag is not None:
            found.append(tag)
            tag = self._parents.get(tag)
        return tuple(found)

    def release(self, tag: object) -> None:
        """Forget the link of a tag that is gone."""
        if self._parents.pop(tag, None) is not None:
            self.version += 1

    def _set(self, tag: object, parent: object) -> None:
        if tag in self.chain(parent):
            raise ScopeLinkError(f"scope {tag!r} cannot be under {parent!r}: it would form a cycle")
        self._parents[tag] = parent
        self.version += 1


class _Step(NamedTuple):
    label: str
    cleanup: Cleanup
    bounded: bool


class OwnerInfo(NamedTuple):
    """What an owner holds, for listings: mounts as ``(id, kind, key, state)``, cleanups in order, nested owners."""

    name: str
    mounts: list[tuple[str, str, object, MountState]]
    cleanups: list[str]
    children: list[OwnerInfo]


class Owner:
    """Owns mounts, cleanups and nested scopes, for one fiber activation or one scope.

    :ivar tokens: the live mounts, in order.
    :ivar pending: mounts that wait for the start of the fiber to succeed; None once it has.
    """

    def __init__(self, kernel: Kernel, fiber: Fiber, name: str, outer: Owner | None = None) -> None:
        self.kernel = kernel
        self.fiber = fiber
        self.name = name
        self.outer = outer
        self.tokens: dict[MountToken[Any], None] = {}
        self.pending: list[MountToken[Any]] | None = None
        self.error: BaseException | None = None
        self.sealed = False
        self.closed = False
        self._stopping = AbortController()
        self._steps: dict[object, _Step] = {}
        self._scopes: dict[Scope, None] = {}

    @property
    def logger(self) -> logging.Logger:
        return self.fiber.logger

    @property
    def stopping(self) -> AbortSignal:
        """Aborted when the owner begins to close."""
        return self._stopping.signal

    def check_open(self) -> None:
        """Raise :class:`InactiveContextError` when this owner, or one around it in its fiber, is closing or closed."""
        owner: Owner | None = self
        while owner is not None:
            if owner.sealed:
                raise InactiveContextError(
                    f"cannot mount, listen, spawn or install on the inactive context of {self.name!r}: it is unloading"
                    " or disposed; register while it runs, and let its cleanups only undo"
                )
            owner = owner.outer

    # -- what it owns

    def commit(self, tokens: list[MountToken[Any]]) -> None:
        """Make reserved mounts visible now, or with the fiber when it is still starting."""
        base = self
        while base.outer is not None:
            base = base.outer
        if base.pending is not None:
            base.pending.extend(tokens)
        else:
            self.kernel.mounts.commit(tokens)

    def commit_pending(self) -> None:
        """Make everything visible that was mounted during start-up. Raises what an installer raises."""
        tokens, self.pending = self.pending or [], None
        self.kernel.mounts.commit(tokens)

    def push(self, label: str, cleanup: Cleanup, *, bounded: bool = True) -> object:
        """Add a cleanup and return its handle for :meth:`forget`."""
        handle = object()
        self._steps[handle] = _Step(label, cleanup, bounded)
        return handle

    def forget(self, handle: object) -> None:
        """Drop a cleanup that is no longer needed."""
        self._steps.pop(handle, None)

    def task_ended(self, token: MountToken[Any], task: asyncio.Task[Any]) -> None:
        """A background task of this owner is over. A crash is this owner's failure."""
        error = None if task.cancelled() else task.exception()
        if error is not None and token.state in (MountState.MOUNTING, MountState.ACTIVE):
            token.error = error
            self.logger.error("background task %s of %s crashed", token.key, self.name, exc_info=error)
            self.kernel.events.emit(TASK_CRASHED, token, error)
            self.crashed(error)
        token.withdraw("the task has ended")

    def crashed(self, error: BaseException) -> None:
        """One of this owner's background tasks raised."""
        self.fiber.crashed(error)

    def info(self) -> OwnerInfo:
        """A snapshot for listings."""
        mounts = [(token.id, token.kind.name, token.key, token.state) for token in self.tokens]
        return OwnerInfo(
            self.name, mounts, [step.label for step in self._steps.values()], [s.info() for s in self._scopes]
        )

    # -- closing

    def stop(self, cause: object) -> None:
        """Abort ``stopping``."""
        self._stopping.abort(cause)

    def seal(self, cause: object) -> None:
        """Refuse new registrations, here and in the scopes inside, and abort ``stopping``."""
        for owner in list(self._walk()):
            owner.sealed = True
            owner.stop(cause)

    def begin_close(self, cause: object) -> None:
        """Seal this owner and its scopes and make all their mounts invisible, in one synchronous step."""
        owners = list(self._walk())
        for owner in owners:
            owner.sealed = True
        self.kernel.mounts.begin_withdrawal([token for owner in owners for token in reversed(owner.tokens)], str(cause))
        self.seal(cause)

    async def finish_close(self) -> list[BaseException]:
        """Remove the mounts, then run the cleanups in reverse; returns their failures, already logged as one."""
        tokens = list(self.tokens)
        await self.kernel.mounts.finish_withdrawal(tokens)
        errors: list[BaseException] = []
        while self._steps:
            _, step = self._steps.popitem()
            error = await run_cleanup(
                step.cleanup, step.label, limits=self.kernel.limits, logger=self.logger, bounded=step.bounded
            )
            if error is not None:
                errors.append(error)
        self.closed = True
        if errors:
            group = BaseExceptionGroup(f"{len(errors)} cleanup(s) of {self.name} failed", errors)
            self.logger.error("%s", group.message, exc_info=group)
        return errors + [t.error for t in tokens if t.error and t.kind is not TASK and t.state is MountState.WITHDRAWN]

    def _walk(self) -> Iterator[Owner]:
        for scope in reversed(self._scopes):
            yield from scope._walk()
        yield self


class Scope(Owner):
    """A tagged owner: what is mounted through ``scope.context`` is seen in this scope only and dies with it.

    Made by :meth:`Context.scope` and usable at once. It closes with the owner that it was made in, at its place in the
    reverse order, or earlier by :meth:`dispose`. A crashed background task disposes it and stays in ``error``.

    :ivar link: the right to move the scope under another parent; None when it was made without one.
    """

    context: Context

    def __init__(self, outer: Owner, tag: object, link: ScopeLink | None) -> None:
        super().__init__(outer.kernel, outer.fiber, f"{outer.name}/{tag!s}", outer)
        self.tag = tag
        self.link = link
        self._disposal: asyncio.Task[None] | None = None
        outer._scopes[self] = None
        self._handle = outer.push(f"scope {tag!s}", self.dispose, bounded=False)

    def dispose(self, cause: object = "disposed") -> Awaitable[None]:
        """Close the scope: its mounts go at once, the rest in order. All callers join one teardown."""
        if self._disposal is None:
            self.begin_close(cause)
            self._disposal = asyncio.get_running_loop().create_task(self._dispose(), name=f"disposing {self.name}")
        return asyncio.shield(self._disposal)

    def crashed(self, error: BaseException) -> None:
        self.error = error
        self.dispose(error)

    async def _dispose(self) -> None:
        assert self.outer is not None
        await self.finish_close()
        self.kernel.scopes.release(self.tag)
        self.outer._scopes.pop(self, None)
        self.outer.forget(self._handle)
