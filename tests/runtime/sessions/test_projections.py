"""The registry of projections: what is folded, when, and who hears of it; and the folds that the host ships."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import (
    PROJECTION,
    Projection,
    ProjectionError,
    Session,
    SessionHeader,
    assistant_message,
    text_block,
    user_message,
)
from polyhost.kernel import Kernel
from polyhost.runtime.sessions import LiveSession
from polyhost.runtime.sessions.folds import PROJECTIONS_SHIPPED
from polyhost.runtime.sessions.projections import ProjectionKind, ProjectionRegistry

SEEDED = SessionHeader("s", 1)


def counting(version: int = 1, *types: str, calls: list[int] | None = None) -> Projection:
    """Counts the events of ``types``; ``calls`` notes which it was asked to fold."""

    def apply(state: Any, event: Any) -> Any:
        if calls is not None:
            calls.append(event.seq)
        return {"count": state["count"] + version}

    return Projection(version, frozenset(types or {"feedback/record"}), lambda header: {"count": 0}, apply)


class Desk:
    """A kernel with a registry, and a session to write into."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.kernel.mounts.handle(PROJECTION, ProjectionKind(self.kernel.mounts))
        self.registry = ProjectionRegistry(self.kernel.mounts)
        self.session = LiveSession(SEEDED)

    def mount(self, key: str, unit: Projection) -> Any:
        return self.kernel.root.mount(PROJECTION, key, unit)

    def note(self, text: str = "x") -> int:
        return self.session.append("feedback/record", {"text": text}).seq

    def values(self) -> Any:
        return self.registry.read(self.session).values


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.contract("PRJ-01")
def test_nothing_is_folded_before_somebody_reads(desk: Desk) -> None:
    calls: list[int] = []
    desk.mount("count", counting(calls=calls))
    desk.note()
    desk.note()
    assert calls == []
    assert desk.registry.read(desk.session) == (1, {"count": {"count": 2}})
    desk.note()
    assert desk.values() == {"count": {"count": 3}}
    assert calls == [0, 1, 2]


@pytest.mark.contract("PRJ-01")
def test_folds_that_are_apart_catch_up_together(desk: Desk) -> None:
    for key in ("early", "late"):
        desk.mount(key, counting())
    desk.note()
    assert desk.registry.state(desk.session, "early") == {"count": 1}
    desk.note()
    assert desk.values() == {"early": {"count": 2}, "late": {"count": 2}}


@pytest.mark.contract("PRJ-01")
def test_an_empty_log_has_initial_values_as_of_no_event(desk: Desk) -> None:
    desk.mount("count", counting())
    assert desk.registry.read(desk.session) == (-1, {"count": {"count": 0}})


@pytest.mark.contract("PRJ-01")
def test_listeners_hear_of_values_that_changed_and_of_nothing_else(desk: Desk) -> None:
    even = Projection(
        1,
        frozenset({"feedback/record"}),
        lambda header: 0,
        lambda state, event: state + 1,
        lambda state: state // 2,
    )
    desk.mount("pairs", even)
    desk.note()
    heard: list[Any] = []
    undo = desk.registry.watch(desk.session, lambda *news: heard.append(news))
    desk.session.append("plan/mode", {"active": True})
    assert heard == []
    desk.note()
    desk.note()
    assert heard == [("pairs", 1, 2)]
    desk.note()
    undo()
    undo()
    desk.note()
    desk.note()
    assert heard == [("pairs", 1, 2), ("pairs", 2, 4)]


@pytest.mark.contract("PRJ-01")
def test_a_reader_inside_the_publication_takes_nobodys_news_away(desk: Desk) -> None:
    desk.mount("count", counting())
    desk.session.observe(lambda event: desk.values())
    heard: list[Any] = []
    desk.registry.watch(desk.session, lambda *news: heard.append(news))
    desk.registry.watch(desk.session, lambda *news: heard.append(news))
    desk.note()
    assert heard == [("count", {"count": 1}, 0)] * 2


