"""What a typed line means as an answer."""

from __future__ import annotations

import pytest

from polyhost_terminal.surface import parse_answer

OPTIONS = ["tabs", "spaces", "2 spaces"]


@pytest.mark.parametrize(
    ("line", "several", "answer"),
    [
        ("", False, None),
        ("   ", True, None),
        ("1", False, {"selected": ["tabs"]}),
        ("spaces", False, {"selected": ["spaces"]}),
        ("2 spaces", False, {"selected": ["2 spaces"]}),
        ("4", False, {"selected": [], "custom": "4"}),
        ("0", False, {"selected": [], "custom": "0"}),
        ("whatever you like", False, {"selected": [], "custom": "whatever you like"}),
        ("1, 3", True, {"selected": ["tabs", "2 spaces"]}),
        ("1 1", True, {"selected": ["tabs"]}),
        ("1 9", True, {"selected": [], "custom": "1 9"}),
        ("1 2", False, {"selected": [], "custom": "1 2"}),
    ],
)
def test_typed_lines(line: str, several: bool, answer: object) -> None:
    assert parse_answer(line, OPTIONS, several=several) == answer
