"""The plugin of the author's guide: it works, and the guide shows it as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from polyhost.interfaces import AGENTS, MODEL_ADAPTER, SESSION_DIRECTORY, text_of, user_message
from polyhost.kernel.plugins import PluginsFailedError
from polyhost.runtime.host import Host
from polyhost.testing.scripted import ScriptedAdapter, call_script, text_script

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "contrib/polyhost_dice/src"


@pytest.fixture
def dice(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.syspath_prepend(str(SOURCE))
    return {"dice": "polyhost_dice"}


async def test_a_model_rolls_the_die(
    dice: dict[str, object], polyhost_host: Callable[..., AbstractAsyncContextManager[Host]], tmp_path: Path
) -> None:
    async with polyhost_host("[plugins.dice]\nsides = 2\n", plugins=dice) as host:
        model = ScriptedAdapter([call_script("roll", {}), text_script("done")])
        host.root.mount(MODEL_ADAPTER, "scripted", model)
        opened = await host.root.get(SESSION_DIRECTORY).open(cwd=str(tmp_path), model="scripted/one")
        await host.root.get(AGENTS).prompt(opened.agent, user_message("roll")).outcome()
        results = [event.data for event in opened.agent.session.events() if event.type == "tool/result"]
        await opened.close()
    block = results[0]["message"]["content"][0]
    assert block["isError"] is False
    assert text_of(block["content"]) in ("1", "2")


async def test_a_wrong_setting_is_refused(
    dice: dict[str, object], polyhost_host: Callable[..., AbstractAsyncContextManager[Host]]
) -> None:
    with pytest.raises(PluginsFailedError, match="sides"):
        async with polyhost_host("[plugins.dice]\nsides = 1\n", plugins=dice):
            pass


def test_the_guide_shows_this_plugin() -> None:
    guide = (ROOT / "docs/plugins.md").read_text()
    config = (SOURCE / "polyhost_dice/config.py").read_text()
    model = config[config.index("class DiceConfig") :]
    shown = next(code for code in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "class DiceConfig" in code)
    fields: list[Any] = [line.strip() for line in model.splitlines() if "=" in line]
    assert fields
    assert all(line in shown for line in fields)
