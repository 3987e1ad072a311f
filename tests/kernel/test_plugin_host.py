"""Running plugins: boot contains failures, apply is all or nothing, and nothing stays behind."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyhost import Context, PluginInfo, hookimpl
from polyhost.kernel import Kernel, Limits, MountKind, ServiceKey
from polyhost.kernel.catalog import PluginCatalog
from polyhost.kernel.plugin_host import PluginHost
from polyhost.kernel.plugins import PluginError, PluginRecord, PluginRow, PluginsFailedError

if TYPE_CHECKING:
    from .conftest import Site

CLOCK = ServiceKey[object]("clock")
THING: MountKind[object] = MountKind("thing")
QUICK = Limits(start_grace=0.01, abort_grace=0.01, cancel_grace=1, cleanup_grace=5, dependants_grace=5)


class Refused(Exception):
    code = "CONFIG_INVALID"


def resolve(info: PluginInfo, row: PluginRow) -> Any:
    """The table as it is; ``invalid`` in it is refused."""
    if "invalid" in row.config:
        raise Refused(f"{row.source}: plugins.{row.id}.invalid: unknown key; accepted: port")
    return dict(row.config)


class Sample:
    """A plugin whose start follows its configuration: ``fail``, ``exit``, ``hang``, ``crash``."""

    def __init__(self, name: str, *, requires: tuple[Any, ...] = (), provides: tuple[Any, ...] = ()) -> None:
        self.name = name
        self.info = PluginInfo(name, requires=requires, provides=provides)
        self.log: list[str] = []
        self.release = asyncio.Event()

    @hookimpl
    def polyhost_plugin(self) -> PluginInfo:
        return self.info

    @hookimpl
    async def polyhost_start(self, ctx: Context, config: Any) -> AsyncIterator[None]:
        self.log.append(f"start {config}")
        ctx.mount(THING, (self.name, config.get("key", ctx.fiber.name)), config)
        ctx.spawn(asyncio.sleep(3600), name="idle")
        for key in self.info.provides:
            ctx.provide(key, object())
        if config.get("hang"):
            await self.release.wait()
        if config.get("fail"):
            raise ValueError("told to fail")
        if config.get("exit"):
            raise SystemExit(3)
        yield
        self.log.append(f"stop {config}")
        if config.get("unclean"):
            raise OSError("cannot clean up")


class Adaptable(Sample):
    """Takes another ``port`` in place; refuses port 0; wants a restart for anything else."""

    @hookimpl
    async def polyhost_config_changed(self, old: Any, new: Any) -> bool:
        if new.get("port") == 0:
            raise ValueError("no port 0")
        self.log.append(f"change {old} to {new}")
        return {**old, "port": 1} == {**new, "port": 1}


def function_plugin(name: str, start: Callable[..., Any], **hooks: Any) -> type:
    def polyhost_plugin() -> PluginInfo:
        return PluginInfo(name)

    members = {"polyhost_plugin": polyhost_plugin, "polyhost_start": start, **hooks}
    return type(name, (), {key: staticmethod(hookimpl(value)) for key, value in members.items()})


class Rig:
    """A kernel with a plugin host, and what to look at."""

    def __init__(self, *plugins: Any, essential: tuple[Any, ...] = (), **options: Any) -> None:
        self.kernel = Kernel(limits=QUICK)
        self.catalog = PluginCatalog({plugin.name: plugin for plugin in essential})
        for plugin in plugins:
            self.catalog.add(getattr(plugin, "name", plugin.__class__.__name__), plugin)
        self.host = PluginHost(self.kernel.root, self.catalog, resolve, **options)

    async def boot(self, *rows: PluginRow) -> None:
        self.host.boot(rows)
        await self.host.settled()

    def record(self, id: str) -> PluginRecord:
        (record,) = (record for record in self.host.records() if record.id == id)
        return record

    def states(self) -> dict[str, str]:
        return {row.id: self.record(row.id).state for row in self.host.rows}

    def things(self) -> set[Any]:
        return {key for key, _ in self.kernel.mounts.items(THING)}

    async def close(self) -> None:
        """Close, and check that nothing is left."""
        await self.host.aclose()
        assert self.host.instances == {}
        assert self.kernel.fibers == {}
        assert self.kernel.mounts.snapshot() == []
        assert [name for name in self.catalog.names() if self.catalog.loaded(name)] == []
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def rig() -> AsyncIterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    def make(*plugins: Any, **options: Any) -> Rig:
        rigs.append(Rig(*plugins, **options))
        return rigs[-1]

    yield make
    for each in rigs:
        await each.close()


def row(
    id: str, use: str | None = None, *, enabled: bool = True, source: str = "user file", **config: Any
) -> PluginRow:
    return PluginRow(id, use or id, enabled, config, source)


async def failing(work: Any) -> PluginsFailedError:
    with pytest.raises(PluginsFailedError) as caught:
        await work
    return caught.value


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - let the loop turn until it has done what it is about to do
            await asyncio.sleep(0)


MakeRig = Callable[..., Rig]


# --- boot -----------------------------------------------------------------------------------------------------------


async def test_rows_start_and_stop_with_all_they_added(rig: MakeRig) -> None:
    a = Sample("a")
    r = rig(a)
    await r.boot(row("one", "a", port=1), row("two", "a"), row("off", "a", enabled=False))
    assert r.states() == {"one": "active", "two": "active", "off": "disabled"}
    assert r.things() == {("a", "one"), ("a", "two")}
    assert r.record("one").mounts == {"task": 1, "thing": 1}
    await r.close()
    assert sorted(a.log) == ["start {'port': 1}", "start {}", "stop {'port': 1}", "stop {}"]


@pytest.mark.case("CASE-07", "CASE-08")
async def test_failures_at_boot_are_contained_and_shown(rig: MakeRig) -> None:
    r = rig(Sample("a"), object())
    r.catalog.add("broken", "no_such_module_anywhere")
    rows = [
        row("good", "a"),
        row("failing", "a", fail=1),
        row("exiting", "a", exit=1),
        row("invalid", "a", invalid=1),
        row("broken"),
        row("unknown"),
        row("object"),
    ]
    await r.boot(*rows)

    shown = {}
    for each in rows:
        record = r.record(each.id)
        shown[each.id] = (record.state, record.error and record.error.stage, record.error and record.error.type)
    assert shown == {
        "good": ("active", None, None),
        "failing": ("failed", "start", "ValueError"),
        "exiting": ("failed", "start", "SystemExit"),
        "invalid": ("failed", "configure", "Refused"),
        "broken": ("broken", "import", "ModuleNotFoundError"),
        "unknown": ("broken", "discover", "PluginError"),
        "object": ("broken", "register", "PluginError"),
    }
    error = r.record("invalid").error
    assert error is not None
    assert (error.code, error.message) == (
        "CONFIG_INVALID",
        "user file: plugins.invalid.invalid: unknown key; accepted: port",
    )
    assert r.things() == {("a", "good")}


@pytest.mark.parametrize("config", [{"fail": 1}, {"invalid": 1}])
async def test_the_failure_of_an_essential_plugin_is_fatal(rig: MakeRig, config: dict[str, Any]) -> None:
    r = rig(Sample("a"), essential=(Sample("core"),))
    r.host.boot([row("a"), row("core", **config)])
    error = await failing(r.host.settled())
    assert list(error.failures) == ["core"]
    assert "core: " in str(error)


async def test_strict_makes_every_failure_fatal_and_names_each(rig: MakeRig) -> None:
    r = rig(Sample("a"), strict=True)
    r.host.boot([row("one", "a", fail=1), row("gone"), row("fine", "a")])
    error = await failing(r.host.settled())
    assert set(error.failures) == {"one", "gone"}
    assert "told to fail" in str(error)
    assert "no such plugin" in str(error)


async def test_a_slow_start_delays_nobody(rig: MakeRig) -> None:
    slow, quick = Sample("slow"), Sample("quick")
    r = rig(slow, quick)
    r.host.boot([row("slow", hang=1), row("quick")])
    await r.host.instances["quick"].fiber.settled()
    assert r.states() == {"slow": "loading", "quick": "active"}
    slow.release.set()
    await r.host.settled()
    assert r.states() == {"slow": "active", "quick": "active"}


async def test_starts_follow_requirements_whatever_the_order(rig: MakeRig) -> None:
    r = rig(Sample("user", requires=(CLOCK,)), Sample("clock", provides=(CLOCK,)))
    await r.boot(row("user"), row("clock"))
    assert r.states() == {"user": "active", "clock": "active"}


async def test_the_audit_says_who_waits_for_what(rig: MakeRig) -> None:
    r = rig(Sample("user", requires=(CLOCK, ServiceKey("moon"))), Sample("clock", provides=(CLOCK,)))
    await r.boot(row("user"), row("clock", fail=1))
    assert r.record("user").state == "pending"
    assert r.record("user").missing == ("clock", "moon")
    (waiting,) = r.host.audit()
    assert str(waiting) == "user waits for clock (clock is failed), moon (no enabled plugin provides it)"


async def test_rows_that_make_no_sense_are_refused_before_anything_starts(rig: MakeRig) -> None:
    r = rig(Sample("a"), essential=(Sample("core"),))
    with pytest.raises(PluginError) as twice:
        r.host.boot([row("one", "a", source="user file"), row("one", "a", source="project file")])
    assert twice.value.code == "PLUGIN_DUPLICATE_ROW"
    assert "user file, project file" in str(twice.value)
    with pytest.raises(PluginError) as essential:
        r.host.boot([row("a"), row("core", enabled=False)])
    assert essential.value.code == "PLUGIN_ESSENTIAL"
    assert r.host.instances == {}


# --- the forms of a start -------------------------------------------------------------------------------------------


async def coroutine_start(ctx: Context) -> None:
    ctx.defer(lambda: LOG.append("stopped"))
    LOG.append("started")


def plain_start(ctx: Context) -> None:
    ctx.defer(lambda: LOG.append("stopped"))
    LOG.append("started")


@asynccontextmanager
async def managed_start() -> AsyncIterator[None]:
    LOG.append("started")
    yield
    LOG.append("stopped")


async def generator_start() -> AsyncIterator[None]:
    LOG.append("started")
    yield
    LOG.append("stopped")


LOG: list[str] = []


@pytest.mark.parametrize("start", [coroutine_start, plain_start, managed_start, generator_start])
async def test_a_start_has_four_forms(rig: MakeRig, start: Callable[..., Any]) -> None:
    LOG.clear()
    r = rig()
    r.catalog.add("p", function_plugin("p", start))
    await r.boot(row("p"))
    assert (r.states(), LOG) == ({"p": "active"}, ["started"])
    await r.close()
    assert LOG == ["started", "stopped"]


async def yields_never() -> AsyncIterator[None]:
    if LOG is None:
        yield


async def returns_something() -> int:
    return 5


def yields_synchronously() -> Any:
    yield


@pytest.mark.parametrize("start", [yields_never, returns_something, yields_synchronously])
async def test_other_forms_fail_the_start(rig: MakeRig, start: Callable[..., Any]) -> None:
    r = rig()
    r.catalog.add("p", function_plugin("p", start))
    await r.boot(row("p"))
    record = r.record("p")
    assert record.error is not None
    assert (record.state, record.error.stage) == ("failed", "start")


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_check_refuses_before_the_start(rig: MakeRig, asynchronous: bool) -> None:
    LOG.clear()

    def check(config: Any) -> None:
        if config.get("bad"):
            raise ValueError("no such directory")

    async def async_check(config: Any) -> None:
        check(config)

    hook = async_check if asynchronous else check
    r = rig()
    r.catalog.add("p", function_plugin("p", plain_start, polyhost_check=hook))
    await r.boot(row("one", "p", bad=1), row("two", "p"))
    error = r.record("one").error
    assert error is not None
    assert (error.stage, error.message) == ("configure", "no such directory")
    assert LOG == ["started"]


async def test_a_crash_of_background_work_is_shown_as_such(rig: MakeRig) -> None:
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise OSError("connection lost")

    r = rig()
    r.catalog.add("p", function_plugin("p", lambda ctx: ctx.spawn(work(), name="work") and None))
    await r.boot(row("p"))
    go.set()
    await until(lambda: r.record("p").state == "failed")
    error = r.record("p").error
    assert error is not None
    assert (error.stage, error.message) == ("run", "connection lost")


async def test_a_failing_teardown_is_shown_and_harms_nobody(rig: MakeRig) -> None:
    r = rig(Sample("a"))
    await r.boot(row("one", "a", unclean=1), row("two", "a"))
    await r.host.apply([row("one", "a", enabled=False), row("two", "a")])
    record = r.record("one")
    assert record.error is not None
    assert (record.state, record.error.stage, record.error.message) == ("disabled", "stop", "cannot clean up")
    assert r.record("two").state == "active"


async def test_health(rig: MakeRig) -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    r = rig(Sample("silent"), health_timeout=0.01)
    r.catalog.add("ok", function_plugin("ok", plain_start, polyhost_health=lambda: {"ok": True}))
    r.catalog.add("stuck", function_plugin("stuck", plain_start, polyhost_health=stuck))
    await r.boot(row("ok"), row("stuck"), row("silent"), row("off", "ok", enabled=False))
    assert await r.host.health("ok") == {"ok": True}
    assert await r.host.health("silent") is None
    assert await r.host.health("off") is None
    with pytest.raises(TimeoutError):
        await r.host.health("stuck")
    with pytest.raises(KeyError):
        await r.host.health("unknown")


async def test_two_instances_of_one_plugin_are_independent(rig: MakeRig) -> None:
    r = rig(Sample("a"))
    await r.boot(row("one", "a"), row("two", "a", fail=1))
    assert r.states() == {"one": "active", "two": "failed"}
    await r.host.apply([row("two", "a")])
    assert r.states() == {"two": "active"}
    assert r.things() == {("a", "two")}


# --- apply ----------------------------------------------------------------------------------------------------------


async def test_apply_starts_stops_and_leaves_alone(rig: MakeRig) -> None:
    a = Sample("a")
    r = rig(a)
    await r.boot(row("stays", "a"), row("goes", "a"), row("off", "a"))
    kept = r.host.instances["stays"].fiber
    kept_uid = kept.uid
    await r.host.apply([row("stays", "a", source="project file"), row("comes", "a"), row("off", "a", enabled=False)])
    assert r.states() == {"stays": "active", "comes": "active", "off": "disabled"}
    assert r.things() == {("a", "stays"), ("a", "comes")}
    assert r.host.instances["stays"].fiber is kept
    assert kept.uid == kept_uid
    assert a.log.count("start {}") == 4
    assert r.record("stays").source == "project file"


async def test_disabling_takes_the_last_users_plugin_out(rig: MakeRig) -> None:
    r = rig(Sample("a"))
    await r.boot(row("one", "a"), row("two", "a"))
    await r.host.apply([row("one", "a")])
    assert r.catalog.loaded("a") is not None
    await r.host.apply([row("one", "a", enabled=False)])
    assert r.catalog.loaded("a") is None
    await r.host.apply([row("one", "a")])
    assert r.states() == {"one": "active"}


async def test_the_fiber_is_gone_before_the_hooks_are(rig: MakeRig) -> None:
    seen: list[bool] = []
    r = rig()

    async def start() -> AsyncIterator[None]:
        yield
        seen.append(r.catalog.loaded("p") is not None)

    r.catalog.add("p", function_plugin("p", start))
    await r.boot(row("p"))
    await r.host.apply([])
    assert seen == [True]
    assert r.catalog.loaded("p") is None


async def test_a_key_moves_from_one_row_to_another_in_one_change(rig: MakeRig) -> None:
    r = rig(Sample("a"))
    await r.boot(row("one", "a", key="the key"))
    await r.host.apply([row("two", "a", key="the key")])
    assert r.things() == {("a", "the key")}
    assert r.states() == {"two": "active"}


async def test_a_plugin_takes_a_change_in_place_or_restarts(rig: MakeRig) -> None:
    a = Adaptable("a")
    r = rig(a)
    await r.boot(row("a", port=1))
    await r.host.apply([row("a", port=2)])
    assert a.log == ["start {'port': 1}", "change {'port': 1} to {'port': 2}"]
    # What was taken in place is what a later restart starts with.
    await r.host.instances["a"].fiber.restart()
    assert a.log[-1] == "start {'port': 2}"
    del a.log[:]
    await r.host.apply([row("a", port=2, other=1)])
    assert a.log == [
        "change {'port': 2} to {'port': 2, 'other': 1}",
        "stop {'port': 2}",
        "start {'port': 2, 'other': 1}",
    ]
    await r.host.apply([row("a", port=3, other=1)])
    await r.host.instances["a"].fiber.restart()
    assert a.log[-1] == "start {'port': 3, 'other': 1}"


@pytest.mark.parametrize(
    ("change", "stage"), [({"port": 0}, "configure"), ({"port": 5, "invalid": 1}, "configure")], ids=["hook", "model"]
)
async def test_a_change_refused_in_place_touches_nothing(rig: MakeRig, change: dict[str, Any], stage: str) -> None:
    a = Adaptable("a")
    r = rig(a)
    await r.boot(row("a", port=1))
    error = await failing(r.host.apply([row("a", **change)]))
    assert error.failures["a"].stage == stage
    assert a.log == ["start {'port': 1}"]
    assert r.host.rows == (row("a", port=1),)


async def test_a_change_may_bring_its_own_validation(rig: MakeRig) -> None:
    def doubled(info: PluginInfo, row: PluginRow) -> Any:
        return {key: value * 2 for key, value in row.config.items()}

    def refusing(info: PluginInfo, row: PluginRow) -> Any:
        raise Refused("all wrong")

    a = Sample("a")
    r = rig(a)
    await r.boot(row("changed", "a", port=1), row("kept", "a", port=5))
    await failing(r.host.apply([row("changed", "a", port=2), row("kept", "a", port=5)], refusing))
    await r.host.instances["kept"].fiber.restart()
    assert a.log[-1] == "start {'port': 5}"
    await r.host.apply([row("changed", "a", port=3), row("kept", "a", port=5)], doubled)
    assert a.log[-1] == "start {'port': 6}"
    await r.host.instances["kept"].fiber.restart()
    assert a.log[-1] == "start {'port': 10}"
    await r.host.apply([row("changed", "a", port=4), row("kept", "a", port=5)])
    assert a.log[-1] == "start {'port': 8}"


@pytest.mark.contract("LDR-13")
async def test_exchanging_the_plugin_imports_first_and_keeps_the_row(site: Site, rig: MakeRig) -> None:
    imported_while: list[set[Any]] = []
    r = rig(Sample("old"), Sample("other"))
    sys.modules["sample_observer"] = type(sys)("sample_observer")
    sys.modules["sample_observer"].observe = lambda: imported_while.append(r.things())  # type: ignore[attr-defined]
    site.modules.append("sample_observer")
    site.plugin(
        "new",
        """
        import sample_observer
        from polyhost import PluginInfo, hookimpl
        sample_observer.observe()
        @hookimpl
        def polyhost_plugin():
            return PluginInfo("new")
        """,
    )
    r.catalog.scan()
    await r.boot(row("first", "other"), row("x", "old", port=1), row("last", "other"))
    await r.host.apply([row("first", "other"), row("x", "new", port=1), row("last", "other")])
    assert imported_while == [{("old", "x"), ("other", "first"), ("other", "last")}]
    assert [each.id for each in r.host.rows] == ["first", "x", "last"]
    assert r.host.rows[1] == row("x", "new", port=1)
    record = r.record("x")
    assert (record.plugin, record.state, record.enabled) == ("new", "active", True)


@pytest.mark.contract("LDR-14")
@pytest.mark.case("CASE-07")
async def test_a_plugin_that_cannot_be_imported_costs_nobody_a_restart(site: Site, rig: MakeRig) -> None:
    site.plugin("bad", "raise SystemExit")
    old = Sample("old")
    r = rig(old)
    r.catalog.scan()
    await r.boot(row("x", "old"), row("y", "old"))
    fibers = {id: instance.fiber for id, instance in r.host.instances.items()}
    error = await failing(r.host.apply([row("x", "bad"), row("y", "old", port=2), row("z", "old")]))
    assert {id: failure.stage for id, failure in error.failures.items()} == {"x": "import"}
    assert {id: instance.fiber for id, instance in r.host.instances.items()} == fibers
    assert old.log == ["start {}", "start {}"]
    assert r.host.rows == (row("x", "old"), row("y", "old"))


@pytest.mark.contract("LDR-15")
async def test_a_new_plugin_that_does_not_start_gives_way_to_the_old_one(rig: MakeRig) -> None:
    old, new = Sample("old"), Sample("new")
    r = rig(old, new)
    await r.boot(row("x", "old", port=1))
    before = r.host.instances["x"].fiber
    error = await failing(r.host.apply([row("x", "new", fail=1)]))
    assert error.failures["x"].stage == "start"
    assert "told to fail" in error.failures["x"].message
    assert error.unrestored == {}
    assert r.host.rows == (row("x", "old", port=1),)
    assert r.record("x").state == "active"
    assert r.host.instances["x"].fiber is not before
    assert old.log == ["start {'port': 1}", "stop {'port': 1}", "start {'port': 1}"]
    assert r.things() == {("old", "x")}
    assert r.catalog.loaded("new") is None


@pytest.mark.contract("LDR-16")
@pytest.mark.parametrize("change", [{"fail": 1}, {"exit": 1}, {"invalid": 1}])
async def test_a_failed_change_restores_the_old_configuration_in_the_same_fiber(
    rig: MakeRig, change: dict[str, Any]
) -> None:
    a = Sample("a")
    r = rig(a)
    await r.boot(row("x", "a", port=1))
    fiber = r.host.instances["x"].fiber
    uid = fiber.uid
    error = await failing(r.host.apply([row("x", "a", **change)]))
    assert error.failures["x"].stage == ("configure" if "invalid" in change else "start")
    assert r.host.instances["x"].fiber is fiber
    assert (fiber.uid, r.record("x").state) == (uid, "active")
    assert a.log[-1] == "start {'port': 1}"
    # The next restart runs on the old configuration, too.
    await fiber.restart()
    assert a.log[-1] == "start {'port': 1}"


@pytest.mark.contract("LDR-17")
async def test_a_failed_change_is_never_written(rig: MakeRig) -> None:
    written: list[tuple[PluginRow, ...]] = []
    r = rig(Sample("a"))
    await r.boot(row("x", "a", port=1))

    async def save(*rows: PluginRow) -> None:
        await r.host.apply(rows)
        written.append(r.host.rows)

    await failing(save(row("x", "a", fail=1)))
    assert written == []
    assert r.host.rows == (row("x", "a", port=1),)
    await save(row("x", "a", port=2))
    assert written == [(row("x", "a", port=2),)]


@pytest.mark.contract("LDR-18")
@pytest.mark.parametrize("late", [{"fail": 1}, {"invalid": 1}, {"key": "taken"}])
async def test_a_failing_row_undoes_everything_and_the_next_change_works(rig: MakeRig, late: dict[str, Any]) -> None:
    a, b = Sample("a"), Sample("b")
    r = rig(a, b)
    old = [row("changed", "a", port=1), row("exchanged", "a"), row("stopped", "a"), row("holder", "b", key="taken")]
    await r.boot(*old)
    things = r.things()
    new = [row("changed", "a", port=2), row("exchanged", "b"), row("added", "a"), row("holder", "b", key="taken")]

    error = await failing(r.host.apply([*new, row("late", "b", **late)]))

    assert list(error.failures) == ["late"]
    assert error.unrestored == {}
    assert r.host.rows == tuple(old)
    assert set(r.states().values()) == {"active"}
    assert r.things() == things
    assert {id: instance.row for id, instance in r.host.instances.items()} == {each.id: each for each in old}

    await r.host.apply(new)
    assert r.states() == dict.fromkeys(["changed", "exchanged", "added", "holder"], "active")
    assert r.things() == {("a", "changed"), ("b", "exchanged"), ("a", "added"), ("b", "taken")}


async def test_a_change_that_breaks_a_dependant_is_undone(rig: MakeRig) -> None:
    class Picky(Sample):
        @hookimpl
        def polyhost_check(self, ctx: Context) -> None:
            (config,) = (value for key, value in ctx.mounts.items(THING) if key[0] == "clock")
            if config != {"port": 1}:
                raise ValueError("cannot work with that clock")

    r = rig(Picky("user", requires=(CLOCK,)), Sample("clock", provides=(CLOCK,)))
    await r.boot(row("user"), row("clock", port=1))
    error = await failing(r.host.apply([row("user"), row("clock", port=2)]))
    assert list(error.failures) == ["user"]
    assert error.unrestored == {}
    assert r.states() == {"user": "active", "clock": "active"}


async def test_an_old_instance_that_does_not_come_back_is_named(rig: MakeRig) -> None:
    class Once(Sample):
        @hookimpl
        def polyhost_check(self) -> None:
            if self.log:
                raise ValueError("only once")

    r = rig(Once("once"), Sample("new"))
    await r.boot(row("x", "once"))
    error = await failing(r.host.apply([row("x", "new", fail=1)]))
    assert error.unrestored["x"].message == "only once"
    assert "x: could not be restored" in str(error)
    assert r.record("x").state == "failed"
    await r.host.apply([row("x", "new")])
    assert r.states() == {"x": "active"}


async def test_a_start_that_hangs_is_given_up(rig: MakeRig) -> None:
    a = Sample("a")
    r = rig(a, start_timeout=0.05)
    await r.boot(row("x", "a", port=1))
    error = await failing(r.host.apply([row("x", "a", hang=1), row("new", "a", hang=1)]))
    assert {id: failure.type for id, failure in error.failures.items()} == dict.fromkeys(["x", "new"], "TimeoutError")
    assert error.unrestored == {}
    assert r.states() == {"x": "active"}
    assert a.log[-1] == "start {'port': 1}"
    assert r.things() == {("a", "x")}


async def test_a_failed_row_is_repaired_by_another_configuration(rig: MakeRig) -> None:
    r = rig(Sample("a"))
    r.catalog.add("broken", "no_such_module_anywhere")
    await r.boot(row("x", "a", fail=1), row("broken"))
    # Unchanged rows that do not work are in nobody's way.
    await r.host.apply([row("x", "a", fail=1), row("broken"), row("y", "a")])
    assert r.states() == {"x": "failed", "broken": "broken", "y": "active"}
    await failing(r.host.apply([row("x", "a", fail=2), row("broken"), row("y", "a")]))
    assert r.states() == {"x": "failed", "broken": "broken", "y": "active"}
    await r.host.apply([row("x", "a", port=1), row("broken", enabled=False)])
    assert r.states() == {"x": "active", "broken": "disabled"}
    assert r.record("broken").error is None


async def test_an_abandoned_change_is_finished(rig: MakeRig) -> None:
    a = Sample("a")
    r = rig(a)
    await r.boot(row("x", "a"))
    change = asyncio.ensure_future(r.host.apply([row("x", "a", hang=1)]))
    await until(lambda: "start {'hang': 1}" in a.log)
    change.cancel()
    with pytest.raises(asyncio.CancelledError):
        await change
    waiting = asyncio.ensure_future(r.host.apply([row("x", "a", hang=1), row("y", "a")]))
    a.release.set()
    await until(lambda: r.host.rows == (row("x", "a", hang=1),))
    assert r.states() == {"x": "active"}
    await waiting
    assert r.states() == {"x": "active", "y": "active"}


async def test_closing_does_not_wait_for_a_change_that_hangs(rig: MakeRig) -> None:
    a = Sample("a")
    r = rig(a)
    await r.boot(row("x", "a"))
    change = asyncio.ensure_future(r.host.apply([row("x", "a", hang=1)]))
    await until(lambda: "start {'hang': 1}" in a.log)
    await r.host.aclose()
    await failing(change)
    assert r.kernel.fibers == {}


# --- any sequence ---------------------------------------------------------------------------------------------------

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"port": 1},
    {"port": 2},
    {"port": 2, "other": 1},
    {"fail": 1},
    {"invalid": 1},
    {"unclean": 1},
)


def a_row(*plugins: str) -> st.SearchStrategy[tuple[str, bool, dict[str, Any]]]:
    return st.tuples(st.sampled_from(plugins), st.sampled_from([True, True, False]), st.sampled_from(CONFIGS))


# One row at most provides the clock; the others may need it. None removes a row; rows not named stay as they are.
PLUGINS = {"p": ("a", "needy"), "q": ("a", "b"), "r": ("a", "needy")}
some_changes = st.fixed_dictionaries({}, optional={id: st.none() | a_row(*plugins) for id, plugins in PLUGINS.items()})


def changed(rows: dict[str, PluginRow], change: dict[str, Any]) -> dict[str, PluginRow]:
    merged = {**rows, **{id: each and PluginRow(id, *each) for id, each in change.items()}}
    return {id: each for id, each in merged.items() if each}


def works(each: PluginRow) -> bool:
    return "fail" not in each.config and "invalid" not in each.config


def expected(rows: dict[str, PluginRow]) -> dict[str, str]:
    """The model: ``b`` provides the clock that ``needy`` requires; everything else depends on its own row only."""
    clock = any(each.enabled and each.use == "b" and works(each) for each in rows.values())
    states = {}
    for id, each in rows.items():
        if not each.enabled:
            states[id] = "disabled"
        elif each.use == "needy" and not clock:
            states[id] = "pending" if works(each) else "pending or failed"  # failed once, it stays so
        else:
            states[id] = "active" if works(each) else "failed"
    return states


def acceptable(old: dict[str, PluginRow], new: dict[str, PluginRow]) -> bool:
    """Whether a change must succeed: what it starts has to work, and a changed configuration has to be valid."""
    states = expected(new)
    for id, each in new.items():
        before = old.get(id)
        if not each.enabled or before == each:
            continue
        updated = before is not None and before.enabled and before.use == each.use
        if states[id] == "failed" or (updated and "invalid" in each.config):
            return False
    return True


@pytest.mark.contract("LDR-18")
@settings(max_examples=80, deadline=None)
@given(boot=some_changes, changes=st.lists(some_changes, max_size=8))
def test_any_sequence_of_changes_follows_the_model_and_leaves_nothing(
    boot: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    async def run() -> None:
        r = Rig(Adaptable("a"), Sample("b", provides=(CLOCK,)), Adaptable("needy", requires=(CLOCK,)))
        current = changed({}, boot)

        def check() -> None:
            states = r.states()
            for id, state in expected(current).items():
                assert states[id] in state.split(" or "), (id, states, current)
            assert len(r.things()) == list(states.values()).count("active")

        await r.boot(*current.values())
        check()
        for change in changes:
            new = changed(current, change)
            unrestored: dict[str, Any] = {}
            try:
                await r.host.apply(new.values())
                succeeded = True
            except PluginsFailedError as error:
                unrestored, succeeded = error.unrestored, False
            assert succeeded == acceptable(current, new)
            assert unrestored == {}
            current = new if succeeded else current
            check()
        await r.close()

    asyncio.run(run())
