"""What becomes a title, and what is left of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.runtime.sessions.title_text import fallback, title_of


@pytest.mark.contract("TTL-01")
@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("list files", "list files"),
        ("one two three four five six", "one two three four five"),
        ("  spaced\n\tout  ", "spaced out"),
        ('Run. [[think_tool=2]] [[tool=bash {"command":1}]]', 'Run. [[think_tool=2]] [[tool=bash {"comma'[:40]),
        ("x" * 39 + "\u00e9", "x" * 39),
        ("x" * 38 + "\u00e9", "x" * 38 + "\u00e9"),
        ("\U0001f600" * 11, "\U0001f600" * 10),
        ("\x1b[31mred\x1b[0m alert", "red alert"),
        ("\x1b]0;window title\x07after", "after"),
        ("\u202eevil\u202c name", "evil name"),
        ("nul\x00 bell\x07", "nul bell"),
        ("", ""),
        (" \n ", ""),
        ("\u200b\u2060", ""),
        ("\x1b[2J", ""),
    ],
)
def test_the_fallback(text: str, title: str) -> None:
    assert fallback(text) == title


@pytest.mark.contract("TTL-01")
def test_a_title_has_at_most_80_bytes() -> None:
    assert title_of("x" * 100) == "x" * 80
    assert title_of("\u00e9" * 41) == "\u00e9" * 40
    assert title_of("x" * 79 + "\u00e9") == "x" * 79
    assert title_of("more words than five are kept here") == "more words than five are kept here"


@pytest.mark.contract("TTL-01")
@given(st.text(st.characters()))
def test_any_text_gives_a_title_that_can_be_stored(text: str) -> None:
    for title, limit in ((fallback(text), 40), (title_of(text), 80)):
        assert len(title.encode()) <= limit
        assert title == title.strip()
        assert "\n" not in title
        assert title == "" or not title.isspace()
        assert title_of(title) == title
