from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyhost.interfaces import ModelError, SessionError
from polyhost.runtime.models.errors import clean_failure, error_chain, failure_of


def chained(*messages: str) -> BaseException:
    error: BaseException | None = None
    for message in reversed(messages):
        outer = RuntimeError(message)
        outer.__cause__ = error
        error = outer
    assert error is not None
    return error


def caused(message: str, cause: BaseException) -> BaseException:
    error = RuntimeError(message)
    error.__cause__ = cause
    return error


class Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("no text for you")


@pytest.mark.contract("LLM-10")
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (chained("top", "middle", "root"), "top: middle: root"),
        (chained("failed: root", "root"), "failed: root"),
        (chained("same", "same"), "same"),
        (caused("no room (disk full)", OSError(28, "disk full", "/log")), "no room (disk full)"),
        (caused("it failed", OSError(28, "disk full")), "it failed: [Errno 28] disk full"),
        (ExceptionGroup("two failed", [OSError("a"), chained("b", "c")]), "two failed [a; b: c]"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [KeyError("k")])]), "outer [inner ['k']]"),
        (RuntimeError(), "RuntimeError"),
        (Hostile(), "Hostile"),
    ],
)
def test_causes_and_groups_are_rendered(error: BaseException, text: str) -> None:
    assert error_chain(error) == text


@pytest.mark.contract("LLM-10")
def test_cycles_end_the_chain() -> None:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert error_chain(one) == "one: two"
    group = ExceptionGroup("group", [one])
    two.__cause__ = group
    assert error_chain(group) == "group [one: two]"


@pytest.mark.contract("LLM-10", "LLM-02")
@given(st.lists(st.text(st.characters(), max_size=20), min_size=1, max_size=50))
def test_rendering_never_raises_and_gives_encodable_text(messages: list[str]) -> None:
    text = error_chain(chained(*messages))
    assert text
    assert len(text) <= 16_384
    text.encode()


def test_a_model_error_keeps_its_facts_of_the_right_types() -> None:
    error = ModelError("slow down", code="RATE_LIMIT", status=429, retry_after_ms=1500, request_id="r-1")
    assert failure_of(error) == {
        "message": "slow down",
        "code": "RATE_LIMIT",
        "status": 429,
        "providerRetryAfterMs": 1500,
        "requestId": "r-1",
    }
    odd = ModelError("odd", code="X", status="429", retry_after_ms=-1, request_id=7)  # type: ignore[arg-type]
    assert failure_of(odd) == {"message": "odd", "code": "X"}
    assert failure_of(OSError("gone")) == {"message": "gone", "code": "UNKNOWN"}


@pytest.mark.case("CASE-13")
def test_an_error_of_the_host_keeps_its_code() -> None:
    full = SessionError("the log cannot be written", code="SESSION_WRITE_FAILED")
    assert failure_of(full) == {"message": "the log cannot be written", "code": "SESSION_WRITE_FAILED"}
    full.code = 7  # type: ignore[assignment]
    assert failure_of(full)["code"] == "UNKNOWN"


@given(st.dictionaries(st.sampled_from(["message", "code", "status", "requestId", "more"]), st.from_type(object)))
def test_any_facts_become_a_failure(facts: dict[str, object]) -> None:
    failure = clean_failure(facts)
    assert isinstance(failure["message"], str)
    assert isinstance(failure["code"], str)
    json.dumps(failure)