def test_a_projection_mounted_later_is_told_from_the_next_event_on(desk: Desk) -> None:
    heard: list[Any] = []
    desk.registry.watch(desk.session, lambda *news: heard.append(news))
    desk.note()
    desk.mount("count", counting())
    desk.note()
    assert heard == [("count", {"count": 2}, 1)]


@pytest.mark.contract("PRJ-01")
def test_one_key_and_version_is_one_fold(desk: Desk) -> None:
    calls: list[int] = []
    first = desk.mount("count", counting(calls=calls))
    desk.mount("count", counting(calls=calls))
    desk.note()
    assert desk.values() == {"count": {"count": 1}}
    first.withdraw()
    desk.note()
    assert desk.values() == {"count": {"count": 2}}
    assert calls == [0, 1]


@pytest.mark.contract("PRJ-01")
async def test_another_version_of_a_key_in_use_is_refused_and_folded_anew_later(desk: Desk) -> None:
    first = desk.mount("count", counting(1))
    desk.note()
    assert desk.values() == {"count": {"count": 1}}
    with pytest.raises(ProjectionError) as caught:
        desk.mount("count", counting(10))
    assert caught.value.code == "PROJECTION_VERSION"
    await first.withdraw()
    assert desk.values() == {}
    desk.mount("count", counting(10))
    assert desk.values() == {"count": {"count": 10}}


@pytest.mark.parametrize(
    ("key", "unit"), [("", counting()), (1, counting()), ("x", {"version": 1}), ("x", counting()._replace(version=0))]
)
def test_what_is_no_projection_is_refused(desk: Desk, key: Any, unit: Any) -> None:
    with pytest.raises(ProjectionError) as caught:
        desk.mount(key, unit)
    assert caught.value.code == "PROJECTION_INVALID"


@pytest.mark.contract("PRJ-01")
def test_a_checkpoint_is_detached_and_saves_folding(desk: Desk) -> None:
    calls: list[int] = []
    desk.mount("count", counting(calls=calls))
    desk.note()
    saved = desk.registry.checkpoint(desk.session)
    assert saved == {"asOfSeq": 0, "units": {"count": {"version": 1, "state": {"count": 1}}}}
    desk.note()
    assert saved["units"]["count"]["state"] == {"count": 1}
    calls.clear()

    other = ProjectionRegistry(desk.kernel.mounts)
    copy = LiveSession(SEEDED, desk.session.lines(), seed_checked=True)
    other.restore(copy, saved)
    saved["units"]["count"]["state"]["count"] = 100
    assert other.read(copy).values == {"count": {"count": 2}}
    assert calls == [1]
    assert desk.registry.fold(SEEDED, desk.session.lines(), desk.registry.checkpoint(desk.session)) == (
        1,
        {"count": {"count": 2}},
    )


@pytest.mark.contract("PRJ-01")
def test_a_state_of_another_version_is_folded_anew(desk: Desk) -> None:
    desk.mount("count", counting(2))
    desk.note()
    saved = {
        "asOfSeq": 0,
        "units": {"count": {"version": 1, "state": {"count": 77}}, "gone": {"version": 1, "state": 1}},
    }
    assert desk.registry.fold(SEEDED, desk.session.lines(), saved).values == {"count": {"count": 2}}


@pytest.mark.contract("PRJ-01")
def test_a_log_shorter_than_its_checkpoint_is_refused(desk: Desk) -> None:
    desk.mount("count", counting())
    desk.note()
    desk.note()
    saved = desk.registry.checkpoint(desk.session)
    shorter = LiveSession(SEEDED)
    shorter.append("feedback/record", {"text": "another"})
    with pytest.raises(ProjectionError) as caught:
        desk.registry.restore(shorter, saved)
    assert caught.value.code == "PROJECTION_SHRUNK"
    with pytest.raises(ProjectionError) as caught:
        desk.registry.fold(SEEDED, desk.session.lines()[:1], saved)
    assert caught.value.code == "PROJECTION_SHRUNK"
    assert desk.registry.read(shorter).values == {"count": {"count": 1}}


