"""Literal replacement with line endings, and diffs: properties."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost_tools.diffs import CONTEXT_LINES, hunks
from polyhost_tools.errors import FileError
from polyhost_tools.read import Window
from polyhost_tools.text import replace_literal, to_lf, with_endings_of

PIECES = st.lists(st.sampled_from(["a", "b", "ab", "é", "\n", "\r\n", " "]), max_size=30).map("".join)
LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "d\n", "\n"]), max_size=40).map("".join)


@pytest.mark.contract("FS-09")
@given(PIECES, PIECES.filter(bool), PIECES)
def test_replacing_all_is_what_it_is_on_lf_text(text: str, old: str, new: str) -> None:
    if to_lf(old) in to_lf(text):
        changed = replace_literal(text, old, new, every=True, path="f")
        assert to_lf(changed) == to_lf(text).replace(to_lf(old), to_lf(new))
    else:
        with pytest.raises(FileError, match="not found"):
            replace_literal(text, old, new, every=True, path="f")


@pytest.mark.contract("FS-09")
@given(PIECES, PIECES)
def test_what_is_not_replaced_stays_byte_for_byte(head: str, tail: str) -> None:
    changed = replace_literal(f"{head}\n<old>\r\n{tail}", "<old>", "<new>", every=False, path="f")
    assert changed == f"{head}\n<new>\r\n{tail}"


@pytest.mark.contract("FS-09")
@given(LINES)
def test_crlf_text_stays_crlf(text: str) -> None:
    dos = f"{text}x\n".replace("\n", "\r\n")
    assert replace_literal(dos, "x\n", "y\nz\n", every=False, path="f") == dos.removesuffix("x\r\n") + "y\r\nz\r\n"
    assert with_endings_of(dos, text) == text.replace("\n", "\r\n")


def applied(before: str, diffs: list[dict[str, str]]) -> str:
    """``before`` with each hunk put in the place of its old text, in order."""
    parts, rest = [], before
    for hunk in diffs:
        head, found, rest = rest.partition(hunk["oldText"]) if hunk["oldText"] else ("", "", rest)
        assert found == hunk["oldText"]
        parts += [head, hunk["newText"]]
    return "".join(parts) + rest


@pytest.mark.contract("FS-02")
@given(LINES, LINES)
def test_hunks_cover_every_change(before: str, after: str) -> None:
    numbered = [
        "".join(f"{place} {line}" for place, line in enumerate(text.splitlines(True))) for text in (before, after)
    ]
    diffs = hunks("f", numbered[0], numbered[1])
    assert applied(numbered[0], diffs) == numbered[1]


@pytest.mark.contract("FS-02")
def test_hunks_have_three_lines_of_context() -> None:
    lines = [f"{number}\n" for number in range(100)]
    changed = [*lines]
    changed[10] = "ten\n"
    changed[13] = "thirteen\n"
    changed[50] = "fifty\n"
    del changed[90]
    diffs = hunks("f", "".join(lines), "".join(changed))
    assert [hunk["oldText"] for hunk in diffs] == [
        "".join(lines[7:17]),
        "".join(lines[47:54]),
        "".join(lines[87:94]),
    ]
    assert all(hunk["path"] == "f" for hunk in diffs)
    assert CONTEXT_LINES == 3


def test_a_file_that_changed_everywhere_is_compared_in_no_time() -> None:
    before = "".join(f"{number}\n" for number in range(100_000))
    after = "".join(f"{number * 7919 % 100_003}\n" for number in range(100_000))
    started = perf_counter()
    (hunk,) = hunks("f", f"same\n{before}same\n", f"same\n{after}same\n")
    assert perf_counter() - started < 2
    assert hunk["newText"] == f"same\n{after}same\n"


@pytest.mark.contract("FS-01")
@given(st.lists(st.text(alphabet="ab\r\n", max_size=12), max_size=12), st.integers(1, 6), st.integers(1, 6))
def test_a_window_does_not_depend_on_how_the_text_is_fed(pieces: list[str], offset: int, limit: int) -> None:
    text = "".join(pieces)
    window = Window(offset, limit)
    for piece in pieces:
        window.feed(piece)
    window.close()
    lines = text.split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    assert window.total == len(lines)
    expected = [line.removesuffix("\r") for line in lines][offset - 1 : offset - 1 + limit]
    assert [line["text"] for line in window.lines] == expected
