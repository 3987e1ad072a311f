"""Digests: what a search and a listing get to know of a log, also of a broken one, in one go or part by part."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost.interfaces import SessionError, SessionHeader
from polyhost.runtime.sessions import LiveSession
from polyhost.runtime.sessions.digest import TEXT_LIMIT, Digest, Text, digest
from polyhost.runtime.sessions.header import encode
from polyhost.runtime.sessions.packing import pack

HEADER = SessionHeader("s-1", 1000)


def batches(talk_to: Any) -> list[list[bytes]]:
    """Three turns, one to a batch."""
    session = LiveSession(HEADER)
    talk = talk_to(session)
    ends = [0]
    for turn in range(3):
        talk.whole_turn(f"prompt {turn}", f"answer {turn}")
        if turn == 1:
            session.append("session/title", {"title": "Named", "messageSeqs": [], "source": {"kind": "user"}})
        ends.append(len(session))
    lines = session.lines()
    return [list(pack(lines[start:end])) for start, end in pairwise(ends)]


def file_of(parts: list[list[bytes]], encoding: str) -> bytes:
    if encoding == "plain":
        return b"".join(b"".join(part) for part in parts)
    return b"".join(zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(part)) for part in parts)


def facts(*parts: Digest) -> tuple[Any, ...]:
    """What the index would hold after these digests."""
    titles = [part.title for part in parts if part.title]
    prompts = [part.prompt for part in parts if part.prompt]
    texts = [text for part in parts for text in part.texts]
    events = max(part.events for part in parts)
    return titles[-1:], prompts[:1], texts, events, sum(part.turns for part in parts), parts[-1].end


@pytest.mark.parametrize("encoding", ["plain", "zstd"])
def test_parts_make_the_same_digest_as_the_whole(encoding: Any, talk_to: Any) -> None:
    turns = batches(talk_to)
    raw = file_of([[encode(HEADER)], *turns], encoding)
    whole = digest(raw, 0, encoding, "x")
    assert whole.header == HEADER
    assert (whole.title, whole.prompt, whole.turns, whole.end) == ("Named", "prompt 0", 3, len(raw))
    assert [text.text for text in whole.texts] == [
        *("prompt 0", "answer 0", "prompt 1", "answer 1", "Named", "prompt 2", "answer 2")
    ]
    for length in range(len(file_of([[encode(HEADER)]], encoding)), len(raw)):
        first = digest(raw[:length], 0, encoding, "x")
        assert first.end <= length
        rest = digest(raw[first.end :], first.end, encoding, "x")
        assert facts(first, rest) == facts(whole)


def test_damage_gives_a_digest_or_a_session_error(talk_to: Any) -> None:
    turns = batches(talk_to)
    files = {encoding: file_of([[encode(HEADER)], *turns], encoding) for encoding in ("plain", "zstd")}

    @settings(max_examples=300, deadline=None)
    @given(seed=st.integers(0, 2**32), encoding=st.sampled_from(["plain", "zstd"]), start=st.booleans())
    def check(seed: int, encoding: Any, start: bool) -> None:
        damaged(files[encoding], seed, encoding, start)

    check()


def damaged(content: bytes, seed: int, encoding: Any, start: bool) -> None:
    chance = random.Random(seed)
    raw = bytearray(content)
    for _ in range(chance.randrange(1, 6)):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    del raw[chance.randrange(len(raw)) :]
    try:
        result = digest(bytes(raw), 100 if start else 0, encoding, "x")
    except SessionError:
        return
    assert result.end <= len(raw) + 100
    for text in result.texts:
        text.text.encode()


def test_odd_events_do_not_matter() -> None:
    lines = [
        b'{"type":"user/message","seq":0,"time":1,"data":[]}\n',
        b'{"type":"user/message","seq":1,"time":1,"data":{"source":{"kind":"plugin"},"content":[]}}\n',
        b'{"type":"session/title","seq":2,"time":1,"data":{"title":5}}\n',
        b'{"seq":3,"time":1,"type":"user/message","data":{"source":{"kind":"user"},'
        b'"content":[{"type":"text","text":"\\ud800 hi"}]}}\n',
        b"junk\n",
        b'{"type":"\\ud800","seq":5}\n',
    ]
    result = digest(encode(HEADER) + b"".join(lines), 0, "plain", "x")
    assert (result.title, result.prompt, result.events) == (None, "hi", 6)
    assert result.texts == [Text(3, "user", "? hi")]


def test_a_text_is_bounded() -> None:
    line = (
        b'{"type":"user/message","seq":0,"time":1,"data":{"source":{"kind":"user"},'
        b'"content":[{"type":"text","text":"%b"}]}}\n'
    )
    result = digest(encode(HEADER) + line % (b"word " * TEXT_LIMIT), 0, "plain", "x")
    assert len(result.texts[0].text) == TEXT_LIMIT
