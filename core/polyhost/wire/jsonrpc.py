"""JSON-RPC 2.0 without I/O: what a message is, how frames are written, who waits for which response.

:func:`decode` and :func:`classify` are total: they answer :class:`Invalid` and never raise, whatever a peer sends.
Encoders return whole LF-terminated frames and take payloads as JSON bytes, so that a value encoded once can be
spliced into many frames. Methods, handlers, carriers and deadlines are the front ends'.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from polyhost.wire import json
from polyhost.wire.dialects import JSON_RPC, MAX_PENDING, Dialect
from polyhost.wire.errors import JsonDecodeError, JsonDepthError, PendingLimitError
from polyhost.wire.safety import MAX_SAFE_INTEGER

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

RequestId: TypeAlias = str | int | float | None
"""An id as a peer may choose it; never a bool. Floats and None only where the dialect admits them."""

Issue: TypeAlias = Literal[
    "malformed_json",
    "excessive_nesting",
    "batch",
    "not_an_object",
    "wrong_version",
    "unknown_member",
    "invalid_id",
    "missing_id",
    "invalid_method",
    "malformed_error",
    "result_and_error",
    "ambiguous_shape",
]

_MEMBERS = frozenset(("jsonrpc", "id", "method", "params", "result", "error"))
_ABSENT = object()


class JsonRpcError(Exception):
    """An error that one peer answers to the other's request.

    :param code: None when the peer's own error object had no number there.
    :param data: any JSON value; None stands for absent, and is written as such.
    """

    def __init__(self, code: int | None, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Request(NamedTuple):
    """A call that must be answered once, under ``id``. ``params`` is any JSON value, None when absent."""

    id: RequestId
    method: str
    params: Any


class Notification(NamedTuple):
    """A call without an answer. ``params`` is any JSON value, None when absent."""

    method: str
    params: Any


class Response(NamedTuple):
    """The result of an own request."""

    id: RequestId
    result: Any


class ErrorResponse(NamedTuple):
    """The failure of an own request. A null ``id`` means that the peer could not tell which."""

    id: RequestId
    error: JsonRpcError


class Invalid(NamedTuple):
    """A frame that is no message in this dialect: everything that is wrong with it, as kinds, without payload.

    ``id`` is that of the request it was meant to be, where that can be told: an answer may go there. It is None for
    whatever looks like a response or notification; answering those could start a ping-pong.
    """

    issues: tuple[Issue, ...]
    id: RequestId = None


Message: TypeAlias = Request | Notification | Response | ErrorResponse | Invalid


def decode(line: bytes, dialect: Dialect = JSON_RPC) -> Message:
    """Decode and classify one line."""
    try:
        value = json.loads(line, max_depth=dialect.max_depth)
    except JsonDepthError:
        return Invalid(("excessive_nesting",))
    except JsonDecodeError:
        if dialect.invalid_utf8 == "replace" and (text := line.decode("utf-8", "replace").encode()) != line:
            return decode(text, dialect)
        return Invalid(("malformed_json",))
    return classify(value, dialect)


def classify(value: object, dialect: Dialect = JSON_RPC) -> Message:
    """Tell what a decoded frame is."""
    if not isinstance(value, dict):
        return Invalid(("batch",) if isinstance(value, list) else ("not_an_object",))
    issues: list[Issue] = []
    if dialect.require_version and value.get("jsonrpc") != "2.0":
        issues.append("wrong_version")
    if dialect.unknown_members == "refuse" and not _MEMBERS.issuperset(value):
        issues.append("unknown_member")
    if "method" in value and (dialect.strict_shape or isinstance(value["method"], str)):
        return _call(value, dialect, issues)
    return _response(value, dialect, issues)


def encode_request(request_id: RequestId, method: str, params: bytes | None = None) -> bytes:
    """A request frame; ``params`` is encoded JSON, None for no such member."""
    return b'{"jsonrpc":"2.0","id":%b,%b}\n' % (json.dumps(request_id), _call_members(method, params))


def encode_notification(method: str, params: bytes | None = None) -> bytes:
    """A notification frame; ``params`` is encoded JSON, None for no such member."""
    return b'{"jsonrpc":"2.0",%b}\n' % _call_members(method, params)


def encode_response(request_id: RequestId, result: bytes) -> bytes:
    """A response frame; ``result`` is encoded JSON."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (json.dumps(request_id), result)


def encode_error(request_id: RequestId, error: JsonRpcError) -> bytes:
    """An error frame; ``data`` only if there is any, and internal error for a missing code.

    :raises JsonValueError: ``error.data`` is not JSON.
    """
    members: dict[str, Any] = {"code": INTERNAL_ERROR if error.code is None else error.code, "message": error.message}
    if error.data is not None:
        members["data"] = error.data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (json.dumps(request_id), json.dumps(members))


def _call_members(method: str, params: bytes | None) -> bytes:
    if params is None:
        return b'"method":%b' % json.dumps_text(method)
    return b'"method":%b,"params":%b' % (json.dumps_text(method), params)


