"""Damaged logs: what is repaired and what is refused, in both encodings, and that nothing readable is ever lost."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import (
    SessionError,
    SessionHeader,
    TextDelta,
    assistant_message,
    text_block,
    tool_result_message,
    user_message,
)
from polyhost.runtime.sessions import EventCatalogue, JsonlStorage, LiveSession
from polyhost.runtime.sessions.header import encode
from polyhost.runtime.sessions.layout import directory
from polyhost.runtime.sessions.packing import pack
from polyhost.runtime.sessions.reading import StoredLog, read_log

HEADER = SessionHeader("s-1", 1000)
HEAD = encode(HEADER)


def frame(*lines: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(lines))


def parse(raw: bytes, encoding: Any = "plain") -> StoredLog:
    return read_log(raw, encoding, "the.log", EventCatalogue())


def refused(raw: bytes, encoding: Any = "plain") -> SessionError:
    with pytest.raises(SessionError) as caught:
        parse(raw, encoding)
    assert "the.log" in caught.value.message
    return caught.value


@pytest.fixture
def lines(session: LiveSession, talk: Any) -> list[bytes]:
    """One whole turn, and the beginning of a second one with a streamed answer."""
    talk.whole_turn(answer="abc")
    talk.start_turn()
    talk.start_step()
    talk.deltas("x", "y", "z")
    return list(session.lines())


@pytest.fixture
def turn_end(lines: list[bytes]) -> int:
    return next(at for at, line in enumerate(lines) if b'"turn/end"' in line)


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-06")
def test_a_sound_log_is_kept_whole(lines: list[bytes]) -> None:
    for raw, encoding in (
        (HEAD + b"".join(lines), "plain"),
        (HEAD + b"".join(pack(lines)), "plain"),
        (HEAD + b"".join(lines[:3]) + b"".join(pack(lines[3:])), "plain"),
        (frame(HEAD) + frame(*lines[:4]) + frame(*pack(lines[4:])), "zstd"),
    ):
        log = parse(raw, encoding)
        assert (log.header, log.lines, log.keep, log.rescued) == (HEADER, lines, len(raw), [])
        assert [json.loads(line)["type"] for line in log.closers] == ["step/end", "turn/end"]


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-06")
def test_a_torn_last_record_is_discarded(lines: list[bytes]) -> None:
    whole = HEAD + b"".join(lines[:-1])
    for length in range(1, len(lines[-1])):
        log = parse(whole + lines[-1][:length])
        assert (log.lines, log.keep) == (lines[:-1], len(whole))
        assert "torn" in log.notes[0]
        assert f"byte {len(whole)}" in log.notes[0]


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-10")
def test_a_torn_frame_gives_its_complete_records(lines: list[bytes]) -> None:
    first, last = frame(HEAD) + frame(*lines[:4]), frame(*lines[4:])
    for length in range(1, len(last)):
        log = parse(first + last[:length], "zstd")
        assert log.keep == len(first)
        assert log.lines[:4] == lines[:4]
        assert log.lines[4:] == log.rescued == lines[4 : len(log.lines)]
    assert log.lines == lines, "only the checksum of the frame is torn"


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-10")
def test_a_record_torn_inside_a_complete_frame_is_corruption(lines: list[bytes]) -> None:
    error = refused(frame(HEAD) + frame(*lines[:-1], lines[-1][:20]), "zstd")
    assert error.code == "SESSION_CORRUPT"


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-05", "JSL-10")
def test_a_damaged_frame_does_not_take_the_next_ones_along(lines: list[bytes]) -> None:
    noise = random.Random(1).randbytes(30_000).hex().encode()
    first, second, third = frame(HEAD), frame(noise), frame(*lines)
    raw = bytearray(first + second + third)
    length = len(first) + 7  # of its only block, behind magic, descriptor and a content size of two bytes
    raw[length : length + 3] = (int.from_bytes(raw[length : length + 3], "little") + (8192 << 3)).to_bytes(3, "little")
    error = refused(bytes(raw), "zstd")
    assert error.code == "SESSION_CORRUPT"
    assert f"it runs over the frame at byte {len(first) + len(second)}" in error.message
    checksum = bytearray(frame(HEAD) + frame(*lines))
    checksum[-1] ^= 1
    assert refused(bytes(checksum), "zstd").code == "SESSION_CORRUPT"


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-06")
@pytest.mark.parametrize(
    "defect",
    [
        pytest.param(lambda lines, at: lines.__setitem__(at, b"\0garbage\n"), id="unparsable"),
        pytest.param(lambda lines, at: lines.__setitem__(at, b"[]\n"), id="not an object"),
        pytest.param(lambda lines, at: lines.pop(at), id="gap"),
        pytest.param(lambda lines, at: lines.insert(at, lines[at - 1]), id="repeated"),
        pytest.param(
            lambda lines, at: lines.__setitem__(at, b'{"type":"text-chunks","seq0":0,"time0":0,"data":{}}\n'),
            id="malformed row",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["plain", "zstd"])
def test_a_defect_is_cut_off_after_the_last_turn_end_and_corruption_before(
    lines: list[bytes], turn_end: int, defect: Callable[[list[bytes], int], Any], encoding: str
) -> None:
    def raw(at: int) -> tuple[bytes, int]:
        damaged = list(lines)
        defect(damaged, at)
        if encoding == "plain":
            return HEAD + b"".join(damaged), len(HEAD) + sum(map(len, damaged[:at]))
        front = frame(HEAD) + frame(*damaged[:2])
        return front + frame(*damaged[2:]), len(front)

    content, keep = raw(turn_end + 2)
    log = parse(content, encoding)
    assert (log.lines, log.keep) == (lines[: turn_end + 2], keep)
    assert log.rescued == ([] if encoding == "plain" else lines[2 : turn_end + 2])
    content, _ = raw(turn_end - 1)
    assert refused(content, encoding).code == "SESSION_CORRUPT"


@pytest.mark.case("CASE-11")
@pytest.mark.contract("PST-11", "JSL-04")
def test_unknown_formats_are_not_called_corruption(lines: list[bytes]) -> None:
    novel = {"type": "novel/type", "seq": len(lines), "time": 5, "data": {}}
    unknown = json.dumps(novel).encode() + b"\n"
    ignorable = json.dumps({**novel, "ignorable": True}).encode() + b"\n"
    error = refused(HEAD + b"".join(lines) + unknown)
    assert error.code == "SESSION_UNSUPPORTED"
    assert "novel/type" in error.message
    assert parse(HEAD + b"".join(lines) + ignorable).lines[-1] == ignorable
    newer, older = (HEAD.replace(b'"version":0', b'"version":%d' % version) for version in (1, -1))
    messages = {refused(head).message for head in (newer, older)}
    assert len({*messages, error.message}) == 3
    assert {refused(head).code for head in (newer, older)} == {"SESSION_UNSUPPORTED"}
    with_type = EventCatalogue({"novel/type"}.__contains__)
    assert read_log(HEAD + b"".join(lines) + unknown, "plain", "the.log", with_type).lines[-1] == unknown


@pytest.mark.contract("JSL-04")
@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"[]\n",
        b"null\n",
        HEAD.rstrip(),
        HEAD.replace(b'"session"', b'"turn/start"', 1),
        HEAD.replace(b"1000", b'"1000"'),
        HEAD.replace(b"1000", b"-1"),
        HEAD.replace(b"}", b',"cwd":"relative"}'),
        HEAD.replace(b"}", b',"cwd":null}'),
        HEAD.replace(b"}", b',"sandboxMode":"x"}'),
        HEAD.replace(b"}", b',"approvalPolicy":"x"}'),
        HEAD.replace(b"}", b',"unknown":1}'),
        HEAD.replace(b'"id":"s-1",', b""),
    ],
)
def test_a_wrong_header_is_corruption(head: bytes, lines: list[bytes]) -> None:
    assert refused(head + b"".join(lines if head.endswith(b"\n") else [])).code == "SESSION_CORRUPT"


@pytest.mark.parametrize("change", [{"surfaceOp": None}, {"data": {}}, {"novel": 1}, {"time": "x"}])
def test_a_malformed_event_is_refused_with_its_place(lines: list[bytes], change: Any) -> None:
    at = next(at for at, line in enumerate(lines) if b'"user/message"' in line)
    lines[at] = json.dumps({**json.loads(lines[at]), **change}).encode() + b"\n"
    error = refused(HEAD + b"".join(lines))
    assert error.code == "SESSION_CORRUPT"
    assert f"byte {len(HEAD) + sum(map(len, lines[:at]))}" in error.message
    assert f"event {at}" in error.message


def test_lines_of_other_writers_are_kept_or_cleaned(lines: list[bytes]) -> None:
    spaced = json.dumps(json.loads(lines[0]), sort_keys=True, indent=None).encode() + b"\n"
    log = parse(HEAD + spaced + lines[1].replace(b"\n", b"\r\n"))
    assert log.lines == [spaced, lines[1]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("append"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    children = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    inner = [place for _, child in children if isinstance(child, dict | list) for place in places(child)]
    return [(value, key) for key, _ in children] + inner


@pytest.mark.case("CASE-11")
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_any_json_in_the_place_of_any_other_is_read_or_refused(data: st.DataObject) -> None:
    events = [json.loads(line) for line in rich_log()]
    changed = data.draw(st.sampled_from(events))
    container, key = data.draw(st.sampled_from(places(changed)))
    if data.draw(st.booleans()):
        container[key] = data.draw(JSON)
    elif isinstance(container, dict):
        del container[key]
    lines = [json.dumps(event).encode() + b"\n" for event in events]
    try:
        log = parse(HEAD + b"".join(lines))
    except SessionError:
        return
    session = LiveSession(HEADER, [*log.lines, *log.closers])
    session.messages()
    assert not session.turn_open


def rich_log() -> list[bytes]:
    """An event of every type that is read back, the last turn open."""
    session = LiveSession(HEADER, clock=lambda: 1000)
    place = {"turn": 1, "step": 1}
    session.append("turn/start", {"turn": 1})
    session.append("step/start", place)
    session.append("user/message", user_message("hi"), surface_op="append")
    header = {"config": {"provider": "p", "model": "m"}, "adapterDefaults": {"maxTokens": True}, "tools": []}
    session.append("request/header", {"header": header, "reason": "initial"})
    session.append("request/context", {"provider": "p", "model": "m", "contextWindow": 1})
    session.chunk_writer(1, 1).write(TextDelta(0, "x"))
    calls = [{"type": "tool-call", "id": call_id, "name": "n", "arguments": "{}"} for call_id in ("c-1", "c-2")]
    message = assistant_message(calls, provider="p", model="m")
    session.append("assistant/message", {**place, "message": message}, surface_op="append", source_seqs=[5])
    session.append("approval/asked", {"id": "a", "toolName": "n"})
    session.append("approval/decided", {"id": "a", "outcome": "allowed-once"})
    session.append("tool/call", {**place, "callId": "c-1", "name": "n", "arguments": "{}"})
    result = tool_result_message("c-1", [text_block("long")], is_error=False)
    session.append("tool/result", {**place, "message": result}, surface_op="append", source_seqs=[9])
    shorter = {**result, "content": [{**result["content"][0], "content": []}]}
    operation = {"op": "replace", "start": 10, "end": 10}
    session.append("tool/result", {**place, "message": shorter}, surface_op=operation, source_seqs=[10])
    return list(session.lines())


@pytest.mark.case("CASE-11")
@pytest.mark.contract("JSL-05")
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_never_crashes_and_never_loses_a_byte(data: st.DataObject) -> None:
    session = LiveSession(HEADER, clock=lambda: 1000)
    for turn in (1, 2):
        session.append("turn/start", {"turn": turn})
        session.append("step/start", {"turn": turn, "step": 1})
        session.append("feedback/record", {"text": "é" * turn})
        session.append("step/end", {"turn": turn, "step": 1})
        session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
    session.append("turn/start", {"turn": 3})
    lines = list(session.lines())
    encoding = data.draw(st.sampled_from(["plain", "zstd"]))
    if encoding == "plain":
        raw = bytearray(HEAD + b"".join(lines))
    else:
        raw = bytearray(frame(HEAD) + frame(*lines[:4]) + frame(*lines[4:8]) + frame(*lines[8:]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["flip", "delete", "insert", "truncate"])):
            case "flip":
                raw[at] ^= 1 << data.draw(st.integers(0, 7))
            case "delete":
                del raw[at : at + data.draw(st.integers(1, 40))]
            case "insert":
                raw[at:at] = data.draw(st.binary(min_size=1, max_size=20))
            case "truncate":
                del raw[at:]
        if not raw:
            return
    with tempfile.TemporaryDirectory() as place:
        check_recovery(Path(place), bytes(raw), encoding)


def check_recovery(root: Path, damaged: bytes, encoding: str) -> None:
    """Prepare a damaged log: refused and untouched, or cut with every byte still there; then it loads for good."""
    path = directory(root, HEADER) / ("session.jsonl" if encoding == "plain" else "session.jsonl.zstd")
    path.parent.mkdir(parents=True)
    path.write_bytes(damaged)

    async def run() -> None:
        storage = JsonlStorage(root)
        try:
            prepared = await storage.prepare("s-1")
            LiveSession(prepared.header, prepared.lines)
            cut = [file for file in path.parent.iterdir() if ".cut-" in file.name]
            keep = len(damaged) - sum(file.stat().st_size for file in cut)
            assert damaged[:keep] + b"".join(file.read_bytes() for file in cut) == damaged
            assert path.read_bytes().startswith(damaged[:keep])
            prepared.release()
            again = await storage.prepare("s-1")
            assert (again.lines, again.notes) == (prepared.lines, [])
            again.release()
            outcomes.append("repaired")
        except SessionError as error:
            outcomes.append(error.code)
            assert path.read_bytes() == damaged
        finally:
            await storage.close()

    outcomes: list[str] = []
    asyncio.run(run())
    assert outcomes[0] in ("repaired", "SESSION_CORRUPT", "SESSION_UNSUPPORTED")
