from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from polyhost.interfaces import (
    MODEL_ADAPTER,
    MODEL_ADAPTERS_UPDATED,
    MODEL_STREAM,
    Chunk,
    Finish,
    ModelError,
    ModelInfo,
    ModelRequest,
    ReasoningDelta,
    ReasoningEffort,
    RetryPolicy,
    TextDelta,
    ToolCallDelta,
    UsageReport,
    assistant_message,
    user_message,
)
from polyhost.kernel.context import Kernel
from polyhost.kernel.signals import AbortController, AbortSignal
from polyhost.runtime.models.routes import BoundCall, ModelRoutes, call_config, prepare_model_kinds
from polyhost.testing.scripted import ScriptedAdapter, failure_script, text_script

EFFORTS = (ReasoningEffort("low", "Low"), ReasoningEffort("high", "High"))
INFO = ModelInfo("p", "m", "M", context_window=100, default_max_tokens=50, efforts=EFFORTS, default_effort="low")
CONFIG = {"provider": "p", "model": "m"}


def request(provider: str = "p", signal: AbortSignal | None = None, **fields: Any) -> ModelRequest:
    fields.setdefault("messages", ())
    return ModelRequest(provider=provider, model="m", signal=signal, **fields)


def for_call(call: BoundCall) -> ModelRequest:
    config = call.config
    return request(reasoning_effort=config.get("reasoningEffort"), max_tokens=config.get("maxTokens"))


async def chunks(stream: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in stream]


class Bench:
    def __init__(self) -> None:
        self.kernel = Kernel()
        prepare_model_kinds(self.kernel)
        self.root = self.kernel.root
        self.routes = ModelRoutes(self.kernel.mounts, self.kernel.events)

    def mount(self, provider: str, adapter: Any) -> Any:
        return self.root.mount(MODEL_ADAPTER, provider, adapter)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    await bench.kernel.aclose()


# -- routing


@pytest.mark.contract("LLM-01")
async def test_requests_go_to_the_adapter_of_their_route(bench: Bench) -> None:
    one, two = ScriptedAdapter([text_script("1")]), ScriptedAdapter([text_script("2")])
    bench.mount("p", one)
    bench.mount("q", two)
    assert TextDelta(0, "2") in await chunks(bench.routes.stream(request("q")))
    assert TextDelta(0, "1") in await chunks(bench.routes.stream(request("p")))
    (finish,) = await chunks(bench.routes.stream(request("nobody")))
    assert isinstance(finish, Finish)
    assert finish.reason["kind"] == "error"
    assert finish.reason["failure"]["code"] == "NO_ADAPTER"
    assert "configured: p, q" in finish.reason["failure"]["message"]
    with pytest.raises(ModelError) as caught:
        await bench.routes.prepare({"provider": "nobody", "model": "m"})
    assert caught.value.code == "NO_ADAPTER"


@pytest.mark.contract("LLM-08")
async def test_routes_are_unique_freed_with_their_owner_and_refuse_what_is_no_adapter(bench: Bench) -> None:
    token = bench.mount("p", ScriptedAdapter())
    with pytest.raises(ModelError) as caught:
        bench.mount("p", ScriptedAdapter())
    assert caught.value.code == "DUPLICATE_ADAPTER"
    for key, value in (("q", object()), ("a/b", ScriptedAdapter()), ("", ScriptedAdapter()), (5, ScriptedAdapter())):
        with pytest.raises(ModelError) as caught:
            bench.mount(key, value)  # type: ignore[arg-type]
        assert caught.value.code == "INVALID_ADAPTER"
    assert [route.provider for route in bench.routes.routes()] == ["p"]
    await token.withdraw()
    assert bench.routes.routes() == ()
    bench.mount("p", ScriptedAdapter())


@pytest.mark.contract("LLM-08", "LLM-11")
async def test_changes_are_announced_with_the_new_set_readable_and_atomically(bench: Bench) -> None:
    seen: list[list[str]] = []

    def fail() -> None:
        raise RuntimeError("listener")

    bench.root.on(MODEL_ADAPTERS_UPDATED, fail)
    bench.root.on(MODEL_ADAPTERS_UPDATED, lambda: seen.append([route.provider for route in bench.routes.routes()]))
    with pytest.raises(ModelError):
        async with bench.root.mount_set() as mounts:
            mounts.add(MODEL_ADAPTER, "a", ScriptedAdapter())
            mounts.add(MODEL_ADAPTER, "a", ScriptedAdapter())
    assert seen == []
    async with bench.root.mount_set() as mounts:
        mounts.add(MODEL_ADAPTER, "a", ScriptedAdapter())
        mounts.add(MODEL_ADAPTER, "b", ScriptedAdapter())
    assert seen == [["a", "b"]] * 2


