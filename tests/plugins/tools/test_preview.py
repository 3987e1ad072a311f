"""What is checked and shown before a person is asked about a change, and that just this is then done."""

from __future__ import annotations

from typing import Any

import pytest

from polyhost.interfaces import SURFACE, ApprovalAnswer


class Person:
    """Says yes, after doing ``meanwhile``."""

    name = "ui"
    default_mode = None
    trusts_shell = False

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.meanwhile: Any = None

    def serves(self, session_id: str) -> bool:
        return True

    async def approve(self, request: Any) -> Any:
        self.requests.append(request)
        if self.meanwhile is not None:
            self.meanwhile()
        return ApprovalAnswer(True)

    async def ask(self, request: Any) -> Any:
        return None


@pytest.fixture
def person(supervised: Any) -> Person:
    made = Person()
    supervised.kernel.root.mount(SURFACE, None, made)
    return made


@pytest.mark.contract("FS-04")
async def test_nobody_is_asked_about_changes_that_cannot_be_made(supervised: Any, person: Person) -> None:
    supervised.put("unread", "one\n")
    supervised.put("read", "one\n")
    supervised.put("stale", "one\n")
    (supervised.home / "config.toml").touch()
    for name in ("read", "stale"):
        await supervised.text("read", file_path=name)
    supervised.put("stale", "two\n")
    edit = {"old_string": "one", "new_string": "1"}
    for tool, arguments, code in [
        ("write", {"file_path": "unread", "content": "x"}, "FS_NOT_OBSERVED"),
        ("edit", {"file_path": "unread", **edit}, "FS_NOT_OBSERVED"),
        ("write", {"file_path": "stale", "content": "x"}, "FS_STALE_VERSION"),
        ("edit", {"file_path": "stale", **edit}, "FS_STALE_VERSION"),
        ("edit", {"file_path": "read", **edit, "old_string": "other"}, "FS_EDIT_NOT_FOUND"),
        ("edit", {"file_path": "read", **edit, "old_string": ""}, "INVALID_ARGS"),
        ("edit", {"file_path": "missing", **edit}, "FS_NOT_FOUND"),
        ("write", {"file_path": "read", "content": "\ud800"}, "FS_NOT_TEXT"),
        ("write", {"file_path": ".", "content": "x"}, "FS_NOT_REGULAR_FILE"),
        ("write", {"file_path": str(supervised.home / "config.toml"), "content": "x"}, "FS_PERMISSION_DENIED"),
        ("bash", {"command": " ", "description": "d"}, "INVALID_ARGS"),
        ("bash", {"command": "true", "description": "d", "timeoutMs": 0}, "INVALID_ARGS"),
    ]:
        assert (await supervised.failure(tool, **arguments))[0] == code
    assert person.requests == []
    assert supervised.get("read") == b"one\n"


@pytest.mark.contract("FS-02")
async def test_a_change_is_shown_as_its_diffs(supervised: Any, person: Person) -> None:
    created = await supervised.run("write", file_path="new", content="one\ntwo\n")
    edited = await supervised.run("edit", file_path="new", old_string="one", new_string="1")
    await supervised.text("bash", command="true", description="d")
    path = str(supervised.root / "new")
    first, second, command = person.requests
    assert first.preview == created.meta == {"diffs": [{"path": path, "oldText": None, "newText": "one\ntwo\n"}]}
    assert first.arguments == {"file_path": "new", "content": "one\ntwo\n"}
    assert second.preview == edited.meta == {"diffs": [{"path": path, "oldText": "one\ntwo\n", "newText": "1\ntwo\n"}]}
    assert command.preview is None
    assert supervised.get("new") == b"1\ntwo\n"


@pytest.mark.contract("FS-04")
async def test_what_changed_after_it_was_shown_is_not_overwritten(supervised: Any, person: Person) -> None:
    supervised.put("f", "one\n")
    await supervised.text("read", file_path="f")
    person.meanwhile = lambda: supervised.put("f", "one and more\n")
    code, _ = await supervised.failure("edit", file_path="f", old_string="one", new_string="1")
    assert code == "FS_STALE_VERSION"
    assert supervised.get("f") == b"one and more\n"
    assert len(person.requests) == 1


async def test_an_approval_is_for_the_file_that_was_shown_even_without_the_rule_of_reading(trusting: Any) -> None:
    person = Person()
    trusting.kernel.root.mount(SURFACE, None, person)
    trusting.put("f", "one\n")
    person.meanwhile = lambda: trusting.put("f", "one and more\n")
    code, message = await trusting.failure("write", file_path="f", content="x")
    assert code == "FS_STALE_VERSION"
    assert "since the change was approved" in message
    person.meanwhile = None
    assert "Updated file" in await trusting.text("write", file_path="f", content="x")
