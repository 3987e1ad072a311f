"""Titles of sessions: the first words of the first prompt, what the provider proposes, or what a person chose.

Titles are folded from the log by the projection ``title``; how one may look is in ``title_text``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any
from weakref import WeakSet

from polyhost.interfaces.agents import Agent, AgentStatus, RequestBuild
from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.sessions import Session, SessionEvent
from polyhost.interfaces.titles import TITLE_PROVIDER, ProposedTitle, TitleError, TitleProvider, TitleRequest
from polyhost.kernel.mounts import KindHandler, MountTable, MountToken
from polyhost.kernel.signals import AbortController, AbortedError, AbortSignal, any_signal
from polyhost.runtime.sessions.folds import TITLE_KEY, human_text
from polyhost.runtime.sessions.projections import ProjectionRegistry
from polyhost.runtime.sessions.title_text import fallback, title_of

TITLE = "session/title"
PROVIDER_TIMEOUT = 60.0

_SUPERSEDED = "another title was set, or is being made"
_MESSAGE_CHARS = 4000  # of one message, for the provider

_logger = logging.getLogger(__name__)


class TitleProviderKind(KindHandler[TitleProvider]):
    """One provider at a time: all are mounted under the same key."""

    def validate(self, key: Hashable, value: TitleProvider) -> None:
        if key is not None:
            raise TitleError(f"a title provider is mounted under the key None, not {key!r}", code="TITLE_INVALID")
        if not isinstance(getattr(value, "name", None), str) or not callable(getattr(value, "propose", None)):
            raise TitleError(f"a title provider has a name and propose(), unlike {value!r:.80}", code="TITLE_INVALID")


class TitleService:
    """See :class:`polyhost.interfaces.titles.Titles`.

    :param timeout: seconds that the provider has for one title.
    """

    def __init__(
        self, mounts: MountTable, projections: ProjectionRegistry, *, timeout: float = PROVIDER_TIMEOUT
    ) -> None:
        self._mounts = mounts
        self._projections = projections
        self._timeout = timeout
        self._settled: WeakSet[Session] = WeakSet()  # sessions that have a title
        self._making: dict[Session, AbortController] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def title(self, session: Session) -> str | None:
        title: str | None = self._state(session)["title"]
        return title

    def rename(self, session: Session, title: str) -> SessionEvent:
        chosen = title_of(title)
        if not chosen:
            raise TitleError("session title must contain visible characters", code="TITLE_INVALID")
        self._give_up(session, _SUPERSEDED)
        return session.append(TITLE, {"title": chosen, "messageSeqs": [], "source": {"kind": "user"}})

    async def refresh(self, session: Session, signal: AbortSignal | None = None) -> str:
        messages = self._state(session)["messages"]
        if not messages:
            raise TitleError("the session has no text to make a title of", code="TITLE_NO_TEXT")
        provider = self._provider()
        if provider is None:
            self._append_fallback(session, messages[0])
        else:
            try:
                await self._make(session, provider, messages, signal)
            except AbortedError as error:
                if signal is not None and signal.aborted:
                    raise
                if error.cause != _SUPERSEDED:
                    raise TitleError(f"{provider.value.name} made no title: {error.cause}") from error
            except Exception as error:
                raise TitleError(f"{provider.value.name} failed to make a title: {error}") from error
        title: str = self._state(session)["title"]
        return title

    # What happens by itself

    async def before_request(self, build: RequestBuild, next: Callable[[], Awaitable[Any]]) -> Any:
        """Between the admitted messages and the request: the place of the fallback in the log."""
        self._settle(build.agent.session)
        return await next()

    def on_status(self, agent: Agent, status: AgentStatus) -> None:
        """A turn that ended before its first request has left a prompt, too."""
        if status == "idle":
            self._settle(agent.session)

    def disposed(self, session: Session) -> None:
        self._give_up(session, "the session was closed")

    async def close(self) -> None:
        """Give up every title that is being made, and wait until the providers have ended."""
        for controller in list(self._making.values()):
            controller.abort("the host is stopping")
        if self._tasks:
            await asyncio.wait(self._tasks)

    # Parts

    def _settle(self, session: Session) -> None:
        """Give a session its first title, once there is something to make it of. Never raises."""
        if session in self._settled:
            return
        try:
            state = self._state(session)
            if state["title"] is None:
                if not state["messages"]:
                    return
                self._append_fallback(session, state["messages"][0])
                self._start_making(session, state["messages"][:1])
            self._settled.add(session)
        except Exception:
            _logger.exception("session %s got no title", session.id)

    def _append_fallback(self, session: Session, seq: int) -> None:
        title = fallback(_text_at(session, seq))
        session.append(TITLE, {"title": title, "messageSeqs": [seq], "source": {"kind": "fallback"}})

    def _start_making(self, session: Session, seqs: list[int]) -> None:
        """Ask the provider in the background. Work delegated by a model is not worth another request."""
        provider = self._provider()
        if provider is None or session.header.origin is not None:
            return

        async def make() -> None:
            try:
                await self._make(session, provider, seqs, None)
            except AbortedError as error:
                _logger.debug("no title was made for session %s: %s", session.id, error.cause)
            except Exception as error:
                _logger.warning("%s made no title for session %s: %s", provider.value.name, session.id, error)

        task = asyncio.get_running_loop().create_task(make(), name=f"title of session {session.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(
        self, session: Session, provider: MountToken[TitleProvider], seqs: list[int], signal: AbortSignal | None
    ) -> None:
        """Ask the provider and log its answer, unless somebody else has set a title meanwhile.

        Raises :class:`AbortedError` when it was given up, and what the provider raised.
        """
        self._give_up(session, _SUPERSEDED)
        controller = self._making[session] = AbortController()
        either, unlink = any_signal(controller.signal, provider.aborted, signal)
        timer = asyncio.get_running_loop().call_later(
            self._timeout, controller.abort, f"no title within {self._timeout:g} s"
        )
        try:
            at = self._state(session)["seq"]
            messages = tuple((seq, _text_at(session, seq)[:_MESSAGE_CHARS]) for seq in seqs)
            request = TitleRequest(session, messages, either)
            try:
                answer = await provider.call(provider.value.propose, request, signal=either)
            finally:
                either.raise_if_aborted()  # whatever came of it then
            if answer is not None and self._state(session)["seq"] == at:
                session.append(TITLE, _provided(provider.value.name, answer, seqs))
        finally:
            timer.cancel()
            unlink()
            if self._making.get(session) is controller:
                del self._making[session]

    def _give_up(self, session: Session, reason: str) -> None:
        controller = self._making.pop(session, None)
        if controller is not None:
            controller.abort(reason)

    def _provider(self) -> MountToken[TitleProvider] | None:
        return self._mounts.token(TITLE_PROVIDER, None)

    def _state(self, session: Session) -> JsonObject:
        state: JsonObject = self._projections.state(session, TITLE_KEY)
        return state


def _provided(name: str, answer: ProposedTitle, seqs: list[int]) -> JsonObject:
    title = title_of(answer.title)
    if not title:
        raise TitleError("the proposed title has no visible characters", code="TITLE_INVALID")
    source: JsonObject = {"kind": "provider", "provider": name}
    if answer.model is not None:
        provider, _, model = answer.model.partition("/")
        source["model"] = {"provider": provider, "model": model}
    return {"title": title, "messageSeqs": seqs, "source": source}


def _text_at(session: Session, seq: int) -> str:
    return human_text(next(iter(session.events(seq))).data)