# -- failures


class Odd(ScriptedAdapter):
    def __init__(self, stream: Any) -> None:
        super().__init__()
        self.stream = stream  # type: ignore[method-assign]


async def raises_later(request: ModelRequest) -> Any:
    yield TextDelta(0, "partial")
    raise OSError("reset")


async def cancels_itself(request: ModelRequest) -> Any:
    raise asyncio.CancelledError
    yield


async def sends_rubbish(request: ModelRequest) -> Any:
    yield "rubbish"


async def sends_numbers(request: ModelRequest) -> Any:
    yield TextDelta(0, 5)  # type: ignore[arg-type]


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


async def is_hostile(request: ModelRequest) -> Any:
    raise HostileError
    yield


def throws(request: ModelRequest) -> Any:
    raise ModelError("busy", code="SERVER", status=503)


@pytest.mark.contract("LLM-02", "DEF-2")
@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (throws, "SERVER"),
        (raises_later, "UNKNOWN"),
        (cancels_itself, "UNKNOWN"),
        (sends_rubbish, "UNKNOWN"),
        (sends_numbers, "UNKNOWN"),
        (is_hostile, "UNKNOWN"),
        (lambda request: None, "UNKNOWN"),
    ],
)
async def test_whatever_an_adapter_does_is_one_terminal_failure(bench: Bench, stream: Any, code: str) -> None:
    bench.mount("p", Odd(stream))
    *_, last = got = await chunks(bench.routes.stream(request()))
    assert [isinstance(chunk, Finish) for chunk in got].count(True) == 1
    assert isinstance(last, Finish)
    assert (last.reason["kind"], last.reason["failure"]["code"]) == ("error", code)
    assert last.reason["failure"]["message"]


@pytest.mark.contract("LLM-02")
async def test_nothing_follows_a_finish(bench: Bench) -> None:
    closed: list[bool] = []

    async def stream(request: ModelRequest) -> Any:
        try:
            yield Finish({"kind": "stop"})
            raise OSError("too late")
        finally:
            closed.append(True)

    bench.mount("p", Odd(stream))
    assert await chunks(bench.routes.stream(request())) == [Finish({"kind": "stop"})]
    assert closed == [True]


@pytest.mark.contract("LLM-02")
async def test_failures_of_listeners_and_consumers_are_their_own(bench: Bench) -> None:
    closed: list[str] = []

    async def stream(request: ModelRequest) -> Any:
        try:
            yield TextDelta(0, "a")
            yield TextDelta(0, "b")
        finally:
            closed.append("adapter")

    async def listener(request: ModelRequest, next: Any) -> Any:
        async for chunk in next():
            yield chunk
            raise LookupError("listener")

    bench.mount("p", Odd(stream))
    consumed = bench.routes.stream(request())
    async for _ in consumed:
        break
    await consumed.aclose()
    assert closed == ["adapter"], "closing early closes the adapter's iterator"
    bench.root.on(MODEL_STREAM, listener)
    with pytest.raises(LookupError):
        await chunks(bench.routes.stream(request()))


@pytest.mark.contract("LLM-03")
async def test_an_aborted_request_ends_aborted(bench: Bench) -> None:
    controller = AbortController()

    async def stream(request: ModelRequest) -> Any:
        controller.abort("stop")
        request.signal.raise_if_aborted()  # type: ignore[union-attr]
        yield

    bench.mount("p", Odd(stream))
    bench.mount("q", ScriptedAdapter([failure_script("ABORTED")]))
    (one,) = await chunks(bench.routes.stream(request(signal=controller.signal)))
    (two,) = await chunks(bench.routes.stream(request("q")))
    for finish in (one, two):
        assert isinstance(finish, Finish)
        assert (finish.reason["kind"], finish.reason["failure"]["code"]) == ("aborted", "ABORTED")


async def test_the_end_of_the_consuming_task_passes_through(bench: Bench) -> None:
    started = asyncio.Event()

    async def stream(request: ModelRequest) -> Any:
        started.set()
        await asyncio.Event().wait()
        yield

    bench.mount("p", Odd(stream))
    task = asyncio.ensure_future(chunks(bench.routes.stream(request())))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- prepared calls


