"""JSON: encoding, decoding, the safety walk, and the documents that most decoders stumble over."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import json as stdlib
import math
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.wire import json, safety, slow_json
from polyhost.wire.dialects import MAX_DEPTH
from polyhost.wire.errors import JsonDecodeError, JsonDepthError, JsonValueError, WireError

SAFE = 2**53 - 1
any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: math.copysign(1, x) > 0 or x != 0)
    | any_text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(any_text, inner, max_size=5), max_leaves=30
)


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value] if kind == "list" else {"k": value}
    return value


def joined(value: Any) -> Any:
    """``value`` as JSON keeps it: a high and a low surrogate side by side are one character."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    if isinstance(value, list):
        return [joined(item) for item in value]
    if isinstance(value, dict):
        return {joined(key): joined(item) for key, item in value.items()}
    return value


class TestRoundTrips:
    @given(values)
    def test_a_value_survives_dumps_and_loads(self, value: Any) -> None:
        data = json.dumps(value)
        assert json.loads(data) == joined(value)
        assert json.loads(data.decode()) == joined(value)
        assert b"\n" not in data

    @given(values)
    def test_a_snapshot_is_the_value_without_loss(self, value: Any) -> None:
        back = json.loads(json.snapshot(value))
        assert back == joined(value)
        assert json.loads(json.snapshot(back)) == back

    @given(values)
    def test_the_slow_way_agrees_with_the_fast_one(self, value: Any) -> None:
        assert json.loads(slow_json.encode(value)) == json.loads(json.dumps(value))
        text = json.dumps(value).decode()
        assert slow_json.decode(text) == json.loads(text) == slow_json._decode_deep(text)

    @given(any_text)
    def test_a_text_literal_is_valid_utf8_json(self, text: str) -> None:
        assert stdlib.loads(json.dumps_text(text).decode()) == joined(text)
        assert json.dumps_text(text) == json.dumps(text)

    def test_text_is_escaped_only_where_json_asks_for_it(self) -> None:
        assert json.dumps_text('é\u2028😀\x7f"\\\n\x1f') == '"é\u2028😀\x7f\\"\\\\\\n\\u001f"'.encode()
        assert json.dumps(["\ud800é", "\udfff"]) == '["\\ud800é","\\udfff"]'.encode()

    def test_dumps_is_compact_and_keeps_the_order_of_keys(self) -> None:
        assert json.dumps({"b": [1, 2.5, None], "a": (True,)}) == b'{"b":[1,2.5,null],"a":[true]}'

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("company", ["x", "\ud800"])
    def test_dumps_writes_null_for_what_is_no_number(self, number: float, company: str) -> None:
        assert json.loads(json.dumps([number, company])) == [None, company]

    @pytest.mark.parametrize("company", ["x", "\ud800"])
    def test_dumps_keeps_negative_zero_and_repeated_containers(self, company: str) -> None:
        shared = [company]
        assert json.dumps([-0.0, shared, shared, {"again": shared}]).startswith(b"[-0.0,")
        assert json.loads(json.dumps([shared, shared])) == [shared, shared]

    @pytest.mark.parametrize("company", ["x", "\ud800"])
    def test_dumps_takes_subclasses_of_builtins(self, company: str) -> None:
        class Colour(enum.StrEnum):
            RED = "red"

        class Number(enum.IntEnum):
            ONE = 1

        value = collections.OrderedDict(colour=Colour.RED, number=Number.ONE, more=company)
        assert json.loads(json.dumps(value)) == {"colour": "red", "number": 1, "more": company}

    @pytest.mark.parametrize("company", ["x", "\ud800"])
    @pytest.mark.parametrize(
        "value",
        [object(), {1, 2}, b"x", 2**64, -(2**63) - 1, datetime.datetime(2026, 1, 1), {1: 2}, {None: 1}],
        ids=repr,
    )
    def test_dumps_refuses_the_rest_and_names_the_place(self, value: Any, company: str) -> None:
        with pytest.raises(JsonValueError, match=r"^value\.a\[1\]: ") as caught:
            json.dumps({"s": company, "a": [0, value]})
        assert caught.value.code == "JSON_UNSAFE"

    def test_dumps_refuses_a_cycle(self) -> None:
        value: list[Any] = [[]]
        value[0].append(value)
        with pytest.raises(JsonValueError, match=r"^value\[0\]\[0\]: container that contains itself"):
            json.dumps(value)


