"""Plugin records without a running host: what the configuration asks for, and what would become of it.

The records of a running host are :meth:`PluginHost.records`, which completes these with what its fibers say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from polyhost.kernel.catalog import LoadedPlugin, PluginCatalog
from polyhost.kernel.discovery import Candidate, Facts, contained
from polyhost.kernel.plugins import PluginError, PluginFailure, PluginInfo, PluginRecord, PluginRow

Resolve = Callable[[PluginInfo, PluginRow], object]
"""Validates a row's raw table for its plugin and returns the configuration object; raises to refuse it."""


def survey(catalog: PluginCatalog, rows: Iterable[PluginRow], resolve: Resolve | None = None) -> list[PluginRecord]:
    """One record per row, then one per plugin without a row, then one per claim that had to be refused.

    Imports the plugins, save blocked ones and those whose rows are all disabled. Never raises for a plugin's sake.

    :param resolve: also validate the configuration of enabled rows.
    """
    rows = tuple(rows)
    configured = {row.use for row in rows}
    records = [_surveyed(catalog, row, resolve) for row in rows]
    records += [_unconfigured(catalog, name) for name in catalog.names() if name not in configured]
    return records + refusals(catalog)


def outline(catalog: PluginCatalog, row: PluginRow) -> PluginRecord:
    """The record of ``row`` as far as it is known without importing anything now."""
    by = catalog.blocked_by(row.use)
    state = "blocked" if by is not None else "enabled" if row.enabled else "disabled"
    record = PluginRecord(row.id, row.use, state)
    record.essential = catalog.essential(row.use)
    record.source = f"blocked by {by}" if by is not None else row.source
    _describe_claims(record, catalog.claims(row.use))
    if (loaded := catalog.loaded(row.use)) is not None:
        _describe_plugin(record, loaded)
    return record


def refusals(catalog: PluginCatalog) -> list[PluginRecord]:
    """Records of what cannot even be a row: claims on essential names, and unreadable distributions."""
    records = []
    for candidate in catalog.refused():
        failure = PluginFailure(
            "discover", "PluginError", f"{candidate.name!r} is the name of a part of the host", code="PLUGIN_DUPLICATE"
        )
        records.append(_refused(f"{candidate.name}@{candidate.facts().distribution}", candidate.facts(), failure))
    records += [_refused(facts.distribution, facts, failure) for facts, failure in catalog.unreadable()]
    return records


def _surveyed(catalog: PluginCatalog, row: PluginRow, resolve: Resolve | None) -> PluginRecord:
    record = outline(catalog, row)
    if record.state != "enabled":
        return record
    try:
        loaded = catalog.load(row.use)
        _describe_plugin(record, loaded)
        if (failure := catalog.failure(row.use)) is not None:
            record.state, record.error = "broken", failure
        elif resolve is not None:
            with contained("configure", row.use, "its configuration is invalid"):
                resolve(loaded.info, row)
    except PluginError as error:
        record.state = "invalid" if error.stage == "configure" else "broken"
        record.error = PluginFailure.of(error, error.stage)
    return record


def _unconfigured(catalog: PluginCatalog, name: str) -> PluginRecord:
    record = _surveyed(catalog, PluginRow(name, name, source="not configured"), None)
    if record.state == "enabled":
        record.state = "disabled"
    record.enabled = False
    return record


def _refused(id: str, facts: Facts, failure: PluginFailure) -> PluginRecord:
    record = PluginRecord(id, id.partition("@")[0], "broken")
    record.distribution, record.version, record.summary = facts
    record.enabled = False
    record.error = failure
    return record


def _describe_claims(record: PluginRecord, claims: tuple[Candidate, ...]) -> None:
    facts = [claim.facts() for claim in claims]
    record.distribution = ", ".join(sorted(fact.distribution for fact in facts))
    record.version = ", ".join(fact.version for fact in facts)
    record.summary = facts[0].summary if len(facts) == 1 else ""


def _describe_plugin(record: PluginRecord, loaded: LoadedPlugin) -> None:
    record.summary = loaded.info.summary or record.summary
    record.module = getattr(loaded.plugin, "__file__", None) or ""
    record.provides = tuple(key.name for key in loaded.info.provides)
