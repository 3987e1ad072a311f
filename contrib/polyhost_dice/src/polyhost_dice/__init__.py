"""A tool ``roll`` for models. The setting is in ``config``, which loads only when the plugin starts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from polyhost import Context, PluginInfo, hookimpl
from polyhost.interfaces import TOOL, Tool, ToolCall, ToolOutput, text_block

if TYPE_CHECKING:
    from polyhost_dice.config import DiceConfig


@hookimpl
def polyhost_plugin() -> PluginInfo:
    return PluginInfo(
        name="dice", api_version=1, summary="A die for the model", config="polyhost_dice.config:DiceConfig"
    )


@hookimpl
async def polyhost_start(ctx: Context, config: DiceConfig) -> None:
    async def roll(arguments: dict[str, Any], call: ToolCall) -> int:
        return random.randint(1, config.sides)

    ctx.mount(
        TOOL,
        "roll",
        Tool(
            name="roll",
            description=f"Roll a die with {config.sides} sides.",
            parameters={"type": "object", "properties": {}},
            output=ToolOutput({"type": "integer"}, lambda arguments, value: [text_block(str(value))]),
            execute=roll,
            access="none",
        ),
    )
