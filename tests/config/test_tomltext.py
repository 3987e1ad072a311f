"""TOML as text: errors with a place, values, dotted keys, and the line of a key."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.config import ConfigError, parse_value
from polyhost.config.tomltext import MAX_DEPTH, find_line, format_key, lookup, parse_file, parse_key


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3080", 3080),
        ("true", True),
        ('"3080"', "3080"),
        ('["a", 1]', ["a", 1]),
        ('{ env = "KEY" }', {"env": "KEY"}),
        ("demo/demo", "demo/demo"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
        ("yes", "yes"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_a_value_is_toml_or_else_plain_text(text: str, value: object) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"[host]\nmodel = \n", 2, "line 2, column 9"),
        (b"a = 1\na = 2\n", 2, "line 2"),
        (b'a = """\n\n', 2, "line 2"),
        (b"a = 1\nb = '\xff'\n", 2, "UTF-8"),
        (b"a = " + b"[" * 5000, None, "nested deeper"),
        (b".".join([b"a"] * (MAX_DEPTH + 1)) + b" = 1", None, "nested deeper"),
    ],
)
def test_an_unusable_file_is_named_with_line_and_column(data: bytes, line: int | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_file(data, "/p/config.toml", "user")
    error = caught.value
    assert (error.code, error.file, error.line, error.layer) == ("CONFIG_INVALID", "/p/config.toml", line, "user")
    assert "/p/config.toml" in error.message
    assert "\n" not in error.message


def test_a_byte_order_mark_is_accepted() -> None:
    assert parse_file(b"\xef\xbb\xbfa = 1", "f") == {"a": 1}


@pytest.mark.parametrize("text", ["", "a.", "a b", "a=1", "a\nb", ".".join("a" * 100), "[a]"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_key(text)


@given(
    st.lists(st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\x7f")), min_size=1, max_size=5)
)
def test_a_formatted_key_parses_to_the_same_parts(parts: list[str]) -> None:
    assert parse_key(format_key(tuple(parts))) == tuple(parts)


DOCUMENT = """\
# [plugins.decoy]
top = '[host]'            # not a header
[host]
model = "a=b # ]"

text = \"\"\"
[plugins.decoy]
port = 1 \\\"\"\" \"\"\"\"
literal = '''
x = 1'''
[plugins.browser]
port = 3080
"odd = key".sub = [
  { a = 1 },   # ]
  { b = "[" },
]
inline = { deep = { er = 1 } }
[[plugins.mcp.servers]]
name = "one"
[[plugins.mcp.servers]]
name = "two"
[plugins.mcp.servers.env]
A = "1"
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2),
        (("host",), 3),
        (("host", "model"), 4),
        (("host", "text"), 6),
        (("host", "literal"), 9),
        (("plugins",), 11),
        (("plugins", "browser"), 11),
        (("plugins", "browser", "port"), 12),
        (("plugins", "browser", "odd = key", "sub"), 13),
        (("plugins", "browser", "odd = key", "sub", 1, "b"), 13),
        (("plugins", "browser", "inline", "deep", "er"), 17),
        (("plugins", "browser", "absent"), 11),
        (("plugins", "mcp", "servers", 0, "name"), 19),
        (("plugins", "mcp", "servers", 1, "name"), 21),
        (("plugins", "mcp", "servers", 1, "env", "A"), 23),
        (("nowhere",), None),
    ],
)
def test_the_line_of_a_key(path: tuple[str | int, ...], line: int | None) -> None:
    tomllib.loads(DOCUMENT)
    assert find_line(DOCUMENT, path) == line
    assert find_line(DOCUMENT.replace("\n", "\r\n"), path) == line


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,6}", fullmatch=True), st.integers() | st.text("ab\"'#[]{}=\\\n"), min_size=1
    )
)
def test_every_key_of_a_document_has_its_line(values: dict[str, object]) -> None:
    import json

    text, lines = "", {}
    for key, value in values.items():
        lines[key] = text.count("\n") + 1
        text += f"{key} = {json.dumps(value)}  # {key} = [\n"
    assert tomllib.loads(text) == values
    assert {key: find_line(text, (key,)) for key in values} == lines


def test_lookup_goes_through_tables_and_arrays_only() -> None:
    data = {"a": [{"b": "text"}], "none": None}
    assert lookup(data, ("a", 0, "b")) == (True, "text")
    assert lookup(data, ("none",)) == (True, None)
    assert [lookup(data, path)[0] for path in [("a", 1), ("a", "b"), ("a", 0, "b", 0), ("c",)]] == [False] * 4
