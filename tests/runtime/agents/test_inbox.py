from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import SessionError, SessionHeader, plugin_message, user_message
from polyhost.runtime.agents.inbox import NEXT_STEP, NEXT_TURN, AgentInbox, InboxError
from polyhost.runtime.sessions.log import LiveSession


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def inserted(self, message: Any) -> None:
        self.events.append(("inserted", message["id"]))

    def discarded(self, message: Any, replacement: Any) -> None:
        self.events.append(("discarded", message["id"]))


def message(id: str, text: str = "x") -> dict[str, Any]:
    return user_message(text) | {"id": id}


def make(*lines: bytes, seed_length: int | None = None) -> tuple[AgentInbox, LiveSession, Told]:
    session = LiveSession(SessionHeader("s", 0, seed_length=seed_length), lines or None)
    told = Told()
    return AgentInbox(session, told), session, told


def ids(inbox: AgentInbox) -> tuple[list[str], list[str]]:
    return [m["id"] for m in inbox.next_turn], [m["id"] for m in inbox.next_step]


def splices(session: LiveSession) -> list[Any]:
    return [event.data for event in session.events() if event.type == "agent/inbox/spliced"]


@pytest.mark.contract("AGT-02")
def test_replace_finds_a_message_in_either_list_and_announces_in_order() -> None:
    inbox, session, told = make()
    inbox.insert(NEXT_TURN, message("a"))
    inbox.insert(NEXT_STEP, message("b"))
    told.events.clear()
    assert inbox.replace("b", message("c"))
    assert inbox.replace("a", message("a", "edited"))
    assert not inbox.replace("b", message("d"))
    assert told.events == [("discarded", "b"), ("inserted", "c"), ("discarded", "a"), ("inserted", "a")]
    assert ids(inbox) == (["a"], ["c"])
    assert inbox.next_turn[0]["content"][0]["text"] == "edited"
    last = splices(session)[-1]
    assert (last["start"], last["removedCount"], last["outcome"]) == (0, 1, "canceled")


@pytest.mark.contract("AGT-03")
def test_coordinates_are_normalised_like_those_of_a_slice() -> None:
    inbox, session, _ = make()
    for id in "abcd":
        inbox.insert(NEXT_TURN, message(id))
    assert [m["id"] for m in inbox.splice(NEXT_TURN, -1, 5)] == ["d"]
    assert inbox.splice(NEXT_TURN, 99, 3) == []
    assert [m["id"] for m in inbox.splice(NEXT_TURN, math.nan, 1)] == ["a"]
    assert inbox.splice(NEXT_TURN, 0, -2) == []
    inbox.splice(NEXT_TURN, -math.inf, math.nan, [message("first")])
    inbox.splice(NEXT_TURN, math.inf, 0, [message("last")])
    assert ids(inbox)[0] == ["first", "b", "c", "last"]
    assert len(splices(session)) == 8, "a splice that changes nothing is not logged"
    assert "removedCount" not in splices(session)[-1]


@pytest.mark.contract("AGT-03")
def test_ids_are_unique_across_both_lists_and_a_missing_id_is_not_removed() -> None:
    inbox, session, _ = make()
    inbox.insert(NEXT_TURN, message("a"))
    for target in (NEXT_TURN, NEXT_STEP):
        with pytest.raises(InboxError, match='message "a" is already pending'):
            inbox.insert(target, message("a"))
    inbox.insert(NEXT_STEP, message("b"))
    with pytest.raises(InboxError):
        inbox.replace("b", message("a"))
    assert not inbox.remove("zzz")
    assert len(session) == 2
    assert inbox.remove("a")
    assert inbox.remove("b")
    assert not inbox.pending


@pytest.mark.contract("AGT-04")
def test_discarding_cancels_both_lists_next_step_first() -> None:
    inbox, session, told = make()
    for id in "ab":
        inbox.insert(NEXT_TURN, message(id))
    inbox.insert(NEXT_STEP, message("c"))
    doomed = inbox.ids()
    inbox.insert(NEXT_TURN, message("later"))
    told.events.clear()
    inbox.discard(doomed)
    assert told.events == [("discarded", "c"), ("discarded", "a"), ("discarded", "b")]
    assert [(s["target"], s["removedCount"], s["outcome"]) for s in splices(session)[-2:]] == [
        ("next-step", 1, "canceled"),
        ("next-turn", 2, "canceled"),
    ]
    assert ids(inbox) == (["later"], [])


def test_a_claim_takes_all_of_next_step_and_one_of_next_turn() -> None:
    inbox, session, told = make()
    for id in "ab":
        inbox.insert(NEXT_TURN, message(id))
    for id in "cd":
        inbox.insert(NEXT_STEP, message(id))
    told.events.clear()
    assert [m["id"] for m in inbox.claim(new_turn=True)] == ["c", "d", "a"]
    assert inbox.claim(new_turn=False) == []
    assert splices(session)[-2:] == [
        {"target": "next-step", "start": 0, "removedCount": 2, "inserted": []},
        {"target": "next-turn", "start": 0, "removedCount": 1, "inserted": []},
    ]
    assert told.events == []
    assert ids(inbox) == (["b"], [])


@pytest.mark.contract("RES-01")
def test_a_resumed_inbox_has_what_its_own_splices_left() -> None:
    inbox, session, _ = make()
    inbox.insert(NEXT_TURN, message("inherited"))
    seed = session.lines()
    fork, forked, _ = make(*seed, seed_length=len(seed))
    assert not fork.pending, "an inherited queue is another agent's"
    fork.insert(NEXT_STEP, message("own"))
    again = AgentInbox(LiveSession(forked.header, forked.lines()), Told())
    assert ids(again) == ([], ["own"])


@pytest.mark.contract("AGT-01")
@pytest.mark.parametrize(
    "data",
    [
        {"target": "next-turn", "start": 0, "removedCount": 2, "inserted": []},
        {"target": "next-turn", "start": 2, "inserted": []},
        {"target": "next-turn", "start": 0, "inserted": [message("a")]},
    ],
)
def test_a_stored_splice_that_does_not_fit_is_an_error_naming_its_seq(data: Any) -> None:
    _, session, _ = make()
    inbox = AgentInbox(session, Told())
    inbox.insert(NEXT_TURN, message("a"))
    session.append("agent/inbox/spliced", data)
    with pytest.raises(SessionError, match="seq 1") as caught:
        AgentInbox(session, Told())
    assert caught.value.code == "SESSION_CORRUPT"


operations = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.sampled_from([NEXT_TURN, NEXT_STEP])),
        st.tuples(st.just("claim"), st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("replace"), st.integers(0, 9)),
        st.tuples(st.just("discard"), st.sets(st.integers(0, 9))),
    ),
    max_size=30,
)


@given(operations)
def test_rebuilding_gives_the_same_lists(steps: list[tuple[str, Any]]) -> None:
    inbox, session, _ = make()
    count = 0
    for name, argument in steps:
        if name == "insert":
            inbox.insert(argument, plugin_message("p", str(count)) | {"id": str(count)})
            count += 1
        elif name == "claim":
            inbox.claim(new_turn=argument)
        elif name == "remove":
            inbox.remove(str(argument))
        elif name == "replace":
            inbox.replace(str(argument), message(f"{argument}'"))
        else:
            inbox.discard({str(id) for id in argument})
    assert ids(AgentInbox(session, Told())) == ids(inbox)
