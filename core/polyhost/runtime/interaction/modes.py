"""Permission modes in the log: three kinds of facts, the presets that combine them, and how a mode is read back.

The log speaks in the knobs of agent-core 2.15, so that other hosts can load it: ``sandbox/mode`` and
``approval/policy``, with ``permission/preset`` naming the combination. Each of our modes is one preset:

=============  ======================  ====================  =============
mode           permission/preset       sandbox/mode          approval/policy
=============  ======================  ====================  =============
``read-only``  ``read-only``           ``read-only``         ``ask``
``ask``        ``ask``                 ``read-only``         ``ask``
``workspace``  ``workspace-write``     ``workspace-write``   ``ask``
``full``       ``danger-full-access``  ``danger-full-access``  ``never``
=============  ======================  ====================  =============

``ask`` shares the knobs of ``read-only``, of which it is the case that anything more may be asked for; the last
preset event tells them apart. A host that does not know it treats such a session as ``read-only``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from weakref import WeakKeyDictionary

from polyhost.interfaces.interaction import ApprovalPolicy, PermissionMode
from polyhost.interfaces.sessions import Session

PRESET_EVENT = "permission/preset"
SANDBOX_EVENT = "sandbox/mode"
POLICY_EVENT = "approval/policy"
CUSTOM = "custom"

_KEYS = {PRESET_EVENT: "preset", SANDBOX_EVENT: "mode", POLICY_EVENT: "policy"}


class Preset(NamedTuple):
    """One row of the table."""

    name: str
    mode: PermissionMode
    sandbox: str
    policy: ApprovalPolicy


PRESETS = (
    Preset("read-only", "read-only", "read-only", "ask"),
    Preset("ask", "ask", "read-only", "ask"),
    Preset("workspace-write", "workspace", "workspace-write", "ask"),
    Preset("danger-full-access", "full", "danger-full-access", "never"),
)
_BY_MODE = {preset.mode: preset for preset in PRESETS}


class Facts(NamedTuple):
    """The last logged value of each kind, None where the log has none."""

    preset: str | None = None
    sandbox: str | None = None
    policy: str | None = None

    @property
    def present(self) -> bool:
        return self != Facts()


class FactReader:
    """Folds the permission facts of sessions, reading each event once."""

    def __init__(self) -> None:
        self._folds: WeakKeyDictionary[Session, tuple[int, Facts]] = WeakKeyDictionary()

    def read(self, session: Session) -> Facts:
        seen, facts = self._folds.get(session, (0, Facts()))
        if seen == len(session):
            return facts
        logged = facts._asdict()
        for event in session.events(seen):
            if (key := _KEYS.get(event.type)) is not None:
                logged["sandbox" if event.type == SANDBOX_EVENT else key] = event.data.get(key)
        facts = Facts(**logged)
        self._folds[session] = (len(session), facts)
        return facts


def preset_of(mode: PermissionMode) -> Preset:
    """The preset that stands for a mode. Raises ValueError for a word that is no mode."""
    preset = _BY_MODE.get(mode)
    if preset is None:
        raise ValueError(f"unknown permission mode {mode!r}; the modes are {', '.join(_BY_MODE)}")
    return preset


def mode_of(facts: Facts, default: PermissionMode) -> PermissionMode:
    """The mode in force: what the sandbox knob allows; ``ask`` and ``read-only`` differ by the preset."""
    fallback = preset_of(default)
    sandbox = facts.sandbox or fallback.sandbox
    named = facts.preset or fallback.name
    candidates = [preset for preset in PRESETS if preset.sandbox == sandbox]
    for preset in candidates:
        if preset.name == named:
            return preset.mode
    return candidates[0].mode if candidates else "read-only"  # a word of another host: the narrowest


def policy_of(facts: Facts, default: PermissionMode) -> ApprovalPolicy:
    """The approval policy in force; a word that is none of ours asks nobody."""
    policy = facts.policy or preset_of(default).policy
    return "ask" if policy == "ask" else "never"


def current_preset(facts: Facts, default: PermissionMode) -> str:
    """Name of the preset whose knobs are in force, the last named one when several are; else ``custom``."""
    fallback = preset_of(default)
    knobs = (facts.sandbox or fallback.sandbox, facts.policy or fallback.policy)
    matching = [preset.name for preset in PRESETS if (preset.sandbox, preset.policy) == knobs]
    named = facts.preset or fallback.name
    return named if named in matching else matching[0] if matching else CUSTOM


def missing_facts(facts: Facts, preset: Preset) -> Iterator[tuple[str, dict[str, str]]]:
    """The events that pin ``preset`` in a log without contradicting what it says already."""
    if facts.preset is None:
        yield PRESET_EVENT, {"preset": preset.name if facts == Facts() else current_preset(facts, preset.mode)}
    if facts.sandbox is None:
        yield SANDBOX_EVENT, {"mode": preset.sandbox}
    if facts.policy is None:
        yield POLICY_EVENT, {"policy": preset.policy}


def switching_facts(facts: Facts, preset: Preset) -> Iterator[tuple[str, dict[str, str]]]:
    """The events that switch to ``preset``: its name and the knobs that differ. None when it is in force already."""
    if facts == Facts(preset.name, preset.sandbox, preset.policy):
        return
    yield PRESET_EVENT, {"preset": preset.name}
    if facts.sandbox != preset.sandbox:
        yield SANDBOX_EVENT, {"mode": preset.sandbox}
    if facts.policy != preset.policy:
        yield POLICY_EVENT, {"policy": preset.policy}


def describe_mode(mode: PermissionMode, *, trusts_shell: bool) -> str:
    """What the model should know of its mode."""
    if mode == "read-only":
        return "Permission mode: read-only. Files can be read; calls that change files or run commands are refused."
    if mode == "ask":
        return "Permission mode: ask. Calls that change files or run commands wait for the user's approval."
    if mode == "full":
        return "Permission mode: full. Files can be changed and commands run without asking."
    commands = "commands run without asking" if trusts_shell else "running commands waits for the user's approval"
    return (
        "Permission mode: workspace. Files inside the working directory can be changed without asking; "
        f"changing others waits for the user's approval; {commands}."
    )


def describe_policy(policy: ApprovalPolicy) -> str:
    """What the model should know of its approval policy."""
    if policy == "ask":
        return "Approval policy: ask. The user is asked about calls that need approval."
    return "Approval policy: never. The user is not asked: calls that need approval are rejected."