class Waiter(Protocol):
    """What waits for a response: the part that asyncio's and concurrent.futures' Future have in common."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class PendingTable:
    """The own requests of one connection that wait for their response, by id; bounded, and empty once failed.

    Every waiter is settled at most once, and not at all if somebody else has cancelled it. Not thread-safe.

    :param limit: how many may wait at once.
    :param new_id: allocates ids and never repeats one that waits; counts up from 1 by default.
    """

    def __init__(self, *, limit: int = MAX_PENDING, new_id: Callable[[], str | int] | None = None) -> None:
        self._limit = limit
        self._new_id = new_id or itertools.count(1).__next__
        self._waiters: dict[RequestId, Waiter] = {}
        self._make_error: Callable[[], BaseException] | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, waiter: Waiter) -> str | int:
        """Register ``waiter`` and return the id to send its request under.

        :raises PendingLimitError: too many wait already.
        :raises BaseException: what :meth:`fail_all` was given, once the connection is lost.
        """
        if self._make_error is not None:
            raise self._make_error()
        if len(self._waiters) >= self._limit:
            raise PendingLimitError(self._limit)
        request_id = self._new_id()
        self._waiters[request_id] = waiter
        return request_id

    def settle(self, message: Response | ErrorResponse) -> bool:
        """Give a peer's answer to whom it belongs; False for an id that nobody waits for (any more)."""
        if isinstance(message, Response):
            return self.resolve(message.id, message.result)
        return self.reject(message.id, message.error)

    def resolve(self, request_id: RequestId, result: Any) -> bool:
        """Settle one waiter with a result; False for an unknown id."""
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(result)
        return waiter is not None

    def reject(self, request_id: RequestId, error: BaseException) -> bool:
        """Settle one waiter with an error; False for an unknown id."""
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        return waiter is not None

    def discard(self, request_id: RequestId) -> bool:
        """Forget a request whose caller has given up, so that a late answer is ignored; False for an unknown id."""
        return self._waiters.pop(request_id, None) is not None

    def fail_all(self, make_error: Callable[[], BaseException]) -> None:
        """The connection is lost: fail all waiters and, from now on, :meth:`add`. The first cause stays.

        :param make_error: makes one exception per waiter, since a shared one would collect everybody's tracebacks.
        """
        if self._make_error is None:
            self._make_error = make_error
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_exception(self._make_error())


def _call(value: dict[str, Any], dialect: Dialect, issues: list[Issue]) -> Message:
    method = value["method"]
    raw_id = value.get("id", _ABSENT)
    request_id = _accept_id(raw_id, dialect)
    is_request = request_id is not None or (raw_id is None and dialect.null_id == "request")
    if not (is_request or raw_id is None or raw_id is _ABSENT or dialect.odd_id == "notification"):
        issues.append("invalid_id")
    if dialect.strict_shape:
        if not isinstance(method, str) or not method:
            issues.append("invalid_method")
        if "result" in value or "error" in value:
            issues.append("ambiguous_shape")
            request_id = None
    if issues:
        return Invalid(tuple(issues), request_id)
    params = value.get("params")
    return Request(request_id, method, params) if is_request else Notification(method, params)


def _response(value: dict[str, Any], dialect: Dialect, issues: list[Issue]) -> Message:
    request_id = _accept_id(value.get("id"), dialect)
    if dialect.strict_shape:
        issues += _response_issues(value, request_id, dialect)
    elif request_id is None:
        issues.append("missing_id")
    if issues:
        return Invalid(tuple(issues))
    error = value.get("error")
    if isinstance(error, dict):
        return ErrorResponse(request_id, _read_error(error))
    return Response(request_id, value.get("result"))


def _response_issues(value: dict[str, Any], request_id: RequestId, dialect: Dialect) -> list[Issue]:
    issues: list[Issue] = []
    has_result, has_error = "result" in value, "error" in value
    if has_result and has_error:
        issues.append("result_and_error")
    elif not has_result and not has_error:
        issues.append("ambiguous_shape")
    elif has_error and not _is_error(value["error"]):
        issues.append("malformed_error")
    if request_id is None:
        if value.get("id") is not None:
            issues.append("invalid_id")
        elif has_result or not has_error or dialect.null_id != "request":
            issues.append("missing_id")
    return issues


def _accept_id(raw: object, dialect: Dialect) -> str | int | float | None:
    """The id that ``raw`` is in this dialect; None for null and for what is no id. Types are exact: bool is an int."""
    if type(raw) is str:
        return raw
    if type(raw) is int:
        return raw if dialect.fractional_ids or -(2**63) <= raw < 2**63 else None
    if type(raw) is float and dialect.fractional_ids:
        return int(raw) if raw.is_integer() and abs(raw) <= MAX_SAFE_INTEGER else raw
    return None


def _read_error(raw: dict[str, Any]) -> JsonRpcError:
    """Read an error object tolerantly; data is kept verbatim."""
    code, message = raw.get("code"), raw.get("message")
    if type(code) is float and code.is_integer():
        code = int(code)
    return JsonRpcError(
        code if type(code) is int else None,
        message if isinstance(message, str) else "JSON-RPC error",
        raw.get("data"),
    )


def _is_error(raw: object) -> bool:
    """Whether ``raw`` is an error object as JSON-RPC defines it, with a code of 32 bits."""
    return (
        isinstance(raw, dict)
        and type(code := raw.get("code")) is int
        and -(2**31) <= code < 2**31
        and isinstance(raw.get("message"), str)
    )
