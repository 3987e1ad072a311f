"""Permission modes: what the log says, what it means, and how it is switched."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import PERMISSION_MODES
from polyhost.runtime.interaction.modes import (
    PRESETS,
    Facts,
    current_preset,
    describe_mode,
    missing_facts,
    mode_of,
    preset_of,
    switching_facts,
)

PRESET_NAMES = [preset.name for preset in PRESETS]
FACTS = st.builds(
    Facts,
    st.none() | st.sampled_from([*PRESET_NAMES, "custom", "else"]),
    st.none() | st.sampled_from(["read-only", "workspace-write", "danger-full-access"]),
    st.none() | st.sampled_from(["ask", "never"]),
)
MODES = st.sampled_from(PERMISSION_MODES)


def pinned(mode: str, source: dict[str, Any] | None = None) -> list[tuple[str, Any]]:
    preset = preset_of(mode)  # type: ignore[arg-type]
    return [
        ("permission/preset", {"preset": preset.name}),
        ("sandbox/mode", {"mode": preset.sandbox}),
        ("approval/policy", {"policy": preset.policy}),
    ]


def applied(facts: Facts, events: Any) -> Facts:
    for type_, data in events:
        key = {"permission/preset": "preset", "sandbox/mode": "sandbox", "approval/policy": "policy"}[type_]
        (value,) = data.values()
        facts = facts._replace(**{key: value})
    return facts


@pytest.mark.contract("PRM-01")
@pytest.mark.parametrize(
    ("facts", "name", "mode"),
    [
        (Facts(None, "read-only", "ask"), "ask", "ask"),
        (Facts("read-only", "read-only", "ask"), "read-only", "read-only"),
        (Facts("ask", "read-only", "ask"), "ask", "ask"),
        (Facts("workspace-write", "read-only", "ask"), "read-only", "read-only"),
        (Facts("workspace-write", "workspace-write", "ask"), "workspace-write", "workspace"),
        (Facts("read-only", "workspace-write", "ask"), "workspace-write", "workspace"),
        (Facts("danger-full-access", "danger-full-access", "never"), "danger-full-access", "full"),
        (Facts("danger-full-access", "danger-full-access", "ask"), "custom", "full"),
        (Facts("ask", "read-only", "never"), "custom", "ask"),
        (Facts("x", "sandbox-of-tomorrow", "ask"), "custom", "read-only"),
    ],
)
def test_the_preset_derives_from_the_knobs(facts: Facts, name: str, mode: str) -> None:
    assert current_preset(facts, "ask") == name
    assert mode_of(facts, "ask") == mode


@pytest.mark.contract("PRM-03")
@given(FACTS, MODES)
def test_pinning_completes_the_log_and_contradicts_nothing(facts: Facts, mode: Any) -> None:
    after = applied(facts, missing_facts(facts, preset_of(mode)))
    assert None not in after
    assert all(new == old for new, old in zip(after, facts, strict=True) if old is not None)
    if facts == Facts():
        assert mode_of(after, "read-only") == mode


@pytest.mark.contract("PRM-02")
@given(FACTS, MODES)
def test_switching_reaches_any_mode_and_then_does_nothing(facts: Facts, mode: Any) -> None:
    events = list(switching_facts(facts, preset_of(mode)))
    assert sum(type_ == "permission/preset" for type_, _ in events) <= 1
    assert all(applied(facts, [event]) != facts for event in events if event[0] != "permission/preset")
    after = applied(facts, events)
    assert mode_of(after, "ask") == mode
    assert current_preset(after, "ask") == preset_of(mode).name
    assert list(switching_facts(after, preset_of(mode))) == []


@pytest.mark.contract("PRM-03")
async def test_new_sessions_are_pinned_and_old_ones_only_completed(bench: Any) -> None:
    fresh = bench.agent("fresh", turn=False)
    bench.broker.adopt(fresh.session, mode="workspace")
    assert bench.log(fresh) == pinned("workspace")
    bench.broker.adopt(fresh.session, mode="full")
    assert bench.log(fresh) == pinned("workspace")
    partial = bench.agent("partial", turn=False)
    partial.session.append("sandbox/mode", {"mode": "danger-full-access"})
    bench.broker.adopt(partial.session)
    assert bench.broker.mode(partial) == "full"
    assert [type_ for type_, _ in bench.log(partial)] == ["sandbox/mode", "permission/preset", "approval/policy"]
    unpinned = bench.agent("unpinned", turn=False)
    bench.broker.adopt(unpinned.session, pin=False)
    assert bench.log(unpinned) == []


@pytest.mark.contract("PRM-02")
async def test_a_switch_logs_what_changed_and_tells_the_model(bench: Any) -> None:
    agent = bench.agent(turn=False)
    bench.broker.adopt(agent.session, mode="ask")
    bench.broker.set_mode(agent, "ask")
    assert len(agent.session) == 3
    bench.broker.set_mode(agent, "workspace")
    assert bench.log(agent)[3:] == pinned("workspace")[:2]
    assert "workspace" in agent.injected[-1]["content"][0]["text"]
    agent.session.append("sandbox/mode", {"mode": "read-only"})
    assert bench.broker.preset(agent) == "read-only"
    bench.broker.set_mode(agent, "workspace")
    assert bench.log(agent)[6:] == pinned("workspace")[:2]
    assert bench.broker.mode(agent) == "workspace"
    with pytest.raises(ValueError, match="unknown permission mode"):
        bench.broker.set_mode(agent, "yolo")
    assert len(agent.session) == 8


async def test_without_facts_the_front_ends_default_counts(bench: Any) -> None:
    agent = bench.agent()
    assert bench.broker.mode(agent) == "ask"
    surface = bench.surface("sdk")
    surface.default_mode = "workspace"
    surface.trusts_shell = True
    release = bench.broker.adopt(agent.session, surface="sdk", pin=False)
    assert bench.broker.mode(agent) == "workspace"
    assert bench.broker.trusts_shell(agent)
    also = bench.broker.adopt(agent.session, surface="watcher", pin=False)
    assert bench.broker.trusts_shell(agent)
    release()
    assert not bench.broker.trusts_shell(agent)
    assert bench.broker.mode(agent) == "ask"
    also()
    bench.broker.adopt(agent.session, surface="sdk")
    assert bench.log(agent, "permission") == pinned("workspace")[:1]


def test_every_mode_has_words() -> None:
    texts = {describe_mode(mode, trusts_shell=trusts) for mode in PERMISSION_MODES for trusts in (True, False)}
    assert len(texts) == 5
