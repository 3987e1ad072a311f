from __future__ import annotations

import math
from typing import Any

import pytest

from polyhost.process import Collect, InvalidSpecError, ProcessError


@pytest.mark.contract("PROC-3")
@pytest.mark.parametrize("grace", [0, -1, math.nan, math.inf, 2_147_483.648, "3", True, None])
def test_an_invalid_grace_is_refused(make_spec, grace: Any) -> None:
    with pytest.raises(InvalidSpecError, match="grace"):
        make_spec("true", grace=grace)


@pytest.mark.contract("PROC-3")
@pytest.mark.parametrize("grace", [0.001, 3, 2_147_483.647])
def test_graces_up_to_the_limit_are_accepted(make_spec, grace: float) -> None:
    assert make_spec("true", grace=grace).grace == grace


@pytest.mark.contract("PROC-4")
@pytest.mark.parametrize("argv", [[], [""], "true", ["true", "a\0b"], ["true", 5]])
def test_an_unusable_argv_is_refused(make_spec, argv: Any) -> None:
    with pytest.raises(InvalidSpecError, match="argv"):
        make_spec(argv=argv)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cwd", ""),
        ("cwd", "/a\0b"),
        ("stdin", "inherit"),
        ("stdout", "ignore"),
        ("stderr", None),
        ("stdout", Collect(0)),
        ("stderr", Collect(10, spill_bytes=0)),
        ("pipe_limit", 0),
        ("env", {"": "x"}),
        ("env", {"A=B": "x"}),
        ("env", {"A": "x\0"}),
        ("env", {"A": 5}),
    ],
)
def test_other_unusable_fields_are_refused_by_name(make_spec, field: str, value: Any) -> None:
    with pytest.raises(InvalidSpecError, match=field) as caught:
        make_spec("true", **{field: value})
    assert isinstance(caught.value, ProcessError)
    assert caught.value.code == "INVALID_SPAWN_SPEC"
