"""What a request starts from and how it gets into the log: model-visible means logged.

Preparing and sending requests is in
``step``; what adapters fill in is in the model runtime.
"""

from __future__ import annotations

from typing import Any

from polyhost.interfaces import JsonObject, Session
from polyhost.kernel.errors import PolyhostError
from polyhost.runtime.sessions.log import LiveSession

HEADER = "request/header"
CONTEXT = "request/context"


class NoModelError(PolyhostError):
    """Nothing says which model an agent uses."""

    default_code = "NO_MODEL"


def split_model(model: str) -> tuple[str, str]:
    """``provider/model`` as a pair; the model's own id may contain slashes.

    Raises :class:`NoModelError` when a half is missing.
    """
    provider, _, name = model.partition("/")
    if not provider or not name:
        raise NoModelError(f'"{model}" names no model; write provider/model, for example demo/demo')
    return provider, name


def last_model(session: Session) -> str | None:
    """``provider/model`` of the session's last request, None when it made none."""
    header = session.request_header()
    return f"{header['config']['provider']}/{header['config']['model']}" if header else None


class Requests:
    """The request configuration of one agent.

    :ivar model: the declared route, ``provider/model``; None leaves it to ``agent/request`` listeners.
    :ivar max_tokens: the declared output cap of a request, None for the adapter's default.
    """

    def __init__(self, session: LiveSession, model: str | None, max_tokens: int | None = None) -> None:
        self._session = session
        self.model = model
        self.max_tokens = max_tokens
        self._logged = False  # whether this instance has logged a header
        self._declare = True  # whether the next request starts from the declared route

    def select(self, model: str | None) -> None:
        """Start the next request from ``provider/model``. Raises :class:`NoModelError`."""
        if model is not None:
            split_model(model)
        self.model = model
        self._declare = True

    def base(self) -> JsonObject:
        """The configuration that the next request starts from, before listeners see it; ``{}`` without a model."""
        last = self._session.request_header()
        if self._declare or last is None:
            return self._declared(last)
        filled_in = last.get("adapterDefaults", {})
        return {key: value for key, value in last["config"].items() if key not in filled_in}

    def log(self, header: JsonObject) -> None:
        """Append ``request/header`` when this is the first request of this agent or something changed."""
        last = self._session.request_header()
        if not self._logged:
            self._session.append(HEADER, {"header": header, "reason": "initial" if last is None else "resume"})
        elif header != last:
            self._session.append(HEADER, {"header": header, "reason": "change"})
        self._logged = True
        self._declare = False

    def log_context(self, config: JsonObject, context_window: int | None) -> None:
        """Append ``request/context`` when provider, model or context window differ from the last record."""
        record: JsonObject = {"provider": config["provider"], "model": config["model"]}
        if context_window is not None:
            record["contextWindow"] = context_window
        if record != self._session.request_context():
            self._session.append(CONTEXT, record)

    def _declared(self, last: JsonObject | None) -> JsonObject:
        config: JsonObject = {}
        if self.model is not None:
            provider, model = split_model(self.model)
            config = {"provider": provider, "model": model}
            if (effort := _explicit_effort(last, provider, model)) is not None:
                config["reasoningEffort"] = effort
        if self.max_tokens is not None:
            config["maxTokens"] = self.max_tokens
        return config


def require_route(config: Any, agent_id: str) -> JsonObject:
    """``config`` when it names provider and model. Raises :class:`NoModelError`."""
    if isinstance(config, dict) and config.get("provider") and config.get("model"):
        return config
    raise NoModelError(
        f'agent "{agent_id}" has no provider/model: name one with --model, in [host] model, or by an agent/request'
        " listener"
    )


def request_header(config: JsonObject, defaults: JsonObject, system: str, tools: list[JsonObject]) -> JsonObject:
    """The logged form of a request's fixed part; what is empty is left out."""
    header: JsonObject = {"config": config}
    if defaults:
        header["adapterDefaults"] = defaults
    if system:
        header["system"] = system
    if tools:
        header["tools"] = tools
    return header


def _explicit_effort(last: JsonObject | None, provider: str, model: str) -> str | None:
    """The effort that somebody chose for this very model, as opposed to one that the adapter filled in."""
    if last is None or last.get("adapterDefaults", {}).get("reasoningEffort"):
        return None
    config: JsonObject = last["config"]
    if (config["provider"], config["model"]) != (provider, model):
        return None
    return config.get("reasoningEffort")
