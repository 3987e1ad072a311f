"""Keys of model providers: a private file in the home, else the environment.

Everything is read per request, so a key that arrives later works without a restart. No value is ever logged or part of
an error; the redactor learns each one that is handed out.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from typing import ClassVar

from polyhost.config.errors import ConfigError, printable
from polyhost.config.files import read_bounded, write_atomic
from polyhost.config.mask import Redactor
from polyhost.config.paths import HomePaths
from polyhost.kernel.errors import PolyhostError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_USABLE = re.compile(r"[\x21-\x7e]+")


class MissingCredentialError(PolyhostError):
    """Neither the store nor the environment has the credential ``name``."""

    default_code: ClassVar[str] = "MISSING_CREDENTIAL"

    def __init__(self, name: str) -> None:
        way_out = f"store it with `hostctl auth set {name}`, or set the environment variable {name}"
        super().__init__(printable(f"there is no credential {name}; {way_out}"))
        self.name = name


class InvalidCredentialError(PolyhostError):
    """The credential ``name`` cannot go into a header: it is not one or more printable ASCII characters, no spaces."""

    default_code: ClassVar[str] = "INVALID_CREDENTIAL"

    def __init__(self, name: str, place: str) -> None:
        wanted = "it must be printable ASCII without spaces; set it again"
        super().__init__(printable(f"the credential {name} from {place} is unusable: {wanted}"))
        self.name = name


class CredentialStore:
    """The credentials of one home, in ``credentials.json`` (0600).

    :param environ: where a name is looked up that the store does not have.
    :param redactor: learns every value that is stored or handed out.
    """

    def __init__(
        self, home: HomePaths, *, environ: Mapping[str, str] = os.environ, redactor: Redactor | None = None
    ) -> None:
        self._home = home
        self._environ = environ
        self._redactor = redactor or Redactor()

    def get(self, name: str) -> str | None:
        """The trimmed value from the store, else from the environment; None when there is none. Blank counts as none.

        :raises InvalidCredentialError: not printable ASCII 0x21 to 0x7E after trimming.
        :raises ConfigError: the store cannot be read, or others can read it.
        """
        for place, values in (("the credential store", self._read()), ("the environment", self._environ)):
            if value := values.get(name, "").strip():
                return self._usable(name, value, place)
        return None

    def require(self, name: str) -> str:
        """:meth:`get`, or :class:`MissingCredentialError`."""
        value = self.get(name)
        if value is None:
            raise MissingCredentialError(name)
        return value

    def set(self, name: str, value: str) -> None:
        """Store a value, trimmed.

        :raises InvalidCredentialError: unusable; nothing is stored.
        :raises ConfigError: ``name`` is no name, or the store cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name for a credential; write it like DEEPSEEK_API_KEY", key=name)
        value = self._usable(name, value.strip(), "the input")
        with self._home.lock():
            self._write({**self._read(), name: value})

    def remove(self, name: str) -> bool:
        """Remove a value from the store; False when it was not there."""
        with self._home.lock():
            values = self._read()
            if values.pop(name, None) is None:
                return False
            self._write(values)
        return True

    def names(self) -> list[str]:
        """The names in the store, sorted."""
        return sorted(self._read())

    def _usable(self, name: str, value: str, place: str) -> str:
        self._redactor.add(value)
        if not _USABLE.fullmatch(value):
            raise InvalidCredentialError(name, place)
        return value

    def _read(self) -> dict[str, str]:
        file = self._home.credentials_file
        data = read_bounded(file)
        if data is None:
            return {}
        if stat.S_IMODE(os.stat(file).st_mode) & 0o077:
            message = f"{file} can be read by other users, so it is not used; run `chmod 600 {file}`"
            raise ConfigError(message, code="CREDENTIALS_EXPOSED", file=str(file))
        try:
            values = json.loads(data)["credentials"]
            intact = all(isinstance(value, str) for value in values.values())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            intact = False
        if not intact:
            message = f"the credential store {file} is damaged; move it away and set the credentials again"
            raise ConfigError(message, file=str(file))
        return dict(values)

    def _write(self, values: Mapping[str, str]) -> None:
        text = json.dumps({"version": 1, "credentials": dict(sorted(values.items()))}, indent=2)
        write_atomic(self._home.credentials_file, text.encode() + b"\n")
