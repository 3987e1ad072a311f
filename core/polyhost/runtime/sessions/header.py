"""The session header: its rules and its two JSON forms, the clients' and the first line of a log (agent-core 2.6)."""

from __future__ import annotations

import os.path
from typing import Any

from polyhost.interfaces.json_types import JsonObject
from polyhost.interfaces.sessions import SessionError, SessionHeader
from polyhost.runtime.sessions.events import is_safe_integer
from polyhost.wire.errors import WireError
from polyhost.wire.json import dumps, loads

FORMAT_VERSION = 0

_JSON_NAMES = {
    "id": "id",
    "created_at": "createdAt",
    "cwd": "cwd",
    "parent_session": "parentSession",
    "seed_length": "seedLength",
    "origin": "origin",
    "delegation_depth": "delegationDepth",
    "agent_preset": "agentPreset",
}
_FIELDS = {json_name: field for field, json_name in _JSON_NAMES.items()}
_RETIRED = ("sandboxMode", "approvalPolicy")


def checked(header: SessionHeader) -> SessionHeader:
    """``header`` in its normal form, where depth 0 is None.

    :raises SessionError: SESSION_HEADER, with the field that is wrong.
    """
    problem = _problem(header)
    if problem is not None:
        raise SessionError(f"session header: {problem}", code="SESSION_HEADER")
    return header._replace(delegation_depth=header.delegation_depth or None)


def to_json(header: SessionHeader) -> JsonObject:
    """The form that clients see; absent facts have no key."""
    facts: JsonObject = {"version": FORMAT_VERSION}
    for field, json_name in _JSON_NAMES.items():
        value = getattr(header, field)
        if value is not None:
            facts[json_name] = value
    return facts


def encode(header: SessionHeader) -> bytes:
    """The first line of a log. The depth is always written."""
    facts = {"type": "session", **to_json(header._replace(delegation_depth=header.delegation_depth or 0))}
    return b"%b\n" % dumps(facts)


def decode(line: bytes, path: str) -> SessionHeader:
    """Read the first line of the log ``path``.

    :raises SessionError: SESSION_CORRUPT, or SESSION_UNSUPPORTED for another format version.
    """
    try:
        facts = loads(line)
    except WireError as error:
        raise _corrupt(path, f"the header is not JSON: {error.message}") from error
    if not isinstance(facts, dict) or facts.get("type") != "session":
        raise _corrupt(path, "the first line is not a session header")
    if facts.get("version") != FORMAT_VERSION or type(facts["version"]) is not int:
        raise SessionError(
            f"{path} has format version {facts.get('version')!r}; this host reads version {FORMAT_VERSION}. "
            f"The file is left as it is",
            code="SESSION_UNSUPPORTED",
        )
    return _from_json(facts, path)


def _from_json(facts: JsonObject, path: str) -> SessionHeader:
    for name in _RETIRED:
        if name in facts:
            raise _corrupt(path, f"the header has the retired field {name}")
    unknown = facts.keys() - _FIELDS.keys() - {"type", "version"}
    if unknown:
        raise _corrupt(path, f"the header has the unknown field {min(unknown)}")
    missing = {"id", "createdAt"} - facts.keys()
    if missing:
        raise _corrupt(path, f"the header has no {min(missing)}")
    values: dict[str, Any] = {_FIELDS[name]: value for name, value in facts.items() if name in _FIELDS}
    nulls = [name for name, value in values.items() if value is None]
    header = SessionHeader(**values)
    problem = f"{nulls[0]} is null" if nulls else _problem(header)
    if problem is not None:
        raise _corrupt(path, f"header: {problem}")
    return header._replace(delegation_depth=header.delegation_depth or None)


def _problem(header: SessionHeader) -> str | None:
    for field in ("id", "cwd", "parent_session", "origin", "agent_preset"):
        value = getattr(header, field)
        if value is None and field != "id":
            continue
        if not isinstance(value, str) or not value:
            return f"{_JSON_NAMES[field]} must be a non-empty string"
        if not _is_text(value):
            return f"{_JSON_NAMES[field]} must be valid Unicode"
    for field in ("created_at", "seed_length", "delegation_depth"):
        value = getattr(header, field)
        if value is None and field != "created_at":
            continue
        if not is_safe_integer(value) or value < 0:
            return f"{_JSON_NAMES[field]} must be a non-negative integer"
    if header.cwd is not None and not os.path.isabs(header.cwd):
        return f"cwd must be absolute, not {header.cwd!r}"
    if header.origin not in (None, "subagent"):
        return "origin must be subagent or absent"
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _corrupt(path: str, reason: str) -> SessionError:
    return SessionError(f"{path}: {reason}", code="SESSION_CORRUPT")
