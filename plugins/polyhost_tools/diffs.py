"""What changed between two texts, as hunks for user interfaces: ``{path, oldText, newText}``. No I/O."""

from __future__ import annotations

from typing import Any

CONTEXT_LINES = 3

MAX_COMPARED_LINES = 4000
"""Changed regions with more lines are shown as one hunk: comparing takes quadratic time."""


def hunks(path: str, before: str | None, after: str) -> list[dict[str, Any]]:
    """One entry for each hunk; a new file (``before`` None) is one entry with ``oldText`` None.

    Texts that are equal give one entry with the whole text on both sides, so that there is something to show.
    """
    if before is None or before == after:
        return [{"path": path, "oldText": before, "newText": after}]
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return [
        {"path": path, "oldText": "".join(old[a:b]), "newText": "".join(new[c:d])} for a, b, c, d in _ranges(old, new)
    ]


def _ranges(old: list[str], new: list[str]) -> list[tuple[int, int, int, int]]:
    """The line ranges of each hunk, in both texts, context included."""
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    changed_old, changed_new = old[head : len(old) - tail], new[head : len(new) - tail]
    before, after = max(0, head - CONTEXT_LINES), min(tail, CONTEXT_LINES)
    if max(len(changed_old), len(changed_new)) > MAX_COMPARED_LINES:
        return [(before, len(old) - tail + after, before, len(new) - tail + after)]
    from difflib import SequenceMatcher  # not needed before the first change

    lead, trail = old[before:head], old[len(old) - tail : len(old) - tail + after]
    matcher = SequenceMatcher(None, [*lead, *changed_old, *trail], [*lead, *changed_new, *trail], autojunk=False)
    return [
        (before + group[0][1], before + group[-1][2], before + group[0][3], before + group[-1][4])
        for group in matcher.get_grouped_opcodes(CONTEXT_LINES)
    ]


def _common(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return shared