class TestDeepNesting:
    @pytest.mark.parametrize("kind", ["list", "dict"])
    @pytest.mark.parametrize("depth", [253, 254, 255, 1023, 1024, 1025, 10_000, MAX_DEPTH])
    @pytest.mark.contract("INV-04")
    @pytest.mark.case("CASE-16")
    def test_deep_values_pass_every_function(self, depth: int, kind: str) -> None:
        value = nested(depth, kind)
        data = json.snapshot(value)
        assert data == (
            b"[" * depth + b"0" + b"]" * depth if kind == "list" else b'{"k":' * depth + b"0" + b"}" * depth
        )
        assert json.dumps(value) == data
        assert json.nesting_depth(data) == depth
        back = json.loads(data)
        assert json.snapshot(back) == data

    @pytest.mark.case("CASE-16")
    def test_one_level_more_is_a_typed_error(self) -> None:
        value = nested(MAX_DEPTH + 1)
        data = b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1)
        for call in (
            lambda: json.snapshot(value),
            lambda: json.check_json(value),
            lambda: json.dumps(value),
            lambda: json.loads(data),
            lambda: json.loads(data.decode()),
        ):
            with pytest.raises(JsonDepthError, match=str(MAX_DEPTH)):
                call()

    @pytest.mark.case("CASE-16")
    @pytest.mark.parametrize("text", [b"[" * 2_000_000, b'{"a":' * 500_000, b"[{}" * 300_000])
    def test_unbalanced_nesting_is_a_typed_error(self, text: bytes) -> None:
        with pytest.raises((JsonDepthError, JsonDecodeError)):
            json.loads(text)

    def test_brackets_in_strings_do_not_count(self) -> None:
        assert json.nesting_depth(b'["[[",{"\\\\":"\\"[","}":[]}]') == 3
        assert json.nesting_depth(b'"\\\\\\"[[["') == 0
        assert json.nesting_depth(b'["\\\\",[[[[]]]],"\\\\"]') == 5

    @pytest.mark.parametrize("depth", [1, 3, 128])
    def test_a_smaller_limit_counts_levels_exactly(self, depth: int) -> None:
        exact = b'["[[{",' + b"[" * (depth - 1) + b'"\\"["' + b"]" * (depth - 1) + b"]"
        assert json.loads(exact, max_depth=depth)
        assert json.loads(exact.decode(), max_depth=depth)
        with pytest.raises(JsonDepthError):
            json.loads(b"[" + exact + b"]", max_depth=depth)
        assert json.loads(b"[" + b"[]," * 500 + b"{}]", max_depth=2)

    @pytest.mark.parametrize(
        "inside",
        [
            "1,",
            ",1",
            "1 2",
            '{"a":1,}',
            "{1:2}",
            '{"a" 1}',
            '{"a":}',
            '{"a"}',
            '"',
            "tru",
            "",
            "NaN",
            "]",
            "}",
            "1e999",
        ],
    )
    def test_malformed_deep_documents_are_typed_errors(self, inside: str) -> None:
        text = "[" * 3000 + "[" + inside + "]" + "]" * 3000
        if inside == "":
            assert json.nesting_depth(text) == 3001
            json.loads(text)
            text += "x"
        with pytest.raises(JsonDecodeError):
            json.loads(text)

    @given(values)
    def test_a_deep_document_holds_what_was_put_in(self, value: Any) -> None:
        back = json.loads(json.dumps({"pad": nested(1100), "value": value, "last": [{}, [], {"a": []}]}))
        assert back["value"] == joined(value)
        assert back["last"] == [{}, [], {"a": []}]


MALFORMED = [
    b"NaN", b"Infinity", b"-Infinity", b'{"a":NaN}', b"1e400", b"-1e400", b"9" * 400, b"\xef\xbb\xbf{}", b"{}\0", b"\0",
    b'"\0"', b'"\xff"', b'"\xed\xa0\x80"', b"", b" ", b"[1,]", b"{'a':1}", b"01", b"+1", b".5", b"1.", b"[1]]",
    b'"\\x"', b'"\\u12"', b'"a\nb"', b"nul", b"undefined", b"{} {}", b'"\\ud800', b'{"a":"\\ud800",}', b"/**/1",
]  # fmt: skip


