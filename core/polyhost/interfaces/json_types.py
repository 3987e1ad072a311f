"""Names for JSON values in signatures; the values themselves are plain Python objects."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonValue: TypeAlias = Any
"""Any lossless JSON value (agent-core 2.1): finite numbers, no negative zero, string keys."""

JsonObject: TypeAlias = dict[str, Any]
