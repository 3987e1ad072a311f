"""The offline model: what each phrase makes it do, step by step, decided from the history alone."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    JsonObject,
    ModelError,
    ModelRequest,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    assistant_message,
    text_block,
    tool_result_message,
    user_message,
)
from polyhost.kernel.signals import AbortController
from polyhost.testing import sample
from polyhost.wire import json
from polyhost_models.demo import DemoAdapter
from polyhost_models.phrases import HELP, count_words, split_words

TOOLS = ("read", "write", "edit", "bash", "ask_user_question", "subagent")
UNREAD = "old.txt: it was not read in this session; read the file first, then retry"


class Step(NamedTuple):
    """One response: what was said and which tool was called, if any."""

    text: str
    tool: str | None = None
    arguments: Mapping[str, Any] = MappingProxyType({})


class Error(str):
    """A tool result that is an error."""


class Talk:
    """A conversation with the demo model: :meth:`say` something, then hand it :meth:`result` after result."""

    def __init__(self, tools: Sequence[str] = TOOLS) -> None:
        self.messages: list[JsonObject] = []
        self._tools = [{"name": name, "description": "", "parameters": {}} for name in tools]
        self._call = ""

    async def say(self, text: str) -> Step:
        self.messages.append(user_message(text))
        return await self._respond()

    async def result(self, text: str) -> Step:
        self.messages.append(tool_result_message(self._call, [text_block(str(text))], is_error=isinstance(text, Error)))
        return await self._respond()

    def request(self, **fields: Any) -> ModelRequest:
        return ModelRequest(
            **{"provider": "demo", "model": "demo", "messages": list(self.messages), "tools": self._tools, **fields}
        )

    async def _respond(self) -> Step:
        chunks = [chunk async for chunk in DemoAdapter().stream(self.request())]
        blocks = well_formed(chunks)
        self.messages.append(assistant_message(blocks, provider="demo", model="demo"))
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [block for block in blocks if block["type"] == "tool-call"]
        if not calls:
            return Step(text)
        (call,) = calls
        self._call = call["id"]
        return Step(text, call["name"], json.loads(call["arguments"]))


def well_formed(chunks: list[Chunk]) -> list[JsonObject]:
    """The blocks of a response, after checking that its chunks are in order and its deltas add up to its blocks."""
    assert type(chunks[-2]) is UsageReport
    assert type(chunks[-1]) is Finish
    texts: dict[int, str] = {}
    blocks = []
    for chunk in chunks[:-2]:
        match chunk:
            case BlockStart(position):
                texts[position] = ""
            case TextDelta(position, text) | ToolCallDelta(position, _, text):
                texts[position] += text
            case BlockEnd(position, block):
                assert texts[position] == block.get("text", block.get("arguments"))
                blocks.append(block)
    kinds = {block["type"] for block in blocks}
    assert chunks[-1] == Finish({"kind": "tool-calls" if "tool-call" in kinds else "stop"})
    return blocks


async def test_say_repeats_the_text_as_it_is() -> None:
    assert await Talk().say("say Hello,  world\n  twice") == Step("Hello,  world\n  twice")


async def test_anything_else_gets_the_list_of_phrases() -> None:
    assert await Talk().say("what can you do?") == Step(HELP)
    assert await Talk().say("count to ten") == Step(HELP)


async def test_read() -> None:
    talk = Talk()
    assert await talk.say("Read a.txt") == Step("I read a.txt.", "read", {"file_path": "a.txt"})
    shown = (
        "<path>a.txt</path>\n<type>file</type>\n<content>\n1: one\n2: two\n\n(End of file - total 2 lines)\n</content>"
    )
    assert await talk.result(shown) == Step("a.txt shows 2 lines.")


async def test_read_that_fails() -> None:
    talk = Talk()
    await talk.say("read a.txt")
    assert await talk.result(Error("no such file")) == Step("I could not read a.txt: no such file")


async def test_write_a_new_file() -> None:
    talk = Talk()
    write = {"file_path": "new.txt", "content": "two words\n"}
    assert await talk.say("write new.txt two words") == Step("I write new.txt.", "write", write)
    assert await talk.result("Created file") == Step("I wrote new.txt.")


async def test_write_over_an_existing_file_reads_it_first() -> None:
    talk = Talk()
    write = {"file_path": "old.txt", "content": "text\n"}
    assert await talk.say("write old.txt text") == Step("I write old.txt.", "write", write)
    read = Step("old.txt exists, so I read it first.", "read", {"file_path": "old.txt"})
    assert await talk.result(Error(UNREAD)) == read
    assert await talk.result("1: before") == Step("Now I write it.", "write", write)
    assert await talk.result("Updated file") == Step("I wrote old.txt.")


@pytest.mark.parametrize(
    ("results", "last"),
    [
        ((Error("denied: the session is read-only"),), "denied: the session is read-only"),
        ((Error(UNREAD), Error("permission denied")), "permission denied"),
        ((Error(UNREAD), "1: before", Error("disk full")), "disk full"),
    ],
)
async def test_write_gives_up_when_it_cannot(results: tuple[str, ...], last: str) -> None:
    talk = Talk()
    await talk.say("write old.txt text")
    for result in results:
        step = await talk.result(result)
    assert step == Step(f"I could not write old.txt: {last}")


async def test_write_without_a_text() -> None:
    assert await Talk().say("write a.txt") == Step("Tell me what to write: write PATH TEXT.")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("fine", "It ran, and ended well."),
        ("(no output)\n[exit code: 3]", "It ran, and ended with exit code: 3."),
        ("[exit code: 3]\nwas printed", "It ran, and ended well."),
        ("x\n[timed out after 50ms]\n[killed by signal: SIGTERM]", "It ran, and ended with killed by signal: SIGTERM."),
        (Error("denied"), "It did not run: denied"),
    ],
)
async def test_run(result: str, text: str) -> None:
    talk = Talk()
    step = await talk.say("run ls -l && false")
    assert (step.tool, step.arguments["command"]) == ("bash", "ls -l && false")
    assert await talk.result(result) == Step(text)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ('{"answers": [{"id": "question", "selected": [], "custom": "tea"}]}', "You answered: tea"),
        ('{"answers": [{"id": "question", "selected": ["tea", "milk"]}]}', "You answered: tea, milk"),
        ('{"answers": []}', 'You answered: {"answers": []}'),
        ("[5]", "You answered: [5]"),
        ("plain", "You answered: plain"),
        (Error("Error: nobody is there"), "I got no answer: nobody is there"),
    ],
)
async def test_ask(result: str, text: str) -> None:
    talk = Talk()
    asked = {"questions": [{"id": "question", "question": "Tea or coffee?"}]}
    assert await talk.say("ask Tea or coffee?") == Step("I have a question.", "ask_user_question", asked)
    assert await talk.result(result) == Step(text)


@pytest.mark.parametrize(
    ("result", "text"), [("done", "The subagent says: done"), (Error("lost"), "The subagent failed: lost")]
)
async def test_delegate(result: str, text: str) -> None:
    talk = Talk()
    step = await talk.say("delegate say hi")
    assert (step.tool, step.arguments["prompt"]) == ("subagent", "say hi")
    assert await talk.result(result) == Step(text)


FAILING = f"[stderr]\nFAIL: {sample.FAILING_TEST} (test_prices.PricesTest)\n[exit code: 1]"


async def test_the_story_in_the_sample_repository() -> None:
    talk = Talk()
    first = await talk.say("fix the failing test")
    assert first.tool == "bash"
    assert "unittest" in first.arguments["command"]
    assert (await talk.result(FAILING))[1:] == ("read", {"file_path": sample.MODULE})
    edit = {"file_path": sample.MODULE, "old_string": sample.BROKEN, "new_string": sample.MENDED}
    assert await talk.result(sample.FILES[sample.MODULE]) == Step(sample.DIAGNOSIS, "edit", edit)
    assert sample.FILES[sample.MODULE].count(sample.BROKEN) == 1
    again = await talk.result("The file has been updated successfully.")
    assert again[1:] == first[1:]
    assert (await talk.result("OK")).text == f"All tests pass now. {sample.SUMMARY}"


@pytest.mark.parametrize(
    ("results", "text"),
    [
        (("Ran 0 tests",), "No failing test that I know. My story needs the sample repository: hostctl run --demo"),
        ((f"{sample.FAILING_TEST} ... ok",), "All tests pass already. There is nothing to fix."),
        ((Error("denied"),), "I stop here: denied"),
        ((FAILING, Error("no such file")), "I stop here: no such file"),
        ((FAILING, "code", "edited", FAILING), "The tests still fail, I give up."),
    ],
)
async def test_the_story_elsewhere(results: tuple[str, ...], text: str) -> None:
    talk = Talk()
    await talk.say("Fix the failing test.")
    for result in results:
        step = await talk.result(result)
    assert step == Step(text)


@pytest.mark.parametrize("prompt", ["read a", "write a b", "run a", "ask a", "delegate a", "fix the failing test"])
async def test_a_tool_that_is_not_offered_is_not_called(prompt: str) -> None:
    step = await Talk(tools=()).say(prompt)
    assert step.tool is None
    assert "this host does not offer it to me" in step.text


async def test_a_new_prompt_starts_anew_and_other_user_messages_do_not() -> None:
    talk = Talk()
    await talk.say("read a.txt")
    talk.messages.append(user_message("say no", {"kind": "plugin", "plugin": "reminder"}))
    assert await talk.result("1: x") == Step("a.txt shows 1 line.")
    assert (await talk.say("read b.txt")).tool == "read"


@pytest.mark.parametrize(
    ("purpose", "text"),
    [
        ("session-title", "run a b c d"),
        ("compaction", "The last thing that the human asked was: run a b c d e f"),
    ],
)
async def test_the_hosts_own_requests_do_not_obey_the_phrase(purpose: str, text: str) -> None:
    talk = Talk()
    await talk.say("run a b c d e f")
    chunks = [chunk async for chunk in DemoAdapter().stream(talk.request(purpose=purpose))]
    assert well_formed(chunks) == [{"type": "text", "text": text}]


async def test_the_same_history_gives_the_same_chunks_and_every_call_its_own_id() -> None:
    talk = Talk()
    await talk.say("write old.txt text")
    first, again = [[chunk async for chunk in DemoAdapter().stream(talk.request())] for _ in range(2)]
    assert first == again
    await talk.result(Error(UNREAD))
    await talk.result("1: before")
    ids = [block["id"] for message in talk.messages for block in message["content"] if block["type"] == "tool-call"]
    assert len(set(ids)) == len(ids) == 3


async def test_a_count_starts_before_it_is_built() -> None:
    talk = Talk()
    talk.messages.append(user_message("count 100000"))
    stream = DemoAdapter().stream(talk.request())
    chunks = [await anext(stream) for _ in range(3)]
    assert chunks == [BlockStart(0, "text"), TextDelta(0, "1 "), TextDelta(0, "2 ")]
    local = stream.ag_frame.f_locals  # type: ignore[attr-defined]
    assert not [name for name, value in local.items() if isinstance(value, (str, list)) and len(value) > 100]
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_count_is_exact_and_bounded() -> None:
    assert (await Talk().say("count 120")).text.split() == [str(number) for number in range(1, 121)]
    for number in ("0", "1000001"):
        assert await Talk().say(f"count {number}") == Step("I count from 1 up to 1000000.")


async def test_a_long_answer_lets_the_event_loop_run_and_can_be_cancelled() -> None:
    controller = AbortController()
    talk = Talk()
    talk.messages.append(user_message("count 1000000"))
    asyncio.get_running_loop().call_soon(controller.abort, "user")
    received = 0
    with pytest.raises(ModelError) as caught:
        async for _ in DemoAdapter().stream(talk.request(signal=controller.signal)):
            received += 1
    assert caught.value.code == "ABORTED"
    assert received < 1000


async def test_there_is_one_model() -> None:
    adapter = DemoAdapter()
    (info,) = await adapter.list_models("demo")
    assert (info.provider, info.id, info.efforts) == ("demo", "demo", ())
    with pytest.raises(ModelError) as caught:
        await adapter.resolve_model("demo", "gpt", None)
    assert caught.value.code == "UNKNOWN_MODEL"


@given(st.text("ab \n\t"))
def test_words_add_up_to_the_text(text: str) -> None:
    assert "".join(split_words(text)) == text


@pytest.mark.parametrize("line", [line for line in HELP.splitlines() if line.startswith("- ")])
async def test_every_phrase_of_the_help_is_understood(line: str) -> None:
    phrase = line[2:].partition(":")[0].replace("N", "3")
    assert await Talk().say(phrase) != Step(HELP)


def test_words_are_counted_without_being_made() -> None:
    text = " hello  world\n" * 200_000
    tracemalloc.start()
    count = count_words(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == len(text.split()) == 400_000
    assert peak < 1_000_000