class TestDecoding:
    @pytest.mark.case("CASE-16")
    @pytest.mark.parametrize("data", MALFORMED, ids=repr)
    def test_malformed_text_is_a_typed_error(self, data: bytes) -> None:
        with pytest.raises(JsonDecodeError) as caught:
            json.loads(data)
        assert caught.value.code == "JSON_MALFORMED"
        assert caught.value.__context__ is None  # would keep the whole text alive
        if b"\xff" not in data and b"\xed" not in data:
            with pytest.raises(JsonDecodeError):
                json.loads(data.decode())

    @pytest.mark.case("CASE-16")
    @pytest.mark.parametrize(
        ("data", "value"),
        [
            (b'{"a":1,"b":2,"a":3}', {"a": 3, "b": 2}),
            (b'"\\ud800"', "\ud800"),
            (b'"\\udc00 \\ud83d\\ude00"', "\udc00 😀"),
            (b"9007199254740993", 9007199254740993),
            (b"-9223372036854775808", -(2**63)),
            (b"18446744073709551615", 2**64 - 1),
            (b"18446744073709551616", 1.8446744073709552e19),
            (b"-9223372036854775809", -9.223372036854775808e18),
            (b"9" * 300, 1e300),
            (b"-0", 0),
            (b"1.0", 1.0),
            (b" \t\r\n[1] \r\n", [1]),
            (b"null", None),
            (b"5", 5),
            (b"[]", []),
            (b'{"__proto__":{"a":1}}', {"__proto__": {"a": 1}}),
        ],
        ids=repr,
    )
    def test_text_with_one_meaning(self, data: bytes, value: Any) -> None:
        for result in (json.loads(data), json.loads(data.decode()), slow_json.decode(data.decode())):
            assert result == value
            assert type(result) is type(value)
        assert json.loads(b'["\\ud800",' + data + b"]") == ["\ud800", value]

    @pytest.mark.case("CASE-16")
    def test_negative_zero_keeps_its_sign_where_it_is_a_float(self) -> None:
        assert math.copysign(1, json.loads(b"-0.0")) == -1
        assert math.copysign(1, json.loads(b'["\\ud800",-0.0]')[1]) == -1

    @given(st.binary(max_size=60))
    def test_arbitrary_bytes_raise_only_typed_errors(self, data: bytes) -> None:
        try:
            json.loads(data)
        except WireError:
            pass
        json.nesting_depth(data)

    @given(st.text(st.sampled_from('[]{}:,"\\ud8a0123.e+-tfnrulse \n'), max_size=25))
    def test_all_decoders_accept_the_same_texts(self, text: str) -> None:
        def outcome(decoder: Any) -> Any:
            try:
                return repr(decoder(text))
            except JsonDecodeError:
                return None

        assert outcome(json.loads) == outcome(slow_json.decode) == outcome(slow_json._decode_deep)


@dataclasses.dataclass
class Point:
    x: int = 1


class Odd(dict[str, Any]):
    pass


CYCLE: dict[str, Any] = {"a": [1]}
CYCLE["a"].append(CYCLE)


