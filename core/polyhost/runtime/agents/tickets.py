"""Which turn answered which prompt: from the receipt of a message to the claim, the end of that turn, and idle.

A ticket is told by the driver itself, so it is exact, whatever else is queued, steered, edited or cancelled meanwhile.
"""

from __future__ import annotations

import asyncio

from polyhost.interfaces import Agent, JsonObject, TurnOutcome
from polyhost.runtime.agents.inbox import InboxError

UNRUN = TurnOutcome(turn=None, reason=None, text="", usage={})
"""The outcome of a message that no turn claimed."""


class Ticket:
    """Follows one message; see :class:`polyhost.interfaces.agents.PromptTicket`."""

    __slots__ = ("_agent", "_claimed", "_outcome", "message_id")

    def __init__(self, agent: Agent, message_id: str) -> None:
        loop = asyncio.get_running_loop()
        self._agent = agent
        self.message_id = message_id
        self._claimed: asyncio.Future[int | None] = loop.create_future()
        self._outcome: asyncio.Future[TurnOutcome] = loop.create_future()

    async def claimed(self) -> int | None:
        return await asyncio.shield(self._claimed)

    async def outcome(self) -> TurnOutcome:
        outcome = await asyncio.shield(self._outcome)
        await self._agent.when_idle()
        return outcome

    def claim(self, turn: int) -> None:
        self._claimed.set_result(turn)

    def settle(self, outcome: TurnOutcome) -> None:
        if not self._claimed.done():
            self._claimed.set_result(outcome.turn)
        self._outcome.set_result(outcome)


class Tickets:
    """The open tickets of one agent."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, Ticket] = {}
        self._running: list[Ticket] = []  # claimed by the turn that runs

    def open(self, agent: Agent, message_id: str) -> Ticket:
        """Follow a message that is about to be queued. Raises :class:`InboxError` when one of its id is followed."""
        if message_id in self._waiting:
            raise InboxError(f'message "{message_id}" is already pending')
        ticket = self._waiting[message_id] = Ticket(agent, message_id)
        return ticket

    def forget(self, message_id: str) -> None:
        """The message was refused: nobody waits for it."""
        self._waiting.pop(message_id, None)

    def claimed(self, message: JsonObject, turn: int) -> None:
        ticket = self._waiting.pop(message["id"], None)
        if ticket is not None:
            ticket.claim(turn)
            self._running.append(ticket)

    def discarded(self, message: JsonObject) -> None:
        ticket = self._waiting.pop(message["id"], None)
        if ticket is not None:
            ticket.settle(UNRUN)

    def turn_ended(self, outcome: TurnOutcome) -> None:
        tickets, self._running = self._running, []
        for ticket in tickets:
            ticket.settle(outcome)

    def close(self) -> None:
        """The agent is gone: what is still queued will not run here."""
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            ticket.settle(UNRUN)
