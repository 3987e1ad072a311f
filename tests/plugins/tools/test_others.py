"""ask_user_question, todo_write, and how the plugin mounts its tools."""

from __future__ import annotations

from typing import Any

import pytest

from polyhost.interfaces import SURFACE, ApprovalAnswer, QuestionError, SessionError
from polyhost_tools import plugin as tools_plugin
from polyhost_tools.config import NAMES, ToolsConfig


class FakeSurface:
    """Answers as it is told."""

    name = "ui"
    default_mode = None
    trusts_shell = False

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    def serves(self, session_id: str) -> bool:
        return True

    async def approve(self, request: Any) -> Any:
        self.requests.append(request)
        return self.answer

    async def ask(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


ASKED = {
    "id": "q1",
    "question": "Which?",
    "header": "Colour",
    "options": [{"label": "red", "description": "warm"}, {"label": "blue"}],
    "multi_select": True,
}


@pytest.mark.contract("ASK-05")
async def test_questions_reach_the_surface_and_answers_the_model(bench: Any) -> None:
    surface = FakeSurface([{"id": "q1", "selected": ["red"], "custom": "and ünusual"}])
    bench.kernel.root.mount(SURFACE, None, surface)
    bench.agent()
    assert await bench.text("ask_user_question", questions=[ASKED]) == (
        '{"answers":[{"id":"q1","selected":["red"],"custom":"and ünusual"}]}'
    )
    (request,) = surface.requests
    assert request.questions == [
        {
            "id": "q1",
            "question": "Which?",
            "header": "Colour",
            "options": [{"label": "red", "description": "warm"}, {"label": "blue"}],
            "multiSelect": True,
        }
    ]


@pytest.mark.contract("ASK-05")
async def test_errors_of_questions_keep_their_code(bench: Any) -> None:
    bench.agent()
    assert (await bench.failure("ask_user_question", questions=[ASKED]))[0] == "NO_PROVIDER"
    assert (await bench.failure("ask_user_question", questions=[]))[0] == "EMPTY_QUESTIONS"
    assert (await bench.failure("ask_user_question", questions=[ASKED, ASKED]))[0] == "INVALID_ARGS"
    assert (await bench.failure("ask_user_question", questions=[{"id": "q1"}]))[0] == "INVALID_ARGS"
    twice = {**ASKED, "options": [{"label": "red"}, {"label": "red"}]}
    assert (await bench.failure("ask_user_question", questions=[twice]))[0] == "INVALID_ARGS"
    surface = FakeSurface(QuestionError("closed", code="ASK_CANCELLED"))
    bench.kernel.root.mount(SURFACE, None, surface)
    assert (await bench.failure("ask_user_question", questions=[ASKED]))[0] == "ASK_CANCELLED"
    surface.answer = bench.caller.abort
    assert (await bench.failure("ask_user_question", questions=[ASKED]))[0] == "ASK_ABORTED"


async def test_todos_are_logged_whole(bench: Any) -> None:
    todos = [{"content": "first", "status": "completed"}, {"content": "second", "status": "in_progress"}]
    assert "1 of 2 completed" in await bench.text("todo_write", todos=todos)
    assert "empty" in await bench.text("todo_write", todos=[])
    logged = [event.data for event in bench.agent().session.events() if event.type == "todo/write"]
    assert logged == [{"todos": todos}, {"todos": []}]
    for bad in ([{"content": " ", "status": "pending"}], [{"content": "x", "status": "done"}], [{"content": "x"}]):
        assert (await bench.failure("todo_write", todos=bad))[0] == "INVALID_ARGS"
    assert (await bench.failure("todo_write", None, todos=[]))[0] == "NO_SESSION"


async def test_todos_need_an_open_turn(bench: Any) -> None:
    session = bench.agent().session
    session.append("step/end", {"turn": 1, "step": 1})
    session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    result = await bench.run("todo_write", todos=[])
    assert result.is_error
    with pytest.raises(SessionError):
        session.append("todo/write", {"todos": []})


async def test_all_tools_are_mounted_and_named(bench: Any) -> None:
    schemas = bench.tools.schemas()
    assert tuple(schema["name"] for schema in schemas) == NAMES
    assert all(schema["description"] for schema in schemas)


async def test_a_taken_name_costs_one_tool_only(bare: Any, caplog: Any) -> None:
    await bare.install(tools_plugin, ToolsConfig(), "shipped")
    assert tuple(schema["name"] for schema in bare.tools.schemas()) == NAMES
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for part in ("bash", "'tools'", "'shipped'"):
        assert part in record.getMessage()


@pytest.mark.parametrize("settings", [{"disabled": ["nope"]}, {"bash_timeout_ms": 0}, {"bash_timeout_ms": 600_001}])
def test_bad_settings_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown tools|bash_timeout_ms"):
        ToolsConfig(**settings)


async def test_an_approved_command_runs(asking: Any) -> None:
    surface = FakeSurface(ApprovalAnswer(True))
    asking.kernel.root.mount(SURFACE, None, surface)
    assert await asking.text("bash", command="echo allowed", description="d") == "allowed\n"
    (request,) = surface.requests
    assert request.arguments == {"command": "echo allowed", "description": "d"}
    kinds = [event.type for event in asking.agent().session.events()]
    assert kinds[-2:] == ["approval/asked", "approval/decided"]


@pytest.mark.parametrize(("bad", "problem"), [("a\0b", "contains NUL"), ("a\ud800", "has a lone surrogate at 1")])
@pytest.mark.parametrize(
    ("tool", "argument", "others"),
    [
        ("read", "file_path", {}),
        ("write", "file_path", {"content": "x"}),
        ("edit", "file_path", {"old_string": "a", "new_string": "b"}),
        ("grep", "path", {"pattern": "x"}),
        ("grep", "pattern", {}),
        ("grep", "include", {"pattern": "x"}),
        ("glob", "path", {"pattern": "*"}),
        ("glob", "pattern", {}),
        ("bash", "command", {"description": "d"}),
        ("bash", "workdir", {"command": "true", "description": "d"}),
    ],
)
async def test_what_is_no_plain_text_is_refused_by_name(
    bench: Any, tool: str, argument: str, others: Any, bad: str, problem: str
) -> None:
    assert await bench.failure(tool, **{argument: bad}, **others) == (
        "INVALID_ARGS",
        f"Error: invalid arguments: {argument} {problem}",
    )
