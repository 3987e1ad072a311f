"""The table of mounts: the one way in which anything becomes visible in the host, and in which it goes again.

:class:`MountTable` makes the transitions of all tokens (``tokens``) and answers lookups from the visible ones; a
:class:`MountSet` commits several tokens in one step or none. What a kind of mount means is said by its
:class:`KindHandler`.

Not here: who owns tokens and in which order owners are torn down (``scopes``), services and listeners, which are
kinds like any other (``services``, ``events``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from polyhost.kernel.containment import confined
from polyhost.kernel.drain import Limits, run_cleanup, wind_down
from polyhost.kernel.errors import MountConflictError
from polyhost.kernel.keys import MountKind
from polyhost.kernel.tokens import TASK, Joined, MountState, MountToken, inside_runs

if TYPE_CHECKING:
    from polyhost.kernel.scopes import Owner, ScopeTree

__all__ = ["TASK", "KindHandler", "MountInfo", "MountSet", "MountState", "MountTable", "MountToken"]

V = TypeVar("V")


class MountInfo(NamedTuple):
    """One live token, for listings."""

    id: str
    kind: str
    key: Hashable
    owner: str
    scope: object | None
    state: MountState


class KindHandler(Generic[V]):
    """What a kind's owner does when values of that kind come and go. Every method does nothing unless overridden."""

    def validate(self, key: Hashable, value: V) -> None:
        """Raise to refuse a value, before its key is reserved."""

    def conflict(self, key: Hashable, holder: MountToken[V], owner: Owner) -> Exception:
        """The error for a key that ``holder`` has and ``owner`` wants."""
        return MountConflictError(
            f"{holder.kind} {key!r} of {owner.name!r} is already mounted by {holder.owner.name!r} ({holder.state});"
            " choose another name or disable one of the two"
        )

    def install(self, token: MountToken[V]) -> None:
        """Prepare a token that is about to become visible. Raising fails the token and rolls its set back."""

    def flip(self, token: MountToken[V]) -> None:
        """The token just became visible or invisible, its set not yet: touch own tables only."""

    def announce(self, token: MountToken[V]) -> None:
        """The token's whole set became visible or invisible."""

    async def drain(self, token: MountToken[V]) -> None:
        """Wait for users of an invisible token to leave it, before its calls are aborted."""

    def uninstall(self, token: MountToken[V]) -> Awaitable[None] | None:
        """Undo :meth:`install`, after the token's calls have ended."""
        return None


Merged = tuple[tuple[MountToken[Any], ...], tuple[tuple[Any, Any], ...]]
"""What a scope sees of a kind: the tokens, and their keys and values."""


class Kind:
    """What the table knows of one kind: its handler, who holds which key, what is visible in which scope."""

    __slots__ = ("cache", "cached_at", "handler", "layers", "plain", "reserved", "version")

    def __init__(self) -> None:
        self.handler: KindHandler[Any] = KindHandler()
        self.plain = True  # nothing to wait for when a token of this kind goes
        self.reserved: dict[tuple[object | None, Hashable], MountToken[Any]] = {}
        self.layers: dict[object | None, dict[Hashable, MountToken[Any]]] = {}
        self.version = 0
        self.cache: dict[object | None, Merged] = {}
        self.cached_at = (0, 0)

    def flip(self, token: MountToken[Any]) -> None:
        index: Hashable = token.key if token.kind.unique else token
        if token.state is MountState.ACTIVE:
            self.layers.setdefault(token.scope, {})[index] = token
        else:
            layer = self.layers[token.scope]
            del layer[index]
            if not layer:
                del self.layers[token.scope]
        self.version += 1
        self.handler.flip(token)


