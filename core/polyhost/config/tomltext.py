"""TOML as text: parsing with useful errors, dotted keys, values given on a command line, the line of a key.

Nothing here knows which keys exist or what they mean. Writing is in ``writer``.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from polyhost.config.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""Table keys and array indexes, outermost first: ``("plugins", "browser", "port")``."""

MAX_DEPTH = 64
"""Deepest nesting of tables and arrays in a file; the code that walks them is recursive."""

# Plain strings, compiled on first use: a start without errors matches none.
_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"
_BARE = r"[A-Za-z0-9_-]+"
_TOKEN = (
    r'(?s:"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|[\[\]{}=\n]"
    r"|[^\"'#\[\]{}=\n]+)"
)


def parse_file(data: bytes, file: str, layer: str | None = None) -> dict[str, Any]:
    """The document in ``data``, which came from ``file``.

    :raises ConfigError: not UTF-8, not TOML (with line and column), or nested deeper than :data:`MAX_DEPTH`.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unusable(f"{file}, line {line}: not UTF-8 text; save the file as UTF-8", file, line, layer) from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = re.search(_PLACE, message)
        reason = message[: place.start()] if place else message
        if place and place[1]:
            line, column = int(place[1]), f", column {place[2]}"
        else:
            line, column = text.count("\n") + (not text.endswith("\n")), " (end of the file)"
        message = f"{file}, line {line}{column}: not valid TOML: {reason}; correct it or move the file away"
        raise _unusable(message, file, line, layer) from None
    except RecursionError:
        raise _too_deep(file, layer) from None
    if _deeper_than(document, MAX_DEPTH):
        raise _too_deep(file, layer)
    return document


def parse_value(text: str) -> Any:
    """``text`` as a TOML value, or ``text`` itself when it is none: ``3080`` is a number, ``demo/demo`` a string."""
    try:
        document = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    # A line break in the text could smuggle in further keys: that is not one value.
    if len(document) != 1 or _deeper_than(document, MAX_DEPTH):
        return text
    return document["value"]


def parse_key(text: str) -> tuple[str, ...]:
    """The parts of a dotted TOML key: ``plugins."a.b".port`` has three.

    :raises ConfigError: not a dotted key.
    """
    try:
        node: Any = tomllib.loads(f"{text} = 0") if "\n" not in text else None
    except (tomllib.TOMLDecodeError, RecursionError):
        node = None
    parts: list[str] = []
    while isinstance(node, dict) and len(node) == 1:
        ((part, node),) = node.items()
        parts.append(part)
    if node != 0 or not parts or len(parts) > MAX_DEPTH:
        raise ConfigError(f"{text!r} is not a key; write it like plugins.browser.port", key=text)
    return tuple(parts)


def format_key(path: KeyPath) -> str:
    """The dotted form of ``path``, quoted where TOML wants it; array indexes in brackets: ``a.servers[0].url``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        shown = part if re.fullmatch(_BARE, part) else '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text += f".{shown}" if text else shown
    return text


def lookup(data: Any, path: KeyPath) -> tuple[bool, Any]:
    """Whether ``path`` exists in nested tables and arrays, and its value (None when it does not)."""
    for part in path:
        if isinstance(data, list):
            fits = isinstance(part, int) and part < len(data)
        else:
            fits = isinstance(data, dict) and part in data
        if not fits:
            return False, None
        data = data[part]
    return True, data


def find_line(text: str, path: KeyPath) -> int | None:
    """The line, from 1, where ``path`` (or else its nearest enclosing key) is written in the valid TOML ``text``.

    Keys inside an inline table count as written where their statement begins. This costs a scan of the text: it is
    for errors and ``--origin``, not for reading.
    """
    best_line, best_length = None, 0
    for line, statement in _statements(text):
        shared = 0
        while shared < min(len(statement), len(path)) and statement[shared] == path[shared]:
            shared += 1
        covers = shared in (len(statement), len(path))
        if covers and shared > best_length:
            best_line, best_length = line, shared
    return best_line


def _statements(text: str) -> list[tuple[int, KeyPath]]:
    """Line and full path of every table header and every key of a valid document."""
    found: list[tuple[int, KeyPath]] = []
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    line, start, depth = 1, 1, 0
    head, in_head = "", True
    for match in re.finditer(_TOKEN, text + "\n"):
        token = match[0]
        if in_head:
            if not head.strip():
                start = line
            if token == "=" and not head.lstrip().startswith("["):
                found.append((start, table + parse_key(head)))
                in_head = False
            elif token == "\n":
                if header := head.strip():
                    table = _table_path(header, counts)
                    found.append((start, table))
                head = ""
            elif not token.startswith("#"):
                head += token
        elif token in "[{":
            depth += 1
        elif token in "]}":
            depth -= 1
        elif token == "\n" and depth == 0:
            head, in_head = "", True
        line += token.count("\n")
    return found


def _table_path(header: str, counts: dict[KeyPath, int]) -> KeyPath:
    """The path of ``[a.b]`` or ``[[a.b]]``, with the index of every array of tables that it stands in."""
    is_array = header.startswith("[[")
    names = parse_key(header[2:-2] if is_array else header[1:-1])
    path: KeyPath = ()
    for name in names[:-1]:
        path += (name,)
        if path in counts:
            path += (counts[path] - 1,)
    path += (names[-1],)
    if is_array:
        counts[path] = counts.get(path, 0) + 1
        path += (counts[path] - 1,)
    return path


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def _too_deep(file: str, layer: str | None) -> ConfigError:
    return _unusable(f"{file}: tables or arrays are nested deeper than {MAX_DEPTH} levels", file, None, layer)


def _unusable(message: str, file: str, line: int | None, layer: str | None) -> ConfigError:
    return ConfigError(message, file=file, line=line, layer=layer)
