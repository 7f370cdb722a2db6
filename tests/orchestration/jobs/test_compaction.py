"""The compaction job and the quarantine: what a dry run shows, and what a run removes and reports."""

from datetime import UTC, datetime

import dagster as dg
import polars as pl
import pytest

from tests.orchestration.applications import FLIGHTS
from tests.state.quarantine_folders import DAY_S, MIB, put, quarantined_while_open
from weir.orchestration.assets.materializations import commit_materializations
from weir.orchestration.jobs.compaction import compaction_job
from weir.orchestration.resources import WeirResource
from weir.pipelines.operations.compaction import compact_application
from weir.pipelines.operations.engines import Engine
from weir.pipelines.operations.registry import register
from weir.state.commit.files import write_file
from weir.state.commit.protocol import newest_commit

SPEC = FLIGHTS.table_specs["late_departures"]


@pytest.fixture
def compact(settings, instance, committer, commit_of):
    """``compact(**config)`` runs the job; its metadata as plain values, and its warnings."""
    register(settings, "flights", "weir.pipelines.examples.flights:app")
    committer.commit(commit_of(1))

    def run(**config: object) -> tuple[dict[str, object], list[str]]:
        result = compaction_job([FLIGHTS]).execute_in_process(
            instance=instance,
            resources={"weir": WeirResource(dir=str(settings.dir))},
            run_config={"ops": {"weir_compact": {"config": config}}},
        )
        assert result.success
        [output] = [event for event in result.all_node_events if event.is_successful_output]
        assert isinstance(output.event_specific_data.metadata, dict)
        lines = [
            entry.user_message
            for entry in instance.all_logs(result.run_id)
            if entry.level == 30  # warnings
        ]
        return {name: entry.value for name, entry in output.event_specific_data.metadata.items()}, lines

    return run


def test_a_dry_run_shows_the_folders_that_a_run_removes(compact, settings):
    state = settings.state_dir / "flights"
    old, young = put(state, "old", age_s=8 * DAY_S, mib=2), put(state, "young", age_s=6 * DAY_S)
    for config, is_there in (({"dry_run": True}, True), ({}, False)):
        metadata, _ = compact(**config)
        assert metadata["quarantine_removed"] == [str(old)]
        assert 2 * MIB <= metadata["quarantine_removed_bytes"] < 2.1 * MIB
        assert metadata["quarantine_kept"] == []
        assert old.exists() is is_there
    assert young.exists()
    assert compact()[0]["quarantine_removed"] == []


def test_a_folder_that_stays_is_a_warning(compact, settings):
    with quarantined_while_open(settings.state_dir / "flights", "used") as used:
        metadata, warnings = compact()
    assert metadata["quarantine_kept"] == [f"{used}: a process has it open"]
    assert f"{used} stays in quarantine: a process has it open" in warnings
    assert used.exists()


@pytest.mark.parametrize(("config", "engine"), [({}, None), ({"engine": "SPARK"}, Engine.SPARK)])
def test_the_job_says_what_merges(compact, monkeypatch, config, engine):
    asked: list[Engine | None] = []

    def noted(*arguments, engine: Engine | None, **options):
        asked.append(engine)
        return compact_application(*arguments, **options)

    monkeypatch.setattr("weir.orchestration.jobs.compaction.compact_application", noted)
    compact(**config)
    assert asked == [engine]


def facts(settings, epoch: int):
    """A file with one row of ``late_departures``."""
    row = {**dict.fromkeys(SPEC.schema), "window_start": datetime(2013, 1, 1, epoch, tzinfo=UTC), "_epoch": epoch}
    return write_file(settings.warehouse / "flights", SPEC, pl.DataFrame([row], schema=SPEC.schema))


@pytest.fixture
def recorded(instance):
    """``recorded(asset)`` are the asset's materializations, the oldest first."""

    def events(key: dg.AssetKey) -> list[dg.AssetMaterialization]:
        records = instance.fetch_materializations(key, limit=20).records
        return [record.asset_materialization for record in reversed(records)]

    return events


def numbers(event: dg.AssetMaterialization) -> dict[str, object]:
    """What Dagster plots."""
    types = (dg.IntMetadataValue, dg.FloatMetadataValue)
    return {name: entry.value for name, entry in event.metadata.items() if isinstance(entry, types)}


def test_a_compaction_materializes_its_asset_and_the_tables_whose_files_it_has_changed(
    compact, settings, instance, committer, commit_of, recorded
):
    for epoch in (2, 3, 4):
        committer.commit(commit_of(epoch, files=(facts(settings, epoch),)))
    newest, table = newest_commit(settings.warehouse, "flights"), FLIGHTS.tables["late_departures"]
    for event in commit_materializations(FLIGHTS, newest, instance, settings, health={}):
        instance.report_runless_asset_event(event)
    others = [key for key in FLIGHTS.tables.values() if key != table]
    size = sum(path.stat().st_size for path in (settings.warehouse / "flights" / "late_departures").rglob("*.parquet"))

    compact(dry_run=True)
    assert recorded(FLIGHTS.compaction) == []
    assert len(recorded(table)) == 1

    compact()
    before, after = recorded(table)
    assert numbers(after).items() >= {"files_before": 3, "files_after": 1, "rows_before": 3, "rows_after": 3}.items()
    assert numbers(after)["bytes_before"] == size
    assert 0 < numbers(after)["bytes_after"] < size
    assert numbers(after)["seconds"] >= 0
    assert after.tags == before.tags, "nothing downstream turns stale"
    assert before.metadata.items() <= after.metadata.items(), "what the commit has said stays to be seen"
    [total] = recorded(FLIGHTS.compaction)
    log_files = numbers(total)["files_before"] - 3
    assert log_files >= 4, "of the commit log"
    assert numbers(total)["files_after"] < numbers(total)["files_before"]
    assert {"rows_before", "rows_after", "bytes_before", "bytes_after", "seconds"} <= numbers(total).keys()
    assert [len(recorded(key)) for key in others] == [1] * len(others), "there was nothing to merge"
    assert len(recorded(FLIGHTS.ingest)) == 1

    compact()
    assert len(recorded(FLIGHTS.compaction)) == 2
    committer.commit(commit_of(5, files=(facts(settings, 5),)))
    compact()
    assert [numbers(event).get("files_after") for event in recorded(table)] == [None, 1, 1]


def test_a_compaction_of_one_store_materializes_no_other_table(compact, recorded):
    compact(store="hourly")
    [event] = recorded(FLIGHTS.compaction)
    assert numbers(event)["tables"] == 2, "the changelog, and the commit log"