class MountTable:
    """All tokens of one host, by kind, key and scope.

    Scoped lookups see the global layer, then the scope's farthest ancestor, and so on to the scope itself; the nearest
    wins a key. Only active tokens are ever found. Results are immutable snapshots, cached until something changes.
    """

    def __init__(self, scopes: ScopeTree, limits: Limits) -> None:
        self.limits = limits
        self.on_changed: Callable[[MountToken[Any], MountState, MountState], object] = lambda token, old, new: None
        self._scopes = scopes
        self._kinds: dict[MountKind[Any], Kind] = {}
        self._live: dict[MountToken[Any], None] = {}
        self._serial = 0
        self._withdrawals: set[asyncio.Task[None]] = set()

    # -- lookups

    def get(self, kind: MountKind[V], key: Hashable, *, scope: object | None = None) -> V | None:
        """The value under ``key`` that ``scope`` sees, or None. For unique kinds."""
        token = self.token(kind, key, scope=scope)
        return None if token is None else token.value

    def token(self, kind: MountKind[V], key: Hashable, *, scope: object | None = None) -> MountToken[V] | None:
        """Like :meth:`get`, but the token: carriers run calls through :meth:`MountToken.call`."""
        layers = self._kind(kind).layers
        for tag in (*self._scopes.chain(scope), None):
            layer = layers.get(tag)
            if layer is not None and (token := layer.get(key)) is not None:
                return token
        return None

    def holder(self, kind: MountKind[V], key: Hashable, *, scope: object | None = None) -> MountToken[V] | None:
        """Who has the key in exactly this scope, in whatever state; for the kind's owner, not for lookups."""
        return self._kind(kind).reserved.get((scope, key))

    def items(self, kind: MountKind[V], *, scope: object | None = None) -> Sequence[tuple[Any, V]]:
        """``(key, value)`` of everything that ``scope`` sees, in the order in which the keys became visible."""
        return self._merged(kind, scope)[1]

    def tokens(self, kind: MountKind[V], *, scope: object | None = None) -> Sequence[MountToken[V]]:
        """Like :meth:`items`, but the tokens."""
        return self._merged(kind, scope)[0]

    def version(self, kind: MountKind[Any]) -> int:
        """A number that grows whenever a token of this kind becomes visible or invisible, in any scope."""
        return self._kind(kind).version

    def snapshot(self) -> list[MountInfo]:
        """Every live token, whatever its state, in the order of mounting."""
        return [
            MountInfo(token.id, token.kind.name, token.key, token.owner.name, token.scope, token.state)
            for token in self._live
        ]

    # -- changes

    def handle(self, kind: MountKind[V], handler: KindHandler[V]) -> None:
        """Say what mounts of ``kind`` mean. Once per kind, before the first mount of it."""
        entry = self._kind(kind)
        if type(entry.handler) is not KindHandler or entry.reserved or entry.layers:
            raise MountConflictError(f"mount kind {kind} is already in use; its handler must be set first, and once")
        entry.handler = handler
        entry.plain = type(handler).drain is KindHandler.drain and type(handler).uninstall is KindHandler.uninstall

    def reserve(
        self, kind: MountKind[V], key: Hashable, value: V, *, owner: Owner, scope: object | None
    ) -> MountToken[V]:
        """Take ``key`` for ``owner``, invisibly. Raises what the handler refuses, or its conflict error."""
        entry = self._kind(kind)
        entry.handler.validate(key, value)
        scope = scope if kind.scoped else None
        if kind.unique and (holder := entry.reserved.get((scope, key))) is not None:
            raise entry.handler.conflict(key, holder, owner)
        self._serial += 1
        token = MountToken(self, entry, kind, key, value, owner, scope, self._serial)
        if kind.unique:
            entry.reserved[(scope, key)] = token
        self._live[token] = None
        owner.tokens[token] = None
        return token

    def commit(self, tokens: Iterable[MountToken[Any]]) -> None:
        """Install all tokens that are still mounting, then make them visible in one synchronous step.

        When an installation raises, its token is ``failed``, nothing became visible, and the error propagates: the
        caller withdraws the set.
        """
        ready = [token for token in tokens if token.state is MountState.MOUNTING]
        for token in ready:
            try:
                with confined:
                    token.entry.handler.install(token)
            except BaseException as error:
                token.error = error
                self._move(token, MountState.FAILED)
                raise
            token.installed = True
        ready = [token for token in ready if token.state is MountState.MOUNTING]
        for token in ready:
            token.state = MountState.ACTIVE
            token.entry.flip(token)
        for token in ready:
            token.entry.handler.announce(token)
        for token in ready:
            self.on_changed(token, MountState.MOUNTING, MountState.ACTIVE)

    def begin_withdrawal(self, tokens: Iterable[MountToken[Any]], reason: str = "") -> list[MountToken[Any]]:
        """Make tokens invisible in one synchronous step; returns those that were not being withdrawn yet."""
        begun = [token for token in tokens if not token.begun]
        moved = [(token, token.state) for token in begun if token.state is not MountState.FAILED]
        for token in begun:
            token.begun = True
            token.reason = reason
        for token, old in moved:
            token.state = MountState.WITHDRAWING
            if old is MountState.ACTIVE:
                token.entry.flip(token)
        for token, old in moved:
            if old is MountState.ACTIVE:
                token.entry.handler.announce(token)
        for token, old in moved:
            self.on_changed(token, old, MountState.WITHDRAWING)
        return begun

    async def finish_withdrawal(self, tokens: Sequence[MountToken[Any]]) -> None:
        """Drain, abort and remove tokens whose withdrawal has begun, in reverse; join what others are removing."""
        mine = [token for token in reversed(tokens) if not token.claimed]
        for token in mine:
            token.claimed = True
        for token in mine:
            if not token.entry.plain:
                await self._drain(token)
        await self._end_runs(mine)
        for token in mine:
            await self._remove(token)
        await Joined(tokens)

    def withdraw(self, tokens: Sequence[MountToken[Any]], reason: str = "") -> Awaitable[None]:
        """Withdraw a set: all invisible in one synchronous step, then drained and removed in reverse order."""
        begun = self.begin_withdrawal(tokens, reason)
        if all(token.entry.plain and not token.runs and not token.undo for token in begun):
            for token in reversed(begun):
                token.claimed = True
                token.abort()
                self._forget(token, [])
        elif begun:
            task = asyncio.get_running_loop().create_task(self.finish_withdrawal(begun), name="mount withdrawal")
            self._withdrawals.add(task)
            task.add_done_callback(self._withdrawals.discard)
        return Joined(tuple(tokens))

    # -- internals

    def _merged(self, kind: MountKind[Any], scope: object | None) -> Merged:
        entry = self._kind(kind)
        now = (entry.version, self._scopes.version)
        if entry.cached_at != now:
            entry.cache.clear()
            entry.cached_at = now
        found = entry.cache.get(scope)
        if found is None:
            merged: dict[Hashable, MountToken[Any]] = {}
            for tag in (None, *reversed(self._scopes.chain(scope))):
                merged.update(entry.layers.get(tag, {}))
            tokens = tuple(merged.values())
            found = entry.cache[scope] = (tokens, tuple((token.key, token.value) for token in tokens))
        return found

    def _kind(self, kind: MountKind[Any]) -> Kind:
        entry = self._kinds.get(kind)
        if entry is None:
            entry = self._kinds[kind] = Kind()
        return entry

    def _move(self, token: MountToken[Any], state: MountState) -> None:
        old, token.state = token.state, state
        self.on_changed(token, old, state)

    async def _drain(self, token: MountToken[Any]) -> None:
        try:
            with confined:
                await token.entry.handler.drain(token)
        except Exception:
            token.owner.logger.exception("%r: waiting for its users failed", token)

    async def _end_runs(self, tokens: Sequence[MountToken[Any]]) -> None:
        inside = {run for cell in inside_runs.get() for run in cell}
        polite: dict[asyncio.Task[Any], MountToken[Any]] = {}
        abrupt: dict[asyncio.Task[Any], MountToken[Any]] = {}
        for token in tokens:
            token.abort()
            group = abrupt if token.kind is TASK else polite
            group.update((run.task, token) for run in token.runs if run not in inside)
        if polite or abrupt:
            await wind_down(
                polite, abrupt, grace=self.limits.abort_grace, limits=self.limits, logger=tokens[0].owner.logger
            )
        for token in tokens:
            for run in list(token.runs):
                if run not in inside:
                    run.release()  # its caller does not wait for a task that ignores cancellation

    async def _remove(self, token: MountToken[Any]) -> None:
        steps = list(token.undo)
        if token.installed:
            steps.insert(0, (f"removing {token.kind} {token.key!s}", lambda: token.entry.handler.uninstall(token)))
        errors: list[BaseException] = []
        for label, step in reversed(steps):
            error = await run_cleanup(step, label, limits=self.limits, logger=token.owner.logger)
            if error is not None:
                errors.append(error)
        self._forget(token, errors)

    def _forget(self, token: MountToken[Any], errors: list[BaseException]) -> None:
        if errors:
            group = BaseExceptionGroup(f"removing {token.kind} {token.key!s} of {token.owner.name} failed", errors)
            token.owner.logger.error("%s", group.message, exc_info=group)
            if token.error is None:
                token.error = group
        if token.kind.unique:
            del token.entry.reserved[(token.scope, token.key)]
        del self._live[token]
        token.owner.tokens.pop(token, None)
        token.mark_removed()
        if token.state is MountState.WITHDRAWING:
            self._move(token, MountState.WITHDRAWN)