@pytest.mark.contract("LLM-04", "LLM-05")
async def test_preparing_fills_defaults_with_one_lookup(bench: Bench) -> None:
    lookups: list[str] = []

    class Counting(ScriptedAdapter):
        async def resolve_model(self, route: str, model: str, signal: Any) -> ModelInfo:
            lookups.append(model)
            return INFO

    adapter = Counting([text_script("hi")], retry=RetryPolicy(max_retries=9))
    bench.mount("p", adapter)
    call = await bench.routes.prepare(dict(CONFIG))
    assert call.config == CONFIG | {"maxTokens": 50, "reasoningEffort": "low"}
    assert call.adapter_defaults == {"maxTokens": True, "reasoningEffort": True}
    assert (call.context_window, call.retry_policy.max_retries, lookups) == (100, 9, ["m"])
    explicit = await bench.routes.prepare(CONFIG | {"maxTokens": 7, "reasoningEffort": "high", "temperature": None})
    assert explicit.config == CONFIG | {"maxTokens": 7, "reasoningEffort": "high"}
    assert explicit.adapter_defaults == {}
    with pytest.raises(ModelError) as caught:
        await bench.routes.prepare(CONFIG | {"reasoningEffort": "maximal"})
    assert caught.value.code == "UNSUPPORTED_REASONING_EFFORT"
    assert "low, high" in caught.value.message


@pytest.mark.contract("LLM-04", "CFG-10")
@pytest.mark.parametrize(
    "drift",
    [
        {"model": "other"},
        {"provider": "q"},
        {"max_tokens": 51},
        {"reasoning_effort": "high"},
        {"temperature": 0.1},
        {"stop": ["x"]},
    ],
)
async def test_a_call_is_for_one_dispatch_of_what_was_prepared(bench: Bench, drift: dict[str, Any]) -> None:
    first = ScriptedAdapter([text_script("first")], model=INFO)
    token = bench.mount("p", first)
    call = await bench.routes.prepare(dict(CONFIG))
    await token.withdraw()
    bench.mount("p", ScriptedAdapter([text_script("second")], model=INFO))
    good = for_call(call)
    assert len(await chunks(call.stream(good))) > 1
    assert len(first.requests) == 1, "the adapter that was bound, not the one that is mounted now"
    with pytest.raises(ModelError) as caught:
        call.stream(good)
    assert caught.value.code == "INVALID_PREPARED_CALL"
    other = await bench.routes.prepare(dict(CONFIG))
    drifted = good.replace(**drift)
    assert call_config(drifted) != call_config(good)
    with pytest.raises(ModelError) as caught:
        other.stream(drifted)
    assert caught.value.code == "INVALID_PREPARED_CALL"


@pytest.mark.contract("LLM-06")
@pytest.mark.parametrize(
    ("info", "code"),
    [
        ("no info", "INVALID_MODEL_INFO"),
        (INFO._replace(provider="other"), "INVALID_MODEL_INFO"),
        (INFO._replace(name=""), "INVALID_MODEL_INFO"),
        (INFO._replace(input_modalities=["text"]), "INVALID_MODEL_INFO"),
        (INFO._replace(context_window=0), "INVALID_CONTEXT"),
        (INFO._replace(context_window=1.5), "INVALID_CONTEXT"),
        (INFO._replace(default_max_tokens=True), "INVALID_MAX_TOKENS"),
        (INFO._replace(efforts=("low",)), "INVALID_REASONING"),
        (INFO._replace(efforts=EFFORTS * 2), "INVALID_REASONING"),
        (INFO._replace(default_effort="none"), "INVALID_REASONING"),
    ],
)
async def test_malformed_facts_about_models_are_refused(bench: Bench, info: Any, code: str) -> None:
    class Says(ScriptedAdapter):
        async def resolve_model(self, route: str, model: str, signal: Any) -> Any:
            return info

        async def list_models(self, route: str) -> Any:
            return [info]

    bench.mount("p", Says())
    for attempt in (bench.routes.prepare(dict(CONFIG)), bench.routes.list_models("p")):
        with pytest.raises(ModelError) as caught:
            await attempt
        assert caught.value.code == code


