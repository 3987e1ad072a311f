"""Checks of what adapters say about their models. Adapters are foreign code; the rest of the runtime trusts this."""

from __future__ import annotations

from collections.abc import Iterable

from polyhost.interfaces import ModelError, ModelInfo, ReasoningEffort

_MAX_TOKENS = 2**53 - 1


def check_model(info: object, provider: str) -> ModelInfo:
    """``info`` when it is sound.

    Raises :class:`ModelError` with INVALID_MODEL_INFO, INVALID_CONTEXT, INVALID_MAX_TOKENS or INVALID_REASONING.
    """
    if not isinstance(info, ModelInfo) or not _name(info.id) or not _name(info.name) or info.provider != provider:
        raise _invalid("INVALID_MODEL_INFO", provider, f"{info!r:.120} is no ModelInfo with provider, id and name")
    if not isinstance(info.input_modalities, tuple) or not all(map(_name, info.input_modalities)):
        raise _invalid("INVALID_MODEL_INFO", provider, f"input modalities of {info.id} must be a tuple of names")
    if info.context_window is not None and not _count(info.context_window):
        raise _invalid("INVALID_CONTEXT", provider, f"context window of {info.id} is {info.context_window!r}")
    if info.default_max_tokens is not None and not _count(info.default_max_tokens):
        raise _invalid(
            "INVALID_MAX_TOKENS", provider, f"default output cap of {info.id} is {info.default_max_tokens!r}"
        )
    _check_efforts(info, provider)
    return info


def check_catalogue(infos: Iterable[object], provider: str) -> tuple[ModelInfo, ...]:
    """A catalogue of sound models with unique ids, detached. Raises :class:`ModelError`, INVALID_CATALOG included."""
    try:
        models = tuple(check_model(info, provider) for info in infos)
    except TypeError as error:
        raise _invalid("INVALID_CATALOG", provider, f"its list of models cannot be read: {error}") from error
    if len({model.id for model in models}) != len(models):
        raise _invalid("INVALID_CATALOG", provider, "it lists a model twice")
    return models


def _check_efforts(info: ModelInfo, provider: str) -> None:
    efforts = info.efforts
    if not isinstance(efforts, tuple) or not all(isinstance(e, ReasoningEffort) and _name(e.id) for e in efforts):
        raise _invalid("INVALID_REASONING", provider, f"efforts of {info.id} must be a tuple of ReasoningEffort")
    ids = {effort.id for effort in efforts}
    if len(ids) != len(efforts):
        raise _invalid("INVALID_REASONING", provider, f"{info.id} lists an effort twice")
    if info.default_effort is not None and info.default_effort not in ids:
        raise _invalid(
            "INVALID_REASONING", provider, f"default effort {info.default_effort!r} of {info.id} is not listed"
        )


def _invalid(code: str, provider: str, problem: str) -> ModelError:
    return ModelError(f"provider {provider}: {problem}", code=code)


def _name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _count(value: object) -> bool:
    return type(value) is int and 0 < value <= _MAX_TOKENS