class MountSet:
    """Several mounts that appear together or not at all; see :meth:`Context.mount_set`.

    Inside the block every token is reserved and invisible. Leaving it normally commits all in one step; any error or
    cancellation withdraws all in reverse and propagates, with rollback failures in an exception group beside it.
    Inside a fiber's start, the commit is that of the start.
    """

    def __init__(self, owner: Owner, scope: object | None, table: MountTable) -> None:
        self.tokens: list[MountToken[Any]] = []
        self._owner = owner
        self._scope = scope
        self._table = table

    def add(self, kind: MountKind[V], key: Hashable, value: V) -> MountToken[V]:
        """Reserve one more mount. Raises like :meth:`Context.mount`; a refused one leaves nothing behind."""
        self._owner.check_open()
        token = self._table.reserve(kind, key, value, owner=self._owner, scope=self._scope)
        self.tokens.append(token)
        return token

    def withdraw(self, reason: str = "") -> Awaitable[None]:
        """Withdraw the whole set: all invisible at once, then removed in reverse order."""
        return self._table.withdraw(self.tokens, reason)

    async def __aenter__(self) -> MountSet:
        self._owner.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = error if error is not None else self._commit()
        if failure is None:
            return
        known = {id(token.error) for token in self.tokens}
        await self.withdraw("rolled back")
        undone = [token.error for token in self.tokens if token.error is not None and id(token.error) not in known]
        if undone and isinstance(failure, Exception):
            raise BaseExceptionGroup("mount failed", [failure, *undone]) from failure
        if error is None:
            raise failure

    def _commit(self) -> BaseException | None:
        try:
            self._owner.check_open()
            self._owner.commit(self.tokens)
        except Exception as failure:
            return failure
        return None
