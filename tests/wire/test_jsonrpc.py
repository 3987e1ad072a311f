"""JSON-RPC: classification per dialect, frames, and the table of pending requests."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.wire import json
from polyhost.wire.dialects import JSON_RPC, Dialect
from polyhost.wire.errors import PendingLimitError, WireError
from polyhost.wire.jsonrpc import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    ErrorResponse,
    Invalid,
    JsonRpcError,
    Notification,
    PendingTable,
    Request,
    Response,
    classify,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
)

STRICT = JSON_RPC._replace(
    require_version=True,
    unknown_members="refuse",
    fractional_ids=False,
    null_id="notification",
    max_depth=8,
)
LOOSE = JSON_RPC._replace(
    null_id="notification", odd_id="notification", strict_shape=False, invalid_utf8="replace", last_line="drop"
)
V = '"jsonrpc":"2.0"'


def read(text: str | bytes, dialect: Dialect) -> Any:
    """The message, with errors as tuples so that they compare."""
    message = decode(text if isinstance(text, bytes) else text.encode(), dialect)
    if isinstance(message, ErrorResponse):
        return message.id, (message.error.code, message.error.message, message.error.data)
    return message


def invalid(*issues: Any, id: Any = None) -> Invalid:
    return Invalid(issues, id)


BATCH, NOT_OBJECT, MALFORMED = invalid("batch"), invalid("not_an_object"), invalid("malformed_json")
MISSING = invalid("missing_id")
SHAPE = invalid("ambiguous_shape")

# text without the version member, default dialect, strict (version added), loose
TABLE: list[tuple[str, Any, Any, Any]] = [
    ('"id":1,"method":"m"', Request(1, "m", None), ..., ...),
    ('"id":"a","method":"m","params":{"x":1}', Request("a", "m", {"x": 1}), ..., ...),
    ('"id":1,"method":"m","params":[1]', Request(1, "m", [1]), ..., ...),
    ('"id":1.5,"method":"m"', Request(1.5, "m", None), invalid("invalid_id"), Request(1.5, "m", None)),
    ('"id":2.0,"method":"m"', Request(2, "m", None), invalid("invalid_id"), Request(2, "m", None)),
    ('"id":9223372036854775807,"method":"m"', Request(2**63 - 1, "m", None), ..., ...),
    ('"id":9223372036854775808,"method":"m"', Request(2**63, "m", None), invalid("invalid_id"), ...),
    ('"id":null,"method":"m"', Request(None, "m", None), Notification("m", None), Notification("m", None)),
    ('"id":true,"method":"m"', invalid("invalid_id"), invalid("invalid_id"), Notification("m", None)),
    ('"id":[1],"method":"m"', invalid("invalid_id"), invalid("invalid_id"), Notification("m", None)),
    ('"id":{},"method":"m"', invalid("invalid_id"), invalid("invalid_id"), Notification("m", None)),
    ('"method":"m"', Notification("m", None), ..., ...),
    ('"method":"m","params":{}', Notification("m", {}), ..., ...),
    ('"id":1,"method":5', invalid("invalid_method", id=1), ..., Response(1, None)),
    ('"id":1,"method":""', invalid("invalid_method", id=1), ..., Request(1, "", None)),
    ('"method":null', invalid("invalid_method"), ..., MISSING),
    ('"id":1,"method":"m","result":1', SHAPE, ..., Request(1, "m", None)),
    ('"id":[],"method":5,"error":1', invalid("invalid_id", "invalid_method", "ambiguous_shape"), ..., MISSING),
    ('"id":1,"result":{"a":1}', Response(1, {"a": 1}), ..., ...),
    ('"id":"a","result":null', Response("a", None), ..., ...),
    ('"id":1', SHAPE, ..., Response(1, None)),
    ("", invalid("ambiguous_shape", "missing_id"), ..., MISSING),
    ('"result":1', MISSING, ..., MISSING),
    ('"id":null,"result":1', MISSING, ..., MISSING),
    ('"id":true,"result":1', invalid("invalid_id"), ..., MISSING),
    ('"id":1.5,"result":1', Response(1.5, 1), invalid("invalid_id"), Response(1.5, 1)),
    ('"id":1,"error":{"code":-1,"message":"no"}', (1, (-1, "no", None)), ..., ...),
    ('"id":1,"error":{"code":-1,"message":"no","data":{"a":1}}', (1, (-1, "no", {"a": 1})), ..., ...),
    ('"id":1,"error":{"code":-1,"message":"no"},"result":1', invalid("result_and_error"), ..., (1, (-1, "no", None))),
    ('"id":1,"error":{}', invalid("malformed_error"), ..., (1, (None, "JSON-RPC error", None))),
    ('"id":1,"error":{"code":"x","message":5}', invalid("malformed_error"), ..., (1, (None, "JSON-RPC error", None))),
    ('"id":1,"error":{"code":true,"message":"m"}', invalid("malformed_error"), ..., (1, (None, "m", None))),
    ('"id":1,"error":{"code":5.0,"message":"m"}', invalid("malformed_error"), ..., (1, (5, "m", None))),
    ('"id":1,"error":{"code":2147483648,"message":"m"}', invalid("malformed_error"), ..., (1, (2147483648, "m", None))),
    ('"id":1,"error":null', invalid("malformed_error"), ..., Response(1, None)),
    ('"id":1,"error":"x","result":2', invalid("result_and_error"), ..., Response(1, 2)),
    ('"id":null,"error":{"code":-1,"message":"no"}', (None, (-1, "no", None)), MISSING, MISSING),
    ('"error":{"code":-1,"message":"no"}', (None, (-1, "no", None)), MISSING, MISSING),
    ('"id":1,"method":"m","extra":1', Request(1, "m", None), invalid("unknown_member", id=1), Request(1, "m", None)),
]  # fmt: skip


@pytest.mark.parametrize(("members", "default", "strict", "loose"), TABLE, ids=[row[0] for row in TABLE])
def test_classification(members: str, default: Any, strict: Any, loose: Any) -> None:
    assert read("{%s}" % members, JSON_RPC) == default  # noqa: UP031
    assert read("{%s}" % members, LOOSE) == (default if loose is ... else loose)  # noqa: UP031
    versioned = "{%s}" % ",".join(filter(None, [V, members]))  # noqa: UP031
    assert read(versioned, STRICT) == (default if strict is ... else strict)
    assert read(versioned, JSON_RPC) == default


@pytest.mark.parametrize("version", ['"jsonrpc":"1.0",', '"jsonrpc":2.0,', '"jsonrpc":null,', ""])
def test_the_version_member_matters_only_where_required(version: str) -> None:
    text = "{" + version + '"id":7,"method":"m"}'
    assert read(text, JSON_RPC) == read(text, LOOSE) == Request(7, "m", None)
    assert read(text, STRICT) == invalid("wrong_version", id=7)


def test_all_problems_of_an_envelope_are_reported_together() -> None:
    message = read('{"id":1,"secret":1,"result":1,"error":2}', STRICT)
    assert message == invalid("wrong_version", "unknown_member", "result_and_error")
    assert "secret" not in repr(message)


@pytest.mark.case("CASE-16")
@pytest.mark.parametrize("dialect", [JSON_RPC, STRICT, LOOSE], ids=["default", "strict", "loose"])
@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"null", NOT_OBJECT),
        (b"5", NOT_OBJECT),
        (b'"s"', NOT_OBJECT),
        (b"true", NOT_OBJECT),
        (b"[]", BATCH),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', BATCH),
        (b"", MALFORMED),
        (b"not JSON", MALFORMED),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":NaN}', MALFORMED),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":-Infinity}', MALFORMED),
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}\0', MALFORMED),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"m"}', MALFORMED),
        (b'{"jsonrpc":"2.0","id":1,"method":"m"}\r', Request(1, "m", None)),
        (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}', Request(2, "m", None)),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"\\udfff"}', Request("\ud800", "\udfff", None)),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":-0}', Request(1, "m", 0)),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":9007199254740993}', Request(1, "m", 9007199254740993)),
        (b"[" * 100_000, invalid("excessive_nesting")),
    ],
    ids=lambda value: value[:60] if isinstance(value, bytes) else "",
)
def test_odd_frames_are_told_apart_and_raise_nothing(frame: bytes, message: Any, dialect: Dialect) -> None:
    assert read(frame, dialect) == message


@pytest.mark.case("CASE-16")
def test_deep_params_are_read_up_to_the_depth_of_the_dialect() -> None:
    def frame(depth: int) -> bytes:
        return b'{"jsonrpc":"2.0","method":"m","params":' + b"[" * depth + b"]" * depth + b"}"

    for dialect, depth in ((STRICT, 7), (JSON_RPC, 10_000), (JSON_RPC, JSON_RPC.max_depth - 1)):
        message = decode(frame(depth), dialect)
        assert isinstance(message, Notification)
        assert json.dumps(message.params) == b"[" * depth + b"]" * depth
    assert read(frame(8), STRICT) == read(frame(JSON_RPC.max_depth), JSON_RPC) == invalid("excessive_nesting")


@pytest.mark.case("CASE-16")
def test_invalid_utf8_is_refused_or_replaced_as_the_dialect_says() -> None:
    frame = b'{"jsonrpc":"2.0","id":"a\xff","method":"m\xed\xa0\x80"}'
    assert read(frame, JSON_RPC) == MALFORMED
    assert read(frame, LOOSE) == Request("a\ufffd", "m\ufffd\ufffd\ufffd", None)
    assert read(frame[:-1], LOOSE) == MALFORMED


@given(st.binary(max_size=80), st.sampled_from([JSON_RPC, STRICT, LOOSE]))
def test_arbitrary_bytes_are_always_some_message(data: bytes, dialect: Dialect) -> None:
    assert isinstance(decode(data, dialect), Request | Notification | Response | ErrorResponse | Invalid)


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=3)
json_values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(
    st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), json_values)
    | json_values,
    st.sampled_from([JSON_RPC, STRICT, LOOSE]),
)
def test_arbitrary_values_are_always_one_message(value: Any, dialect: Dialect) -> None:
    message = classify(value, dialect)
    if isinstance(message, Invalid):
        assert message.issues
    else:
        assert type(getattr(message, "id", "")) is not bool


ids = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5)


@given(ids, st.text(min_size=1), st.none() | st.lists(st.booleans() | st.integers(-(2**63), 2**63) | st.text()))
def test_frames_survive_a_round_trip_in_every_dialect(request_id: Any, method: str, payload: Any) -> None:
    params = None if payload is None else json.dumps(payload)
    error = JsonRpcError(METHOD_NOT_FOUND, method, payload)
    for dialect in (JSON_RPC, STRICT, LOOSE):
        for frame, expected in (
            (encode_request(request_id, method, params), Request(request_id, method, payload)),
            (encode_notification(method, params), Notification(method, payload)),
            (encode_response(request_id, json.dumps(payload)), Response(request_id, payload)),
            (encode_error(request_id, error), (request_id, (METHOD_NOT_FOUND, method, payload))),
        ):
            assert frame.endswith(b"\n")
            assert frame.count(b"\n") == 1
            assert read(frame, dialect) == expected


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ("7", "7"),
        ("7.0", "7"),
        ("1.5", "1.5"),
        ('"7"', '"7"'),
        ("1e+300", "1e+300"),
        ("null", "null"),
        ('"\\ud800"',) * 2,
    ],
)
def test_ids_are_echoed_as_the_peer_wrote_them(sent: str, echoed: str) -> None:
    message = decode(b'{"id":%b,"method":"m"}' % sent.encode())
    assert isinstance(message, Request)
    assert encode_response(message.id, b"1") == b'{"jsonrpc":"2.0","id":%b,"result":1}\n' % echoed.encode()


def test_frames_to_the_byte() -> None:
    assert encode_request("r", "session/prompt", b"{}") == (
        b'{"jsonrpc":"2.0","id":"r","method":"session/prompt","params":{}}\n'
    )
    assert encode_request(0, "shutdown") == b'{"jsonrpc":"2.0","id":0,"method":"shutdown"}\n'
    assert encode_notification("heartbeat") == b'{"jsonrpc":"2.0","method":"heartbeat"}\n'
    assert encode_notification("m", b"[1]") == b'{"jsonrpc":"2.0","method":"m","params":[1]}\n'
    assert encode_response(1.5, b"null") == b'{"jsonrpc":"2.0","id":1.5,"result":null}\n'
    assert encode_error(None, JsonRpcError(7, "é\ud800")) == (
        '{"jsonrpc":"2.0","id":null,"error":{"code":7,"message":"é\\ud800"}}\n'.encode()
    )
    assert encode_error(1, JsonRpcError(None, "m", {"code": "BUSY"})) == (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"m","data":{"code":"BUSY"}}}\n' % INTERNAL_ERROR
    )


class TestPendingTable:
    async def test_answers_settle_the_waiters_they_belong_to(self) -> None:
        loop = asyncio.get_running_loop()
        table = PendingTable()
        first, second, third = (loop.create_future() for _ in range(3))
        assert [table.add(future) for future in (first, second, third)] == [1, 2, 3]
        error = JsonRpcError(-1, "no")
        assert table.settle(ErrorResponse(2, error))
        assert table.settle(Response(1, {"ok": True}))
        assert table.resolve(3, None)
        assert first.result() == {"ok": True}
        assert second.exception() is error
        assert third.result() is None
        assert len(table) == 0

    @pytest.mark.parametrize("unknown", [99, "1", None, 1.5])
    async def test_unknown_and_late_answers_are_ignored(self, unknown: Any) -> None:
        table = PendingTable()
        future = asyncio.get_running_loop().create_future()
        request_id = table.add(future)
        assert not table.settle(Response(unknown, 1))
        assert not table.settle(ErrorResponse(unknown, JsonRpcError(1, "m")))
        assert not future.done()
        assert table.discard(request_id)
        assert not table.discard(request_id)
        assert not table.settle(Response(request_id, 1))
        assert not future.done()

    async def test_a_waiter_cancelled_by_its_owner_is_left_alone(self) -> None:
        table = PendingTable()
        futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
        request_ids = [table.add(future) for future in futures]
        for future in futures:
            future.cancel()
        assert table.resolve(request_ids[0], 1)
        assert table.reject(request_ids[1], JsonRpcError(1, "m"))
        table.fail_all(lambda: ConnectionError("gone"))
        assert all(future.cancelled() for future in futures)

    def test_the_number_of_waiters_is_bounded(self) -> None:
        table = PendingTable(limit=2)
        first = table.add(concurrent.futures.Future())
        table.add(concurrent.futures.Future())
        with pytest.raises(PendingLimitError, match="2 requests") as caught:
            table.add(concurrent.futures.Future())
        assert isinstance(caught.value, WireError)
        assert len(table) == 2
        table.discard(first)
        table.add(concurrent.futures.Future())

    def test_ids_are_the_callers_choice(self) -> None:
        table = PendingTable(new_id=itertools.count(2**32).__next__)
        assert table.add(concurrent.futures.Future()) == 2**32
        names = (f"req_{number:x}" for number in itertools.count(10))
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        table = PendingTable(new_id=names.__next__)
        assert table.add(future) == "req_a"
        assert table.settle(Response("req_a", 5))
        assert future.result() == 5

    def test_loss_of_the_connection_empties_the_table_and_keeps_it_so(self) -> None:
        table = PendingTable()
        futures: list[concurrent.futures.Future[Any]] = [concurrent.futures.Future() for _ in range(3)]
        for future in futures:
            table.add(future)
        table.fail_all(lambda: ConnectionError("first"))
        table.fail_all(lambda: ConnectionError("second"))
        errors = [future.exception() for future in futures]
        assert [str(error) for error in errors] == ["first"] * 3
        assert len(set(map(id, errors))) == 3
        assert len(table) == 0
        with pytest.raises(ConnectionError, match="first"):
            table.add(concurrent.futures.Future())
        assert not table.settle(Response(1, None))

    def test_a_waiter_that_asks_again_while_failing_is_refused(self) -> None:
        table = PendingTable()
        refused: list[BaseException] = []
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def again(_: object) -> None:
            try:
                table.add(concurrent.futures.Future())
            except ConnectionError as error:
                refused.append(error)

        future.add_done_callback(again)
        table.add(future)
        table.fail_all(lambda: ConnectionError("gone"))
        assert len(refused) == 1
        assert len(table) == 0
