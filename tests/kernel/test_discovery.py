"""Finding, importing and registering plugins: what third parties may do wrong, and what must work all the same."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from polyhost import PluginInfo, hookimpl
from polyhost.kernel.catalog import PluginCatalog
from polyhost.kernel.inventory import survey
from polyhost.kernel.keys import ServiceKey
from polyhost.kernel.plugins import CommandSpec, PluginError, PluginFailure, PluginRecord, PluginRow

if TYPE_CHECKING:
    from .conftest import Site


GOOD = """
from polyhost import PluginInfo, hookimpl

@hookimpl
def polyhost_plugin():
    return PluginInfo(name={name!r})
"""


def scanned(**builtins: object) -> PluginCatalog:
    catalog = PluginCatalog(builtins)
    catalog.scan()
    return catalog


def records(catalog: PluginCatalog, *rows: PluginRow) -> dict[str, PluginRecord]:
    return {record.id: record for record in survey(catalog, rows)}


def plugin(name: str, **hooks: object) -> type:
    """A plugin as a class with static hooks."""

    def polyhost_plugin() -> PluginInfo:
        return PluginInfo(name)

    return type(
        f"Plugin_{name}",
        (),
        {key: staticmethod(hookimpl(hook)) for key, hook in {"polyhost_plugin": polyhost_plugin, **hooks}.items()},
    )


# --- plugins that work ----------------------------------------------------------------------------------------------


def test_an_installed_plugin_is_found_and_described(site: Site) -> None:
    module = site.plugin("clock")
    catalog = scanned()

    assert "clock" in catalog.names()
    record = records(catalog, PluginRow("clock", "clock", source="user file"))["clock"]

    assert record.to_json() == {
        "id": "clock",
        "plugin": "clock",
        "state": "enabled",
        "enabled": True,
        "essential": False,
        "version": "1.0",
        "distribution": "polyhost-clock",
        "summary": "a sample",
        "module": str(site.path / f"{module}.py"),
        "source": "user file",
        "error": None,
        "missing": [],
        "provides": [],
        "mounts": {},
    }


def test_scanning_imports_nothing(site: Site) -> None:
    module = site.plugin("clock")
    scanned()
    assert module not in sys.modules


def test_an_entry_point_may_name_an_object_in_a_module(site: Site) -> None:
    site.module(
        "sample_many",
        """
        from polyhost import PluginInfo, hookimpl
        class first:
            @staticmethod
            @hookimpl
            def polyhost_plugin():
                return PluginInfo("first")
        class Second:
            @hookimpl
            def polyhost_plugin(self):
                return PluginInfo("second")
        second = Second()
        """,
    )
    site.distribution("many", {"first": "sample_many:first", "second": "sample_many : second [extra]"})
    catalog = scanned()
    assert catalog.load("first").info.name == "first"
    assert catalog.load("second").info.name == "second"


def test_hooks_reach_one_plugin_only() -> None:
    catalog = PluginCatalog()
    calls: list[str] = []
    for name in ("a", "b", "c"):
        catalog.add(name, plugin(name, polyhost_health=lambda ctx, name=name: calls.append(name)))
    first = catalog.load("a")
    catalog.load("b")
    first.call("polyhost_health", ctx=None)
    catalog.load("c")
    first.call("polyhost_health", ctx=None)
    assert calls == ["a", "a"]


def test_a_plugin_can_be_unloaded_and_loaded_again() -> None:
    catalog = PluginCatalog({"a": plugin("a", polyhost_health=lambda ctx: {"ok": True})})
    loaded = catalog.load("a")
    catalog.unload("a")
    assert loaded.call("polyhost_health", ctx=None) is None
    assert catalog.load("a").call("polyhost_health", ctx=None) == {"ok": True}


def test_the_shipped_plugins_are_found_within_the_start_budget() -> None:
    def cost() -> float:
        start = time.process_time()
        catalog = scanned()
        assert catalog.names()
        return time.process_time() - start

    assert min(cost() for _ in range(3)) < 0.1  # seconds of CPU


# --- plugins that do not import -------------------------------------------------------------------------------------

BROKEN = {
    "import_error": ("import no_such_module_anywhere", "ModuleNotFoundError", "no_such_module_anywhere"),
    "syntax_error": ("def broken(:", "SyntaxError", "invalid syntax"),
    "system_exit": ("raise SystemExit('gone')", "SystemExit", "gone"),
    "zero_division": ("1 / 0", "ZeroDivisionError", "division by zero"),
    "escape": ("class Skipped(BaseException): pass\nraise Skipped('no luck')", "Skipped", "no luck"),
    "cancelled": ("import asyncio\nraise asyncio.CancelledError('odd')", "CancelledError", "odd"),
    "unprintable": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "Mute",
        "cannot be shown",
    ),
}


@pytest.mark.case("CASE-07")
@pytest.mark.parametrize("kind", BROKEN)
def test_a_plugin_that_raises_at_import_is_shown_and_harms_nobody(site: Site, kind: str) -> None:
    source, error_type, message = BROKEN[kind]
    site.plugin("bad", source)
    site.plugin("good")
    catalog = scanned()

    found = records(catalog)

    bad = found["bad"]
    assert bad.error is not None
    assert (bad.state, bad.error.stage, bad.error.type) == ("broken", "import", error_type)
    assert message in bad.error.message
    assert "\n" not in bad.error.message
    assert bad.distribution == "polyhost-bad"
    assert bad.version == "1.0"
    assert found["good"].error is None
    assert catalog.load("good").info.name == "good"


@pytest.mark.case("CASE-07")
@pytest.mark.parametrize("value", ["sample_gone", "sample_gone:plugin", "sample_here:gone", "not an import path", ""])
def test_an_entry_point_without_a_target_is_shown(site: Site, value: str) -> None:
    site.module("sample_here", "")
    site.distribution("polyhost-gone", {"gone": value})
    record = records(scanned())["gone"]
    assert record.error is not None
    assert (record.state, record.error.stage, record.distribution) == ("broken", "import", "polyhost-gone")


def test_the_users_interrupt_passes(site: Site) -> None:
    site.plugin("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        scanned().load("slow")


def test_the_traceback_shows_the_plugins_own_frames(site: Site) -> None:
    module = site.plugin("bad", "def inner():\n    raise ValueError('x')\ninner()")
    error = records(scanned())["bad"].error
    assert error is not None
    assert "ValueError: x" in error.traceback[-1]
    assert any(f"{module}.py" in line and "inner" in line for line in error.traceback)


def test_a_repaired_plugin_loads_without_a_new_catalogue(site: Site) -> None:
    site.plugin("clock", "1 / 0")
    catalog = scanned()
    with pytest.raises(PluginError):
        catalog.load("clock")
    site.module("sample_clock", GOOD.replace("{name!r}", "'clock'"))
    assert catalog.load("clock").info.name == "clock"
    assert catalog.failure("clock") is None


@pytest.mark.case("CASE-18")
def test_prints_at_import_and_in_static_hooks_go_to_stderr(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.plugin(
        "chatty",
        """
        import sys
        from polyhost import PluginInfo, hookimpl
        print("importing")
        sys.stdout.write("still importing\\n")
        @hookimpl
        def polyhost_plugin():
            print("asked")
            return PluginInfo("chatty")
        @hookimpl
        def polyhost_cli():
            print("commands")
        """,
    )
    catalog = scanned()
    catalog.load("chatty")
    catalog.commands()
    print("ours")
    captured = capsys.readouterr()
    assert captured.out == "ours\n"
    for text in ("importing", "still importing", "asked", "commands"):
        assert text in captured.err


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.case("CASE-07")
def test_a_name_claimed_by_two_distributions_is_refused_for_both(site: Site) -> None:
    first = site.plugin("clock", distribution="alpha-clock")
    site.distribution("beta-clock", {"clock": first})
    site.plugin("good")
    catalog = scanned()

    record = records(catalog, PluginRow("clock", "clock"))["clock"]

    assert record.error is not None
    assert (record.state, record.error.stage, record.error.code) == ("broken", "discover", "PLUGIN_DUPLICATE")
    assert "alpha-clock and beta-clock" in record.error.message
    assert record.distribution == "alpha-clock, beta-clock"
    assert first not in sys.modules
    assert records(catalog)["good"].error is None


def test_one_distribution_found_twice_is_no_duplicate(site: Site) -> None:
    site.plugin("clock")
    second = type(site)(site.path / "second")
    second.path.mkdir()
    second.distribution("polyhost-clock", {"clock": "sample_clock"}, version="0.9")
    sys.path.append(str(second.path))
    try:
        assert scanned().load("clock").candidate.facts().version == "1.0"
    finally:
        sys.path.remove(str(second.path))


def test_a_part_of_the_host_keeps_its_name(site: Site) -> None:
    site.plugin("sessions", distribution="usurper")
    catalog = scanned(sessions=plugin("sessions"))

    found = records(catalog, PluginRow("sessions", "sessions"))

    assert found["sessions"].state == "enabled"
    assert found["sessions"].essential
    refused = found["sessions@usurper"]
    assert refused.error is not None
    assert (refused.state, refused.error.code) == ("broken", "PLUGIN_DUPLICATE")
    assert "sample_sessions" not in sys.modules


def test_an_unknown_plugin_is_told_from_a_broken_one(site: Site) -> None:
    site.plugin("clock")
    with pytest.raises(PluginError, match=r"'clok'.*no such plugin.*clock") as caught:
        scanned().load("clok")
    assert (caught.value.stage, caught.value.code) == ("discover", "PLUGIN_UNKNOWN")
    record = records(scanned(), PluginRow("clok", "clok"))["clok"]
    assert record.error is not None
    assert (record.state, record.error.code) == ("broken", "PLUGIN_UNKNOWN")


@pytest.mark.case("CASE-07")
def test_a_malformed_entry_points_file_hides_no_other_plugin(site: Site) -> None:
    site.distribution("rotten", {}, raw_entries="[polyhost]\nno value here\n")
    site.plugin("clock")
    catalog = scanned()
    found = records(catalog)
    assert found["clock"].error is None
    assert "models" in catalog.names()
    rotten = found["rotten"]
    assert rotten.error is not None
    assert (rotten.state, rotten.error.stage, rotten.distribution) == ("broken", "discover", "rotten")


def test_a_distribution_without_metadata_still_works(site: Site) -> None:
    site.plugin("clock")
    (site.path / "polyhost_clock-1.0.dist-info" / "METADATA").unlink()
    assert records(scanned())["clock"].error is None


# --- blocking -------------------------------------------------------------------------------------------------------


def test_a_blocked_plugin_is_never_imported(site: Site) -> None:
    module = site.plugin("bad", "raise SystemExit")
    catalog = scanned()
    catalog.block("bad", "--disable-plugin")

    record = records(catalog, PluginRow("bad", "bad", source="user file"))["bad"]
    catalog.commands()

    assert (record.state, record.enabled, record.error) == ("blocked", False, None)
    assert record.source == "blocked by --disable-plugin"
    assert module not in sys.modules
    with pytest.raises(PluginError) as caught:
        catalog.load("bad")
    assert caught.value.code == "PLUGIN_BLOCKED"


def test_blocking_takes_out_a_loaded_plugin() -> None:
    catalog = PluginCatalog()
    catalog.add("a", plugin("a", polyhost_health=lambda ctx: {"ok": True}))
    loaded = catalog.load("a")
    catalog.block("a", "test")
    assert loaded.call("polyhost_health", ctx=None) is None


def test_a_part_of_the_host_cannot_be_blocked() -> None:
    with pytest.raises(PluginError) as caught:
        PluginCatalog({"sessions": plugin("sessions")}).block("sessions", "--disable-plugin")
    assert caught.value.code == "PLUGIN_ESSENTIAL"


@pytest.mark.case("CASE-07")
def test_a_disabled_plugin_is_not_imported_and_shows_no_error(site: Site) -> None:
    module = site.plugin("bad", "raise SystemExit")
    record = records(scanned(), PluginRow("bad", "bad", enabled=False))["bad"]
    assert (record.state, record.enabled, record.error) == ("disabled", False, None)
    assert module not in sys.modules


# --- registration ---------------------------------------------------------------------------------------------------


async def _async_plugin() -> PluginInfo:
    return PluginInfo("bad")


def _raises() -> PluginInfo:
    raise RuntimeError("no info today")


REFUSED = {
    "unknown hook": (plugin("bad", polyhost_strat=lambda ctx: None), "unknown hook 'polyhost_strat'"),
    "unknown argument": (plugin("bad", polyhost_start=lambda ctx, conf: None), "conf"),
    "other api version": (plugin("bad", polyhost_plugin=lambda: PluginInfo("bad", api_version=2)), "upgrade the host"),
    "old api version": (plugin("bad", polyhost_plugin=lambda: PluginInfo("bad", api_version=0)), "upgrade the plugin"),
    "odd api version": (plugin("bad", polyhost_plugin=lambda: PluginInfo("bad", api_version="1")), "integer"),  # type: ignore[arg-type]
    "other name": (plugin("good"), "called 'bad', but PluginInfo.name is 'good'"),
    "no info": (plugin("bad", polyhost_plugin=lambda: {"name": "bad"}), "must return a PluginInfo, not dict"),
    "nothing": (plugin("bad", polyhost_plugin=lambda: None), "must return a PluginInfo, not NoneType"),
    "async info": (plugin("bad", polyhost_plugin=_async_plugin), "not async"),
    "raising info": (plugin("bad", polyhost_plugin=_raises), "no info today"),
    "wrong requires": (plugin("bad", polyhost_plugin=lambda: PluginInfo("bad", requires=("sessions",))), "ServiceKey"),  # type: ignore[arg-type]
    "wrong config": (plugin("bad", polyhost_plugin=lambda: PluginInfo("bad", config="Model")), "module:Model"),
    "no hooks": (object(), "no polyhost_plugin() hook"),
    "unmarked hook": (
        type("Bad", (), {"polyhost_plugin": staticmethod(lambda: PluginInfo("bad"))}),
        "without the @hookimpl mark",
    ),
}


@pytest.mark.case("CASE-07")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_a_plugin_is_refused_and_leaves_nothing_registered(kind: str) -> None:
    target, message = REFUSED[kind]
    catalog = PluginCatalog()
    catalog.add("bad", target)
    catalog.add("good", plugin("good"))

    bad = records(catalog)["bad"]

    assert bad.error is not None
    assert (bad.state, bad.error.stage) == ("broken", "register")
    assert message in bad.error.message
    assert catalog.loaded("bad") is None
    assert catalog.load("good").info.name == "good"


def test_one_object_cannot_be_two_plugins() -> None:
    both = plugin("a")
    catalog = PluginCatalog({"a": both, "b": both})
    catalog.load("a")
    with pytest.raises(PluginError, match="already registered as 'a'"):
        catalog.load("b")


def test_hooks_may_leave_out_arguments() -> None:
    catalog = PluginCatalog({"a": plugin("a", polyhost_start=lambda ctx: ctx)})
    assert catalog.load("a").call("polyhost_start", ctx=7, config=None) == 7


# --- static contributions -------------------------------------------------------------------------------------------


def test_commands_are_collected_without_importing_them(site: Site) -> None:
    site.plugin(
        "clock",
        """
        from polyhost import PluginInfo, hookimpl
        from polyhost.kernel.plugins import CommandSpec
        @hookimpl
        def polyhost_plugin():
            return PluginInfo("clock")
        @hookimpl
        def polyhost_cli():
            return [CommandSpec("clock", "Show the time.", "sample_clock_cli:main")]
        """,
    )
    site.plugin("bad", "1 / 0")
    assert scanned().commands()["clock"] == (CommandSpec("clock", "Show the time.", "sample_clock_cli:main"),)


async def _async_cli() -> list[CommandSpec]:
    return []


@pytest.mark.parametrize(
    "cli", [lambda: 1 / 0, lambda: ["run"], lambda: 5, _async_cli], ids=["raises", "strings", "number", "async"]
)
def test_a_failing_command_declaration_is_contained(cli: object) -> None:
    catalog = PluginCatalog()
    catalog.add("bad", plugin("bad", polyhost_cli=cli))
    catalog.add("good", plugin("good", polyhost_cli=lambda: [CommandSpec("good", "", "a:b")]))
    assert list(catalog.commands()) == ["good"]
    assert catalog.failure("bad") is not None
    record = records(catalog)["bad"]
    assert record.state == "broken"


def test_config_defaults() -> None:
    catalog = PluginCatalog(
        {
            "a": plugin("a", polyhost_config_defaults=lambda: {"port": 3080}),
            "b": plugin("b"),
            "c": plugin("c", polyhost_config_defaults=lambda: [1]),
        }
    )
    assert catalog.config_defaults("a") == {"port": 3080}
    assert catalog.config_defaults("b") == {}
    with pytest.raises(PluginError, match="must return a mapping"):
        catalog.config_defaults("c")


# --- records --------------------------------------------------------------------------------------------------------


@pytest.mark.case("CASE-08")
def test_an_invalid_configuration_is_shown_and_harms_nobody() -> None:
    class ConfigError(Exception):
        code = "CONFIG_INVALID"

    def resolve(info: PluginInfo, row: PluginRow) -> object:
        if "prot" in row.config:
            raise ConfigError("user.toml:3: plugins.clock.prot: unknown key; accepted: port")
        return None

    catalog = PluginCatalog({"clock": plugin("clock")})
    rows = [PluginRow("clock", "clock", config={"prot": 1}), PluginRow("second", "clock")]
    found = {record.id: record for record in survey(catalog, rows, resolve)}

    error = found["clock"].error
    assert error is not None
    assert (found["clock"].state, error.stage, error.code) == ("invalid", "configure", "CONFIG_INVALID")
    assert "accepted: port" in error.message
    assert found["second"].state == "enabled"


def test_two_rows_may_use_one_plugin_and_unconfigured_plugins_are_listed_too() -> None:
    catalog = PluginCatalog()
    catalog.add("clock", plugin("clock", polyhost_plugin=lambda: PluginInfo("clock", provides=(ServiceKey("time"),))))
    catalog.add("other", plugin("other"))
    found = records(catalog, PluginRow("one", "clock"), PluginRow("two", "clock", enabled=False))
    assert {(r.id, r.plugin, r.state) for r in found.values()} == {
        ("one", "clock", "enabled"),
        ("two", "clock", "disabled"),
        ("other", "other", "disabled"),
    }
    assert found["one"].provides == ("time",)
    assert found["other"].source == "not configured"


def test_a_failure_keeps_no_frames_and_flattens_groups() -> None:
    group = ExceptionGroup("several", [ValueError("one"), ExceptionGroup("inner", [OSError("two")])])
    failure = PluginFailure.of(group, "start")
    assert "ValueError: one" in failure.message
    assert "OSError: two" in failure.message
    assert len(PluginFailure.of(ValueError("x" * 9999), "start").message) <= 500
