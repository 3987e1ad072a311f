"""What to start and how: the specification of one child, checked in full before anything happens.

Only data and its validation live here. A :class:`SpawnSpec` that exists can be carried out, as far as that can be
known without asking the operating system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from signal import Signals
from typing import Any, Final, Literal, NamedTuple, Protocol

from polyhost.process.errors import InvalidSpecError

#: The longest grace, in seconds: a signed 32-bit count of milliseconds.
MAX_GRACE: Final = 2_147_483.647

#: Bytes that one ``readline`` or ``readuntil`` on a piped output accepts; reading pauses above twice that.
PIPE_LIMIT: Final = 16 * 1024 * 1024


class AbortSignalLike(Protocol):
    """The read side of a cancellation signal, as the host's kernel has it."""

    @property
    def aborted(self) -> bool: ...

    @property
    def cause(self) -> Any: ...

    def on_abort(self, callback: Callable[[Any], None], /) -> Callable[[], None]: ...


class Collect(NamedTuple):
    """Output that the supervisor drains by itself and of which it keeps the newest bytes.

    The child is never blocked by it, however much it writes and however long its lines are.
    """

    max_bytes: int
    """How many of the newest bytes stay in memory."""
    spill_bytes: int | None = None
    """When set, a stream that outgrows ``max_bytes`` is also kept whole in a private file, unless it outgrows this."""
    on_data: Callable[[bytes], None] | None = None
    """Called with every chunk as it comes, for instance to pass it on to the host's own stderr. Must not block."""


InputMode = Literal["ignore", "pipe"] | bytes
OutputMode = Literal["pipe", "inherit"] | Collect


class SpawnSpec:
    """One child to start. There are no hidden defaults for what matters: program, directory, streams and grace.

    :param argv: program and arguments, passed verbatim; no shell ever sees them.
    :param cwd: the child's working directory.
    :param stdin: ``"ignore"`` (end of file at once), ``"pipe"`` (the caller writes) or bytes, written and closed.
    :param stdout: ``"pipe"`` (the caller reads), ``"inherit"`` (the host's own) or :class:`Collect`.
    :param stderr: as ``stdout``.
    :param grace: seconds between the stop signal and SIGKILL, and for which pipes held by survivors may delay the
        result.
    :param env: entries of the child's environment; ``None`` as a value removes an inherited name.
    :param inherit_env: whether ``env`` is laid over the scrubbed environment of the host, or is the whole of it.
    :param signal: aborting it terminates the child's tree.
    :param stop_signal: what asks the tree to end: SIGTERM, or SIGINT for programs that shut down on that.
    :param pipe_limit: bytes that one ``readline`` on a piped output accepts.
    :raises InvalidSpecError: naming the field.
    """

    __slots__ = (
        "argv",
        "cwd",
        "env",
        "grace",
        "inherit_env",
        "pipe_limit",
        "signal",
        "stderr",
        "stdin",
        "stdout",
        "stop_signal",
    )

    def __init__(
        self,
        *,
        argv: Sequence[str],
        cwd: str,
        stdin: InputMode,
        stdout: OutputMode,
        stderr: OutputMode,
        grace: float,
        env: Mapping[str, str | None] | None = None,
        inherit_env: bool = True,
        signal: AbortSignalLike | None = None,
        stop_signal: Signals = Signals.SIGTERM,
        pipe_limit: int = PIPE_LIMIT,
    ) -> None:
        self.argv = _checked_argv(argv)
        self.cwd = _checked_text("cwd", cwd)
        self.stdin = _checked_input(stdin)
        self.stdout = _checked_output("stdout", stdout)
        self.stderr = _checked_output("stderr", stderr)
        self.grace = _checked_grace(grace)
        self.env = _checked_env(env or {})
        self.inherit_env = inherit_env
        self.signal = signal
        self.stop_signal = Signals(stop_signal)
        self.pipe_limit = _checked_size("pipe_limit", pipe_limit)


def _checked_argv(argv: Sequence[str]) -> tuple[str, ...]:
    if isinstance(argv, str) or not argv:
        raise InvalidSpecError("argv must be a non-empty sequence of the program and its arguments")
    for position, argument in enumerate(argv):
        if not isinstance(argument, str) or "\0" in argument:
            raise InvalidSpecError(f"argv[{position}] must be a string without NUL characters")
    _checked_text("argv[0], the program,", argv[0])
    return tuple(argv)


def _checked_text(field: str, value: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidSpecError(f"{field} must be a non-empty string without NUL characters")
    return value


def _checked_input(mode: InputMode) -> InputMode:
    if isinstance(mode, bytes) or mode in ("ignore", "pipe"):
        return mode
    raise InvalidSpecError(f"stdin must be 'ignore', 'pipe' or bytes, not {mode!r}")


def _checked_output(field: str, mode: OutputMode) -> OutputMode:
    if isinstance(mode, Collect):
        _checked_size(f"{field}.max_bytes", mode.max_bytes)
        if mode.spill_bytes is not None:
            _checked_size(f"{field}.spill_bytes", mode.spill_bytes)
        return mode
    if mode in ("pipe", "inherit"):
        return mode
    raise InvalidSpecError(f"{field} must be 'pipe', 'inherit' or Collect(...), not {mode!r}")


def _checked_size(field: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidSpecError(f"{field} must be a positive number of bytes, not {value!r}")
    return value


def _checked_grace(grace: float) -> float:
    if isinstance(grace, int | float) and not isinstance(grace, bool) and 0 < grace <= MAX_GRACE:
        return float(grace)
    raise InvalidSpecError(f"grace must be a number of seconds above 0 and at most {MAX_GRACE}, not {grace!r}")


def _checked_env(env: Mapping[str, str | None]) -> dict[str, str | None]:
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise InvalidSpecError(f"env: {name!r} is not a name of an environment variable")
        if value is not None and (not isinstance(value, str) or "\0" in value):
            raise InvalidSpecError(f"env: the value of {name} must be a string without NUL characters, or None")
    return dict(env)
