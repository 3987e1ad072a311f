"""What sessions remember of files."""

from __future__ import annotations

from typing import Any

import pytest

from polyhost_tools import observation as observation_module
from polyhost_tools.observation import SUPERSEDED, Observations


@pytest.mark.contract("FS-06")
def test_what_was_seen_later_does_not_count_for_what_began_before() -> None:
    seen = Observations()
    seen.note("s", "f", "one")
    moment = seen.moment
    seen.note("s", "f", "one")
    assert seen.seen("s", "f", moment) == "one"
    seen.note("s", "f", "two")
    assert seen.seen("s", "f", moment) == SUPERSEDED
    assert seen.seen("s", "f", seen.moment) == "two"


@pytest.mark.contract("FS-06")
def test_a_change_counts_for_all_sessions_even_when_the_content_is_the_same() -> None:
    seen = Observations()
    for session in ("s", "t"):
        seen.note(session, "f", "one")
    moment = seen.moment
    seen.changed("f")
    seen.note("s", "f", "one")
    assert [seen.seen(session, "f", moment) for session in ("s", "t")] == [SUPERSEDED, SUPERSEDED]
    assert [seen.seen(session, "f", seen.moment) for session in ("s", "t")] == ["one", "one"]


@pytest.mark.contract("FS-10")
def test_sessions_do_not_share_and_remember_only_so_much(monkeypatch: Any) -> None:
    monkeypatch.setattr(observation_module, "MAX_FILES", 2)
    seen = Observations()
    for path in ("a", "b", "a", "c"):
        seen.note("s", path, "1")
    assert [seen.seen("s", path, seen.moment) for path in ("a", "b", "c")] == ["1", None, "1"]
    assert seen.seen("other", "a", seen.moment) is None
    moment = seen.moment
    for path in ("a", "b", "c"):
        seen.changed(path)
    assert [seen.seen("s", path, moment) for path in ("a", "c")] == ["1", SUPERSEDED]
    seen.forget("s")
    assert seen.seen("s", "a", seen.moment) is None
