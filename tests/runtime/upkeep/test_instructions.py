"""What models are told of the workspace: AGENTS.md files and facts, when they are told, and what is never read."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polyhost.interfaces import AGENTS, MODEL_ADAPTER, SESSION_DIRECTORY, text_of, user_message
from polyhost.runtime.host import Host
from polyhost.runtime.upkeep.instructions import FILE_BYTES, TOTAL_BYTES, WorkspaceFacts
from polyhost.testing.scripted import ScriptedAdapter, text_script

if TYPE_CHECKING:
    from conftest import Room

DAY = 86_400.0


class Standing:
    """As much of an agent as the facts need: a working directory, and a turn that goes up with :meth:`next`."""

    def __init__(self, cwd: Path | None) -> None:
        self.session = self.header = self
        self.cwd = None if cwd is None else str(cwd)
        self.last_turn = 1

    def next(self) -> Any:
        self.last_turn += 1
        return self


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    (path / ".git").mkdir(parents=True)
    (path / "sub" / "deep").mkdir(parents=True)
    return path


async def told(home: Path, cwd: Path | None) -> str:
    return await WorkspaceFacts(home).instructions(Standing(cwd))  # type: ignore[arg-type]


def snapshots(events: Any, agent: Any) -> list[str]:
    messages = [event["data"] for event in events(agent, "user/message")]
    return [text_of(message["content"]) for message in messages if message["source"].get("form") == "snapshot"]


# Which files


async def test_general_files_come_before_those_of_the_working_directory(home: Path, repository: Path) -> None:
    (repository.parent / "AGENTS.md").write_text("outside of the repository")
    for folder, words in ((home, "the user's"), (repository, "the root's"), (repository / "sub" / "deep", "deep")):
        (folder / "AGENTS.md").write_text(f"{words} own\n")
    text = await told(home, repository / "sub" / "deep")
    assert text.index("the user's own") < text.index("the root's own") < text.index("deep own")
    assert f'<file path="{repository}/AGENTS.md">' in text
    assert "outside" not in text


async def test_without_a_repository_only_the_workspace_itself_counts(home: Path, tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("above")
    workspace = tmp_path / "plain"
    workspace.mkdir()
    assert await told(home, workspace) == ""
    (workspace / "AGENTS.md").write_text("here")
    text = await told(home, workspace)
    assert "here" in text
    assert "above" not in text
    assert await told(home, tmp_path / "gone") == ""
    assert await told(home, None) == ""
    assert (await told(workspace, workspace)).count("\nhere\n") == 1, "a host's home may be the workspace"


async def test_a_worktree_is_a_repository_and_links_to_it_are_followed(home: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / ".git").write_text("gitdir: elsewhere\n")
    (tree / "AGENTS.md").write_text("of the worktree")
    (tmp_path / "short").symlink_to(tree / "sub")
    assert "of the worktree" in await told(home, tmp_path / "short")


# What is not read


async def test_links_count_only_inside_the_repository(
    home: Path, repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (repository / "CLAUDE.md").write_text("shared words")
    (repository / "AGENTS.md").symlink_to("CLAUDE.md")
    secret = repository.parent / "repo-secret"
    secret.write_text("secret")
    (repository / "sub" / "AGENTS.md").symlink_to(secret)
    text = await told(home, repository / "sub")
    assert "shared words" in text
    assert "secret" not in text
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{repository}/sub/AGENTS.md" in record.getMessage()


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "unreadable"])
async def test_what_cannot_be_read_is_said_once_and_stops_nothing(
    home: Path, repository: Path, caplog: pytest.LogCaptureFixture, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "AGENTS.md").write_text("readable")
    path = repository / "AGENTS.md"
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path.name)
        case _:
            path.write_text("x")
            real = os.open

            def refuse(name: Any, *arguments: Any, **options: Any) -> int:
                if name == str(path):
                    raise PermissionError(13, "Permission denied")
                return real(name, *arguments, **options)

            monkeypatch.setattr(os, "open", refuse)
    facts, agent = WorkspaceFacts(home), Standing(repository)
    for _ in range(3):
        assert "readable" in await facts.instructions(agent.next())
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    assert record.levelno == logging.WARNING


async def test_texts_are_cut_between_characters_and_with_a_notice(home: Path, repository: Path) -> None:
    (repository / "AGENTS.md").write_text("x" + "é" * FILE_BYTES)
    text = await told(home, repository)
    assert f"x{'é' * (FILE_BYTES // 2 - 1)}\n[only the first {FILE_BYTES} of {2 * FILE_BYTES + 1} bytes" in text
    (repository / "AGENTS.md").write_bytes(b"\xef\xbb\xbfgood \xff end\xc3")
    assert '">\ngood \ufffd end\ufffd\n</file>' in await told(home, repository)
    (repository / "AGENTS.md").write_text(" \n")
    assert await told(home, repository) == ""


async def test_all_files_together_are_bounded_and_the_users_and_the_nearest_win(home: Path, repository: Path) -> None:
    deep = repository / "sub" / "deep"
    for folder, letter in ((home, "h"), (repository, "r"), (repository / "sub", "s"), (deep, "d")):
        (folder / "AGENTS.md").write_text(letter * (FILE_BYTES - 10))
    text = await told(home, deep)
    assert len(text) < TOTAL_BYTES + 2000
    assert ["h" * 30_000 in text, "d" * 30_000 in text] == [True, True]
    assert "s" * 20 + "\n[only the first 20 of" in text
    assert "[1 further files" in text
    assert "r" * 20 not in text


# When it is told


@pytest.mark.contract("LOOP-07", "REQ-10")
async def test_models_are_told_once_again_when_something_changed(
    room: Room, events: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = room.cwd / "AGENTS.md"
    agent = await room.open()
    await room.say(agent, "one")
    (first,) = snapshots(events, agent)
    assert f"Working directory: {room.cwd} (not in a Git repository)" in first
    assert "AGENTS.md" not in first
    path.write_text("Use tabs.")
    for _ in range(2):
        await room.say(agent, "two")
    assert len(snapshots(events, agent)) == 2
    assert "Use tabs." in snapshots(events, agent)[1]
    os.utime(path)
    await room.say(agent, "touched, not changed")
    path.write_text("Use spaces.")
    for _ in range(2):
        await room.say(agent, "three")
    path.unlink()
    for _ in range(2):
        await room.say(agent, "four")
    assert len(snapshots(events, agent)) == 4
    assert "Use spaces." in snapshots(events, agent)[2]
    assert snapshots(events, agent)[3] == first
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    headers = events(agent, "request/header")
    assert len(headers) == 1, "the system prompt has not changed"
    seen: list[Any] = []
    requests = iter(room.model.requests)
    for event in agent.session.events():
        if event.type in ("user/message", "assistant/message"):
            seen.append(event.data.get("message", event.data))
        if event.type == "assistant/message":
            sent = next(requests)
            assert json.dumps(seen[:-1]) == json.dumps(list(sent.messages))
            assert sent.system == headers[0]["data"]["header"]["system"]
    assert next(requests, None) is None


async def test_a_resumed_session_is_not_told_again(room: Room, events: Any) -> None:
    (room.cwd / "AGENTS.md").write_text("Use tabs.")
    agent = await room.open()
    await room.say(agent, "one")
    await room.close()
    again = await room.open(agent.id)
    await room.say(again, "two")
    assert len(snapshots(events, again)) == 1


async def test_the_facts_stay_for_the_length_of_a_turn(home: Path, repository: Path) -> None:
    now = 1_000 * DAY
    facts, agent = WorkspaceFacts(home, clock=lambda: now), Standing(repository)
    before: Any = [await facts.environment(agent), await facts.instructions(agent)]  # type: ignore[arg-type]
    assert f"Working directory: {repository} (in the Git repository {repository})" in before[0]
    now += DAY
    (repository / "AGENTS.md").write_text("new")
    assert [await facts.environment(agent), await facts.instructions(agent)] == before  # type: ignore[arg-type]
    assert await facts.environment(agent.next()) != before[0], "another day"
    assert "new" in await facts.instructions(agent)  # type: ignore[arg-type]
    unchanged = await facts.environment(agent)  # type: ignore[arg-type]
    now += 1
    assert await facts.environment(agent.next()) == unchanged


async def test_it_can_be_switched_off(
    polyhost_host: Callable[..., AbstractAsyncContextManager[Host]], tmp_path: Path, events: Any
) -> None:
    (tmp_path / "AGENTS.md").write_text("Use tabs.")
    async with polyhost_host("[plugins.runtime-upkeep]\ninstructions = false\n") as host:
        host.root.mount(MODEL_ADAPTER, "scripted", ScriptedAdapter([text_script("ok")]))
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=str(tmp_path), model="scripted/one")
        await host.root.get(AGENTS).prompt(opened.agent, user_message("one")).outcome()
        (text,) = snapshots(events, opened.agent)
        assert "Use tabs." not in text
        assert "Working directory" not in text
        await opened.close()