@pytest.mark.contract("PRJ-01")
def test_a_live_log_that_lost_events_is_refused(desk: Desk) -> None:
    class Shrinking(LiveSession):
        def lose(self) -> None:
            self._lines.pop()

    desk.mount("count", counting())
    session = Shrinking(SEEDED)
    for _ in range(2):
        session.append("feedback/record", {"text": "x"})
    desk.registry.read(session)
    session.lose()
    with pytest.raises(ProjectionError) as caught:
        desk.registry.read(session)
    assert caught.value.code == "PROJECTION_SHRUNK"


@pytest.mark.parametrize("saved", [{}, {"asOfSeq": -2, "units": {}}, {"asOfSeq": 0, "units": {"count": 1}}])
def test_a_malformed_checkpoint_is_refused(desk: Desk, saved: Any) -> None:
    desk.mount("count", counting())
    desk.note()
    with pytest.raises(ProjectionError) as caught:
        desk.registry.restore(desk.session, saved)
    assert caught.value.code == "PROJECTION_CHECKPOINT"


def test_a_failing_projection_has_no_value_and_spoils_no_other(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("cannot fold")

    desk.mount("apply", counting()._replace(apply=fail))
    desk.mount("view", counting()._replace(view=fail))
    desk.mount("init", counting()._replace(init=fail))
    desk.mount("count", counting())
    heard: list[Any] = []
    desk.registry.watch(desk.session, lambda *news: heard.append(news))
    desk.note()
    assert desk.values() == {"count": {"count": 1}}
    assert heard == [("count", {"count": 1}, 0)]
    assert len(caplog.records) == 3
    desk.note()
    assert len(caplog.records) == 3


def test_a_failing_listener_spoils_no_other(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("cannot listen")

    heard: list[Any] = []
    desk.mount("count", counting())
    desk.registry.watch(desk.session, fail)
    desk.registry.watch(desk.session, lambda *news: heard.append(news))
    desk.note()
    assert len(heard) == 1
    assert "cannot listen" in caplog.text


def test_readers_may_change_what_they_get(desk: Desk) -> None:
    desk.mount("count", counting())
    desk.note()
    desk.values()["count"]["count"] = 9
    assert desk.values() == {"count": {"count": 1}}


# The host's own folds


@pytest.fixture
def shipped(desk: Desk) -> Callable[[Session], Any]:
    for key, unit in PROJECTIONS_SHIPPED.items():
        desk.mount(key, unit)
    return lambda session: desk.registry.read(session).values


def test_values_before_the_first_event(desk: Desk, shipped: Callable[[Session], Any]) -> None:
    assert shipped(desk.session) == {
        "title": None,
        "tokenUsage": {"uncachedInputTokens": 0, "outputTokens": 0, "cacheReadTokens": 0, "cacheWriteTokens": 0},
        "queue": {"nextTurn": [], "nextStep": []},
        "todos": None,
    }


@pytest.mark.contract("TTL-02")
def test_the_last_title_wins(desk: Desk, shipped: Callable[[Session], Any]) -> None:
    for title in ("one", "two"):
        desk.session.append("session/title", {"title": title, "messageSeqs": [], "source": {"kind": "user"}})
    assert shipped(desk.session)["title"] == "two"


@pytest.mark.contract("EVT-26")
def test_the_last_todo_list_is_the_whole_list(desk: Desk, shipped: Callable[[Session], Any]) -> None:
    desk.session.append("turn/start", {"turn": 1})
    for todos in ([{"content": "a", "status": "pending"}], [{"content": "b", "status": "completed"}]):
        desk.session.append("todo/write", {"todos": todos})
    assert shipped(desk.session)["todos"] == [{"content": "b", "status": "completed"}]
    assert desk.session.messages() == []


def test_usage_adds_up_over_answers(desk: Desk, shipped: Callable[[Session], Any], talk_to: Any) -> None:
    writer = talk_to(desk.session)
    writer.start_turn()
    writer.start_step()
    for usage in ({"inputTokens": 5, "outputTokens": 2, "cacheReadTokens": 1}, {"inputTokens": 1, "outputTokens": 1}):
        message = assistant_message([text_block("x")], provider="demo", model="demo")
        data = {**writer.place, "message": message, "usage": usage}
        desk.session.append("assistant/message", data, surface_op="append")
    assert shipped(desk.session)["tokenUsage"] == {
        "uncachedInputTokens": 6,
        "outputTokens": 3,
        "cacheReadTokens": 1,
        "cacheWriteTokens": 0,
    }


SPLICES = st.lists(
    st.tuples(
        st.sampled_from(["next-turn", "next-step"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=12,
)


@pytest.mark.contract("PRJ-01")
@settings(deadline=None)
@given(SPLICES, st.integers(0, 12))
def test_the_queue_follows_the_inbox_however_it_is_folded(splices: list[Any], seed: int) -> None:
    """Read after each event, in one go, from a checkpoint in the middle, watched: always what the inbox holds."""
    from polyhost.runtime.agents.inbox import AgentInbox

    class Nobody:
        def inserted(self, message: Any) -> None: ...

        def discarded(self, message: Any, replacement: Any) -> None: ...

    desk = Desk()
    for key, unit in PROJECTIONS_SHIPPED.items():
        desk.mount(key, unit)
    inbox = AgentInbox(desk.session, Nobody())
    numbers = itertools.count()
    heard: dict[str, Any] = {"queue": {"nextTurn": [], "nextStep": []}}
    desk.registry.watch(desk.session, lambda key, value, seq: heard.update({key: value}))
    checkpoint: Any = None
    for target, start, removed, inserted, read in splices:
        inbox.splice(target, start, removed, [user_message(str(next(numbers))) for _ in range(inserted)])
        if read:
            assert desk.values()["queue"]["nextTurn"] == list(inbox.next_turn)
        if checkpoint is None and len(desk.session) > seed // 2:
            checkpoint = desk.registry.checkpoint(desk.session)
    expected = {"nextTurn": list(inbox.next_turn), "nextStep": list(inbox.next_step)}
    lines = desk.session.lines()
    assert desk.values()["queue"] == heard["queue"] == expected
    assert desk.registry.fold(SEEDED, lines) == desk.registry.read(desk.session)
    assert desk.registry.fold(SEEDED, lines, checkpoint) == desk.registry.read(desk.session)
    fork = SessionHeader("fork", 1, seed_length=len(lines))
    assert desk.registry.fold(fork, lines).values["queue"] == {"nextTurn": [], "nextStep": []}


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("session/title"), st.fixed_dictionaries({"title": st.text(max_size=5)})),
        st.tuples(st.just("feedback/record"), st.fixed_dictionaries({"text": st.text(max_size=3)})),
        st.tuples(
            st.just("todo/write"),
            st.fixed_dictionaries({"todos": st.lists(st.fixed_dictionaries({"content": st.text(max_size=3)}))}),
        ),
        st.tuples(st.just("user/message"), st.text(max_size=8)),
    ),
    max_size=15,
)


@pytest.mark.contract("PRJ-01")
@settings(deadline=None)
@given(EVENTS, st.sets(st.integers(0, 15)))
def test_reading_in_between_changes_nothing(events: list[Any], reads: set[int]) -> None:
    desk = Desk()
    for key, unit in PROJECTIONS_SHIPPED.items():
        desk.mount(key, unit)
    desk.session.append("turn/start", {"turn": 1})
    changes: dict[str, Any] = desk.values()
    desk.registry.watch(desk.session, lambda key, value, seq: changes.update({key: value}))
    for index, (type_, data) in enumerate(events):
        if type_ == "user/message":
            desk.session.append(type_, user_message(data), surface_op="append")
        else:
            desk.session.append(type_, data)
        if index in reads:
            assert desk.values() == changes
    assert desk.registry.fold(SEEDED, desk.session.lines()) == (len(events), changes)
    assert desk.values() == changes
