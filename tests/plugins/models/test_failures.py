"""Classification of HTTP errors, and the Retry-After header."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost_models.failures import http_error, retry_after_ms

NOW = 1_700_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


def error(message: str = "m", code: str | None = None, type: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "type": type}}


@pytest.mark.contract("DS-04", "LLM-09")
@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (401, error(code="insufficient_quota"), "AUTH"),
        (403, error(), "AUTH"),
        (402, error("Insufficient Balance"), "QUOTA"),
        (429, error(code="insufficient_quota"), "QUOTA"),
        (429, error(type="insufficient_quota"), "QUOTA"),
        (400, error("You exceeded your current quota, please check your plan"), "QUOTA"),
        (500, error("monthly quota exceeded"), "QUOTA"),
        (429, error("Too many requests"), "RATE_LIMIT"),
        (429, error("maximum context length"), "RATE_LIMIT"),
        (400, error(code="context_length_exceeded"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("This model's maximum context length is 65536 tokens"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("The prompt is too long for the model"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("the request exceeds the available context size"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("context_length must be a positive integer"), "INVALID_REQUEST"),
        (400, error("invalid value for the tool 'billing'"), "INVALID_REQUEST"),
        (400, None, "INVALID_REQUEST"),
        (500, error("maximum context length"), "SERVER"),
        (503, None, "SERVER"),
        (404, error(), "HTTP_404"),
        (302, None, "HTTP_302"),
        (422, [1], "HTTP_422"),
    ],
)
def test_codes(status: int, body: Any, code: str) -> None:
    assert http_error(status, {}, body, "fallback").code == code


@pytest.mark.contract("DS-04")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (error("why"), "why"),
        ({"error": "bare"}, "bare"),
        ({"error": {"message": 5}}, "fallback"),
        ({"error": [1]}, "fallback"),
        ({}, "fallback"),
        ("text", "fallback"),
        (None, "fallback"),
    ],
)
def test_the_message_is_the_endpoints_own_if_it_has_one(body: Any, message: str) -> None:
    assert http_error(500, {}, body, "fallback").message == message


@pytest.mark.contract("DS-03")
@pytest.mark.parametrize("name", ["x-request-id", "x-deepseek-request-id"])
def test_status_delay_and_request_id_are_kept(name: str) -> None:
    caught = http_error(429, {name: "r-1", "retry-after": "7"}, error("slow"), "fallback")
    assert caught.failure() == {
        "message": "slow",
        "code": "RATE_LIMIT",
        "status": 429,
        "providerRetryAfterMs": 7000,
        "requestId": "r-1",
    }


@pytest.mark.contract("DS-03")
@pytest.mark.parametrize(
    ("value", "delay"),
    [
        ("3", 3000),
        (" 3 ", 3000),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        (None, None),
        ("9" * 5000, None),
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30_000),
        ("Tue, 14 Nov 2023 22:13:50 -0000", 30_000),
        ("Tue, 14 Nov 2023 22:13:20 GMT", None),
        ("Tue, 14 Nov 2023 22:13:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, delay: int | None) -> None:
    assert retry_after_ms(value, NOW) == delay


@given(st.text() | st.text("0123456789 :,-+GMTueNov", min_size=5))
def test_retry_after_never_raises(value: str) -> None:
    delay = retry_after_ms(value, NOW)
    assert delay is None or delay > 0
