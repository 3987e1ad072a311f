"""Commands in a running host: finding, running, logging; and the host's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polyhost.interfaces import (
    COMMAND,
    COMMANDS,
    COMMANDS_CHANGED,
    INTERACTIONS,
    TITLES,
    Agent,
    Command,
    CommandError,
    Commands,
)
from polyhost.kernel.drain import Limits
from polyhost.kernel.errors import MountConflictError
from polyhost.kernel.signals import AbortController
from polyhost.runtime.commands.registry import CANCELLED


@pytest.fixture
def commands(room: Any) -> Commands:
    service: Commands = room.root.get(COMMANDS)
    return service


def command(name: str = "greet", run: Any = None) -> Command:
    async def greet(agent: Agent, arguments: str) -> str | None:
        return f"hello {arguments}" if arguments else None

    return Command(name, "Say hello", run or greet, hint="[NAME]")


async def test_a_command_is_logged_with_its_outcome_under_one_id(room: Any, events: Any, commands: Commands) -> None:
    room.root.mount(COMMAND, "greet", command())
    agent = await room.open()
    result = await commands.execute(agent, "/greet  old  friend ")
    assert result is not None
    assert (result.kind, result.text) == ("success", "hello old  friend")
    run, done = events(agent, "command/run", "command/done")
    assert run["data"] == {
        "commandId": result.command_id,
        "name": "greet",
        "args": "old  friend",
        "source": {"kind": "user"},
    }
    assert done["data"] == {"commandId": result.command_id, "kind": "success", "text": "hello old  friend"}
    assert agent.session.messages() == []


async def test_without_arguments_and_text_neither_is_logged(room: Any, events: Any, commands: Commands) -> None:
    room.root.mount(COMMAND, "greet", command())
    agent = await room.open()
    result = await commands.execute(agent, "/greet", source={"kind": "automation"})
    assert result is not None
    run, done = events(agent, "command/run", "command/done")
    assert run["data"] == {"commandId": result.command_id, "name": "greet", "source": {"kind": "automation"}}
    assert done["data"] == {"commandId": result.command_id, "kind": "success"}


@pytest.mark.parametrize("line", ["greet you", "/unknown", "/", "/ greet", "//greet", "/Greet", "/greetings", ""])
async def test_lines_that_name_no_command_do_nothing(room: Any, events: Any, commands: Commands, line: str) -> None:
    room.root.mount(COMMAND, "greet", command())
    agent = await room.open()
    assert await commands.execute(agent, line) is None
    assert events(agent, "command/run") == []


async def test_a_failure_is_the_outcome(room: Any, events: Any, commands: Commands) -> None:
    async def fail(agent: Agent, arguments: str) -> None:
        raise CommandError("it cannot be done today") from ValueError("tomorrow")

    room.root.mount(COMMAND, "greet", command(run=fail))
    agent = await room.open()
    result = await commands.execute(agent, "/greet")
    assert result is not None
    assert (result.kind, result.text) == ("error", "it cannot be done today: tomorrow")
    assert events(agent, "command/done")[0]["data"]["kind"] == "error"


@pytest.mark.parametrize("way", ["signal", "before", "agent", "withdrawal", "task"])
async def test_a_command_that_is_given_up_is_logged_as_such(
    room: Any, events: Any, commands: Commands, way: str
) -> None:
    started = asyncio.Event()

    async def hang(agent: Agent, arguments: str) -> None:
        started.set()
        await asyncio.Event().wait()

    room.host.kernel.mounts.limits = Limits(abort_grace=0.01)
    token = room.root.mount(COMMAND, "greet", command(run=hang))
    agent = await room.open()
    controller = AbortController()
    if way == "before":
        controller.abort()
    running = asyncio.create_task(commands.execute(agent, "/greet", signal=controller.signal))
    if way != "before":
        await started.wait()
    if way == "signal":
        controller.abort()
    elif way == "agent":
        await room.close()
    elif way == "withdrawal":
        await token.withdraw("its plugin stops")
    elif way == "task":
        running.cancel()
    async with asyncio.timeout(5):
        if way == "task":
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            result = await running
            assert result is not None
            assert result.kind == "error"
    (done,) = events(agent, "command/done")
    assert done["data"]["kind"] == "error"
    assert done["data"]["text"] == CANCELLED or "its plugin stops" in done["data"]["text"]


async def test_an_agent_s_own_command_shadows_the_global_one(room: Any, commands: Commands) -> None:
    async def mine(agent: Agent, arguments: str) -> str:
        return "mine"

    room.root.mount(COMMAND, "greet", command())
    agent, other = await room.open(), await room.open()
    agent.context.mount(COMMAND, "greet", command(run=mine))
    agent.context.mount(COMMAND, "only-here", command("only-here", mine))
    assert [known.name for known in commands.list(agent)] == ["greet", "mode", "model", "only-here", "title"]
    assert [known.name for known in commands.list(other)] == ["greet", "mode", "model", "title"]
    for asked, expected in ((agent, "mine"), (other, "hello you")):
        result = await commands.execute(asked, "/greet you")
        assert result is not None
        assert result.text == expected


async def test_changes_of_the_set_are_told(room: Any) -> None:
    heard: list[str] = []
    room.root.on(COMMANDS_CHANGED, lambda: heard.append("change"))
    token = room.root.mount(COMMAND, "greet", command())
    assert heard == ["change"]
    await token.withdraw()
    assert heard == ["change"] * 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("other", command()),
        ("Greet", command("Greet")),
        ("two words", command("two words")),
        ("greet", command()._replace(description=" ")),
        ("greet", command()._replace(run=None)),  # type: ignore[arg-type]
        ("greet", ("greet", "Say hello")),
    ],
)
async def test_malformed_commands_are_refused(room: Any, key: str, value: Any) -> None:
    with pytest.raises(CommandError) as caught:
        room.root.mount(COMMAND, key, value)
    assert caught.value.code == "COMMAND_INVALID"


async def test_a_name_has_one_owner(room: Any) -> None:
    room.root.mount(COMMAND, "greet", command())
    with pytest.raises(MountConflictError):
        room.root.mount(COMMAND, "greet", command())


async def outcome(commands: Commands, agent: Agent, line: str) -> tuple[str, str | None]:
    result = await commands.execute(agent, line)
    assert result is not None
    return result.kind, result.text


async def test_the_model_command(room: Any, commands: Commands) -> None:
    agent = await room.open()
    assert await outcome(commands, agent, "/model") == ("success", "scripted/one")
    assert await outcome(commands, agent, "/model scripted/two/b") == ("success", "scripted/two/b")
    assert agent.model == "scripted/two/b"
    for wrong, reason in (("nothing", "provider/model"), ("nobody/x", "nobody"), ("demo/other", "demo/demo")):
        kind, text = await outcome(commands, agent, f"/model {wrong}")
        assert kind == "error"
        assert reason in str(text)
    assert agent.model == "scripted/two/b"


async def test_the_mode_command(room: Any, commands: Commands) -> None:
    agent = await room.open()
    assert await outcome(commands, agent, "/mode") == ("success", "ask")
    assert await outcome(commands, agent, "/mode read-only") == ("success", "read-only")
    assert room.root.get(INTERACTIONS).mode(agent) == "read-only"
    kind, text = await outcome(commands, agent, "/mode everything")
    assert kind == "error"
    assert "read-only, ask, workspace, full" in str(text)


async def test_the_title_command(room: Any, commands: Commands) -> None:
    agent = await room.open()
    assert await outcome(commands, agent, "/title") == ("success", "the session has no title yet")
    assert await outcome(commands, agent, "/title A better name") == ("success", "A better name")
    assert room.root.get(TITLES).title(agent.session) == "A better name"
    assert (await outcome(commands, agent, "/title \u200b"))[0] == "error"
