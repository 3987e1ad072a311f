"""From stream chunks to the content of one assistant message.

Total and order-tolerant: whatever an adapter sends yields a valid content list. Text is kept as a list of parts and
joined once, so that a long answer costs linear time.
"""

from __future__ import annotations

from collections.abc import Iterable

from polyhost.interfaces import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    JsonObject,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    UsageReport,
)

BLOCK_TYPES = frozenset({"text", "reasoning", "image", "tool-call", "tool-result"})

STOP: JsonObject = {"kind": "stop"}


class _Block:
    """One content block under construction. ``final`` is the authoritative form once its end was seen."""

    __slots__ = ("final", "id", "kind", "name", "parts", "position")

    def __init__(self, position: int, kind: str) -> None:
        self.position = position
        self.kind = kind
        self.parts: list[str] = []
        self.id = ""
        self.name = ""
        self.final: JsonObject | None = None

    def content(self) -> JsonObject | None:
        """The block as JSON; None when nothing valid can be made of what arrived."""
        if self.final is not None:
            return self.final
        if self.kind in ("text", "reasoning"):
            return {"type": self.kind, "text": "".join(self.parts)}
        if self.kind == "tool-call":
            return _tool_call(self.position, self.id, self.name, "".join(self.parts))
        return None  # an image or a feature's block cannot be built from deltas


class Assembler:
    """Folds the chunks of one attempt. Feed in order; the results may be read at any time, repeatedly.

    :ivar usage: the last usage report, None without one.
    :ivar finish: the last finish reason; ``{kind: stop}`` when the stream brought none.
    :ivar replay_state: opaque state of the adapter for the assistant message, None without one.
    """

    __slots__ = ("_blocks", "finish", "replay_state", "usage")

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}  # insertion order is the order of first sight
        self.usage: JsonObject | None = None
        self.finish: JsonObject = STOP
        self.replay_state: object = None

    def feed(self, chunk: Chunk) -> None:
        kind = type(chunk)
        if kind is TextDelta:
            self._append("text", chunk.position, chunk.text)  # type: ignore[union-attr]
        elif kind is ReasoningDelta:
            self._append("reasoning", chunk.position, chunk.text)  # type: ignore[union-attr]
        elif isinstance(chunk, ToolCallDelta):
            self._tool_delta(chunk)
        elif isinstance(chunk, BlockStart):
            self._open(chunk.position, chunk.block_type)
        elif isinstance(chunk, BlockEnd):
            self._close(chunk)
        elif isinstance(chunk, UsageReport):
            self.usage = chunk.usage
        elif isinstance(chunk, Finish):
            self.finish = chunk.reason
            self.replay_state = chunk.replay_state

    def content(self) -> list[JsonObject]:
        """The content blocks in order of first sight.

        Without tool calls when the answer hit its token cap: their arguments may be cut.
        """
        blocks = [content for block in self._blocks.values() if (content := block.content()) is not None]
        if self.finish.get("kind") == "max-tokens":
            return [block for block in blocks if block["type"] != "tool-call"]
        return blocks

    def _open(self, position: int, kind: str) -> _Block:
        block = self._blocks.get(position)
        if block is None:
            block = self._blocks[position] = _Block(position, kind)
        return block

    def _append(self, kind: str, position: int, text: str) -> None:
        block = self._blocks.get(position) or self._open(position, kind)
        if block.kind == kind:
            block.parts.append(text)

    def _tool_delta(self, chunk: ToolCallDelta) -> None:
        block = self._open(chunk.position, "tool-call")
        if block.kind != "tool-call":
            return
        block.id = block.id or chunk.id
        block.name = block.name or chunk.name or ""
        block.parts.append(chunk.arguments)

    def _close(self, chunk: BlockEnd) -> None:
        final = _valid(chunk.position, chunk.block)
        if final is None:
            return
        block = self._open(chunk.position, final["type"])
        if block.final is None:
            block.final = final


def assemble(chunks: Iterable[Chunk]) -> Assembler:
    """All ``chunks`` of one attempt, folded."""
    assembler = Assembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler


def _tool_call(position: int, call_id: str, name: str, arguments: str) -> JsonObject:
    return {"type": "tool-call", "id": call_id or f"call-{position}", "name": name, "arguments": arguments}


def _valid(position: int, block: JsonObject) -> JsonObject | None:
    """``block`` when it is of a known type, with the fields that the runtime relies on; else None."""
    kind = block.get("type")
    if kind in ("text", "reasoning"):
        return block if isinstance(block.get("text"), str) else None
    if kind == "tool-call":
        name, arguments, call_id = block.get("name"), block.get("arguments"), block.get("id")
        if not isinstance(name, str) or not isinstance(arguments, str):
            return None
        return block if call_id else {**block, "id": f"call-{position}"}
    return block if kind in BLOCK_TYPES else None