class TestSafetyWalk:
    @pytest.mark.contract("INV-04")
    @pytest.mark.parametrize(
        ("value", "data"),
        [
            (None, b"null"),
            (True, b"true"),
            (False, b"false"),
            ("text é", '"text é"'.encode()),
            ("\ud800", b'"\\ud800"'),
            (0, b"0"),
            (SAFE, b"9007199254740991"),
            (-SAFE, b"-9007199254740991"),
            (1.5, b"1.5"),
            ([], b"[]"),
            ({}, b"{}"),
            ([1, [2, (3, "x")]], b'[1,[2,[3,"x"]]]'),
            ({"__proto__": {"constructor": None}}, b'{"__proto__":{"constructor":null}}'),
            ({"": ""}, b'{"":""}'),
        ],
        ids=repr,
    )
    def test_lossless_values_are_accepted(self, value: Any, data: bytes) -> None:
        json.check_json(value)
        assert json.snapshot(value) == data

    @pytest.mark.contract("INV-04", "EVT-09")
    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (-0.0, "negative zero"),
            (math.nan, "finite"),
            (math.inf, "finite"),
            (-math.inf, "finite"),
            (SAFE + 1, "integer beyond"),
            (-SAFE - 1, "integer beyond"),
            (10**400, "integer beyond"),
            (CYCLE, "contains itself"),
            ({1, 2}, "set is not JSON"),
            (frozenset(), "frozenset is not JSON"),
            (b"x", "bytes is not JSON"),
            (bytearray(b"x"), "bytearray is not JSON"),
            (1j, "complex is not JSON"),
            (len, "not JSON"),
            (lambda: 1, "function is not JSON"),
            (..., "ellipsis is not JSON"),
            (Point(), "Point is not JSON"),
            (Point, "type is not JSON"),
            (Odd(a=1), "Odd is not JSON"),
            (collections.OrderedDict(a=1), "OrderedDict is not JSON"),
            (types.MappingProxyType({"a": 1}), "mappingproxy is not JSON"),
            (collections.deque([1]), "deque is not JSON"),
            (range(3), "range is not JSON"),
            ((x for x in ()), "generator is not JSON"),
            (enum.Enum("E", {"A": 1}).A, "E is not JSON"),  # type: ignore[attr-defined]
            (enum.StrEnum("S", {"A": "a"}).A, "S is not JSON"),  # type: ignore[attr-defined]
            (enum.IntEnum("N", {"A": 1}).A, "N is not JSON"),  # type: ignore[attr-defined]
            (datetime.date(2026, 1, 1), "date is not JSON"),
            ({1: "x"}, "key of type int"),
            ({None: "x"}, "key of type NoneType"),
            ({enum.StrEnum("K", {"A": "a"}).A: 1}, "key of type"),  # type: ignore[attr-defined]
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_everything_else_is_refused_with_path_and_reason(self, value: Any, reason: str) -> None:
        for call in (json.check_json, json.snapshot):
            with pytest.raises(JsonValueError, match=reason) as caught:
                call({"ok": [1, "x"], "items": [0, 1.5, None, value]}, root="data")
            assert caught.value.path.startswith("data.items[3]")
            with pytest.raises(JsonValueError, match=r"^value"):
                call(value)

    def test_the_path_quotes_odd_keys_and_shortens_long_ones(self) -> None:
        with pytest.raises(JsonValueError) as caught:
            json.check_json({"a b": [{"k" * 100: math.nan}]})
        assert caught.value.path == f"value['a b'][0]['{'k' * 40}']"
        with pytest.raises(JsonValueError) as caught:
            json.check_json({"x": nested(500)} | {"y": [[math.nan]]})
        assert caught.value.path == "value.y[0][0]"
        deep: Any = math.nan
        for _ in range(5000):
            deep = [deep]
        with pytest.raises(JsonValueError) as caught:
            json.check_json(deep)
        assert len(caught.value.path) < 100

    def test_a_message_names_a_key_in_printable_form(self) -> None:
        with pytest.raises(JsonValueError) as caught:
            json.check_json({"\ud800\n": math.nan})
        assert str(caught.value).encode().isascii()

    @pytest.mark.parametrize("number", [1.0, -3.0, float(SAFE), 0.0])
    def test_integral_floats_become_integers(self, number: float) -> None:
        assert json.snapshot({"n": [number, 0.5]}) == b'{"n":[%d,0.5]}' % int(number)

    @pytest.mark.parametrize("number", [2.0**53, 1e22, -1e300])
    def test_floats_beyond_the_safe_integers_stay_floats(self, number: float) -> None:
        back = json.loads(json.snapshot([number, 1.0]))
        assert back == [number, 1]
        assert [type(item) for item in back] == [float, int]

    def test_a_repeated_container_is_no_cycle(self) -> None:
        shared: dict[str, Any] = {"a": [1]}
        assert json.snapshot([shared, shared, {"b": shared}]) == b'[{"a":[1]},{"a":[1]},{"b":{"a":[1]}}]'

    def test_repetition_cannot_blow_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(safety, "MAX_NODES", 1000)
        value: list[Any] = []
        for _ in range(100):
            value = [value, value]
        with pytest.raises(JsonValueError, match="more than 1000 nodes"):
            json.snapshot(value)

    def test_the_snapshot_is_detached_from_the_value(self) -> None:
        value = {"a": [1]}
        data = json.snapshot(value)
        value["a"].append(2)
        assert json.loads(data) == {"a": [1]}

    def test_detach_copies(self) -> None:
        data = json.dumps([1])
        assert json.detach(data) == data
        assert json.detach(data) is not data
