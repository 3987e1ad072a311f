"""Names on disk: escaping, projects, finding a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import SessionError, SessionHeader
from polyhost.runtime.sessions.layout import directory, find, project, segment


@pytest.mark.contract("JSL-01")
@pytest.mark.parametrize(
    ("session_id", "name"),
    [
        ("session-1", "session-1"),
        ("A.b_c-9", "A.b_c-9"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("...", "..."),
        ("a/b", "a~002Fb"),
        ("a~b", "a~007Eb"),
        ("é", "~00E9"),
        ("😀", "~D83D~DE00"),
        ("\ud800", "~D800"),
        ("a b\0", "a~0020b~0000"),
    ],
)
def test_a_session_id_becomes_a_safe_name(session_id: str, name: str) -> None:
    assert segment(session_id) == name


@pytest.mark.contract("JSL-01")
@pytest.mark.parametrize("session_id", ["", "x" * 256, "é" * 60])
def test_an_id_without_a_possible_name_is_refused(session_id: str) -> None:
    with pytest.raises(SessionError) as caught:
        segment(session_id)
    assert caught.value.code == "SESSION_ID"


@pytest.mark.contract("JSL-01")
@settings(deadline=None)
@given(st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_names_are_distinct_and_stay_in_their_directory(one: str, other: str) -> None:
    assert (segment(one) == segment(other)) == (one == other)
    root = Path("/root-of-logs")
    assert (root / segment(one)).resolve().parent == root


@pytest.mark.contract("JSL-01")
@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        (None, "_no-cwd"),
        ("/", "--root--"),
        ("/home/me/my project", "--home-me-my~0020project--"),
        ("/a//b\\:c", "--a-b-c--"),
        ("/--a", "--a--"),
        ("/" + "x" * 300, "--" + "x" * 251 + "--"),
    ],
)
def test_a_working_directory_becomes_a_bounded_project_name(cwd: str | None, name: str) -> None:
    assert project(cwd) == name


@pytest.mark.contract("JSL-08")
def test_a_session_is_found_in_any_project_and_must_be_unique(tmp_path: Path) -> None:
    assert find(tmp_path / "missing", "s") is None
    first = directory(tmp_path, SessionHeader("s", 1, "/a"))
    first.mkdir(parents=True)
    assert find(tmp_path, "s") is None
    (first / "session.jsonl").write_bytes(b"x")
    assert find(tmp_path, "s") == (first / "session.jsonl", "plain")
    alias = tmp_path / "alias"
    alias.symlink_to(first.parent)
    assert find(tmp_path, "s") is not None
    second = directory(tmp_path, SessionHeader("s", 1, None))
    second.mkdir(parents=True)
    (second / "session.jsonl.zstd").write_bytes(b"x")
    with pytest.raises(SessionError) as caught:
        find(tmp_path, "s")
    assert caught.value.code == "SESSION_CORRUPT"
    assert str(second) in caught.value.message


def test_what_is_no_file_is_no_log(tmp_path: Path) -> None:
    place = tmp_path / "--p--" / "s"
    place.mkdir(parents=True)
    os.mkfifo(place / "session.jsonl")
    (place / "session.jsonl.zstd").mkdir()
    assert find(tmp_path, "s") is None
