"""What environment a child gets: the scrub of the parent's variables, and explicit entries over it.

Nothing here starts a process or reads anything but the mapping it is given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_CREDENTIAL = re.compile("KEY|PASSWORD|SECRET|TOKEN", re.IGNORECASE)
_MANAGED_PREFIX = "DSH_"


def is_scrubbed(name: str) -> bool:
    """Whether a parent's variable of this name is withheld from children: credential-shaped, or managed."""
    return _CREDENTIAL.search(name) is not None or name.upper().startswith(_MANAGED_PREFIX)


def scrubbed_environment(
    explicit: Mapping[str, str | None] | None = None, *, ambient: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The parent's environment without credentials, with ``explicit`` entries merged over it.

    :param explicit: entries that always win, whatever their name; ``None`` as a value removes an inherited name.
    :param ambient: the parent's environment; ``os.environ`` by default.
    """
    inherited = os.environ if ambient is None else ambient
    kept = {name: value for name, value in inherited.items() if not is_scrubbed(name)}
    return _merge(kept, explicit)


def exact_environment(explicit: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Exactly the given entries and nothing of the parent's; ``None`` values name nothing and are left out."""
    return _merge({}, explicit)


def _merge(base: dict[str, str], explicit: Mapping[str, str | None] | None) -> dict[str, str]:
    for name, value in (explicit or {}).items():
        if value is None:
            base.pop(name, None)
        else:
            base[name] = value
    return base
