"""read, write and edit: texts, limits, freshness, and what is on the disk afterwards."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import ToolCall
from polyhost.kernel.signals import AbortSignal
from polyhost_tools import files as files_module
from polyhost_tools import read as read_module
from polyhost_tools.errors import FileError
from polyhost_tools.fence import Fence
from polyhost_tools.files import FileChanges, content_hash
from polyhost_tools.observation import Observations

# -- read --------------------------------------------------------------------------------------


def body(text: str) -> list[str]:
    head, _, rest = text.partition("<content>\n")
    assert head.endswith("</path>\n<type>file</type>\n")
    assert rest.endswith("\n</content>")
    return rest.removesuffix("\n</content>").split("\n")


@pytest.mark.contract("FS-01")
async def test_read_shows_numbered_lines_in_an_envelope(bench: Any) -> None:
    path = bench.put("a.py", "one\ntwo\n")
    result = await bench.run("read", file_path="a.py")
    assert result.content == [
        {
            "type": "text",
            "text": f"<path>{path}</path>\n<type>file</type>\n<content>\n1: one\n2: two\n\n"
            "(End of file - total 2 lines)\n</content>",
        }
    ]
    assert result.meta == {
        "path": str(path),
        "offset": 1,
        "lines": [{"number": 1, "text": "one"}, {"number": 2, "text": "two"}],
        "totalLines": 2,
        "lang": "python",
    }


async def test_a_file_that_has_nothing_to_read_now_is_an_error_of_that_file(monkeypatch: Any) -> None:
    def kernel_log(path: str) -> int:  # regular by its mode, and yet a read of it would wait
        descriptor, other = os.pipe()
        os.set_blocking(descriptor, False)
        ends.append(other)
        return descriptor

    ends: list[int] = []
    monkeypatch.setattr(read_module, "open_regular", kernel_log)
    with pytest.raises(FileError, match=r"^/proc/kmsg: it has nothing to read now") as caught:
        read_module.read_window("/proc/kmsg", 1, 10, AbortSignal())
    os.close(ends[0])
    assert caught.value.code == "FS_IO_ERROR"


@pytest.mark.contract("FS-01")
@pytest.mark.parametrize(
    ("content", "arguments", "expected"),
    [
        ("", {}, ["", "(End of file - total 0 lines)"]),
        ("\n", {}, ["1: ", "", "(End of file - total 1 lines)"]),
        ("no newline", {}, ["1: no newline", "", "(End of file - total 1 lines)"]),
        ("a\r\nb\r\n", {}, ["1: a", "2: b", "", "(End of file - total 2 lines)"]),
        ("\ufeffa\n", {}, ["1: a", "", "(End of file - total 1 lines)"]),
        (
            "a\nb\nc\nd\n",
            {"offset": 2, "limit": 2},
            ["2: b", "3: c", "", "(Showing lines 2-3 of 4. Use offset=4 to continue.)"],
        ),
        ("a\nb\nc\n", {"offset": 3}, ["3: c", "", "(End of file - total 3 lines)"]),
        ("a\nb\n", {"offset": 2.0, "limit": 1}, ["2: b", "", "(End of file - total 2 lines)"]),
    ],
)
async def test_windows_and_footers(bench: Any, content: str, arguments: Any, expected: list[str]) -> None:
    bench.put("f.txt", content)
    assert body(await bench.text("read", file_path="f.txt", **arguments)) == expected


@pytest.mark.contract("FS-01")
async def test_read_is_bounded(bench: Any) -> None:
    bench.put("many.txt", "x\n" * 2500)
    lines = body(await bench.text("read", file_path="many.txt"))
    assert lines[1999:] == ["2000: x", "", "(Showing lines 1-2000 of 2500. Use offset=2001 to continue.)"]
    bench.put("wide.txt", ("w" * 1999 + "\n") * 100)
    lines = body(await bench.text("read", file_path="wide.txt"))
    assert lines[-1] == "(Output capped. Showing lines 1-25. Use offset=26 to continue.)"
    bench.put("giant.txt", "é" * 3_000_000)
    lines = body(await bench.text("read", file_path="giant.txt"))
    assert lines[0].startswith("1: " + "é" * 2000 + " [line cut")
    assert lines[-1] == "(End of file - total 1 lines)"
    assert (await bench.run("read", file_path="giant.txt", limit=1)).meta["lines"][0]["text"].count("é") == 2000


@pytest.mark.contract("FS-01")
async def test_files_that_are_larger_than_memory_should_be_are_streamed(bench: Any) -> None:
    bench.put("big.txt", b"0123456789abcde\n" * 700_000)  # 11 MB
    lines = body(await bench.text("read", file_path="big.txt", offset=699_999))
    assert lines == ["699999: 0123456789abcde", "700000: 0123456789abcde", "", "(End of file - total 700000 lines)"]
    code, _ = await bench.failure("edit", file_path="big.txt", old_string="0", new_string="1", replace_all=True)
    assert code == "FS_TOO_LARGE"
    assert "Updated file" in await bench.text("write", file_path="big.txt", content="small now")
    assert bench.get("big.txt") == b"small now"


@pytest.mark.contract("FS-01", "FS-08")
@pytest.mark.parametrize(
    ("content", "arguments", "code"),
    [
        (b"a\0b", {}, "FS_NOT_TEXT"),
        (b"\xff\xfe", {}, "FS_NOT_TEXT"),
        (b"cut \xe2\x82", {}, "FS_NOT_TEXT"),
        (b"a\n", {"offset": 2}, "FS_NOT_FOUND"),
        (b"", {"offset": 2}, "FS_NOT_FOUND"),
    ],
)
async def test_what_cannot_be_read(bench: Any, content: bytes, arguments: Any, code: str) -> None:
    bench.put("f", content)
    assert (await bench.failure("read", file_path="f", **arguments))[0] == code


@pytest.mark.contract("FS-03")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {"file_path": " "}),
        ("read", {"file_path": "a\0b"}),
        ("read", {"file_path": "f", "offset": 0}),
        ("read", {"file_path": "f", "offset": 1.5}),
        ("read", {"file_path": "f", "limit": 2001}),
        ("read", {"file_path": "f", "limit": 0}),
        ("read", {"file_path": "f", "limit": "all"}),
        ("write", {"file_path": "", "content": "x"}),
        ("write", {"file_path": "f"}),
        ("edit", {"file_path": "\t", "old_string": "a", "new_string": "b"}),
        ("edit", {"file_path": "f", "old_string": "", "new_string": "b"}),
        ("edit", {"file_path": "f", "old_string": "a", "new_string": "a"}),
        ("edit", {"file_path": "f", "old_string": "a\n", "new_string": "a\r\n"}),
    ],
)
async def test_argument_errors(bench: Any, tool: str, arguments: Any) -> None:
    bench.put("f", "a\n")
    code, message = await bench.failure(tool, **arguments)
    assert code == "INVALID_ARGS"
    assert message.startswith("Error: invalid arguments: ")


@pytest.mark.contract("FS-08")
async def test_paths_and_what_lies_there(bench: Any, tmp_path: Path) -> None:
    bench.put("sub/file", "here\n")
    (bench.root / "link").symlink_to("sub/file")
    (bench.root / "dangling").symlink_to("nowhere")
    os.mkfifo(bench.root / "pipe")
    for path in ("sub/file", str(bench.root / "sub/file"), "./sub/../sub/file", "link"):
        assert "1: here" in await bench.text("read", file_path=path)
    for path, code in [
        ("missing", "FS_NOT_FOUND"),
        ("dangling", "FS_NOT_FOUND"),
        ("sub/file/deeper", "FS_NOT_DIRECTORY"),
        ("sub", "FS_NOT_REGULAR_FILE"),
        ("pipe", "FS_NOT_REGULAR_FILE"),
        ("n" * 300, "FS_IO_ERROR"),
    ]:
        assert (await bench.failure("read", file_path=path))[0] == code
        if code != "FS_NOT_FOUND":
            assert (await bench.failure("write", file_path=path, content="x"))[0] == code
    assert "Created file" in await bench.text("write", file_path="dangling", content="made\n")
    assert bench.get("nowhere") == b"made\n"
    assert (bench.root / "dangling").is_symlink()
    other = bench.agent("s2", tmp_path)
    assert "1: here" in await bench.text("read", "s2", file_path="work/sub/file")
    assert other.session.header.cwd == str(tmp_path)


@pytest.mark.contract("FS-08")
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_permissions_are_told_apart(bench: Any) -> None:
    bench.put("secret", "x").chmod(0)
    assert (await bench.failure("read", file_path="secret"))[0] == "FS_PERMISSION_DENIED"


@pytest.mark.contract("FS-08")
@pytest.mark.parametrize(
    ("number", "code"), [(13, "FS_PERMISSION_DENIED"), (30, "FS_PERMISSION_DENIED"), (5, "FS_IO_ERROR")]
)
async def test_what_the_system_says_becomes_a_code(bench: Any, monkeypatch: Any, number: int, code: str) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files_module.os, "replace", refuse)
    assert (await bench.failure("write", file_path="f", content="x"))[0] == code
    assert os.listdir(bench.root) == []


# -- write and edit ------------------------------------------------------------------------------


@pytest.mark.contract("FS-02", "FS-09")
async def test_write_creates_and_updates(bench: Any) -> None:
    result = await bench.run("write", file_path="deep/er/new.txt", content="one\n")
    path = bench.root / "deep/er/new.txt"
    assert body(result.content[0]["text"]) == ["Created file"]
    assert result.value == {"path": str(path), "operation": "create", "before": None, "after": "one\n"}
    assert result.meta == {"diffs": [{"path": str(path), "oldText": None, "newText": "one\n"}]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o755)
    result = await bench.run("write", file_path="deep/er/new.txt", content="two\n")
    assert body(result.content[0]["text"]) == ["Updated file"]
    assert result.value["before"] == "one\n"
    assert result.meta == {"diffs": [{"path": str(path), "oldText": "one\n", "newText": "two\n"}]}
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    result = await bench.run("write", file_path="deep/er/new.txt", content="two\n")
    assert result.meta == {"diffs": [{"path": str(path), "oldText": "two\n", "newText": "two\n"}]}
    assert os.listdir(path.parent) == ["new.txt"]


@pytest.mark.contract("FS-02")
async def test_edit_replaces_one_or_all(bench: Any) -> None:
    lines = [f"line {number}\n" for number in range(1, 31)]
    path = bench.put("f.txt", "".join(lines))
    await bench.text("read", file_path="f.txt", limit=1)
    code, message = await bench.failure("edit", file_path="f.txt", old_string="line", new_string="LINE")
    assert code == "FS_AMBIGUOUS_EDIT"
    assert "30 times" in message
    assert (await bench.failure("edit", file_path="f.txt", old_string="nope", new_string="x"))[0] == "FS_EDIT_NOT_FOUND"
    result = await bench.run("edit", file_path="f.txt", old_string="line 15\n", new_string="changed\n")
    assert result.content[0]["text"] == f"The file {path} has been updated successfully."
    assert result.meta == {
        "diffs": [
            {
                "path": str(path),
                "oldText": "".join(lines[11:18]),
                "newText": "".join([*lines[11:14], "changed\n", *lines[15:18]]),
            }
        ]
    }
    result = await bench.run("edit", file_path="f.txt", old_string="line 2", new_string="L", replace_all=True)
    assert result.content[0]["text"] == (
        f"The file {path} has been updated. All occurrences were successfully replaced."
    )
    assert [hunk["newText"].count("L") for hunk in result.meta["diffs"]] == [1, 10]


@pytest.mark.contract("FS-09")
async def test_line_endings_survive(bench: Any) -> None:
    bench.put("dos.txt", "one\r\ntwo\r\nthree\r\nlone\n")
    await bench.text("read", file_path="dos.txt")
    await bench.text("edit", file_path="dos.txt", old_string="one\ntwo\n", new_string="1\n2\n2b\n")
    assert bench.get("dos.txt") == b"1\r\n2\r\n2b\r\nthree\r\nlone\n"
    await bench.text("write", file_path="dos.txt", content="a\nb\n")
    assert bench.get("dos.txt") == b"a\r\nb\r\n"
    bench.put("unix.txt", "a\nb\n")
    await bench.text("read", file_path="unix.txt")
    await bench.text("write", file_path="unix.txt", content="x\r\ny\n")
    assert bench.get("unix.txt") == b"x\ny\n"


@pytest.mark.contract("FS-09")
async def test_a_failed_step_leaves_nothing_behind(bench: Any, monkeypatch: Any) -> None:
    bench.put("f", "before\n")
    await bench.text("read", file_path="f")

    def stop(descriptor: int, mode: int) -> None:
        bench.caller.abort({"kind": "user"})

    monkeypatch.setattr(files_module.os, "fchmod", stop)
    code, _ = await bench.failure("write", file_path="f", content="after\n")
    assert code == "FS_ABORTED"
    assert os.listdir(bench.root) == ["f"]
    assert bench.get("f") == b"before\n"


async def test_a_lone_surrogate_cannot_be_written(bench: Any) -> None:
    assert (await bench.failure("write", file_path="f", content="\ud800"))[0] == "FS_NOT_TEXT"
    assert os.listdir(bench.root) == []


# -- freshness -----------------------------------------------------------------------------------


@pytest.mark.contract("FS-04", "FS-07")
async def test_a_file_is_changed_only_as_it_was_read(bench: Any) -> None:
    bench.put("f", "one\ntwo\n")
    edit = {"file_path": "f", "old_string": "one", "new_string": "1"}
    for tool, arguments in [("edit", edit), ("write", {"file_path": "f", "content": "x"})]:
        code, message = await bench.failure(tool, **arguments)
        assert code == "FS_NOT_OBSERVED"
        assert message.endswith("read the file first, then retry")
    await bench.text("read", file_path="f", offset=2, limit=1)
    bench.put("f", "One\ntwo\n")
    code, message = await bench.failure("edit", **edit)
    assert code == "FS_STALE_VERSION"
    assert message.endswith("re-read the file, then retry")
    await bench.text("read", file_path="f")
    code, message = await bench.failure("edit", **edit)
    assert code == "FS_EDIT_NOT_FOUND"
    assert "retry" not in message
    await bench.text("edit", **{**edit, "old_string": "One"})
    await bench.text("edit", **{**edit, "old_string": "two"})
    await bench.text("write", file_path="f", content="whole\n")
    assert bench.get("f") == b"whole\n"


@pytest.mark.contract("FS-04")
async def test_touching_a_file_does_not_make_it_stale(bench: Any) -> None:
    path = bench.put("f", "one\n")
    await bench.text("read", file_path="f")
    os.utime(path, (1, 1))
    await bench.text("edit", file_path="f", old_string="one", new_string="two")


@pytest.mark.contract("FS-04")
async def test_absence_is_observed_too(bench: Any) -> None:
    path = bench.put("f", "one\n")
    await bench.text("read", file_path="f")
    path.unlink()
    assert (await bench.failure("write", file_path="f", content="x"))[0] == "FS_STALE_VERSION"
    assert (await bench.failure("read", file_path="f"))[0] == "FS_NOT_FOUND"
    assert (await bench.failure("edit", file_path="f", old_string="one", new_string="x"))[0] == "FS_NOT_FOUND"
    bench.put("f", "came back\n")
    assert (await bench.failure("write", file_path="f", content="x"))[0] == "FS_STALE_VERSION"
    path.unlink()
    assert "Created file" in await bench.text("write", file_path="f", content="x")


@pytest.mark.contract("FS-05")
async def test_without_the_rule_writing_is_unconditional(unguarded: Any) -> None:
    unguarded.put("f", "one\n")
    assert (await unguarded.failure("edit", file_path="f", old_string="two", new_string="x"))[0] == "FS_EDIT_NOT_FOUND"
    await unguarded.text("edit", file_path="f", old_string="one", new_string="two")
    await unguarded.text("write", file_path="f", content="x")
    assert unguarded.get("f") == b"x"


@pytest.mark.contract("FS-06")
async def test_of_two_concurrent_changes_one_is_stale(bench: Any) -> None:
    bench.put("f", "start\n")
    for session in ("s1", "s2"):
        await bench.text("read", session, file_path="f")
    for leg, writers in (("a", ("s1", "s2")), ("b", ("s1", "s1"))):
        results = await asyncio.gather(
            *(bench.run("write", name, file_path="f", content=f"{leg}{place}\n") for place, name in enumerate(writers))
        )
        failed = [result.error_info["code"] for result in results if result.is_error]
        assert failed == ["FS_STALE_VERSION"]
        winner = next(place for place, result in enumerate(results) if not result.is_error)
        assert bench.get("f") == f"{leg}{winner}\n".encode()
        for session in ("s1", "s2"):
            await bench.text("read", session, file_path="f")


class Editing:
    """A change in a thread of its own that stops in the middle until it is let go."""

    def __init__(self, bench: Any, text: str) -> None:
        self.call = ToolCall(
            call_id="c",
            name="write",
            arguments={},
            signal=bench.caller.signal,
            agent=bench.agent(),
            cwd=str(bench.root),
        )
        self.begun, self.go = threading.Event(), threading.Event()
        self._text = text

    def __call__(self, now: Any, path: str) -> tuple[str, str]:
        self.begun.set()
        assert self.go.wait(10)
        return now.data.decode(), self._text


@pytest.fixture
def changes(bench: Any) -> Any:
    made = FileChanges(Observations(), Fence(str(bench.home), str(bench.home / "spill")))
    target = str(bench.put("f", "start\n"))
    made._observations.note("s1", target, content_hash(b"start\n").hexdigest())
    return made


@pytest.mark.contract("FS-06")
@pytest.mark.parametrize("text", ["other\n", "start\n"])
async def test_a_change_that_begins_during_another_is_stale_whatever_that_writes(
    bench: Any, changes: Any, text: str
) -> None:
    one, two = Editing(bench, text), Editing(bench, "two\n")
    two.go.set()
    first = asyncio.ensure_future(changes.apply(one.call, "f", one))
    await asyncio.to_thread(one.begun.wait, 10)
    second = asyncio.ensure_future(changes.apply(two.call, "f", two))
    await asyncio.sleep(0)  # it has begun
    one.go.set()
    assert (await first).after == text
    with pytest.raises(FileError) as caught:
        await second
    assert caught.value.code == "FS_STALE_VERSION"
    assert not two.begun.is_set()
    assert bench.get("f") == text.encode()
    assert (await changes.apply(two.call, "f", two)).after == "two\n"


@pytest.mark.contract("FS-06")
async def test_a_cancelled_change_keeps_others_out_until_it_has_ended(bench: Any, changes: Any) -> None:
    one, two = Editing(bench, "one\n"), Editing(bench, "two\n")
    two.go.set()
    first = asyncio.ensure_future(changes.apply(one.call, "f", one))
    await asyncio.to_thread(one.begun.wait, 10)
    first.cancel()
    second = asyncio.ensure_future(changes.apply(two.call, "f", two))
    done, _ = await asyncio.wait([first, second], timeout=0.1)
    assert not done
    one.go.set()
    with pytest.raises(FileError) as caught:
        await second
    assert caught.value.code == "FS_STALE_VERSION"
    assert first.cancelled()
    assert bench.get("f") == b"one\n"


@pytest.mark.contract("FS-10")
async def test_what_was_seen_belongs_to_one_session_and_ends_with_it(bench: Any) -> None:
    bench.put("f", "one\n")
    await bench.text("read", "s1", file_path="f")
    edit = {"file_path": "f", "old_string": "one", "new_string": "two"}
    assert (await bench.failure("edit", "s2", **edit))[0] == "FS_NOT_OBSERVED"
    bench.dispose("s1")
    assert (await bench.failure("edit", "s1", **edit))[0] == "FS_NOT_OBSERVED"


@pytest.mark.contract("FS-11")
async def test_outside_the_workspace_needs_an_answer(asking: Any, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (asking.root / "door").symlink_to(outside)
    (outside / "f").write_text("readable\n")
    assert "readable" in await asking.text("read", file_path=str(outside / "f"))
    assert "Created file" in await asking.text("write", file_path="inside/f", content="x")
    for path in ("../outside/g", "door/g", str(outside / "g")):
        code, message = await asking.failure("write", file_path=path, content="x")
        assert code == "APPROVAL_UNAVAILABLE"
        assert "no approval channel" in message
    assert os.listdir(outside) == ["f"]
    assert (await asking.failure("bash", command="true", description="d"))[0] == "APPROVAL_UNAVAILABLE"
