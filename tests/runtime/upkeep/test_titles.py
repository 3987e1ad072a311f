"""Titles in a running host: where they stand in the log, who may change them, and what a provider can do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from polyhost.interfaces import (
    SESSIONS,
    TITLE_PROVIDER,
    TITLES,
    ProposedTitle,
    TitleError,
    TitleRequest,
    plugin_message,
    text_block,
    user_message,
)
from polyhost.kernel.errors import MountConflictError
from polyhost.kernel.signals import AbortController, AbortedError
from polyhost.runtime.sessions.titles import TitleService

IMAGE = {"type": "image", "attachment": {"attachmentId": "0" * 64, "mediaType": "image/png"}}


class Thinker:
    """A title provider that answers when told to."""

    name = "thinker"

    def __init__(self) -> None:
        self.asked: asyncio.Queue[TitleRequest] = asyncio.Queue()
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = 0

    async def propose(self, request: TitleRequest) -> ProposedTitle | None:
        self.asked.put_nowait(request)
        try:
            answer = await request.signal.race(self.answers.get())
        finally:
            self.ended += 1
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def titles(room: Any) -> TitleService:
    return room.root.get(TITLES)


@pytest.fixture
def thinker(room: Any) -> Thinker:
    thinker = Thinker()
    room.root.mount(TITLE_PROVIDER, None, thinker)
    return thinker


async def in_time(work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(5):
        return await work


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.contract("TTL-01")
async def test_the_fallback_stands_between_the_first_prompt_and_its_request(room: Any, events: Any) -> None:
    agent = await room.open()
    await room.say(agent, "Say hello. [[reasoning=3]] [[text=Hello there, world.]]")
    log = events(agent)
    types = [event["type"] for event in log]
    prompt = types.index("user/message")
    at = types.index("session/title")
    assert types[at + 1] == "request/header"
    assert set(types[prompt:at]) == {"user/message"}
    assert log[at]["data"] == {
        "title": "Say hello. [[reasoning=3]] [[text=Hello",
        "messageSeqs": [prompt],
        "source": {"kind": "fallback"},
    }
    await room.say(agent, "and again")
    assert len(events(agent, "session/title")) == 1


@pytest.mark.contract("TTL-01")
async def test_synthetic_empty_and_image_only_messages_give_no_title(room: Any, events: Any, titles: Any) -> None:
    agent = await room.open()
    for message in (
        plugin_message("x", "not by a person"),
        user_message(" \n"),
        user_message("\u200b"),
        user_message([IMAGE]),
    ):
        await room.say(agent, message)
        assert titles.title(agent.session) is None
    await room.say(agent, user_message([IMAGE, text_block("what is this?")]))
    (title,) = events(agent, "session/title")
    assert title["data"]["title"] == "what is this?"
    (cited,) = title["data"]["messageSeqs"]
    assert events(agent)[cited]["data"]["content"][1]["text"] == "what is this?"


@pytest.mark.contract("TTL-01")
async def test_a_prompt_whose_turn_was_cancelled_before_its_request_still_gives_a_title(
    room: Any, events: Any, titles: Any
) -> None:
    agent = await room.open()

    def cancel(event: Any) -> None:
        if event.type == "user/message":
            agent.cancel({"kind": "user"})

    undo = agent.session.observe(cancel)
    outcome = await room.say(agent, "stop at once")
    undo()
    assert outcome.reason["kind"] == "aborted"
    assert events(agent, "request/header") == []
    assert titles.title(agent.session) == "stop at once"


@pytest.mark.contract("TTL-02")
async def test_a_renamed_session_keeps_its_name_until_it_is_refreshed(room: Any, events: Any, titles: Any) -> None:
    agent = await room.open()
    event = titles.rename(agent.session, "\x1b[1m My   \u202ename ")
    assert event.data == {"title": "My name", "messageSeqs": [], "source": {"kind": "user"}}
    await room.say(agent, "a first prompt")
    assert titles.title(agent.session) == "My name"
    assert await titles.refresh(agent.session) == "a first prompt"
    assert titles.title(agent.session) == "a first prompt"
    await room.say(agent, "another")
    assert [event["data"]["source"]["kind"] for event in events(agent, "session/title")] == ["user", "fallback"]


@pytest.mark.contract("TTL-02")
@pytest.mark.parametrize("title", ["", " \t", "\x1b[31m", "\u200b\u2060\ufeff"])
async def test_a_title_needs_something_to_see(room: Any, events: Any, titles: Any, title: str) -> None:
    agent = await room.open()
    with pytest.raises(TitleError) as caught:
        titles.rename(agent.session, title)
    assert caught.value.code == "TITLE_INVALID"
    assert caught.value.message == "session title must contain visible characters"
    assert events(agent, "session/title") == []


async def test_there_is_nothing_to_refresh_without_a_prompt(room: Any, titles: Any) -> None:
    agent = await room.open()
    with pytest.raises(TitleError) as caught:
        await titles.refresh(agent.session)
    assert caught.value.code == "TITLE_NO_TEXT"


@pytest.mark.contract("TTL-03")
async def test_the_provider_improves_the_first_title(room: Any, events: Any, titles: Any, thinker: Thinker) -> None:
    agent = await room.open()
    await room.say(agent, "please fix the failing test in the parser")
    request = await in_time(thinker.asked.get())
    ((seq, text),) = request.messages
    assert text == "please fix the failing test in the parser"
    thinker.answers.put_nowait(ProposedTitle("Parser\nfix", "acme/small/v1"))
    await until(lambda: titles.title(agent.session) == "Parser fix")
    assert events(agent, "session/title")[-1]["data"] == {
        "title": "Parser fix",
        "messageSeqs": [seq],
        "source": {"kind": "provider", "provider": "thinker", "model": {"provider": "acme", "model": "small/v1"}},
    }
    await room.say(agent, "more")
    assert thinker.asked.empty()


@pytest.mark.contract("TTL-02")
async def test_a_late_answer_does_not_override_a_rename(room: Any, events: Any, titles: Any, thinker: Thinker) -> None:
    agent = await room.open()
    await room.say(agent, "a prompt")
    request = await in_time(thinker.asked.get())
    titles.rename(agent.session, "mine")
    assert request.signal.aborted
    thinker.answers.put_nowait(ProposedTitle("theirs"))
    await until(lambda: thinker.ended == 1)
    await asyncio.sleep(0)
    assert titles.title(agent.session) == "mine"
    assert [event["data"]["title"] for event in events(agent, "session/title")] == ["a prompt", "mine"]


@pytest.mark.contract("TTL-02")
async def test_a_late_answer_does_not_override_a_title_that_somebody_else_logged(
    room: Any, titles: Any, thinker: Thinker
) -> None:
    agent = await room.open()
    await room.say(agent, "a prompt")
    await in_time(thinker.asked.get())
    agent.session.append("session/title", {"title": "mine", "messageSeqs": [], "source": {"kind": "user"}})
    thinker.answers.put_nowait(ProposedTitle("theirs"))
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("title of")])
    assert thinker.ended == 1
    assert titles.title(agent.session) == "mine"


@pytest.mark.contract("TTL-02")
async def test_an_answer_that_ignores_the_abort_does_not_override_a_rename(room: Any, titles: Any, events: Any) -> None:
    class Stubborn(Thinker):
        async def propose(self, request: TitleRequest) -> ProposedTitle:
            self.asked.put_nowait(request)
            await self.answers.get()
            return ProposedTitle("theirs")

    stubborn = Stubborn()
    room.root.mount(TITLE_PROVIDER, None, stubborn)
    agent = await room.open()
    await room.say(agent, "a prompt")
    await in_time(stubborn.asked.get())
    refreshing = asyncio.create_task(titles.refresh(agent.session))
    await in_time(stubborn.asked.get())
    titles.rename(agent.session, "mine")
    stubborn.answers.put_nowait(None)
    stubborn.answers.put_nowait(None)
    assert await in_time(refreshing) == "mine"
    assert [event["data"]["title"] for event in events(agent, "session/title")] == ["a prompt", "mine"]


@pytest.mark.contract("TTL-02", "TTL-03")
async def test_refreshing_asks_the_provider_and_unpins(room: Any, titles: Any, thinker: Thinker) -> None:
    agent = await room.open()
    titles.rename(agent.session, "mine")
    for number in range(12):
        await room.say(agent, f"prompt {number}")
    assert thinker.asked.empty()
    thinker.answers.put_nowait(ProposedTitle("better"))
    assert await in_time(titles.refresh(agent.session)) == "better"
    request = thinker.asked.get_nowait()
    assert [text for _, text in request.messages] == ["prompt 0", *(f"prompt {number}" for number in range(3, 12))]


@pytest.mark.contract("TTL-03")
@pytest.mark.parametrize("answer", [RuntimeError("no idea"), ProposedTitle(" "), ProposedTitle(None)])  # type: ignore[arg-type]
async def test_failures_are_contained_unless_a_title_was_asked_for(
    room: Any, titles: Any, thinker: Thinker, answer: Any
) -> None:
    agent = await room.open()
    thinker.answers.put_nowait(answer)
    assert (await room.say(agent, "a prompt")).reason == {"kind": "completed"}
    await until(lambda: thinker.ended == 1)
    assert titles.title(agent.session) == "a prompt"
    thinker.answers.put_nowait(answer)
    with pytest.raises(TitleError) as caught:
        await in_time(titles.refresh(agent.session))
    assert caught.value.code == "TITLE_FAILED"
    assert "thinker" in caught.value.message
    assert titles.title(agent.session) == "a prompt"


@pytest.mark.contract("TTL-03")
async def test_there_is_one_provider(room: Any, thinker: Thinker) -> None:
    with pytest.raises(MountConflictError):
        room.root.mount(TITLE_PROVIDER, None, Thinker())
    with pytest.raises(TitleError):
        room.root.mount(TITLE_PROVIDER, "another", Thinker())
    with pytest.raises(TitleError):
        room.root.mount(TITLE_PROVIDER, None, object())


@pytest.mark.contract("TTL-03")
async def test_closing_the_session_ends_the_provider_s_work(room: Any, thinker: Thinker) -> None:
    agent = await room.open()
    await room.say(agent, "a prompt")
    request = await in_time(thinker.asked.get())
    await room.close()
    assert request.signal.aborted
    await until(lambda: thinker.ended == 1)
    length = len(agent.session)
    thinker.answers.put_nowait(ProposedTitle("too late"))
    await asyncio.sleep(0)
    assert len(agent.session) == length
    assert room.root.get(SESSIONS).get(agent.id) is None


@pytest.mark.contract("TTL-03")
async def test_closing_the_service_waits_for_the_provider(room: Any, titles: Any, thinker: Thinker) -> None:
    agent = await room.open()
    await room.say(agent, "a prompt")
    await in_time(thinker.asked.get())
    await in_time(titles.close())
    assert thinker.ended == 1
    assert titles.title(agent.session) == "a prompt"


async def test_a_provider_has_limited_time(room: Any, thinker: Thinker) -> None:
    agent = await room.open()
    await room.say(agent, "a prompt")
    hasty = TitleService(room.root.mounts, room.root.get(TITLES)._projections, timeout=0.01)
    with pytest.raises(TitleError, match=r"no title within 0\.01 s"):
        await in_time(hasty.refresh(agent.session))


async def test_whoever_asked_may_give_up(room: Any, titles: Any, thinker: Thinker) -> None:
    agent = await room.open()
    await room.say(agent, "a prompt")
    controller = AbortController()
    refreshing = asyncio.create_task(titles.refresh(agent.session, controller.signal))
    await in_time(thinker.asked.get())
    await in_time(thinker.asked.get())
    controller.abort("enough")
    with pytest.raises(AbortedError):
        await in_time(refreshing)
    assert titles.title(agent.session) == "a prompt"


async def test_a_title_survives_a_resume_and_is_not_made_again(room: Any, events: Any) -> None:
    agent = await room.open()
    await room.say(agent, "the first prompt")
    session_id = agent.id
    await room.close()
    again = await room.open(session_id)
    assert room.root.get(TITLES).title(again.session) == "the first prompt"
    await room.say(again, "the second prompt")
    assert len(events(again, "session/title")) == 1