@pytest.mark.contract("LLM-06")
async def test_catalogues_are_detached_and_without_repeats(bench: Bench) -> None:
    listed: Any = [INFO]

    class Lists(ScriptedAdapter):
        async def list_models(self, route: str) -> Any:
            return listed

    bench.mount("p", Lists())
    models = await bench.routes.list_models("p")
    listed.append(INFO)
    assert models == (INFO,)
    for wrong in (listed, None):
        listed = wrong
        with pytest.raises(ModelError) as caught:
            await bench.routes.list_models("p")
        assert caught.value.code == "INVALID_CATALOG"


async def test_an_adapter_that_fails_to_describe_a_model_fails_the_call_with_its_reason(bench: Bench) -> None:
    class Fails(ScriptedAdapter):
        async def resolve_model(self, route: str, model: str, signal: Any) -> Any:
            raise OSError("no route to host")

    bench.mount("p", Fails())
    with pytest.raises(ModelError, match="provider p failed to describe model m: no route to host"):
        await bench.routes.prepare(dict(CONFIG))


@pytest.mark.contract("LLM-07")
async def test_replay_state_goes_only_to_the_adapter_object_that_left_it(bench: Bench) -> None:
    def history() -> tuple[Any, ...]:
        states = [assistant_message([], provider=p, model="m", replay_state={"of": p}) for p in ("p", "q", "gone")]
        return (user_message("hi"), *states)

    shared, other = ScriptedAdapter([text_script("x")] * 2), ScriptedAdapter([text_script("x")])
    bench.mount("p", shared)
    bench.mount("q", shared)
    bench.mount("r", other)
    messages = history()
    await chunks(bench.routes.stream(request("p", messages=messages)))
    await chunks(bench.routes.stream(request("r", messages=messages)))

    def states(adapter: ScriptedAdapter) -> list[Any]:
        return [message["source"].get("replayState") for message in adapter.requests[0].messages[1:]]

    assert states(shared) == [{"of": "p"}, {"of": "q"}, None]
    assert states(other) == [None, None, None]
    assert messages[3]["source"]["replayState"] == {"of": "gone"}, "the caller's messages stay as they are"
    assert isinstance(other.requests[0].messages, tuple)


@pytest.mark.parametrize(
    "endless",
    [TextDelta(0, "x" * 1000), ReasoningDelta(0, "x"), ToolCallDelta(0, "c", "x" * 100), UsageReport({})],
    ids=lambda chunk: type(chunk).__name__,
)
async def test_an_endless_response_is_cut_and_not_retried(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, endless: Chunk
) -> None:
    monkeypatch.setattr("polyhost.runtime.models.attempts.RESPONSE_LIMIT", 10_000)
    closed = []

    class Endless(ScriptedAdapter):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            try:
                while True:
                    yield endless
            finally:
                closed.append(True)

    bench.mount("p", Endless())
    *received, last = await chunks(bench.routes.stream(request()))
    assert 0 < len(received) < 10_000 / 48
    assert isinstance(last, Finish)
    assert last.reason["failure"]["code"] == "RESPONSE_TOO_LARGE"
    assert "RESPONSE_TOO_LARGE" not in RetryPolicy().retryable_codes
    assert closed == [True]


async def test_secrets_in_a_failure_are_masked_whoever_adapts() -> None:
    def fail(request: ModelRequest) -> Any:
        raise ModelError("wrong key k-1234", code="AUTH")

    kernel = Kernel()
    prepare_model_kinds(kernel)
    kernel.root.mount(MODEL_ADAPTER, "p", ScriptedAdapter([failure_script("AUTH", "wrong key k-1234"), fail]))
    routes = ModelRoutes(kernel.mounts, kernel.events, lambda text: text.replace("k-1234", "***"))
    for _ in range(2):
        (last,) = await chunks(routes.stream(request()))
        assert isinstance(last, Finish)
        assert last.reason["failure"] == {"message": "wrong key ***", "code": "AUTH"}
    await kernel.aclose()


@pytest.mark.parametrize("error", [SystemExit(2), BaseExceptionGroup("g", [SystemExit(2)])], ids=repr)
async def test_an_adapter_that_tries_to_exit_has_failed(bench: Bench, error: BaseException) -> None:
    class Leaving(ScriptedAdapter):
        async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
            yield TextDelta(0, "x")
            raise error

    bench.mount("p", Leaving())
    *_, last = await chunks(bench.routes.stream(request()))
    assert isinstance(last, Finish)
    assert last.reason["kind"] == "error"
